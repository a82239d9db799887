# SPDX-License-Identifier: Apache-2.0
"""GGUF files of random blocks, and the values that libggml computes from them; see dequant.py.

    dequant_gguf.py SEED DIR     writes DIR/CASE/ckpt, DIR/CASE/expected/DTYPE/NAME
"""
import ctypes
import os
import sys

import gguf
import numpy
import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
T = gguf.GGMLQuantizationType
NO_BLOCKS = (T.F32, T.F16, T.BF16, T.F64, T.I8, T.I16, T.I32, T.I64)
# Q8_1 is for activations; ckptfs does not know Q1_0 and Q2_0, which are newer.
NOT_KNOWN = (T.Q8_1, T.Q1_0, T.Q2_0)
GGML = ctypes.CDLL("libggml-base.so.0")


def values(kind, blocks):
    """The float32 values of these blocks."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    out = numpy.empty(blocks.size // size * elements, numpy.float32)
    run = getattr(GGML, f"dequantize_row_{kind.name.lower().replace('_k', '_K')}")
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    run.restype = None
    run(blocks.ctypes.data, out.ctypes.data, out.size)
    return torch.from_numpy(out)


def write(path, kinds, rng, expected):
    w = gguf.GGUFWriter(path, "none")
    w.add_string("a.text", "x")
    for kind in kinds:
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        for i, shape in enumerate([(1,), (3, 2), (2, 3, 5), (2, 1, 2, 3)]):
            blocks = rng.integers(0, 256, shape[:-1] + (shape[-1] * size,), numpy.uint8)
            if i % 2:  # in every second block, scales of ordinary size
                blocks[..., 1::size] &= 0xbf
                blocks[..., size - 1::size] &= 0xbf
            name = f"{kind.name}.{i}"
            w.add_tensor(name, blocks, raw_dtype=kind)
            full = values(kind, blocks)
            expected[name] = lambda dtype, full=full: full.to(dtype)
    norm = rng.standard_normal(7).astype(numpy.float32)
    w.add_tensor("model.norm.weight", norm)
    expected["model.norm.weight"] = lambda dtype: torch.from_numpy(norm)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    rng = numpy.random.default_rng(int(sys.argv[1]))
    kinds = [k for k in T if k not in NO_BLOCKS + NOT_KNOWN]
    root = os.path.join(sys.argv[2], "gguf-types")
    expected = {}
    os.makedirs(os.path.join(root, "ckpt"))
    write(os.path.join(root, "ckpt/model.gguf"), kinds, rng, expected)
    for word, dtype in DTYPES.items():
        at = os.path.join(root, "expected", word)
        os.makedirs(at)
        for name, weight in expected.items():
            with open(os.path.join(at, name), "wb") as f:
                f.write(weight(dtype).contiguous().view(torch.uint8).numpy().tobytes())


if __name__ == "__main__":
    main()
