#!/usr/bin/env python3
"""save_files.py SEED OUTDIR - random state dicts, written by torch.save and read back by torch.load.

OUTDIR/caseNN/expected.json says what a mount must show: "ckpt", the file or directory beside it;
dtype, shape and sha256 of every tensor as torch loads it; length and sha256 of every object's text.
All is a function of SEED. Has the same requirements as save_random.py.
"""
import argparse
import collections
import hashlib
import io
import json
import math
import os
import re
import sys
import zipfile

import numpy as np
import torch

from save_random import (ANY_LAYOUT, CONTIGUOUS, ELEMENT, random_box, random_shape, rng)

# From legacy files, torch.load reads only types that have a storage class of their own.
TYPED = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
         "bool", "complex64", "complex128"]
FLAVOURS = {
    "zip": {}, "zip of protocol 4": {"pickle_protocol": 4}, "big-endian": {}, "transformers": {},
    "legacy": {"_use_new_zipfile_serialization": False},
    "legacy of protocol 4": {"_use_new_zipfile_serialization": False, "pickle_protocol": 4},
}


# ---- what is saved

def random_leaf(r):
    return r.choice([
        lambda: None, lambda: r.random() < 0.5, lambda: r.randint(-5, 1000),
        lambda: r.choice([-1, 1]) * r.getrandbits(r.choice([33, 63, 64, 65, 200])),
        lambda: r.choice([0.0, -0.0, 1e16, 1e-5, 1e22, 0.1, float("inf"), -float("inf"),
                          float("nan"), 5e-324, r.random(), r.uniform(-1e20, 1e20)]),
        lambda: "".join(r.choice("ab.é\n\t\"\\\x7f\0😀\udc80 ") for _ in range(r.randint(0, 9))),
        lambda: r.randbytes(r.randint(0, 5)),
        lambda: argparse.Namespace(lr=r.random(), dtype=torch.bfloat16, names={"x"}),
        lambda: torch.Size([2, 3]),
    ])()


def random_value(r, depth=0):
    """A random value without tensors."""
    kind = r.random()
    if depth > 3 or kind < 0.6:
        return random_leaf(r)
    if kind < 0.8:
        return r.choice([list, tuple])(random_value(r, depth + 1) for _ in range(r.randint(0, 3)))
    return {r.choice(["a", "b.c", i, True, None, 1.5]): random_value(r, depth + 1)
            for i in range(r.randint(0, 3))}


def as_json(value):
    """The text of an object, made by the specification."""
    def plain(v):
        if isinstance(v, bytes):
            return {"__class__": "builtins.bytes", "hex": v.hex()}
        if isinstance(v, argparse.Namespace):
            return {"__class__": "argparse.Namespace"} | {k: plain(x) for k, x in vars(v).items()}
        if isinstance(v, torch.dtype):
            return {"__global__": str(v)}
        if isinstance(v, set):
            return {"__class__": "builtins.set", "__items__": sorted(v)}
        if isinstance(v, float) and not math.isfinite(v):
            return {"__class__": "builtins.float", "value": repr(v)}
        if isinstance(v, dict):
            if len({isinstance(k, str) for k in v}) > 1:
                return {"__class__": "builtins.dict", "__items__": [[k, plain(x)] for k, x in v.items()]}
            return {k: plain(x) for k, x in v.items()}
        if isinstance(v, (list, tuple)):
            return [plain(x) for x in v]
        return v
    short = {"\\n": "\\u000a", "\\t": "\\u0009", "\\r": "\\u000d", "\\b": "\\u0008",
             "\\f": "\\u000c"}
    return re.sub(r"\\.", lambda m: short.get(m[0], m[0]), json.dumps(plain(value))) + "\n"


