#!/usr/bin/env python3
"""Write the files of four ranks, with DTensors as a given version of torch pickles them, without torch:

    make_fsdp.py VERSION DIR
    make_fsdp.py --copies N DIR

DIR/c has the files, DIR/NAME the bytes of each whole tensor. The classes have the modules and attributes that they
have in torch's public source in VERSION; nothing of ckptfs is used.
--copies: N tensors that all ranks have.
"""

import collections
import io
import itertools
import math
import os
import pickle
import struct
import sys
import types
import zipfile

WORLD = 4
ERAS = {  # the first version, and what is new in it
    "2.1": "a mesh in _tensor, with the groups as tags and ranks",
    "2.2": "a mesh in device_mesh",
    "2.3": "its parent",
    "2.5": "DTensor is public; _StridedShard",
    "2.6": "a thread, no parent",
    "2.9": "a layout beside the mesh",
    "2.10": "a layout and a map in place of the mesh; placements in C++; the order of axes",
    "2.13": "a layout of axes",
}


def at_least(version):
    number = lambda v: tuple(map(int, v.split(".")))
    return number(ERA) >= number(version)


def module(name):
    parent, _, last = name.rpartition(".")
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)
        if parent:
            setattr(module(parent), last, sys.modules[name])
    return sys.modules[name]


def define(where, name, base=object, **members):
    cls = type(base)(name, (base,), {"__module__": where, "__qualname__": name, **members})
    outer, _, last = name.rpartition(".")
    setattr(getattr(module(where), outer) if outer else module(where), last, cls)
    return cls


def function(where, name):
    def f(*args):
        raise AssertionError(args)

    f.__module__, f.__qualname__, f.__name__ = where, name, name
    setattr(module(where), name, f)
    return f


class Global:
    """Pickles as a global of torch, without a call."""

    def __init__(self, name):
        self.name = self.__qualname__ = name
        self.__module__ = "torch"
        setattr(module("torch"), name, self)

    def __reduce__(self):
        return self.name


def new(cls, *args, **attributes):
    obj = cls.__new__(cls, *args)
    for name, value in attributes.items():
        object.__setattr__(obj, name, value)
    return obj


def reduced(f, *args):
    """An object that pickles as f(*args)."""
    return type("Call", (), {"__reduce_ex__": lambda self, protocol: (f, args)})()


# ---- the same in all versions ----

float32, float_storage, int_storage = Global("float32"), Global("FloatStorage"), Global("IntStorage")
rebuild = function("torch._utils", "_rebuild_tensor_v2")
rebuild_subclass = function("torch._utils", "_rebuild_wrapper_subclass")
rebuild_type = function("torch._tensor", "_rebuild_from_type_v2")
get_layout, device = function("torch.serialization", "_get_layout"), function("torch", "device")
Size = define("torch", "Size", tuple, __reduce__=lambda self: (Size, (tuple(self),)))


class Storage:
    def __init__(self, kind, data):
        self.kind, self.data = kind, data


def strides(shape):
    return tuple(math.prod(shape[d + 1:]) for d in range(len(shape)))


def tensor(kind, shape, data):
    return reduced(rebuild, Storage(kind, data), 0, shape, strides(shape), False, collections.OrderedDict())


def ints(shape, values):
    return tensor(int_storage, shape, struct.pack(f"<{len(values)}i", *values))


def save(path, state):
    """Like torch.save: one pickle, and a member for each storage."""
    stored = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            if not isinstance(obj, Storage):
                return None
            if obj not in stored:
                stored.append(obj)
            size = len(obj.data) // 4
            return ("storage", obj.kind, str(stored.index(obj)), "cpu", size)

    out = io.BytesIO()
    Pickler(out, 2).dump(state)
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("archive/data.pkl", out.getvalue())
        z.writestr("archive/byteorder", "little")
        for i, storage in enumerate(stored):
            z.writestr(f"archive/data/{i}", storage.data)
        z.writestr("archive/version", "3\n")


# ---- different from version to version ----


