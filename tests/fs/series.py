"""Compare what `ckptfs stat RUN` says with what NumPy says: series.py CKPTFS DIR SEED"""
import json
import os
import random
import struct
import subprocess
import sys

import numpy as np

ckptfs, where, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("seed", seed)
random.seed(seed)
rng = np.random.default_rng(seed)
NAMES = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "uint8": "U8",
         "bool": "BOOL", "complex64": "C64"}
STEPS = random.choice([1, 2, 5, 16, 17, 33])


def stored(a, dtype):
    """The bytes of an array in that dtype, and their values as a NumPy array."""
    if dtype == "bfloat16":
        raw = (a.astype("float32").view("uint32") >> 16).astype("uint16")
        return raw.tobytes(), (raw.astype("uint32") << 16).view("float32")
    with np.errstate(all="ignore"):
        a = (abs(a) % 50 if dtype in ("uint8", "bool") else a).astype(dtype)
    return a.tobytes(), a


def save(step, tensors):
    head, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        head[name] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    os.makedirs(f"{where}/run/step-{step}")
    with open(f"{where}/run/step-{step}/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


names = {f"t.{i}": (random.choice(list(NAMES)), random.choice([0, 1, 5, 1000, 300000])) for i in range(12)}
state = {n: rng.standard_normal(size) * 10 for n, (_, size) in names.items()}
seen = []
for step in range(STEPS):
    now, tensors = {}, {"other": ("uint8", [1], b"x")}
    for n, (dtype, size) in names.items():
        if random.random() < 0.1:
            continue
        if size and random.random() < 0.8:
            at = rng.integers(0, size, size // 3 + 1)
            state[n][at] += rng.standard_normal(at.size)
        if size > 5 and dtype.startswith("float") and random.random() < 0.2:
            state[n][rng.integers(0, size)] = random.choice([np.nan, np.inf, 0, 3])
        if dtype in ("float32", "bfloat16") and random.random() < 0.1:
            dtype = "float64"
        shape = [size] if random.random() < 0.9 else [size, 1]
        raw, a = stored(state[n], dtype)
        tensors[n] = (dtype, shape, raw)
        now[n] = (dtype, shape, a)
    save(step, tensors)
    seen.append(now)

out = None
for jobs in 1, 3:
    text = subprocess.run([ckptfs, "stat", "--index=:memory:", "--json", f"--jobs={jobs}", f"{where}/run", "t.*"], check=True,
                          capture_output=True).stdout
    assert out is None or out == text
    out = text


def near(a, b):
    return a is None and not np.isfinite(b) or a is not None and abs(a - b) <= abs(b) * 1e-11 + 1e-300


rows = iter(json.loads(out)["rows"])
for n in sorted((n for n in names if any(n in s for s in seen)), key=lambda n: int(n[2:])):
    for step in range(STEPS):
        r = next(rows)
        assert (r["fqn"], r["checkpoint"]) == (n, f"step-{step}"), r
        if n not in seen[step]:
            assert r["fault"] == "it has no such tensor" and r["dtype"] is None, r
            continue
        dtype, shape, a = seen[step][n]
        assert (r["dtype"], r["shape"], r["fault"]) == (dtype, shape, None), r
        wide = a.astype("clongdouble" if a.dtype.kind == "c" else "longdouble")
        good = wide[np.isfinite(a)]
        assert (r["elements"], r["nan"], r["inf"]) == (a.size, np.isnan(a).sum(), np.isinf(a).sum()), r
        norm = np.sqrt((abs(good) ** 2).sum())
        if good.size:
            assert near(r["norm"], norm) and near(r["rms"], norm / np.sqrt(good.size)), (r, norm)
            assert r["max_abs"] is None if a.dtype.kind == "c" else r["max_abs"] == float(abs(good).max()), r
        before = seen[step - 1].get(n) if step else None
        assert ("changed" in r) == bool(before and before[1] == shape), r
        assert r.get("other_shape", False) == bool(before and before[1] != shape), r
        if "changed" not in r:
            continue
        b = before[2].astype(wide.dtype)
        if before[0] == dtype:
            size = a.itemsize
            changed = (np.frombuffer(a.tobytes(), f"V{size}") != np.frombuffer(before[2].tobytes(), f"V{size}")).sum()
        else:
            changed = ((wide != b) & ~(np.isnan(wide) & np.isnan(b))).sum()
        assert r["changed"] == changed, (r, changed)
        both = np.isfinite(wide) & np.isfinite(b)
        moved = np.sqrt((abs(wide[both] - b[both]) ** 2).sum())
        length = np.sqrt((abs(b[np.isfinite(b)]) ** 2).sum())
        assert near(r["relative"], moved / length if moved and length else np.inf if moved else 0), (r, moved, length)
assert next(rows, None) is None
