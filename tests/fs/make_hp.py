#!/usr/bin/env python3
"""Write a random HyperParallel checkpoint: make_hp.py DIR EXPECTED SEED GENERATION HOW [OBJECT].

GENERATION is A, B or C; HOW is collective (replicas are written once), nodedup (every rank writes
its own) or ranklocal (and its own metadata). EXPECTED gets tensors/FQN and objects/FQN with the expected
bytes. OBJECT is a file whose bytes become the object "given". Written by the rules of the format, without
HyperParallel, torch or numpy.
"""

import io
import itertools
import json
import math
import os
import pickle
import random
import struct
import sys
import types
import zipfile

# dtype: bytes of an element, storage class, safetensors, MindSpore
DTYPES = {
    "float64": (8, "DoubleStorage", "F64", "Float64"),
    "float32": (4, "FloatStorage", "F32", "Float32"),
    "float16": (2, "HalfStorage", "F16", "Float16"),
    "bfloat16": (2, "BFloat16Storage", "BF16", "BFloat16"),
    "int64": (8, "LongStorage", "I64", "Int64"),
    "int16": (2, "ShortStorage", "I16", "Int16"),
    "uint8": (1, "ByteStorage", "U8", "UInt8"),
    "bool": (1, "BoolStorage", "BOOL", "Bool"),
    "complex64": (8, "ComplexFloatStorage", "C64", "Complex64"),
}


def module(name):
    """Makes a module of that name, and its parents, for classes that are pickled."""
    for n in itertools.accumulate(name.split("."), "{}.{}".format):
        m = sys.modules.setdefault(n, types.ModuleType(n))
    return m


def define(mod, name, base=object):
    cls = type(name, (base,), {"__module__": mod.__name__})
    setattr(mod, name, cls)
    return cls


torch, utils = module("torch"), module("torch._utils")
Size = define(torch, "Size", tuple)
Size.__reduce__ = lambda self: (Size, (tuple(self),))
for _, storage_class, _, _ in DTYPES.values():
    define(torch, storage_class)


def _rebuild_tensor_v2():
    pass


_rebuild_tensor_v2.__module__ = "torch._utils"
utils._rebuild_tensor_v2 = _rebuild_tensor_v2


class Tensor:
    """A view of a storage (dtype, key, elements), which is pickled as torch pickles one."""

    def __init__(self, storage, offset, size, stride):
        self.args = storage, offset, tuple(size), tuple(stride), False, {}

    def __reduce__(self):
        return _rebuild_tensor_v2, self.args


class Storage:
    def __init__(self, dtype, key, elements):
        self.dtype, self.key, self.elements = dtype, key, elements


class TorchPickler(pickle.Pickler):
    def persistent_id(self, obj):
        if not isinstance(obj, Storage):
            return None
        return "storage", getattr(torch, DTYPES[obj.dtype][1]), obj.key, "cpu", obj.elements


def new(cls, **attributes):
    obj = cls()
    obj.__dict__.update(attributes)
    return obj


# ---- arrays: (shape, element, bytes in C order) ----


def strides_of(shape):
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def cut(whole, shape, element, box):
    """The bytes of a box (offsets, sizes) of an array."""
    strides = strides_of(shape)
    starts = (
        sum((o + i) * s for o, i, s in zip(box[0], index, strides))
        for index in itertools.product(*map(range, box[1]))
    )
    return b"".join(whole[at * element : (at + 1) * element] for at in starts)