def classes():
    tensors = "torch.distributed.tensor" if at_least("2.5") else "torch.distributed._tensor"
    meshes = "torch.distributed.device_mesh" if at_least("2.2") else "torch.distributed._tensor.device_mesh"
    specs = f"{tensors}._dtensor_spec" if at_least("2.5") else f"{tensors}.placement_types"
    places = f"{tensors}.placement_types"
    shard = define(places, "Shard")
    strided = define(places, "_StridedShard", shard)
    if ERA == "2.10":
        shard.__getstate__ = lambda self: tuple(self.__dict__.values())
    found = types.SimpleNamespace(
        DTensor=define(tensors, "DTensor") if at_least("2.5") else define(f"{tensors}.api", "DTensor"),
        DeviceMesh=define(meshes, "DeviceMesh"), Spec=define(specs, "DTensorSpec"),
        Meta=define(specs, "TensorMeta", tuple), Order=define(specs, "ShardOrderEntry", tuple),
        Layout=define("torch.distributed._mesh_layout", "_MeshLayout"),
        Flat=define("torch.distributed._mesh_layout", "_FlatLayout"),
        Shard=shard, Strided=strided, Replicate=define(places, "Replicate"))
    for named in (found.Meta, found.Order):
        named.__new__ = lambda cls, *args: tuple.__new__(cls, args)
        named.__getnewargs__ = lambda self: tuple(self)
    return found


