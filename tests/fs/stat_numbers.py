"""Compare what `ckptfs stat --hist` says with what NumPy says: stat_numbers.py CKPTFS DIR SEED"""
import json
import os
import random
import struct
import subprocess
import sys
import warnings

import numpy as np

ckptfs, where, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("seed", seed)
random.seed(seed)
rng = np.random.default_rng(seed)
warnings.simplefilter("ignore")
NAMES = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
         "int16": "I16", "int8": "I8", "uint8": "U8", "uint64": "U64", "bool": "BOOL", "complex64": "C64"}


def values(dtype, n):
    """Bytes, and their values as a NumPy array."""
    how = random.randrange(7)
    if dtype == "bool":
        a = rng.integers(0, 2, n).astype(bool)
    elif dtype.startswith(("int", "uint")):
        i = np.iinfo(dtype)
        a = rng.integers(max(i.min, -100) if how < 3 else i.min, 100 if how < 3 else i.max, n, dtype=dtype, endpoint=True)
    elif dtype == "complex64":
        a = (rng.standard_normal(n) + 1j * rng.standard_normal(n)).astype(dtype)
    else:
        a = rng.standard_normal(n)
        if how == 1:
            a = np.round(a * 4) / 2.0 ** random.randrange(20)
        elif how == 2:
            a = a * 10.0 ** rng.integers(-45, 38, n)
        elif how == 3:
            a = abs(a) + 1
        elif how == 4 and n:
            a[rng.integers(0, n, n // 4 + 1)] = random.choice([np.nan, np.inf, -np.inf, 0, -0.0])
        elif how == 5:
            a = np.full(n, a[0] if n else 0)
        elif how == 6:
            a = -2.0 ** rng.integers(-20, 20, n)
        if dtype == "bfloat16":
            raw = (a.astype("float32").view("uint32") >> 16).astype("uint16")
            return raw.tobytes(), (raw.astype("uint32") << 16).view("float32")
        a = a.astype(dtype)
    return a.tobytes(), a


def near(a, b, least=0):
    return abs(a - b) <= max(abs(b) * 1e-12, least)


def check_histogram(h, v, most, linear):
    edges, counts = np.array(h["edges"]), h["counts"]
    if not len(v):
        assert not counts, h
        return
    assert len(edges) == len(counts) + 1 <= most + 1, h
    assert list(np.histogram(v, bins=edges)[0]) == counts, (h, v)
    assert sum(counts) == len(v) and v.min() >= edges[0] and v.max() < edges[-1], h
    if linear:
        width = edges[1] - edges[0]
        assert np.all(np.diff(edges) == width) and np.all(edges % width == 0) and np.frexp(width)[0] == 0.5, h
        assert counts[0] and counts[-1], h
        # A narrower width would need too many bins.
        needed = np.floor(float(v.max()) / (width / 2)) - np.floor(float(v.min()) / (width / 2)) + 1
        assert needed > most or width <= abs(v).max() / 32 or not v.any() or width < 2.0 ** -130, (h, needed)
    else:
        assert np.all(np.frexp(abs(edges))[0] == 0.5), h


for most in 3, 32, 256:
    head, data, arrays = {}, b"", {}
    for i in range(60):
        dtype = random.choice(list(NAMES))
        n = random.choice([0, 1, 2, 17, 1000, 70000])
        raw, arrays[f"t{i}"] = values(dtype, n)
        head[f"t{i}"] = {"dtype": NAMES[dtype], "shape": [n], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    path = os.path.join(where, f"{most}.safetensors")
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    out = json.loads(subprocess.run([ckptfs, "stat", "--index=:memory:", "--json", f"--hist={most}",
                                     f"--jobs={random.randrange(1, 5)}", path], check=True, capture_output=True).stdout)
    assert len(out["tensors"]) == 60
    for t in out["tensors"]:
        a = arrays[t["fqn"]]
        good = a[np.isfinite(a)]
        assert (t["elements"], t["nan"], t["inf"]) == (a.size, np.isnan(a).sum(), np.isinf(a).sum()), t
        assert t["zero"] == (a == 0).sum(), t
        if a.dtype.kind == "c":
            assert "linear" not in t, t
            continue
        if len(good):
            wide = good.astype("longdouble")
            assert t["min"] == good.min() and t["max"] == good.max(), t
            assert near(t["mean"], wide.mean(), 1e-15 * abs(wide).mean()), (t, wide.mean())
            assert near(t["norm"], np.sqrt((wide * wide).sum())), t
            assert near(t["std"], wide.std(), 1e-15 * abs(wide).max()), (t, wide.std())
        check_histogram(t["linear"], good[abs(good.astype("float64")) < 2.0 ** 128], most, True)
        check_histogram(t["logarithmic"], good[abs(good.astype("float64")) < 2.0 ** 128], most, False)