class State:
    """A nested state dict, and its expected tensors and objects, by FQN."""

    def __init__(self, r, dtypes):
        self.r, self.dtypes = r, dtypes
        self.tensors, self.objects = {}, {}
        self.made = []  # (tensor, value, dtype), for views
        self.value = self.branch("", 0)

    def tensor(self):
        r = self.r
        if self.made and r.random() < 0.3:
            tensor, value, dtype = r.choice(self.made)
            if value.ndim and r.random() < 0.7:  # shares the storage
                if r.random() < 0.5:
                    axes = list(range(value.ndim))
                    r.shuffle(axes)
                    return tensor.permute(axes), value.transpose(axes), dtype
                cut = slice(r.randint(0, value.shape[0]), None, r.choice([1, 2]))
                return tensor[cut], value[cut], dtype
            return tensor, value, dtype
        dtype = r.choice(self.dtypes)
        layouts = CONTIGUOUS if dtype == "float4_e2m1fn_x2" else ANY_LAYOUT
        tensor, value = random_box(r, dtype, random_shape(r), layouts, True)
        if r.random() < 0.2 and tensor.is_floating_point() and dtype in TYPED and \
                not tensor.is_neg():
            tensor = torch.nn.Parameter(tensor, requires_grad=r.random() < 0.5)
        if dtype != "float4_e2m1fn_x2":
            self.made.append((tensor, value, dtype))
        return tensor, value, dtype

    def branch(self, path, depth):
        """A container with at least one tensor in it."""
        r = self.r
        n = r.randint(1, 6 if depth else 12)
        where = r.randrange(n)
        kind = r.choice(["dict", "dict", "ordered", "default", "list", "tuple"]) if depth else "dict"
        parts = []
        for i in range(n):
            name = str(i) if kind in ("list", "tuple") or r.random() < 0.2 else f"k{i}." * (
                r.random() < 0.2) + r.choice(["weight", "bias", "é", "a/b", "%"]) + str(i)
            fqn = f"{path}.{name}" if depth else name
            what = r.random()
            if i == where or what < 0.4:
                value, self.tensors[fqn] = self.leaf()
            elif what < 0.7 and depth < 4:
                value = self.branch(fqn, depth + 1)
            else:
                value = random_value(r)
                self.objects[fqn] = value
            parts.append((int(name) if name.isdigit() and r.random() < 0.5 else name, value))
        if kind in ("list", "tuple"):
            return {"list": list, "tuple": tuple}[kind](v for _, v in parts)
        made = {"dict": dict, "ordered": collections.OrderedDict,
                "default": lambda p: collections.defaultdict(list, p)}[kind](parts)
        return made

    def leaf(self):
        tensor, value, dtype = self.tensor()
        return tensor, (tensor, np.ascontiguousarray(value).reshape(value.shape), dtype)


# ---- writing, reading back

