#!/usr/bin/env python3
"""python_check.py DATA OUT [CHECK...] - compare the package's torch tensors with what torch loads.

DATA is tests/data, OUT a directory to write in; the default is all CHECKs. Prints a line for each difference, then
"N passed, M failed".
"""
import abc
import hashlib
import json
import os
import pathlib
import random
import sys
import threading
import traceback
import types

import ckptfs
import ckptfs.vllm
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
import transformers
from ckptfs.dcp import StorageReader
from ckptfs.transformers import from_pretrained
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

DATA, OUT = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
CASES = ["dtypes", "special_floats", "mp4_fsdp2_adamw", "mp4_mesh2d", "shapes", "zstd", "plain",
         "weird_fqns"]


def bits(t):
    """The bytes of a tensor of any type."""
    return bytes(t.clone(memory_format=torch.contiguous_format).untyped_storage()[:t.numel() * t.element_size()])


def load(path):
    """All tensors of a DCP checkpoint, by torch."""
    reader = dcp.FileSystemReader(path)
    state = {name: torch.empty(m.size, dtype=m.properties.dtype)
             for name, m in reader.read_metadata().state_dict_metadata.items()
             if isinstance(m, TensorStorageMetadata)}
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state


def check_types(case):
    path = DATA / case / "ckpt"
    want = load(path)
    with ckptfs.open(path) as ck:
        assert set(ck) == set(want) and want, set(ck) ^ set(want)
        for name, w in want.items():
            got = ck.torch(name)
            assert got.dtype == w.dtype and got.shape == w.shape, (name, got.dtype, got.shape)
            assert bits(got) == bits(w), name
            if w.ndim and w.shape[0] > 1:
                assert bits(ck.torch(name, slice(1, None, 2))) == bits(w[1::2].clone()), name
                room = torch.empty([*w.shape, 2], dtype=w.dtype)[..., 1]  # with gaps
                ck.tensor(name).read_into(room)
                assert bits(room.clone()) == bits(w), name
    return {str(w.dtype) for w in want.values()}


def check_all_types():
    seen = set().union(*map(check_types, CASES))
    # Tensors of every type that torch.empty can make and torch.save can write.
    assert len(seen) >= 20, sorted(seen)


def megatron_config():
    """The transformers config of the model in the fixture mcore_gpt_dense, and the digests of its weights."""
    with open(DATA / "mcore_gpt_dense/expected_hf.json", encoding="utf-8") as f:
        expected = json.load(f)
    arch = expected["arch"]
    config = transformers.Qwen3Config(
        **{k: arch[k] for k in ("head_dim", "hidden_size", "intermediate_size", "vocab_size",
                                "num_attention_heads", "num_hidden_layers", "num_key_value_heads")},
        attention_bias=True, tie_word_embeddings=False, dtype="bfloat16")
    return config, expected["tensors"]


def check_megatron():
    config, expected = megatron_config()
    config.save_pretrained(OUT / "assets")
    model = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    for p in model.parameters():
        torch.nn.init.zeros_(p)
    with ckptfs.open(DATA / "mcore_gpt_dense/ckpt", recipe="megatron", assets=OUT / "assets") as ck:
        odd = model.load_state_dict({name: ck.model.torch(name) for name in ck.model}, strict=False)
    # With attention_bias, transformers wants one bias more than Megatron's checkpoint has.
    assert not odd.unexpected_keys, odd
    assert all(k.endswith("o_proj.bias") for k in odd.missing_keys), odd
    state = model.state_dict()
    for name, want in expected.items():
        assert hashlib.sha256(bits(state[name])).hexdigest() == want["sha256"], name
    assert len(expected) + len(odd.missing_keys) == len(state)
    logits = model.eval()(torch.arange(8)[None]).logits
    assert logits.isfinite().all() and logits.std() > 0
    # The same in one call; a missing weight is an error unless strict=False.
    try:
        from_pretrained(transformers.Qwen3ForCausalLM, DATA / "mcore_gpt_dense/ckpt", recipe="megatron",
                        assets=OUT / "assets")
    except ckptfs.Error as e:
        assert "it lacks 'model.layers.0.self_attn.o_proj.bias', " in str(e), e
    else:
        raise AssertionError("there are no biases of o_proj")
    one = from_pretrained(transformers.Qwen3ForCausalLM, DATA / "mcore_gpt_dense/ckpt", recipe="megatron",
                          assets=OUT / "assets", strict=False)
    for name, p in one.named_parameters():
        if name.endswith("o_proj.bias"):
            torch.nn.init.zeros_(p)
    assert all(same_tensor(t, state[name]) for name, t in one.state_dict().items()), list(state)


