#!/usr/bin/env python3
"""Write a DCP checkpoint without torch: make_dcp.py DIR NAME ROWSxCOLS GRID...

NAME is a float32 tensor of that shape, cut into a grid of GRID (as 2x4) chunks, one item each, in
one data file per row of the grid. Several NAME SHAPE GRID may follow each other. The elements are
pseudo-random; DIR.NAME.bin next to DIR holds them in order. SHAPE may name another dtype, as in
4x8:int64, and GRID a file that has the elements, as in 2x4:FILE. For tests that need more bytes
than a repository should carry, or bytes of their own.
"""

import io
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


# dtype: bytes of an element, storage class
DTYPES = {
    "float64": (8, "DoubleStorage"),
    "float32": (4, "FloatStorage"),
    "float16": (2, "HalfStorage"),
    "bfloat16": (2, "BFloat16Storage"),
    "int64": (8, "LongStorage"),
    "int32": (4, "IntStorage"),
    "uint8": (1, "ByteStorage"),
    "bool": (1, "BoolStorage"),
    "complex64": (8, "ComplexFloatStorage"),
}
for name in DTYPES:
    setattr(torch, name, Global(name))
    getattr(torch, name).__module__ = "torch"


def new(cls, **attributes):
    obj = cls()
    obj.__dict__.update(attributes)
    return obj


def data_pickle(storage, rows, cols):
    """As torch.save writes a contiguous tensor: protocol 2, storage by persistent id."""
    p = io.BytesIO()
    text = lambda s: b"X" + len(s).to_bytes(4, "little") + s.encode()
    number = lambda v: b"J" + v.to_bytes(4, "little", signed=True)
    p.write(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(")
    p.write(b"(" + text("storage") + b"ctorch\n" + storage.encode() + b"\n")
    p.write(text("0") + text("cpu") + number(rows * cols) + b"tQ" + number(0))
    p.write(number(rows) + number(cols) + b"\x86" + number(cols) + number(1) + b"\x86")
    p.write(b"\x89ccollections\nOrderedDict\n)RtR.")
    return p.getvalue()


def item(storage, rows, cols, content):
    """The archive that torch.save writes: stored members behind streamed headers, data on 64-byte
    boundaries by an extra field FB, CRC and sizes after the data, zip64 end records always."""
    out, directory, count = bytearray(), bytearray(), 0
    for name, data in (
        ("archive/data.pkl", data_pickle(storage, rows, cols)),
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


def cuts(n, parts):
    step = -(-n // parts)
    return [(a, min(a + step, n) - a) for a in range(0, n, step)]


def main(directory, *args):
    os.makedirs(directory)
    state, storage = {}, {}
    for name, shape, grid in zip(args[::3], args[1::3], args[2::3]):
        shape, _, dtype = shape.partition(":")
        grid, _, source = grid.partition(":")
        element, storage_class = DTYPES[dtype or "float32"]
        rows, cols = map(int, shape.split("x"))
        grid_rows, grid_cols = map(int, grid.split("x"))
        if source:
            with open(source, "rb") as f:
                whole = f.read()
        else:
            numbers = random.Random(name)
            whole = b"".join(numbers.randbytes(cols * element) for _ in range(rows))
            with open(f"{directory}.{name}.bin", "wb") as f:
                f.write(whole)
        assert len(whole) == rows * cols * element, f"{name}: {len(whole)} bytes"
        chunks = []
        for rank, (r0, nr) in enumerate(cuts(rows, grid_rows)):
            path = f"__{name}_{rank}.distcp"
            with open(os.path.join(directory, path), "wb") as f:
                for c0, nc in cuts(cols, grid_cols):
                    starts = ((r * cols + c0) * element for r in range(r0, r0 + nr))
                    part = b"".join(whole[at : at + nc * element] for at in starts)
                    data = item(storage_class, nr, nc, part)
                    off, size = Size((r0, c0)), Size((nr, nc))
                    key = new(Index, fqn=name, index=len(chunks), offset=off)
                    storage[key] = new(
                        StorageInfo, relative_path=path, offset=f.tell(), length=len(data)
                    )
                    chunks.append(new(Chunk, offsets=off, sizes=size))
                    f.write(data)
        properties = new(Properties, dtype=getattr(torch, dtype or "float32"))
        state[name] = new(
            TensorStorage, properties=properties, size=Size((rows, cols)), chunks=chunks
        )
    top = new(
        Metadata, state_dict_metadata=state, planner_data=None, storage_data=storage,
        storage_meta=None, version="1.0.0",
    )
    with open(os.path.join(directory, ".metadata"), "wb") as f:
        pickle.dump(top, f, protocol=4)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 4 else __doc__)