class Mesh:
    """A mesh: some of the axes of a root mesh of all ranks."""

    def __init__(self, sizes, axes=None):
        self.sizes, self.axes = sizes, tuple(range(len(sizes))) if axes is None else axes
        self.made = {}

    def coordinates(self, rank):
        root = [rank // s % n for n, s in zip(self.sizes, strides(self.sizes))]
        return [root[a] for a in self.axes]

    def shape(self):
        return tuple(self.sizes[a] for a in self.axes)

    def ranks(self, rank):
        """The ranks of the mesh that contains `rank`, in their order."""
        step = strides(self.sizes)
        base = rank - sum(c * step[a] for a, c in zip(self.axes, self.coordinates(rank)))
        return [base + sum(i * step[a] for i, a in zip(at, self.axes))
                for at in itertools.product(*map(range, self.shape()))]

    def pickled(self, rank):
        if rank not in self.made:
            self.made[rank] = new(C.DeviceMesh, **self.state(rank))
        return self.made[rank]

    def state(self, rank):
        shape, ranks, step = self.shape(), self.ranks(rank), strides(self.sizes)
        names = tuple("abc"[a] for a in self.axes) if len(self.sizes) > 1 else None
        sub = len(self.axes) < len(self.sizes)
        whole = Mesh(self.sizes) if sub else None
        own = tuple(step[a] for a in self.axes)
        if not at_least("2.10"):
            groups = [("", ranks), ("", ranks, "1")][at_least("2.3")]
            state = {"device_type": "cuda", "mesh": ints(shape, ranks), "mesh_dim_names": names}
            if at_least("2.9"):
                state["_layout"] = new(C.Layout, shape=shape, stride=own)
            state["_flatten_mesh_list"] = tuple(ranks)
            if not at_least("2.5"):
                state["_hash"] = hash((tuple(ranks), shape))
            if at_least("2.3") and not at_least("2.6"):
                state["_parent_mesh"] = whole and whole.pickled(rank)
            if at_least("2.5"):
                state["_thread_id"] = None
            if at_least("2.9"):
                state |= {"_root_mesh": whole and whole.pickled(rank), "_flatten_mapping": {},
                          "_dim_group_names": ["1"] * len(shape)}
            else:
                state["_dim_group_infos"] = [groups] * len(shape)
            return state | {"_coordinate_on_dim": self.coordinates(rank)}
        if at_least("2.13"):
            axes = tuple(new(C.Flat, shape=(n,), stride=(s,)) if n > 1 else new(C.Flat, shape=(), stride=())
                         for n, s in zip(shape, own))
            layout = new(C.Layout, axes=axes)
        else:
            layout = new(C.Layout, shape=shape if sub else Size(shape), stride=own)
        return {"_device_type": "cuda", "_layout": layout, "_rank_map": ints((WORLD,), list(range(WORLD))),
                "_mesh_dim_names": names, "_root_mesh": whole and whole.pickled(rank),
                "_flatten_rank_map": tuple(range(WORLD)), "_thread_id": None, "_flatten_mapping": {},
                "_dim_group_names": ["1"] * len(shape), "_rank": rank,
                "_coordinate_on_dim": (list, tuple)[at_least("2.13")](self.coordinates(rank)), "_hash": None}


def part(indices, size, number):
    each = -(-len(indices) // size)
    return indices[each * number:each * (number + 1)]


def place(letter, dim, split=1):
    if letter == "R":
        return new(C.Replicate)
    if letter == "S":
        return new(C.Shard, dim=dim)
    return new(C.Strided, dim=dim, split_factor=split)


def dtensor(name, shape, mesh, words, rank):
    """words: for each axis "R" or "S0"; "L0" for an axis that splits a dimension last."""
    numel = math.prod(shape)
    values = [sum(map(ord, name)) * 100 + i for i in range(numel)]
    kept = [list(range(n)) for n in shape]
    at, sizes = mesh.coordinates(rank), mesh.shape()
    for axis in sorted(range(len(words)), key=lambda a: words[a][0] == "L"):
        if words[axis] != "R":
            dim = int(words[axis][1:])
            kept[dim] = part(kept[dim], sizes[axis], at[axis])
    local = [values[sum(i * s for i, s in zip(index, strides(shape)))] for index in itertools.product(*kept)]
    local_shape = tuple(map(len, kept))
    split = math.prod(sizes[a] for a, w in enumerate(words) if w[0] == "S")
    spec = {"mesh": mesh.pickled(rank),
            "placements": tuple(place(w[0], int(w[1:] or 0), split) for w in words),
            "tensor_meta": new(C.Meta, Size(shape), strides(shape), float32)}
    if at_least("2.10"):
        dims = sorted({w[1:] for w in words if w != "R"})
        strided = any(w[0] == "L" for w in words)
        spec["shard_order"] = None if strided else tuple(
            new(C.Order, int(d), tuple(a for a, w in enumerate(words) if w[1:] == d)) for d in dims)
        spec["use_strided_shard_as_shard_order"] = strided
    spec["_hash"] = None
    slots = {"_local_tensor": tensor(float_storage, local_shape, struct.pack(f"<{len(local)}f", *local)),
             "_spec": new(C.Spec, **spec)}
    about = (C.DTensor, float32, shape, strides(shape), 0, reduced(get_layout, "torch.strided"),
             reduced(device, "cuda:0"), False)
    # __dict__ and slots; an empty __dict__ is None since Python 3.11.
    state = (None if at_least("2.5") else {}, slots)
    return struct.pack(f"<{numel}f", *values), reduced(rebuild_type, rebuild_subclass, C.DTensor, about, state)


def tensors():
    line, square = Mesh((WORLD,)), Mesh((2, 2))
    yield "rows", (10, 3), line, ["S0"]
    yield "columns", (3, 10), line, ["S1"]
    yield "few", (2, 3), line, ["S0"]
    yield "same", (5,), line, ["R"]
    yield "both", (5, 7), square, ["S0", "S1"]
    yield "hybrid", (9, 2), square, ["R", "S0"]
    yield "part", (9, 2), Mesh((2, 2), (1,)), ["S0"]
    yield "outer", (9, 2), Mesh((2, 2), (0,)), ["S0"]
    if at_least("2.5"):
        yield "twice", (9, 2), square, ["L0", "S0"]
    yield "thin", (6, 2), Mesh((4, 1)), ["S0", "S1"]


def copies(n, out):
    os.makedirs(f"{out}/c")
    for rank in range(WORLD):
        same = tensor(float_storage, (2,), struct.pack("<2f", 1, 2))
        save(f"{out}/c/model_world_size_{WORLD}_rank_{rank}.pt", {str(i): same for i in range(n)})


def main():
    global ERA, C  # pylint: disable=global-statement
    if sys.argv[1:2] == ["--copies"]:
        copies(int(sys.argv[2]), sys.argv[3])
        return
    if len(sys.argv) != 3 or sys.argv[1] not in ERAS:
        sys.exit(f"{__doc__}\nVERSION: {' '.join(ERAS)}")
    ERA, out = sys.argv[1:]
    C = classes()
    os.makedirs(f"{out}/c")
    what = list(tensors())
    for rank in range(WORLD):
        state = {}
        for name, *how in what:
            data, state[name] = dtensor(name, *how, rank)
            with open(f"{out}/{name}", "wb") as f:
                f.write(data)
        save(f"{out}/c/model_world_size_{WORLD}_rank_{rank}.pt", state)


main()