def even(n, k, ceil):
    """[0, n) in k parts, some of which may be empty: (start, length)."""
    if ceil:
        c = -(-n // k)
        return [(min(i * c, n), min((i + 1) * c, n) - min(i * c, n)) for i in range(k)]
    at, parts = 0, []
    for i in range(k):
        parts.append((at, n // k + (i < n % k)))
        at += parts[-1][1]
    return parts


def boxes_of_run(shape, a, b):
    """The elements [a, b) in C order as boxes: partial head, whole blocks, partial tail."""
    if a >= b:
        return []
    if len(shape) == 1:
        return [((a,), (b - a,))]
    rest = math.prod(shape[1:])
    first, last = -(-a // rest), b // rest
    if first > last:
        inner = boxes_of_run(shape[1:], a % rest, b % rest or rest)
        return [((a // rest, *o), (1, *s)) for o, s in inner]
    head = boxes_of_run(shape[1:], a % rest, rest) if a % rest else []
    tail = boxes_of_run(shape[1:], 0, b % rest)
    boxes = [((a // rest, *o), (1, *s)) for o, s in head]
    if first < last:
        boxes.append(((first,) + (0,) * (len(shape) - 1), (last - first, *shape[1:])))
    return boxes + [((last, *o), (1, *s)) for o, s in tail]


# ---- containers ----


def safetensors(rng, tensors):
    order = list(tensors)
    rng.shuffle(order)
    header, at = {}, 0
    for key in order:
        dtype, size, data = tensors[key]
        header[key] = {
            "dtype": DTYPES[dtype][2], "shape": list(size), "data_offsets": [at, at + len(data)],
        }
        at += len(data)
    if rng.random() < 0.5:
        header["__metadata__"] = {"format": "pt"}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(tensors[k][2] for k in order)


def laid_out(rng, dtype, size, data, key):
    """A tensor and its storage's bytes: contiguous or transposed, perhaps with other elements around it."""
    element = DTYPES[dtype][0]
    stride = strides_of(size)
    if len(size) > 1 and rng.random() < 0.4:
        axes = list(range(len(size)))
        rng.shuffle(axes)
        inner = strides_of([size[a] for a in axes])
        stride = [inner[axes.index(d)] for d in range(len(size))]
        out = bytearray(len(data))
        for n, index in enumerate(itertools.product(*map(range, size))):
            at = sum(i * s for i, s in zip(index, stride)) * element
            out[at : at + element] = data[n * element : (n + 1) * element]
        data = bytes(out)
    before, after = rng.choice([0, 0, 3]), rng.choice([0, 0, 2])
    content = bytes(before * element) + data + bytes(after * element)
    return Tensor(Storage(dtype, key, len(content) // element), before, size, stride), content


def archive(rng, name, tensors):
    """The file that torch.save writes for a dict of tensors."""
    pickled, records, big = {}, {}, rng.random() < 0.2
    for n, (key, (dtype, size, data)) in enumerate(tensors.items()):
        pickled[key], content = laid_out(rng, dtype, size, data, str(n))
        unit = DTYPES[dtype][0] // (2 if dtype.startswith("complex") else 1)
        if big:
            content = b"".join(
                content[i : i + unit][::-1] for i in range(0, len(content), unit)
            )
        records[str(n)] = content
    p, out = io.BytesIO(), io.BytesIO()
    TorchPickler(p, 2).dump(pickled)
    with zipfile.ZipFile(out, "w") as z:
        z.writestr(f"{name}/data.pkl", p.getvalue())
        z.writestr(f"{name}/byteorder", "big" if big else "little")
        for key, content in records.items():
            z.writestr(f"{name}/data/{key}", content)
        z.writestr(f"{name}/version", "3\n")
    return out.getvalue()


# ---- what is saved ----


def layout(rng, shape, ranks, generation):
    """The boxes that each rank holds."""
    zero = (0,) * len(shape)
    how = rng.choice(["whole", "one", "split", "split", "split2", "ragged"])
    if how == "ragged" and generation != "A" and shape and math.prod(shape):
        cuts = sorted(rng.randint(0, math.prod(shape)) for _ in range(ranks - 1))
        return [
            boxes_of_run(shape, a, b) for a, b in zip([0, *cuts], [*cuts, math.prod(shape)])
        ]
    if how == "split" and shape:
        axis, ceil = rng.randrange(len(shape)), rng.random() < 0.5
        parts = even(shape[axis], ranks, ceil)
        return [
            [(
                tuple(p[0] if d == axis else 0 for d in range(len(shape))),
                tuple(p[1] if d == axis else n for d, n in enumerate(shape)),
            )]
            for p in parts
        ]
    if how == "split2" and len(shape) > 1 and ranks % 2 == 0:
        # Two mesh axes: the first splits dimension 0, the other splits dimension 1 or replicates.
        rows, cols = even(shape[0], ranks // 2, True), even(shape[1], 2, False)
        if rng.random() < 0.5:
            cols = [(0, shape[1])] * 2
        return [
            [((a, b, *zero[2:]), (n, m, *shape[2:]))] for (a, n) in rows for (b, m) in cols
        ]
    whole = [(zero, tuple(shape))]
    if how == "one":
        owner = rng.randrange(ranks)
        return [whole if r == owner else [] for r in range(ranks)]
    return [whole] * ranks


def names(rng, count):
    heads = ["model.layers.0", "model.layers.1", "model", "optimizer.state", "x"]
    out = set()
    while len(out) < count:
        out.add(f"{rng.choice(heads)}.{rng.choice('abcdefgh')}{rng.randrange(20)}")
    return sorted(out, key=lambda _: rng.random())


class Writer:
    def __init__(self, rng, generation, how, ranks):
        self.rng, self.generation, self.how, self.ranks = rng, generation, how, ranks
        package = "hyper_parallel.core." + (
            "checkpoint" if generation == "A" else "distributed_checkpoint"
        )
        meta, storage = module(package + ".metadata"), module(package + ".storage")
        self.Metadata, self.Tensor, self.Chunk, self.Properties, self.Bytes = (
            define(meta, n)
            for n in (
                "Metadata", "TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
                "BytesStorageMetadata",
            )
        )
        self.Index = define(meta, "MetadataIndex")
        # In the last generation, index is not part of the key.
        part = (lambda x: (x.fqn, x.offset)) if generation == "C" else (
            lambda x: (x.fqn, x.offset, x.index)
        )
        self.Index.__hash__ = lambda x: hash(part(x))
        self.Index.__eq__ = lambda x, y: part(x) == part(y)
        self.StorageInfo = define(storage, "StorageInfo")
        self.mindspore = generation != "A" and rng.random() < 0.5
        self.files = {}  # files of tensors: rank: {key: (dtype, size, bytes)}
        self.bytes = {}  # file name: bytes
        self.reset()

    def reset(self):
        self.state, self.storage = {}, {}

    def sizes(self, v):
        return Size(v) if self.rng.random() < 0.5 and not self.mindspore else tuple(v)

    def info(self, path, offset, length, key):
        info = new(self.StorageInfo, relative_path=path, offset=offset, length=length)
        if self.generation != "A":
            info.tensor_key = key
        return info

    def tensor(self, rank, fqn, dtype, shape, whole, boxes):
        """One rank's plan for one tensor."""
        said = DTYPES[dtype][3] if self.mindspore else "torch." + dtype
        if fqn not in self.state:
            self.state[fqn] = new(
                self.Tensor, size=self.sizes(shape), chunks=[],
                properties=new(
                    self.Properties, dtype=said, requires_grad=False, memory_format=None
                ),
            )
        chunks, file = self.state[fqn].chunks, self.files.setdefault(rank, {})
        for n, box in enumerate(boxes):
            key = fqn if len(boxes) == 1 else f"{fqn}.__dcp_chunk_{n}"
            file[key] = dtype, box[1], cut(whole, shape, DTYPES[dtype][0], box)
            index = new(self.Index, fqn=fqn, offset=tuple(box[0]), index=len(chunks))
            chunks.append(
                new(self.Chunk, offsets=self.sizes(box[0]), sizes=self.sizes(box[1]))
            )
            if self.generation == "C" and index in self.storage and not math.prod(box[1]):
                continue  # an empty chunk must not replace its neighbour
            self.storage[index] = self.info(f"_rank{rank}_.safetensors", 0, -1, key)

    def object(self, rank, fqn, content):
        self.state[fqn] = new(self.Bytes)
        if self.generation == "A":
            path, offset = f"{fqn}_rank{rank}.bytes", 0
        else:
            path = f"_rank{rank}_.bytes"
            offset = len(self.bytes.get(path, b""))
        self.bytes[path] = self.bytes.get(path, b"") + content
        index = new(self.Index, fqn=fqn, offset=(), index=None)
        self.storage[index] = self.info(path, offset, len(content), None)

    def metadata(self, path):
        top = new(self.Metadata, state_dict_metadata=self.state, storage_data=self.storage)
        top.planner_data = None
        if self.generation != "A":
            top.planner_data = {n: tuple(n.split(".")) for n in self.state}
        if self.generation == "C":
            top.version = "2.0"
        elif self.rng.random() < 0.5:
            top.version = "1.0"
        with open(path, "wb") as f:
            pickle.dump(top, f, protocol=self.rng.choice([2, 3, 4, 5]))

    def data(self, directory):
        for rank, tensors in self.files.items():
            name = f"_rank{rank}_"
            content = (
                archive(self.rng, name, tensors)
                if self.generation == "A"
                else safetensors(self.rng, tensors)
            )
            with open(os.path.join(directory, name + ".safetensors"), "wb") as f:
                f.write(content)
        for name, content in self.bytes.items():
            with open(os.path.join(directory, name), "wb") as f:
                f.write(content)


def dedup(rng, held, ranks):
    """If several ranks hold a box, only one of them writes it."""
    owner = {}
    for r in range(ranks):
        for box in held[r]:
            owner.setdefault(box, []).append(r)
    owner = {k: rng.choice(v) for k, v in owner.items()}
    return [[b for b in held[r] if owner[b] == r] for r in range(ranks)]


def main(directory, expected, seed, generation, how, given=None):
    rng = random.Random(f"{seed} {generation} {how}")
    ranks = rng.randint(1, 6)
    w = Writer(rng, generation, how, ranks)
    os.makedirs(directory)
    for kind in ("tensors", "objects"):
        os.makedirs(os.path.join(expected, kind))
    wanted = names(rng, rng.randint(1, 12))
    n_objects = rng.randint(0, 3)
    plans = {}
    for fqn in wanted[n_objects:]:
        shape = [rng.choice([0, 1, 2, 3, 5, 8]) for _ in range(rng.randint(0, 4))]
        dtype = rng.choice(list(DTYPES))
        whole = rng.randbytes(math.prod(shape) * DTYPES[dtype][0])
        held = layout(rng, shape, ranks, generation)
        if how == "collective":
            held = dedup(rng, held, ranks)
        plans[fqn] = dtype, shape, whole, held
        with open(os.path.join(expected, "tensors", fqn), "wb") as f:
            f.write(whole)
    objects = {fqn: rng.randbytes(rng.randint(1, 50)) for fqn in wanted[:n_objects]}
    if given:
        with open(given, "rb") as f:
            objects["given"] = f.read()
    for fqn, content in objects.items():
        with open(os.path.join(expected, "objects", fqn), "wb") as f:
            f.write(content)
    local = {"A": ".rank%d_metadata", "B": "%d.metadata", "C": ".metadata_rank%d"}[generation]
    for rank in range(ranks):
        for fqn in rng.sample(list(plans), len(plans)):
            dtype, shape, whole, held = plans[fqn]
            if held[rank]:
                w.tensor(rank, fqn, dtype, shape, whole, held[rank])
        for fqn, content in objects.items():
            if how != "collective" or rank == 0:
                w.object(rank, fqn, content)
        if how == "ranklocal":
            w.metadata(os.path.join(directory, local % rank))
            w.reset()
    w.data(directory)
    if how != "ranklocal":
        w.metadata(os.path.join(directory, ".metadata"))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) in (6, 7) else __doc__)
