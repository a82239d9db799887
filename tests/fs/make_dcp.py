#!/usr/bin/env python3
"""Write a DCP checkpoint without torch:

    make_dcp.py [--nested | --flat] DIR NAME SHAPE[:DTYPE] GRID[:FILE]...
    make_dcp.py --many N DIR

NAME is a tensor of SHAPE (as 3x4; "-" has no dimensions) and DTYPE (float32), cut into a GRID (as
2x4) of chunks, one item each, in one data file per row of the grid. Several NAME SHAPE GRID may
follow each other. FILE has the elements; without one they are pseudo-random, and DIR.NAME.bin next
to DIR holds them in order. For tests that need more bytes than a repository should carry, or bytes
and names of their own.

The planner's data is absent, or says that NAME is what flattening made of {"model": {"a.b": ...}}
(--nested: the first element of each name is a dict's key) or of {"model.a.b": ...} (--flat).

--many: N float32 tensors model.layers.I.J.w of one element, all the same item.
"""

import io
import itertools
import math
import os
import pickle
import random
import struct
import sys
import types
import zlib


def module(name):
    m = types.ModuleType(name)
    sys.modules[name] = m
    return m


def define(mod, name):
    cls = type(name, (), {"__module__": mod.__name__})
    setattr(mod, name, cls)
    return cls


torch = module("torch")
module("torch.distributed")
meta = module("torch.distributed.checkpoint.metadata")
files = module("torch.distributed.checkpoint.filesystem")
module("torch.distributed.checkpoint")
Metadata, TensorStorage, Chunk, Index = (
    define(meta, n)
    for n in ("Metadata", "TensorStorageMetadata", "ChunkStorageMetadata", "MetadataIndex")
)
Properties = define(meta, "TensorProperties")
StorageInfo = define(files, "_StorageInfo")
Index.__hash__ = lambda self: hash((self.fqn, self.offset))


class Size(tuple):
    __module__ = "torch"

    def __reduce__(self):
        return Size, (tuple(self),)


torch.Size = Size


class Global:
    """Something that pickles as the global `module name`."""

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return self.name


# Bytes of an element, and torch's storage class.
DTYPES = {
    "float64": (8, "DoubleStorage"), "float32": (4, "FloatStorage"), "float16": (2, "HalfStorage"),
    "bfloat16": (2, "BFloat16Storage"), "int64": (8, "LongStorage"), "int32": (4, "IntStorage"),
    "uint8": (1, "ByteStorage"), "bool": (1, "BoolStorage"), "complex64": (8, "ComplexFloatStorage"),
}
for dtype in DTYPES:
    setattr(torch, dtype, Global(dtype))
    getattr(torch, dtype).__module__ = "torch"


def new(cls, **attributes):
    obj = cls()
    obj.__dict__.update(attributes)
    return obj


