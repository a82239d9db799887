#!/usr/bin/env python3
"""Checkpoints of one safetensors file each, and others that are made from them element by element:

    merge.py step DIR SEED		random tensors
    merge.py average DIR BASE OTHER...	their mean: float32 and bfloat16 by the definition
    merge.py adapter DIR SEED		a LoRA adapter as PEFT saves it, with a replaced embedding
    merge.py norm DIR			an adapter that only replaces a norm
    merge.py tokens DIR BASE MERGED	an adapter for more tokens than BASE has, and the model that it makes of BASE
    merge.py merged DIR BASE ADAPTER SCALE	a checkpoint with an adapter merged into it
    merge.py patch DIR FROM TO		the elements in which two differ, as TRL and prime-rl publish them

Means are of powers of two, and matrices of small whole numbers, so that every sum is exact and is rounded only once.
"""

import json
import os
import random
import struct
import sys


def write(path, tensors):
    os.makedirs(path, exist_ok=True)
    head, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head).encode()
    with open(path + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(d for _, _, d in tensors.values()))


def read(path, name="/model.safetensors"):
    with open(path + name, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        head, data = json.loads(f.read(size)), f.read()
    return {n: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for n, t in head.items() if n != "__metadata__"}


def to_bf16(x):
    """Rounds to the nearest bfloat16, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def pack(dtype, values):
    if dtype == "BF16":
        return struct.pack("<%dH" % len(values), *map(to_bf16, values))
    return struct.pack("<%df" % len(values), *values)


def unpack(dtype, data):
    if dtype == "BF16":
        data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
    return struct.unpack("<%df" % (len(data) // 4), data)


def step(path, seed):
    r = random.Random(seed)
    tensors = {}
    for name, dtype, shape in (
        ("model.embed_tokens.weight", "BF16", [64, 32]),
        ("model.layers.0.mlp.up_proj.weight", "BF16", [300, 32]),
        ("model.layers.0.self_attn.q_proj.weight", "BF16", [32, 32]),
        ("model.norm.weight", "F32", [32]),
    ):
        n = 1
        for x in shape:
            n *= x
        tensors[name] = (dtype, shape, pack(dtype, [r.gauss(0, 1) for _ in range(n)]))
    tensors["steps"] = ("I64", [2], struct.pack("<2q", int(seed), 7))
    write(path, tensors)


def average(path, *sources):
    """The base is the first source; all have the same weight."""
    read_all = [read(s) for s in sources]
    merged = dict(read_all[0])
    for name, (dtype, shape, _) in merged.items():
        if dtype != "I64":
            rows = zip(*(unpack(dtype, t[name][2]) for t in read_all))
            # float64 is exact enough for the sums: it has more than twice the digits
            merged[name] = (dtype, shape, pack(dtype, [struct.unpack("<f", struct.pack("<f", sum(x) / len(x)))[0] for x in rows]))
    write(path, merged)


RANK, ALPHA = 4, 2
TUNED = ("model.layers.0.mlp.up_proj", "model.layers.0.self_attn.q_proj")
REPLACED = "model.norm.weight"


def adapter(path, seed):
    r = random.Random(seed)
    shapes = {"model.layers.0.mlp.up_proj": (300, 32), "model.layers.0.self_attn.q_proj": (32, 32)}
    tensors = {}
    for module in TUNED:
        m, n = shapes[module]
        for kind, shape in (("A", [RANK, n]), ("B", [m, RANK])):
            values = [float(r.randrange(-8, 9)) for _ in range(shape[0] * shape[1])]
            name = "base_model.model.%s.lora_%s.weight" % (module, kind)
            tensors[name] = ("F32", shape, pack("F32", values))
    tensors["base_model.model." + REPLACED] = ("F32", [32], pack("F32", [r.gauss(0, 1) for _ in range(32)]))
    write(path, tensors)
    os.rename(path + "/model.safetensors", path + "/adapter_model.safetensors")
    with open(path + "/adapter_config.json", "w") as f:
        json.dump({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["up_proj", "q_proj"]}, f)


def norm(path):
    """An adapter that only replaces the last norm of a model of 64 columns."""
    os.makedirs(path)
    write(path, {"base_model.model.model.norm.weight": ("F32", [64], pack("F32", [1.0] * 64))})
    os.rename(path + "/model.safetensors", path + "/adapter_model.safetensors")
    with open(path + "/adapter_config.json", "w") as f:
        json.dump({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "modules_to_save": ["norm"]}, f)


def tokens(path, base, result):
    r, merged_with = random.Random(5), dict(read(base))
    embedding = ("BF16", [70, 32], pack("BF16", [r.gauss(0, 1) for _ in range(70 * 32)]))
    write(path, {"base_model.model." + n: embedding for n in ("model.embed_tokens.weight", "lm_head.weight")})
    os.rename(path + "/model.safetensors", path + "/adapter_model.safetensors")
    with open(path + "/adapter_config.json", "w") as f:
        json.dump({"peft_type": "LORA", "r": 8, "lora_alpha": 16}, f)
    merged_with["model.embed_tokens.weight"] = embedding
    write(result, merged_with)


def merged(path, base, lora, scale):
    result, tensors = dict(read(base)), read(lora, "/adapter_model.safetensors")
    factor = ALPHA / RANK * float(scale)
    for module in TUNED:
        dtype, (m, n), data = result[module + ".weight"]
        a, b = (unpack("F32", tensors["base_model.model.%s.lora_%s.weight" % (module, k)][2]) for k in "AB")
        w = list(unpack(dtype, data))
        for i in range(m):
            for j in range(n):
                w[i * n + j] += factor * sum(b[i * RANK + k] * a[k * n + j] for k in range(RANK))
        w = struct.unpack("<%df" % len(w), struct.pack("<%df" % len(w), *w))
        result[module + ".weight"] = (dtype, [m, n], pack(dtype, w))
    result[REPLACED] = tensors["base_model.model." + REPLACED]
    write(path, result)


def patch(path, before, after):
    """DIR/trl.safetensors with distances of 16 bits, and DIR/prime."""
    a, b = read(before), read(after)
    gaps, plain, entries = {}, {}, []
    for i, (name, (dtype, shape, data)) in enumerate(b.items()):
        size = {"BF16": 2, "F32": 4, "I64": 8}[dtype]
        at = [k for k in range(len(data) // size) if data[k * size : (k + 1) * size] != a[name][2][k * size : (k + 1) * size]]
        if not at:
            continue
        values = b"".join(data[k * size : (k + 1) * size] for k in at)
        distances = [k - p - 1 for p, k in zip([-1] + at, at)]
        gaps[name + ".val"] = (dtype, [len(at)], values)
        gaps[name + ".idx"] = ("U16", [len(at)], struct.pack("<%dH" % len(at), *distances))
        keys = {"indices": "tensor_%d.indices" % i, "values": "tensor_%d.values" % i}
        plain[keys["indices"]] = ("I32", [len(at)], struct.pack("<%di" % len(at), *at))
        plain[keys["values"]] = (dtype, [len(at)], values)
        entries.append({"name": name, "shape": shape} | keys)
    write(path, gaps)
    os.rename(path + "/model.safetensors", path + "/trl.safetensors")
    write(path + "/prime", plain)
    os.rename(path + "/prime/model.safetensors", path + "/prime/sparse_update_patch.safetensors")
    with open(path + "/prime/sparse_update_manifest.json", "w") as f:
        json.dump({"format": "prime-rl-sparse-update", "version": 1, "step": 2, "base_step": 1, "tensors": entries}, f)


if __name__ == "__main__":
    {"step": step, "average": average, "adapter": adapter, "norm": norm, "tokens": tokens, "merged": merged, "patch": patch}[sys.argv[1]](*sys.argv[2:])
