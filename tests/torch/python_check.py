#!/usr/bin/env python3
"""python_check.py DATA OUT - the package's torch tensors, compared with what torch loads.

DATA is tests/data, OUT a directory to write in. Prints a line for each difference, then
"N passed, M failed".
"""
import hashlib
import json
import os
import pathlib
import random
import sys
import threading
import traceback

import ckptfs
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
import transformers
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
    # What torch.empty makes and torch.save writes.
    assert len(seen) >= 20, sorted(seen)


def check_megatron():
    with open(DATA / "mcore_gpt_dense/expected_hf.json", encoding="utf-8") as f:
        expected = json.load(f)
    arch = expected["arch"]
    config = transformers.Qwen3Config(
        **{k: arch[k] for k in ("head_dim", "hidden_size", "intermediate_size", "vocab_size",
                                "num_attention_heads", "num_hidden_layers", "num_key_value_heads")},
        attention_bias=True, tie_word_embeddings=False)
    config.save_pretrained(OUT / "assets")
    model = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    for p in model.parameters():
        torch.nn.init.zeros_(p)
    with ckptfs.open(DATA / "mcore_gpt_dense/ckpt", recipe="megatron", assets=OUT / "assets") as ck:
        odd = model.load_state_dict({name: ck.model.torch(name) for name in ck.model}, strict=False)
    # Its projections have biases all but one of which Megatron's have.
    assert not odd.unexpected_keys, odd
    assert all(k.endswith("o_proj.bias") for k in odd.missing_keys), odd
    state = model.state_dict()
    for name, want in expected["tensors"].items():
        assert hashlib.sha256(bits(state[name])).hexdigest() == want["sha256"], name
    assert len(expected["tensors"]) + len(odd.missing_keys) == len(state)
    logits = model.eval()(torch.arange(8)[None]).logits
    assert logits.isfinite().all() and logits.std() > 0


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
    """What torch.from_numpy has no type for is refused, and not taken for another."""
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
    """Indices that safetensors takes: a slice or an integer for some of the first dimensions."""
    found = []
    for size in shape[:r.randrange(len(shape) + 1)]:
        ends = [None] + list(range(size + 1))
        found.append(r.randrange(size) if size and r.random() < 0.3 else
                     slice(r.choice(ends), r.choice(ends), r.choice([None, 1, 2, 3])))
    return tuple(found) or slice(None)


def check_safetensors_interface():
    """What safetensors itself says of the converted copy, of every type that it has, and of slices."""
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
            # Types that safetensors does not have.
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
                    except Exception:  # what it does not take, such as a slice that is empty
                        continue
                    assert same_tensor(a[index], wanted.contiguous()), (name, index)
            assert {n: bits(t) for n, t in mine.get_tensors().items()} == {n: bits(t) for n, t in got.items()}
    assert {"BOOL", "BF16", "F8_E4M3", "F8_E5M2", "C64", "I16"} <= types, types


def check_dlpack():
    with ckptfs.open(DATA / "dtypes/ckpt") as ck:
        for name in ck:
            t = ck.tensor(name)
            if t.dtype.startswith("float8") or not t.shape:
                continue  # which DLPack, as torch speaks it, has not
            try:
                got = torch.from_dlpack(t)
            except (BufferError, RuntimeError) as e:
                assert t.dtype in ("uint16", "uint32", "uint64"), (t, e)
                continue
            assert same_tensor(got, t.torch()), t
        state = ck.state_dict()
        assert list(state) == list(ck) and all(same_tensor(state[name], ck.torch(name)) for name in ck)
        assert next(iter(ck.state_dict(device="meta").values())).device.type == "meta"
        try:
            ckptfs._load._new_torch(type("T", (ckptfs.Tensor,), {"__init__": lambda self: vars(self).update(
                dtype="float3", shape=(), itemsize=1, name="x")})())
        except TypeError as e:
            assert "which torch" in str(e), e
        else:
            raise AssertionError("torch has no float3")


def main():
    os.environ["HF_HUB_OFFLINE"] = "1"
    passed = failed = 0
    for check in (check_all_types, check_megatron, check_threads, check_numpy, check_safetensors_interface,
                  check_dlpack):
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