def check_transformers():
    """A model from a training checkpoint has the same logits as from save_pretrained, and no file is written."""
    torch.manual_seed(3)
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}
    for config in (transformers.LlamaConfig(**sizes), transformers.Qwen3Config(**sizes, tie_word_embeddings=True),
                   transformers.Qwen3MoeConfig(**sizes, **experts)):
        out = OUT / f"hf-{config.model_type}"
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        model.generation_config.max_length = 77
        model.save_pretrained(out)
        dcp.save({"model": model.state_dict(), "optim": {"x": torch.ones(3)}}, checkpoint_id=OUT / f"dcp-{config.model_type}",
                 no_dist=True)
        tokens = torch.arange(9)[None]
        want = transformers.AutoModelForCausalLM.from_pretrained(out).eval()(tokens).logits
        assert torch.equal(want, model(tokens).logits)
        for cls in transformers.AutoModelForCausalLM, type(model):
            got = from_pretrained(cls, OUT / f"dcp-{config.model_type}", assets=out)
            assert type(got) is type(model) and got.generation_config.max_length == 77
            assert torch.equal(got.eval()(tokens).logits, want), config.model_type
        wide = from_pretrained(cls, OUT / f"dcp-{config.model_type}", config=config, dtype=torch.float64)
        assert wide.dtype == torch.float64
    try:
        from_pretrained(cls, OUT / "dcp-llama")
    except FileNotFoundError as e:
        assert "config.json" in str(e), e
    else:
        raise AssertionError("there is no config.json")