def data_pickle(dtype, shape, strides=None):
    """The pickle of a tensor as torch.save writes it: protocol 2, the storage by persistent id; contiguous by
    default."""
    p = io.BytesIO()
    text = lambda s: b"X" + len(s).to_bytes(4, "little") + s.encode()
    number = lambda v: b"J" + v.to_bytes(4, "little", signed=True)
    numbers = lambda many: b"(" + b"".join(map(number, many)) + b"t"
    strides = strides or [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    p.write(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(")
    p.write(b"(" + text("storage") + b"ctorch\n" + DTYPES[dtype][1].encode() + b"\n")
    p.write(text("0") + text("cpu") + number(math.prod(shape)) + b"tQ" + number(0))
    p.write(numbers(shape) + numbers(strides))
    p.write(b"\x89ccollections\nOrderedDict\n)RtR.")
    return p.getvalue()


def item(dtype, shape, content, strides=None):
    """An archive as torch.save writes it: stored members with streamed headers, data on 64-byte
    boundaries by an extra field FB, CRC and sizes after the data, and always zip64 end records."""
    out, directory, count = bytearray(), bytearray(), 0
    for name, data in (
        ("archive/data.pkl", data_pickle(dtype, shape, strides)),
        ("archive/.format_version", b"1"),
        ("archive/.storage_alignment", b"64"),
        ("archive/byteorder", b"little"),
        ("archive/data/0", content),
        ("archive/version", b"3\n"),
    ):
        name = name.encode()
        start, size, crc = len(out), len(data), zlib.crc32(data)
        pad = -(start + 30 + len(name) + 4) % 64
        common = struct.pack("<HHHHH", 0, 0x0808, 0, 0, 0)
        out += b"PK\3\4" + common + struct.pack("<IIIHH", 0, 0, 0, len(name), 4 + pad)
        out += name + b"FB" + struct.pack("<H", pad) + b"Z" * pad + data
        out += struct.pack("<4sIII", b"PK\7\10", crc, size, size)
        directory += b"PK\1\2" + struct.pack("<H", 0) + common
        directory += struct.pack("<IIIHHHHHII", crc, size, size, len(name), 0, 0, 0, 0, 0, start)
        directory += name
        count += 1
    at, size = len(out), len(directory)
    out += directory
    out += struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, at)
    out += struct.pack("<4sIQI", b"PK\6\7", 0, at + size, 1)
    out += struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, size, at, 0)
    return bytes(out)


def awkward_float(source, dtype):
    """The bits of a random float, of one near 1, or of one half way between two numbers of a narrower type."""
    bits, mantissa, bias = {
        "float64": (64, 52, 1023), "float32": (32, 23, 127), "float16": (16, 10, 15),
        "bfloat16": (16, 7, 127),
    }[dtype]
    kind = source.randrange(4)
    any_bits = source.getrandbits(bits)
    if kind == 0:
        return any_bits
    low = (1 << mantissa) - 1
    exponent = source.randint(max(bias - 28, 0), min(bias + 18, 2 * bias))
    near = any_bits >> (bits - 1) << (bits - 1) | exponent << mantissa | any_bits & low
    if kind == 1 or mantissa < 23:
        return near
    keep = source.choice((10, 7))  # bits of the mantissa of float16 or bfloat16
    half = 1 << (mantissa - keep - 1)
    return near & ~(2 * half - 1) | half + source.choice((-1, 0, 0, 1))


AWKWARD = 2048  # at most so many awkward elements, because each takes 2 us


def random_content(name, dtype, shape):
    source, size, n = random.Random(name), DTYPES[dtype][0], math.prod(shape)
    if dtype == "bool":
        return bytes(source.randrange(2) for _ in range(n))
    awkward = min(n, AWKWARD) if "float" in dtype and n <= 1 << 16 else 0
    first = b"".join(awkward_float(source, dtype).to_bytes(size, "little") for _ in range(awkward))
    return first + source.randbytes((n - awkward) * size)


def cuts(n, parts):
    step = max(-(-n // parts), 1)
    return [(a, min(a + step, n) - a) for a in range(0, max(n, 1), step)]


def cut_out(content, size, shape, off, lens):
    """The bytes of a box of a tensor; size: bytes of an element."""
    if not shape:
        return content
    row = math.prod(shape[1:]) * size
    if tuple(lens[1:]) == tuple(shape[1:]):
        return content[off[0] * row : (off[0] + lens[0]) * row]
    rows = range(off[0], off[0] + lens[0])
    return b"".join(
        cut_out(content[r * row : (r + 1) * row], size, shape[1:], off[1:], lens[1:]) for r in rows
    )


class Checkpoint:
    def __init__(self, directory, planner):
        os.makedirs(directory)
        self.directory, self.state, self.storage = directory, {}, {}
        self.planner = None if planner is None else {}
        self.nested = planner == "--nested"

    def place(self, name):
        if self.planner is not None:
            self.planner[name] = tuple(name.split(".", 1)) if self.nested else (name,)

    def content_of(self, name, dtype, shape, source):
        if source:
            with open(source, "rb") as f:
                content = f.read()
        else:
            content = random_content(name, dtype, shape)
            with open(f"{self.directory}.{name}.bin", "wb") as f:
                f.write(content)
        assert len(content) == math.prod(shape) * DTYPES[dtype][0], f"{name}: {len(content)} bytes"
        return content

    def add(self, name, dtype, shape, grid, source=None):
        size, content = DTYPES[dtype][0], self.content_of(name, dtype, shape, source)
        chunks = []
        rows = cuts(shape[0], grid[0]) if shape else [()]
        for number, row in enumerate(rows):
            path = f"__{name}_{number}.distcp"
            others = [cuts(n, parts) for n, parts in zip(shape[1:], grid[1:])]
            with open(os.path.join(self.directory, path), "wb") as f:
                for box in itertools.product([row], *others) if shape else [()]:
                    off, lens = Size(o for o, _ in box), Size(n for _, n in box)
                    data = item(dtype, lens, cut_out(content, size, shape, off, lens))
                    key = new(Index, fqn=name, index=len(chunks), offset=off)
                    self.storage[key] = new(
                        StorageInfo, relative_path=path, offset=f.tell(), length=len(data)
                    )
                    chunks.append(new(Chunk, offsets=off, sizes=lens))
                    f.write(data)
        properties = new(Properties, dtype=getattr(torch, dtype))
        self.state[name] = new(
            TensorStorage, properties=properties, size=Size(shape), chunks=chunks
        )
        self.place(name)

    def add_many(self, n):
        self.add("model.layers.0.0.w", "float32", (1,), (1,))
        same, where = next(iter(self.state.values())), next(iter(self.storage.values()))
        for i in range(1, n):
            name = f"model.layers.{i // 100}.{i % 100}.w"
            self.state[name] = same
            self.storage[new(Index, fqn=name, index=0, offset=same.chunks[0].offsets)] = where
            self.place(name)

    def finish(self):
        top = new(
            Metadata, state_dict_metadata=self.state, planner_data=self.planner,
            storage_data=self.storage, storage_meta=None, version="1.0.0",
        )
        with open(os.path.join(self.directory, ".metadata"), "wb") as f:
            pickle.dump(top, f, protocol=4)


def main(*args):
    if args[0] == "--many":
        c = Checkpoint(args[2], "--nested")
        c.add_many(int(args[1]))
    else:
        planner = args[0] if args[0] in ("--nested", "--flat") else None
        c = Checkpoint(args[planner is not None], planner)
        args = args[1 + (planner is not None) :]
        for name, kind, grid in zip(args[::3], args[1::3], args[2::3]):
            shape, _, dtype = kind.partition(":")
            grid, _, source = grid.partition(":")
            numbers = [tuple(map(int, s.split("x"))) if s != "-" else () for s in (shape, grid)]
            c.add(name, dtype or "float32", *numbers, source)
    c.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 3 else __doc__)
