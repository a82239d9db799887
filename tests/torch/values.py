#!/usr/bin/env python3
"""Compare what `ckptfs stat` says of tensors of all dtypes with what torch says.

    values.py make SEED OUTDIR      write a run of two DCP checkpoints, OUTDIR/run, and the tensors, OUTDIR/step-N.pt
    values.py check OUTDIR          compare them with OUTDIR/N.json, from `stat --json --hist`, and OUTDIR/run.json
"""
import json
import math
import os
import sys

import torch
import torch.distributed.checkpoint as dcp

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
          "float8_e8m0fnu"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"]
COMPLEX = ["complex64", "complex128", "complex32"]


def of_bits(dtype, n, generator):
    """Elements of random bits."""
    dtype = getattr(torch, dtype)
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (n * dtype.itemsize,), generator=generator).to(torch.uint8)
    return raw.view(dtype)


def make(seed, out):
    g = torch.Generator().manual_seed(seed)
    state = {}
    for dtype in [d for d in FLOATS + INTEGERS + COMPLEX if hasattr(torch, d)]:
        for n in 0, 1, 70000:
            state[f"{dtype}.{n}"] = of_bits(dtype, n, g)
        if dtype in FLOATS:
            state[f"{dtype}.normal"] = torch.randn(300, 100, generator=g).to(getattr(torch, dtype))
    for step in 1, 2:
        torch.save(state, f"{out}/step-{step}.pt")
        dcp.save(state, checkpoint_id=f"{out}/run/step-{step}")
        for name, t in state.items():
            if t.numel() > 1:
                t = t.clone()
                t.view(-1)[::3] = of_bits(name.split(".")[0], t.numel(), g)[::3]
                state[name] = t


def doubles(t):
    """The values as float64, with complex ones as pairs; exact except for integers of 64 bits."""
    if t.dtype == torch.complex32:
        return torch.view_as_real(t).to(torch.float64).reshape(-1, 2)
    if t.dtype.is_complex:
        return torch.view_as_real(t).to(torch.float64).reshape(-1, 2)
    return t.reshape(-1).to(torch.float64)


def exact(v):
    """The correctly rounded sum."""
    return math.fsum(v.reshape(-1).tolist())


def near(a, b):
    return a is None and not math.isfinite(b) or a is not None and abs(a - b) <= abs(b) * 1e-12


def check_tensor(r, t):
    d = doubles(t)
    pairs = d.dim() == 2
    parts = d if pairs else d[:, None]
    nan = parts.isnan().any(1)
    inf = parts.isinf().any(1) & ~nan
    good = d[~nan & ~inf]
    assert (r["elements"], r["nan"], r["inf"]) == (t.numel(), int(nan.sum()), int(inf.sum())), r
    assert r["zero"] == int((parts == 0).all(1).sum()), r
    if not len(good):
        return
    if t.dtype in (torch.int64, torch.uint64):
        whole = [int(x) for x in t.reshape(-1).tolist()]
        assert (r["min"], r["max"]) == (min(whole), max(whole)), r
        assert near(r["mean"], sum(whole) / len(whole)), r
        return
    scale = good.abs().max().item() or 1  # otherwise sums of the largest numbers would be infinite
    if not pairs:
        mean = exact(good / scale) / len(good) * scale
        assert near(r["mean"], mean) or abs(r["mean"] - mean) < 1e-12 * scale, (r, mean)
        assert (r["min"], r["max"]) == (good.min().item(), good.max().item()), r
    assert near(r["norm"], scale * math.sqrt(exact((good / scale) ** 2))), r
    if pairs or scale > 1e150:
        return
    mean = exact(good) / len(good)
    assert near(r["std"], scale * math.sqrt(exact(((good - mean) / scale) ** 2) / len(good))), r
    for h in r["linear"], r["logarithmic"]:
        v = good[good.abs() < 2.0 ** 128]
        edges = torch.tensor(h["edges"], dtype=torch.float64)
        counts = torch.bincount(torch.bucketize(v, edges, right=True), minlength=len(edges) + 1)
        assert counts[0] == 0 and counts[-1] == 0 and counts[1:-1].tolist() == h["counts"], (r["fqn"], h)


def check_rows(rows, steps):
    for r in rows:
        step = int(r["checkpoint"].split("-")[1])
        if step == 1:
            assert "changed" not in r, r
            continue
        a, b = (s[r["fqn"]].contiguous().reshape(-1) for s in steps)
        size = a.dtype.itemsize
        changed = (a.view(torch.uint8).reshape(-1, size) != b.view(torch.uint8).reshape(-1, size)).any(1).sum()
        assert r["changed"] == int(changed), r
        if a.dtype in (torch.int64, torch.uint64):
            continue
        x, y = (v if v.dim() == 2 else v[:, None] for v in (doubles(a), doubles(b)))
        both = (x.isfinite() & y.isfinite()).all(1)
        before = x[x.isfinite().all(1)]
        if not len(before) or before.abs().max() > 1e150 or not both.any() or y[both].abs().max() > 1e150:
            continue
        moved = math.sqrt(exact((y[both] - x[both]) ** 2))
        length = math.sqrt(exact(before ** 2))
        wanted = moved / length if length else math.inf if moved else 0
        assert near(r["relative"], wanted) or abs((r["relative"] or 0) - wanted) < 1e-10 * wanted, (r, wanted)


def check(out):
    n = 0
    steps = [torch.load(f"{out}/step-{i}.pt") for i in (1, 2)]
    for i, tensors in enumerate(steps):
        rows = json.load(open(f"{out}/{i + 1}.json"))["tensors"]
        assert {r["fqn"] for r in rows} == set(tensors)
        for r in rows:
            check_tensor(r, tensors[r["fqn"]])
            n += 1
    rows = json.load(open(f"{out}/run.json"))["rows"]
    assert len(rows) == 2 * len(steps[0])
    check_rows(rows, steps)
    print(n + len(rows), "passed, 0 failed")


if sys.argv[1] == "make":
    os.makedirs(sys.argv[3], exist_ok=True)
    make(int(sys.argv[2]), sys.argv[3])
else:
    check(sys.argv[2])
