#!/usr/bin/env python3
"""cast.py SEED OUTDIR - write floating-point tensors, and the same cast to other types by real torch.

OUTDIR/ckpt is a DCP checkpoint of the tensors f64, f32, f16 and bf16: all patterns of 16 bits, or
random and special ones of 32 and 64 bits. OUTDIR/expected/NAME.DTYPE.bin is tensor.to(DTYPE), for
float32, float16 and bfloat16, and the tensor itself under its own type. All is a function of SEED.

NaNs are compared, too. Which NaN a cast gives depends on the CPU and on the element's place (see
core/codec/cast.h); expected are those of AVX2 and AVX-512 in whole vectors. So the script fails on
older CPUs, and lengths are multiples of a vector's.
"""
import os
import sys

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

VECTOR = 64  # elements; a multiple of any vector's
DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BITS = {"f64": "u8", "f32": "u4", "f16": "u2", "bf16": "u2"}
FORMATS = {"f64": (11, 52), "f32": (8, 23), "f16": (5, 10), "bf16": (8, 7)}  # exponent, mantissa


def specials(name):
    """Every exponent, with the mantissas at which the result in one of the formats changes."""
    exponent, mantissa = FORMATS[name]
    ones = (1 << mantissa) - 1
    edges = {0, 1, 2, ones, ones - 1}
    for _, m in FORMATS.values():
        for cut in {m, m - 1, m + 1} & set(range(mantissa + 1)):  # lowest bit kept, and halfway
            last = 1 << (mantissa - cut)
            edges |= {(last + d) & ones for d in (-1, 0, 1)}
            edges |= {(3 * last + d) & ones for d in (-1, 0, 1)}
            edges |= {(-last + d) & ones for d in (-1, 0, 1)}
    m = np.array(sorted(edges), np.uint64)
    e = np.arange(1 << exponent, dtype=np.uint64) << np.uint64(mantissa)
    positive = (e[:, None] | m[None, :]).reshape(-1)
    return np.concatenate([positive, positive | np.uint64(1 << (exponent + mantissa))])


def near_float32(r, count):
    """Doubles that are float32 numbers of medium size, or half way between two, or next to that."""
    u = r.integers(0, 1 << 32, count, np.uint64).astype(np.uint32)
    size = r.integers(127 - 30, 127 + 20, count).astype(np.uint32)  # the exponents of float16 and some more
    d = (u & 0x807fffff | size << np.uint32(23)).view(np.float32).astype(np.float64)
    step = np.array([-1, 0, 1, (1 << 28) - 1, 1 << 28, (1 << 28) + 1], np.int64)
    return (d.view(np.int64) + r.choice(step, count)).view(np.uint64)


def patterns(r, name):
    if name in ("f16", "bf16"):
        return np.arange(1 << 16, dtype=np.uint16)
    everything = 1 << (64 if name == "f64" else 32)
    parts = [specials(name)]
    if name == "f64":
        parts += [near_float32(r, 1_000_000), r.integers(0, everything, 1_000_000, np.uint64)]
    else:
        parts += [r.integers(0, everything, 10_000_000, np.uint64)]
    u = r.permutation(np.concatenate(parts).astype("<" + BITS[name]))
    return u[:len(u) // VECTOR * VECTOR]


def main():
    seed, out = int(sys.argv[1]), sys.argv[2]
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        sys.exit("cast.py: this CPU has no AVX2, so torch gives other NaNs")
    torch.set_num_threads(1)  # threads would divide a tensor inside of vectors
    os.makedirs(os.path.join(out, "expected"))
    tensors = {}
    for i, (name, dtype) in enumerate(DTYPES.items()):
        bits = patterns(np.random.default_rng([seed, i]), name)
        tensors[name] = torch.from_numpy(bits.view(bits.dtype.str.replace("u", "i"))).view(dtype)
        for target in {dtype, torch.float32, torch.float16, torch.bfloat16}:
            label = str(target).removeprefix("torch.")
            with open(os.path.join(out, "expected", f"{name}.{label}.bin"), "wb") as f:
                f.write(tensors[name].to(target).view(torch.uint8).numpy())
    dcp.save(tensors, checkpoint_id=os.path.join(out, "ckpt"), no_dist=True)


main()
