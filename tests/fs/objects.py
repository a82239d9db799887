#!/usr/bin/env python3
"""Check that the values of objects are what Python finds in their bytes.

    objects.py DIRECTORY

DIRECTORY is objects/ of a mount. Every NAME.json must be strict JSON, as long as stat says before it is read, and have
the value of the pickle in NAME, in the form that ckptfs-formats(5) describes. Classes are replaced by dummies, so no
code of a checkpoint runs.
"""

import io
import json
import math
import os
import pickle
import struct
import sys
import zipfile

DTYPES = {"FloatStorage": "float32", "DoubleStorage": "float64", "LongStorage": "int64", "IntStorage": "int32",
          "HalfStorage": "float16", "BFloat16Storage": "bfloat16", "ByteStorage": "uint8", "BoolStorage": "bool"}
RESERVED = {"__class__", "__global__", "__cycle__", "__args__", "__items__", "__state__", "__error__"}


class Made:
    """An instance of a replaced class, or a call."""
    state = None

    def __new__(cls, *args):
        self = object.__new__(cls)
        self.args = args
        return self

    def __init__(self, *args):
        pass

    def __setstate__(self, state):
        self.state = state


class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        plain = {("torch", "Size"): tuple, ("collections", "OrderedDict"): dict, ("builtins", "set"): set,
                 ("builtins", "bytes"): bytes, ("builtins", "frozenset"): frozenset}
        if (module, name) == ("_codecs", "encode"):
            return lambda text, _: text.encode("latin1")
        return plain.get((module.replace("__builtin__", "builtins"), name)) or type(
            name, (Made,), {"of": f"{module}.{name}"})

    def persistent_load(self, pid):
        storage = Made()
        storage.pid = pid
        return storage


def plain(v):
    if isinstance(v, bytes):
        return {"__class__": "builtins.bytes", "hex": v.hex()}
    if isinstance(v, float) and not math.isfinite(v):
        return {"__class__": "builtins.float", "value": repr(v)}
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    if isinstance(v, (set, frozenset)):
        return {"__class__": f"builtins.{type(v).__name__}", "__items__": sorted(map(plain, v), key=repr)}
    if isinstance(v, dict):
        strings = [isinstance(k, str) for k in v]
        if any(strings) and not all(strings) or RESERVED & set(v):
            return {"__class__": "builtins.dict", "__items__": [[plain(k), plain(x)] for k, x in v.items()]}
        return {k if isinstance(k, str) else json.dumps(plain(k)): plain(x) for k, x in v.items()}
    if isinstance(v, type) and issubclass(v, Made):
        return {"__global__": v.of}
    if not isinstance(v, Made):
        return v
    if hasattr(v, "pid"):
        return {"__class__": v.pid[1].of, "size": v.pid[4]}
    if v.of == "torch._utils._rebuild_tensor_v2":
        return {"__class__": "torch.Tensor", "dtype": DTYPES[v.args[0].pid[1].of.split(".")[-1]],
                "shape": list(v.args[2])}
    if v.of.endswith("multiarray._reconstruct") and isinstance(v.state[4], bytes):
        _, shape, dtype, fortran, data = v.state
        assert not fortran
        return {"__class__": "numpy.ndarray", "dtype": dtype.state[1] + dtype.args[0], "shape": list(shape),
                "hex": data.hex()}
    if v.of.endswith("multiarray.scalar"):
        kind, width = v.args[0].args[0]
        value = struct.unpack("<" + {"f8": "d", "f4": "f", "i8": "q", "i4": "i", "b1": "?"}[kind + width], v.args[1])[0]
        name = "bool" if kind == "b" else {"f": "float", "i": "int"}[kind] + str(int(width) * 8)
        return {"__class__": f"numpy.{name}", "value": value}
    out = {"__class__": v.of.replace("__builtin__.xrange", "builtins.range").replace("__builtin__", "builtins")}
    if v.args:
        out["__args__"] = plain(v.args)
    if isinstance(v.state, dict):
        out |= plain(v.state)
    elif v.state is not None:
        out["__state__"] = plain(v.state)
    return out


def stored_value(data):
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as z:
            name = next(n for n in z.namelist() if n.split("/", 1)[1] == "data.pkl")
            data = z.read(name)
    elif data[:1] != b"\x80":
        return data
    return Reader(io.BytesIO(data)).load()


def refuse(word):
    raise ValueError(f"{word} is no JSON")


def unordered(v):
    """Sets have no order."""
    if isinstance(v, dict):
        v = {k: unordered(x) for k, x in v.items()}
        if v.get("__class__") in ("builtins.set", "builtins.frozenset"):
            v["__items__"] = sorted(v["__items__"], key=repr)
        return v
    return [unordered(x) for x in v] if isinstance(v, list) else v


def check(directory):
    names = sorted(os.listdir(directory))
    stored = [n for n in names if not n.endswith(b".json")]
    assert stored and names == sorted(stored + [n + b".json" for n in stored]), names
    for name in stored:
        path = os.path.join(directory, name)
        size = os.stat(path + b".json").st_size
        with open(path, "rb") as f, open(path + b".json", "rb") as j:
            data, text = f.read(), j.read()
        assert size == len(text) and text.endswith(b"\n"), (name, size, len(text))
        got = json.loads(text, parse_constant=refuse)
        if data == text:  # an object of a torch.save file, which is stored as JSON
            continue
        want = plain(stored_value(data))
        assert unordered(got) == want, (name, got, want)
    print(len(stored))


if __name__ == "__main__":
    check(os.fsencode(sys.argv[1]))