def check_dequantize():
    """Weights of float8 with a scale for each block are decoded to torch's bits: logits are equal."""
    torch.manual_seed(5)
    block = 16
    config = transformers.LlamaConfig(vocab_size=48, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, dtype="bfloat16")
    plain = transformers.AutoModelForCausalLM.from_config(config).eval()
    stored, out = {}, OUT / "float8"
    for name, t in plain.state_dict().items():
        if not name.endswith("_proj.weight"):
            stored[name] = t.contiguous()
            continue
        scales = torch.rand(-(-t.shape[0] // block), -(-t.shape[1] // block)) / 64 + 0.001
        each = scales.repeat_interleave(block, 0)[:t.shape[0]].repeat_interleave(block, 1)[:, :t.shape[1]]
        stored[name] = (t.float() / each).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored[name + "_scale_inv"] = scales
        t.copy_(stored[name].float() * each)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(out)
    about = json.loads((out / "config.json").read_text())
    about["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [block, block], "fmt": "e4m3"}
    (out / "config.json").write_text(json.dumps(about))
    safetensors.torch.save_file(stored, out / "model.safetensors", {"format": "pt"})
    tokens = torch.arange(9)[None]
    got = from_pretrained(transformers.AutoModelForCausalLM, out, dequantize="bf16", dtype=torch.bfloat16).eval()
    assert all(same_tensor(t, got.state_dict()[name]) for name, t in plain.state_dict().items())
    assert torch.equal(got(tokens).logits, plain(tokens).logits)


def check_vllm():
    """The loader for vLLM, with fake classes that have the names and signatures of vLLM's."""
    registered = {}

    class BaseModelLoader(abc.ABC):
        def __init__(self, load_config):
            self.load_config = load_config

        @abc.abstractmethod
        def download_model(self, model_config): ...

        @abc.abstractmethod
        def load_weights(self, model, model_config): ...

    def register_model_loader(load_format):
        def wrapper(cls):
            assert issubclass(cls, BaseModelLoader)
            registered[load_format] = cls
            return cls
        return wrapper

    for name in "vllm", "vllm.model_executor", "vllm.model_executor.model_loader", "vllm.model_executor.model_loader.base_loader":
        sys.modules[name] = types.ModuleType(name)
    sys.modules["vllm.model_executor.model_loader"].register_model_loader = register_model_loader
    sys.modules["vllm.model_executor.model_loader.base_loader"].BaseModelLoader = BaseModelLoader
    ckptfs.vllm.register()
    config, expected = megatron_config()

    class Model(torch.nn.Module):
        """Like vLLM's models: it takes names and tensors, and returns the names that it has used."""

        def __init__(self, *more):
            super().__init__()
            self.got, self.more = {}, more

        def named_parameters(self, **_):
            return [(name, None) for name in [*expected, *self.more]]

        def load_weights(self, weights):
            self.got = dict(weights)
            return set(self.got)

    model_config = types.SimpleNamespace(model=str(OUT / "assets"), quantization=None)
    for extra in {}, {"threads": 1}, {"assets": str(OUT / "assets")}:
        load_config = types.SimpleNamespace(load_format="ckptfs", model_loader_extra_config={
            "path": str(DATA / "mcore_gpt_dense/ckpt"), "recipe": "megatron", **extra})
        loader, model = registered["ckptfs"](load_config), Model()
        loader.download_model(model_config)
        loader.load_weights(model, model_config)
        assert {n: hashlib.sha256(bits(t)).hexdigest() for n, t in model.got.items()} == {
            n: t["sha256"] for n, t in expected.items()}
        try:
            loader.load_weights(Model("model.x", "model.y"), model_config)
        except ckptfs.Error as e:
            assert "it lacks model.x, model.y" in str(e), e
        else:
            raise AssertionError("model.x is not there")
    # The default path is the model's directory; reading less ahead gives the same.
    loader = registered["ckptfs"](types.SimpleNamespace(model_loader_extra_config={}))
    with ckptfs.open(OUT / "hf-llama") as ck:
        for ahead in 0, 1 << 10, 1 << 30:
            assert {n: bits(t) for n, t in ckptfs.vllm.weights(ck.model, ahead=ahead)} == {
                n: bits(ck.model.torch(n)) for n in ck.model}
        some = ckptfs.vllm.weights(ck.model)
        next(some)
        some.close()
    model = Model()
    model.named_parameters = lambda: []
    loader.load_weights(model, types.SimpleNamespace(model=str(OUT / "hf-llama"), quantization=None))
    assert "model.embed_tokens.weight" in model.got
    try:
        loader.download_model(types.SimpleNamespace(model="/no/where"))
    except FileNotFoundError:
        pass
    else:
        raise AssertionError("/no/where")


def check_threads():
    """Ten threads fill the parameters of a module, each its own."""
    path = DATA / "mp4_fsdp2_adamw/ckpt"
    want = load(path)
    with ckptfs.open(path, cache=1 << 20) as ck:
        have = {name: torch.zeros_like(w) for name, w in want.items()}
        names = iter(list(want) * 3)
        lock = threading.Lock()

        def work():
            while True:
                with lock:
                    name = next(names, None)
                if name is None:
                    return
                ck.tensor(name).read_into(have[name])
        threads = [threading.Thread(target=work) for _ in range(10)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert all(bits(have[name]) == bits(want[name]) for name in want)


def check_numpy():
    """Types that NumPy lacks are refused and not taken for others."""
    with ckptfs.open(DATA / "dtypes/ckpt") as ck:
        assert torch.equal(torch.from_numpy(ck["float32"]), ck.torch("float32"))
        try:
            import ml_dtypes
        except ImportError:
            try:
                ck["bfloat16"]
            except TypeError as e:
                assert "ml_dtypes" in str(e), e
            else:
                raise AssertionError("bfloat16 is none of NumPy's types")
        else:
            assert ck["bfloat16"].dtype == ml_dtypes.bfloat16


def same_tensor(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)


def random_slices(r, shape):
    """Indices that safetensors accepts: a slice or an integer for some of the first dimensions."""
    found = []
    for size in shape[:r.randrange(len(shape) + 1)]:
        ends = [None] + list(range(size + 1))
        found.append(r.randrange(size) if size and r.random() < 0.3 else
                     slice(r.choice(ends), r.choice(ends), r.choice([None, 1, 2, 3])))
    return tuple(found) or slice(None)


def check_safetensors_interface():
    """Compared with safetensors itself on a converted copy: every type that it has, and slices."""
    r = random.Random(22)
    (OUT / "any").mkdir()
    (OUT / "any/config.json").write_text("{}")
    types = set()
    for case in CASES:
        path, copy = DATA / case / "ckpt", OUT / f"{case}.safetensors"
        with ckptfs.open(path, assets=OUT / "any") as ck:
            if not len(ck.model) or case == "weird_fqns":
                continue
            copy.write_bytes(ck.read("hf/model.safetensors"))
        want = safetensors.torch.load_file(copy)
        for threads in 0, 1, 4:
            got = ckptfs.load_file(path, threads=threads)
            assert all(same_tensor(got[name], want[name]) for name in want), case
            # Only types that safetensors lacks may be missing there.
            assert {got[name].dtype for name in set(got) - set(want)} <= {
                torch.complex128, torch.complex32, torch.float4_e2m1fn_x2}, (case, set(got) ^ set(want))
        with ckptfs.safe_open(path, framework="pt") as mine, safetensors.safe_open(copy, framework="pt") as theirs:
            assert set(mine.keys()) == set(got) == set(mine.offset_keys())
            assert mine.metadata() == theirs.metadata()
            for name in theirs.keys():
                a, b = mine.get_slice(name), theirs.get_slice(name)
                assert (a.get_shape(), a.get_dtype()) == (b.get_shape(), b.get_dtype()), name
                assert same_tensor(mine.get_tensor(name), theirs.get_tensor(name)), name
                types.add(a.get_dtype())
                for _ in range(8 if a.get_dtype() != "F4" else 0):  # elements that are half a byte
                    index = random_slices(r, b.get_shape())
                    try:
                        wanted = b[index]
                    except Exception:  # safetensors refuses some indices, such as empty slices
                        continue
                    assert same_tensor(a[index], wanted.contiguous()), (name, index)
            assert {n: bits(t) for n, t in mine.get_tensors().items()} == {n: bits(t) for n, t in got.items()}
    assert {"BOOL", "BF16", "F8_E4M3", "F8_E5M2", "C64", "I16"} <= types, types


def check_dlpack():
    with ckptfs.open(DATA / "dtypes/ckpt") as ck:
        for name in ck:
            t = ck.tensor(name)
            if t.dtype.startswith("float8") or not t.shape:
                continue  # torch's DLPack lacks these types
            try:
                got = torch.from_dlpack(t)
            except (BufferError, RuntimeError) as e:
                assert t.dtype in ("uint16", "uint32", "uint64"), (t, e)
                continue
            assert same_tensor(got, t.torch()), t
        state = ck.state_dict()
        assert list(state) == list(ck) and all(same_tensor(state[name], ck.torch(name)) for name in ck)
        assert next(iter(ck.state_dict(device="meta").values())).device.type == "meta"
        with torch.device("meta"):  # as the default device it has no CPU memory to read into
            inside = ck.torch("float32"), ck.state_dict()["float32"]
        assert all(same_tensor(t, ck.torch("float32")) for t in inside)
        try:
            ckptfs._load._new_torch(type("T", (ckptfs.Tensor,), {"__init__": lambda self: vars(self).update(
                dtype="float3", shape=(), itemsize=1, name="x")})())
        except TypeError as e:
            assert "which torch" in str(e), e
        else:
            raise AssertionError("torch has no float3")


def check_rooms_without_elements():
    """Tensors whose memory does not hold their elements are refused, not written to."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def said(function, *args):
        try:
            function(*args)
        except (ValueError, RuntimeError) as e:
            return str(e)
        return ""
    with ckptfs.open(DATA / "dtypes/ckpt") as ck:
        c = ck.tensor("complex64")
        shape = c.shape
        assert "conjugated" in said(c.read_into, torch.zeros(shape, dtype=torch.complex64).conj())
        t = ck.tensor("float32")
        assert "negated" in said(t.read_into, torch._neg_view(torch.zeros(t.shape)))
        kind = type("Wrapper", (torch.Tensor,), {"__torch_dispatch__": lambda *_: None})
        wrapper = torch.Tensor._make_wrapper_subclass(kind, t.shape, dtype=torch.float32)
        with FakeTensorMode():
            fake = torch.zeros(t.shape)
            assert "in memory" in said(t.torch)
        for room in fake, wrapper:
            assert "in memory" in said(t.read_into, room), type(room)
    with ckptfs.open(DATA / "shapes/ckpt") as ck:
        t = next(t for t in map(ck.tensor, ck) if t.ndim == 2 and min(t.shape) > 2)
        n, m = t.shape
        dtype = t.torch_dtype()
        for room in (torch.zeros(1, m, dtype=dtype).expand(n, m), torch.zeros(n, 1, dtype=dtype).expand(n, m),
                     torch.zeros(n + m, dtype=dtype).as_strided((n, m), (1, 1))):
            assert "share memory" in said(t.read_into, room) and not room.any(), room.stride()
        try:
            dcp.load({t.name: torch.zeros(1, m, dtype=dtype).expand(n, m)}, storage_reader=StorageReader(DATA / "shapes/ckpt"),
                     no_dist=True)
        except BaseException as e:  # CheckpointException is one
            assert f"tensor '{t.name}': there is no room" in str(e), e
        else:
            raise AssertionError("elements share memory")
        room = torch.zeros(3 * n * m, dtype=dtype).as_strided((n, m), (2, 2 * n + 1))
        t.read_into(room)
        assert bits(room) == bits(t.torch())


def main():
    os.environ["HF_HUB_OFFLINE"] = "1"
    passed = failed = 0
    checks = (check_all_types, check_megatron, check_transformers, check_dequantize, check_vllm, check_threads,
              check_numpy, check_safetensors_interface, check_dlpack, check_rooms_without_elements)
    for check in checks:
        if sys.argv[3:] and check.__name__.removeprefix("check_") not in sys.argv[3:]:
            continue
        try:
            check()
            passed += 1
        except Exception:
            failed += 1
            print(f"{check.__name__}:")
            traceback.print_exc(file=sys.stdout)
    print(f"{passed} passed, {failed} failed")
    return failed != 0


sys.exit(main())
