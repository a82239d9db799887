"""Compare what `ckptfs head` prints with what NumPy prints: head.py CKPTFS DIR TENSORS SEED"""
import itertools
import json
import os
import random
import struct
import subprocess
import sys

import numpy as np

ckptfs, where, count, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
print("seed", seed)
random.seed(seed)
rng = np.random.default_rng(seed)
NAMES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16",
         "int8": "I8", "uint8": "U8", "uint64": "U64", "bool": "BOOL", "complex64": "C64"}


def values(dtype, shape):
    n = int(np.prod(shape))
    how = random.randrange(6)
    if dtype == "bool":
        return rng.integers(0, 2, n).astype(bool).reshape(shape)
    if dtype.startswith(("int", "uint")):
        i = np.iinfo(dtype)
        if how < 3:
            return rng.integers(max(i.min, -100), 100, n).astype(dtype).reshape(shape)
        return rng.integers(i.min, i.max, n, dtype=dtype, endpoint=True).reshape(shape)
    v = rng.standard_normal(n)
    if dtype == "complex64":
        if not shape:  # NumPy writes a single number differently
            parts = [random.choice([0, -0.0, 1, -2.5, 1e-7, 1e16, 3e20, np.nan, np.inf, -np.inf, v[0]]) for _ in range(2)]
            return np.array(complex(*parts), dtype)
        return (v + 1j * rng.standard_normal(n)).astype(dtype).reshape(shape)
    if how == 1:
        v = np.round(v * 4)
    elif how == 2 or not shape:
        v = v * 10.0 ** rng.integers(-9, 22 if not shape else 9, n)
    elif how == 3:
        v = 2.0 ** rng.integers(-13, 14, n)
    elif how == 4:
        v[rng.integers(0, n, max(n // 4, 1)) if n else []] = random.choice([np.nan, np.inf, -np.inf, 0, -0.0])
    elif how == 5:
        v = v * 1e-3
    with np.errstate(over="ignore"):
        return v.astype(dtype).reshape(shape)


tensors = {}
for i in range(count):
    dtype = random.choice(list(NAMES))
    shape = tuple(random.choice([0, 1, 2, 3, 5, 7, 11, 40]) for _ in range(random.randrange(4)))
    if random.randrange(5) == 0:
        shape = (random.randrange(1, 3000),)
    tensors[f"t{i}"] = values(dtype, shape)

# Numbers are closer together below a power of two, where the shortest digits of some are not the nearest ones.
for i, exp in enumerate((-96, 87, 90, -149, -126, 127, -1017)):
    tensors[f"p{i}"] = np.array(2.0**exp, "float64" if exp == -1017 else "float32")

head, data = {}, b""
for name, a in tensors.items():
    raw = a.tobytes()
    head[name] = {"dtype": NAMES[a.dtype.name], "shape": a.shape, "data_offsets": [len(data), len(data) + len(raw)]}
    data += raw
text = json.dumps(head).encode()
path = os.path.join(where, "all.safetensors")
with open(path, "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + data)


def slices(shape):
    if not shape or random.randrange(3) == 0:
        return None, ()
    parts, index = [], []
    for n in shape[:random.randrange(1, len(shape) + 1)]:
        if n and random.randrange(3) == 0:
            i = random.randrange(-n, n)
            parts.append(str(i))
            index.append(i)
        else:
            a, b = random.choice([None, random.randrange(-n - 1, n + 2)]), random.choice([None, random.randrange(-n - 1, n + 2)])
            c = random.choice([None, 1, 2, 3])
            parts.append(f"{'' if a is None else a}:{'' if b is None else b}{'' if c is None else f':{c}'}")
            index.append(slice(a, b, c))
    return "[" + ", ".join(parts) + "]", tuple(index)


for name, a in tensors.items():
    text, index = slices(a.shape)
    wanted = a[index]
    got = subprocess.run([ckptfs, "head", "--index=:memory:", path, name] + ([text] if text else []), check=True,
                         capture_output=True, text=True).stdout[:-1]
    for mine, numpys in itertools.zip_longest(got.splitlines(), str(wanted).splitlines()):
        assert mine == numpys, f"{name} {a.dtype} {a.shape} {text}:\n{mine}\n{numpys}"
    if wanted.size < 2000:
        got = json.loads(subprocess.run([ckptfs, "head", "--index=:memory:", "--json", path, name] + ([text] if text else []),
                                        check=True, capture_output=True, text=True).stdout)
        if a.dtype.name == "complex64":
            continue
        back = np.array(got, dtype="float64" if a.dtype.kind == "f" else a.dtype).astype(a.dtype)
        assert np.array_equal(back.reshape(wanted.shape), wanted, equal_nan=a.dtype.kind == "f"), (name, got)