def to_big_endian(data, element):
    """The archive as a big-endian machine would have written it. element: bytes, by storage key."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            payload, name = old.read(info), info.filename.split("/", 1)[1]
            if name == "byteorder":
                payload = b"big"
            elif name.startswith("data/"):
                n = element[name[5:]]
                payload = np.frombuffer(payload, np.uint8).reshape(-1, n)[:, ::-1].tobytes()
            new.writestr(zipfile.ZipInfo(info.filename), payload)
    return out.getvalue()


def unit_sizes(data):
    """The bytes of a number, by storage key; untyped storages are not swapped."""
    found = {}

    class Unpickler(torch.serialization.pickle.Unpickler):
        def persistent_load(self, saved_id):
            cls, key = saved_id[1], saved_id[2]
            dtype = getattr(cls, "dtype", None)
            size = 1 if dtype is None else torch.empty(0, dtype=dtype).element_size()
            found[key] = size // 2 if dtype is not None and dtype.is_complex else size
            return torch.storage.TypedStorage(
                wrap_storage=torch.UntypedStorage(saved_id[4] * size),
                dtype=dtype or torch.uint8, _internal=True)

        def find_class(self, module, name):
            if "Storage" in name:
                return torch.storage.UntypedStorage if name == "UntypedStorage" else getattr(
                    torch, name)
            return super().find_class(module, name)

    with zipfile.ZipFile(io.BytesIO(data)) as z:
        pkl, = [n for n in z.namelist() if n.endswith("/data.pkl")]
        Unpickler(io.BytesIO(z.read(pkl))).load()
    return found


def element_bytes(tensor):
    tensor = tensor.detach()
    if tensor.element_size() == 1:  # torch cannot copy all of these types as such
        tensor = torch.resolve_neg(tensor).view(torch.uint8)
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def flat_tensors(value, path, ret):
    if isinstance(value, torch.Tensor):
        ret[path] = value
    elif isinstance(value, (dict, list, tuple)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for k, v in pairs:
            flat_tensors(v, f"{path}.{k}" if path is not None else str(k), ret)
    return ret


def check(want, loaded):
    got = flat_tensors(loaded, None, {})
    assert got.keys() >= want.keys(), want.keys() - got.keys()
    for fqn, (_, value, dtype) in want.items():
        if element_bytes(got[fqn]) != value.tobytes():
            raise AssertionError(f"torch.load gives {ascii(fqn)}, {dtype}, other bytes")


def expected(tensors, objects, ckpt, notes):
    sha = lambda b: hashlib.sha256(b).hexdigest()
    texts = {k: as_json(v).encode() for k, v in objects.items()}
    return {
        "format": "torch.save", "ckpt": ckpt, "notes": notes,
        "tensors": {k: {"dtype": dtype, "shape": list(value.shape), "nbytes": value.nbytes,
                        "sha256": sha(value.tobytes())}
                    for k, (_, value, dtype) in tensors.items()},
        "bytes": {k: {"length": len(t), "sha256": sha(t)} for k, t in texts.items()},
    }


def save_transformers(state, directory):
    """Spreads the top-level keys over files, and writes an index of the tensors in them."""
    with_tensors = [k for k, v in state.value.items() if flat_tensors(v, "", {})]
    parts, weight_map = [{} for _ in with_tensors[:3]], {}
    for i, key in enumerate(with_tensors):
        parts[i % 3][key] = state.value[key]
    parts[0] |= {k: v for k, v in state.value.items() if k not in with_tensors}
    for i, part in enumerate(parts):
        name = f"pytorch_model-{i + 1:05d}-of-{len(parts):05d}.bin"
        torch.save(part, f"{directory}/{name}")
        weight_map |= {fqn: name for fqn in flat_tensors(part, None, {})}
    with open(f"{directory}/pytorch_model.bin.index.json", "w", encoding="ascii") as f:
        json.dump({"metadata": {"total_size": 0}, "weight_map": weight_map}, f, indent=2)
    loaded = {}
    for name in sorted(set(weight_map.values())):
        loaded |= torch.load(f"{directory}/{name}", weights_only=False)
    return loaded


def save_case(seed, number, flavour, outdir):
    options = FLAVOURS[flavour]
    state = State(rng(seed, number, flavour), TYPED if "legacy" in flavour else list(ELEMENT))
    directory = f"{outdir}/case{number:02d}"
    os.makedirs(f"{directory}/ckpt")
    ckpt = "ckpt" if flavour == "transformers" else "ckpt/model.pt"
    path = f"{directory}/{ckpt}"
    if flavour == "transformers":
        loaded = save_transformers(state, path)
    else:
        torch.save(state.value, path, **options)
        if flavour == "big-endian":
            with open(path, "rb") as f:
                data = f.read()
            with open(path, "wb") as f:
                f.write(to_big_endian(data, unit_sizes(data)))
        loaded = torch.load(path, weights_only=False)
    check(state.tensors, loaded)
    with open(f"{directory}/expected.json", "w", encoding="ascii") as f:
        json.dump(expected(state.tensors, state.objects, ckpt, f"{flavour}, seed {seed}"), f,
                  indent=1)
    print(f"seed {seed} case{number:02d} {flavour}: {len(state.tensors)} tensors, "
          f"{len(state.objects)} objects")


def main():
    seed, outdir = int(sys.argv[1]), os.path.abspath(sys.argv[2])
    torch.set_num_threads(1)
    for number, flavour in enumerate(FLAVOURS):
        save_case(seed, number, flavour, outdir)


if __name__ == "__main__":
    main()
