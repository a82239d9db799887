#!/usr/bin/env python3
"""python_check.py DATA OUT - ckptfs.py's torch tensors, compared with what torch loads.

DATA is tests/data, OUT a directory to write in. Prints a line for each difference, then
"N passed, M failed".
"""
import hashlib
import json
import os
import pathlib
import sys
import threading
import traceback

import ckptfs
import torch
import torch.distributed.checkpoint as dcp
import transformers
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

DATA, OUT = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
CASES = ["dtypes", "special_floats", "mp4_fsdp2_adamw", "mp4_mesh2d", "shapes", "zstd", "plain",
         "weird_fqns"]


def bits(t):
    """The bytes of a tensor of any type."""
    return bytes(t.contiguous().untyped_storage()[:t.numel() * t.element_size()])


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


def main():
    os.environ["HF_HUB_OFFLINE"] = "1"
    passed = failed = 0
    for check in (check_all_types, check_megatron, check_threads, check_numpy):
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
