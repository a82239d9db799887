#!/usr/bin/env python3
"""Write a malicious checkpoint:

    hostile.py KIND N DIR

N is its size. The kinds are described where they are defined, below.
"""

import io
import json
import os
import struct
import sys
import zipfile
import zlib

# The first 8 bytes of XXH3's secret. In tables without a seed, the hash of a name that begins with them does not depend
# on its next 8 bytes.
SECRET = bytes.fromhex("b8fe6c3923a44bbe")

META = "torch.distributed.checkpoint.metadata"
FILES = "torch.distributed.checkpoint.filesystem"


class Raw:
    """A pickle that is written opcode by opcode."""

    def __init__(self):
        self.out, self.stored = io.BytesIO(), 0
        self.put(b"\x80\x04")

    def is_written(self):
        return self.out.tell() > 2

    def put(self, *parts):
        for p in parts:
            self.out.write(p)
        return self

    def text(self, s):
        s = s if isinstance(s, bytes) else s.encode()
        return self.put(b"X", struct.pack("<I", len(s)), s)

    def number(self, n):
        if -(2**31) <= n < 2**31:
            return self.put(b"J", struct.pack("<i", n))
        s = n.to_bytes((n.bit_length() + 8) // 8, "little", signed=True)
        return self.put(b"\x8a", bytes([len(s)]), s)

    def globl(self, module, name):
        return self.put(b"c", module.encode(), b"\n", name.encode(), b"\n")

    def store(self):
        """Store the value on top of the stack in the memo; returns its number there."""
        self.put(b"r", struct.pack("<I", self.stored))
        self.stored += 1
        return self.stored - 1

    def once(self, memo, key, write):
        """A value that is written once and then taken from the memo."""
        if key in memo:
            self.put(b"j", struct.pack("<I", memo[key]))
        else:
            write()
            memo[key] = self.store()

    def numbers(self, many):
        self.put(b"(")
        for n in many:
            self.number(n)
        return self.put(b"t")

    def size(self, shape):
        return self.globl("torch", "Size").numbers(shape).put(b"\x85R")

    def new(self, module, name, **attributes):
        """An object, whose attributes are written by functions."""
        self.globl(module, name).put(b")\x81}(")
        for key, value in attributes.items():
            self.text(key)
            value()
        return self.put(b"ub")

    def chunk(self, off, size):
        return self.new(
            META, "ChunkStorageMetadata", offsets=lambda: self.size(off), sizes=lambda: self.size(size)
        )

    def tensor(self, shape, chunks):
        """chunks() writes the elements of a list."""

        def listed():
            self.put(b"](")
            chunks()
            self.put(b"e")

        return self.new(
            META, "TensorStorageMetadata", size=lambda: self.size(shape), chunks=listed,
            properties=lambda: self.new(
                META, "TensorProperties", dtype=lambda: self.globl("torch", "float32")
            ),
        )

    def key(self, fqn, off):
        """off: None for an object"""
        return self.new(
            META, "MetadataIndex", fqn=lambda: self.text(fqn),
            offset=lambda: self.put(b"N") if off is None else self.size(off),
            index=lambda: self.put(b"N"),
        )

    def place(self, path, offset, length, transforms=None):
        more = {}
        if transforms:
            more["transform_descriptors"] = lambda: self.put(b"](").text(transforms).put(b"e")
        return self.new(
            FILES, "_StorageInfo", relative_path=lambda: self.text(path),
            offset=lambda: self.number(offset), length=lambda: self.number(length), **more,
        )

    def mapping(self, write):
        self.put(b"}(")
        write()
        return self.put(b"u")

    def metadata(self, state, storage, planner=None):
        """state() and storage() write keys and values; planner() a value."""
        self.new(
            META, "Metadata", state_dict_metadata=lambda: self.mapping(state),
            storage_data=lambda: self.mapping(storage),
            planner_data=planner or (lambda: self.put(b"N")),
        )
        return self.put(b".")


def base62(n, width):
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    s = ""
    for _ in range(width):
        n, d = divmod(n, 62)
        s += digits[d]
    return s.encode()


def one_tensor(p, storage=None, fqn="w", planner=None):
    p.metadata(
        lambda: p.text(fqn).tensor([1], lambda: p.chunk([0], [1])), storage or (lambda: None), planner
    )


def colliding_paths(p, n, _):
    """A tensor of n chunks, each in a file of its own; all file names have the same hash."""
    p.metadata(
        lambda: p.text("w").tensor([n], lambda: [p.chunk([i], [1]) for i in range(n)]),
        lambda: [
            p.key("w", [i]).place(SECRET + base62(i, 8) + b"=" * 16, 0, 1000) for i in range(n)
        ],
    )


def colliding_names(p, n, _):
    """n tensors whose names have the same hash."""
    names = [SECRET + base62(i, 8) + b"=" * 16 for i in range(n)]
    p.metadata(lambda: [p.text(s).tensor([0], lambda: None) for s in names], lambda: None)


def overlapping_chunks(p, n, _):
    """A tensor of n chunks that all overlap each other."""
    p.metadata(
        lambda: p.text("w").tensor([2 * n, 2], lambda: [p.chunk([i, 0], [n, 2]) for i in range(n)]),
        lambda: [p.key("w", [i, 0]).place("f", 0, 1000) for i in range(n)],
    )


def crossing_chunks(p, n, _):
    """Chunks that are rows, and chunks that are columns."""
    boxes = [([i, 0], [1, n]) for i in range(n)] + [([0, i], [n, 1]) for i in range(n)]
    p.metadata(
        lambda: p.text("w").tensor([n, n], lambda: [p.chunk(*b) for b in boxes]),
        lambda: [p.key("w", b[0]).place("f", 0, 1000) for b in boxes],
    )


def rows_beside_columns(p, n, _):
    """n tensors that share a list of chunks, in 64 dimensions, none of which separates the chunks."""
    side, memo, inner = 4000, {}, [0] * 62
    ones = [1] * 62

    def boxes():
        for i in range(side):
            yield [0, *inner, i], [side, *ones, 1]
        for i in range(side, 2 * side):
            yield [i, *inner, 0], [1, *ones, side]

    def chunks():
        for off, size in boxes():
            p.new(
                META, "ChunkStorageMetadata", offsets=lambda: p.once(memo, tuple(off), lambda: p.size(off)),
                sizes=lambda: p.size(size),
            )

    def tensor(i):
        p.text(f"w{i}").new(
            META, "TensorStorageMetadata", size=lambda: p.size([2 * side, *ones, side]),
            chunks=lambda: p.once(memo, "list", lambda: (p.put(b"]("), chunks(), p.put(b"e"))),
            properties=lambda: p.new(META, "TensorProperties", dtype=lambda: p.globl("torch", "float32")),
        )

    def stored():
        for i in range(n):
            for off, _ in boxes():
                p.new(
                    META, "MetadataIndex", fqn=lambda: p.once(memo, i, lambda: p.text(f"w{i}")),
                    offset=lambda: p.once(memo, tuple(off), None), index=lambda: p.put(b"N"),
                )
                p.once(memo, "place", lambda: p.place("f", 0, 1000))

    p.metadata(lambda: [tensor(i) for i in range(n)], stored)


def repeated(p, n, off, size):
    """The same chunk n times, in five bytes each."""
    again = b"j" + struct.pack("<I", p.chunk(off, size).store())
    for at in range(1, n, 1000):
        p.put(b"e(", again * min(1000, n - at))


def empty_chunks(p, n, _):
    """A tensor of n empty chunks."""
    p.metadata(lambda: p.text("w").tensor([0], lambda: repeated(p, n, [0], [0])), lambda: None)


def same_chunk(p, n, _):
    """A tensor of one chunk, listed n times."""
    p.metadata(
        lambda: p.text("w").tensor([1], lambda: repeated(p, n, [0], [1])),
        lambda: p.key("w", [0]).place("f", 0, 1000),
    )


def shared_chunks(p, n, _):
    """40 tensors that have one list of n chunks of 64 dimensions, which is in the file once."""
    big, memo = [2**56] * 64, {}

    def tensor(i):
        p.text(f"w{i}").new(
            META, "TensorStorageMetadata", size=lambda: p.size(big),
            chunks=lambda: p.once(memo, "list", lambda: (p.put(b"]("), repeated(p, n, big, big), p.put(b"e"))),
            properties=lambda: p.new(META, "TensorProperties", dtype=lambda: p.globl("torch", "float32")),
        )

    p.metadata(lambda: [tensor(i) for i in range(40)], lambda: None)


def doubling(p, n, _):
    """planner_data is n lists, each of which contains the previous one twice."""

    def planner():
        p.put(b"}(").text("w").put(b"]")
        for _ in range(n):
            again = b"j" + struct.pack("<I", p.store())
            p.put(b"](", again, again, b"e")
        p.put(b"u")

    one_tensor(p, planner=planner)


def deep(p, n, _):
    """planner_data is n nested tuples."""
    one_tensor(p, planner=lambda: p.put(b")" + b"\x85" * n))


def deep_marks(p, n, _):
    p.put(b"(" * n, b".")


def far_memo(p, n, _):
    """A memo whose only entry has the number n."""
    p.text("x").put(b"r", struct.pack("<I", n), b"0")
    one_tensor(p)


def memo(p, n, _):
    """n memo entries."""
    for _ in range(n):
        p.put(b"K\x01").store()
        p.put(b"0")
    one_tensor(p)


def text_that_is_not_there(p, n, _):
    p.put(b"\x8d", struct.pack("<Q", n), b"abc")


def huge_int(p, n, _):
    """A number of n bytes."""
    p.put(b"}(").text("x").put(b"\x8b", struct.pack("<i", n), b"\x01" * n, b"u0")
    one_tensor(p)


def digits(p, n, _):
    """A number of n decimal digits."""
    p.put(b"I", b"9" * n, b"\n0")
    one_tensor(p)


def huge_shape(p, n, _):
    """n dimensions of 2**62."""
    p.metadata(
        lambda: p.text("w").tensor([2**62] * n, lambda: p.chunk([0] * n, [2**62] * n)),
        lambda: p.key("w", [0] * n).place("f", 0, 1000),
    )


def far_item(p, n, directory):
    """An item at offset n, of n bytes."""
    with open(os.path.join(directory, "f"), "wb") as f:
        f.write(b"x" * 4096)
    one_tensor(p, storage=lambda: p.key("w", [0]).place("f", n, n))


def outside(path):
    def kind(p, _, directory):
        one_tensor(p, storage=lambda: p.key("w", [0]).place(path, 0, 100))

    return kind


def no_items(p, n, directory):
    """n tensors, with zeros where their items should be."""
    with open(os.path.join(directory, "f"), "wb") as f:
        f.truncate(16 * n)
    p.metadata(
        lambda: [p.text(f"t{i:07}").tensor([4], lambda: p.chunk([0], [4])) for i in range(n)],
        lambda: [p.key(f"t{i:07}", [0]).place("f", i * 16, 16) for i in range(n)],
    )


def escapes(p, _, __):
    """Names with special characters of terminals, HTML, JSON and shells."""
    names = [
        b"\x1b[2J\x1b]0;owned\x07", b"\xc2\x9b31m", "\u202egnp.exe".encode(), b"a\nb\rc",
        b"</script><script>alert(1)</script>", b'"}], "x": [{"', b"\\u0000\\", b"$(id)`id`;id", b"-rf",
        "\u2066\u2069".encode(), b"%1b%5b", b"..", b".", b"../../etc/passwd", b"",
    ]
    p.metadata(lambda: [p.text(s).tensor([0], lambda: None) for s in names], lambda: None)


def zstd_rle(content, size):
    """A frame with the content and then `size` zeros, of which 128 KiB take four bytes."""
    block = lambda last, kind, n: struct.pack("<I", last | kind << 1 | n << 3)[:3]
    out = struct.pack("<I", 0xFD2FB528) + bytes([0, 7 << 3])  # no content size; a window of 128 KiB
    out += block(0, 0, len(content)) + content
    while size:
        n = min(size, 1 << 17)
        size -= n
        out += block(not size, 1, n) + b"\0"
    return out


def zstd_bomb(p, n, directory):
    """An object that decompresses to n bytes, thirty thousand times its own size."""
    data = zstd_rle(b"x", n)
    with open(os.path.join(directory, "f"), "wb") as f:
        f.write(data)
    p.metadata(
        lambda: p.text("o").new(META, "BytesStorageMetadata"),
        lambda: p.key("o", None).place("f", 0, len(data), "stream.zstd/1"),
    )


def zstd_window(p, n, directory):
    """A frame that needs a window of 2**n bytes."""
    data = struct.pack("<I", 0xFD2FB528) + bytes([0, n - 10 << 3]) + b"\x01\0\0" * 2
    with open(os.path.join(directory, "f"), "wb") as f:
        f.write(data)
    p.metadata(
        lambda: p.text("o").new(META, "BytesStorageMetadata"),
        lambda: p.key("o", None).place("f", 0, len(data), "stream.zstd/1"),
    )


def zip_bomb(p, n, directory):
    """An item of n zeros, deflated."""
    z = zlib.compressobj(9, wbits=-15)
    content = b"\0" * n
    packed = z.compress(content) + z.flush()
    name = b"archive/data.pkl"
    head = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 0, zlib.crc32(content), len(packed), n, len(name), 0)
    data = b"PK\3\4" + head + name + packed
    start = len(data)
    data += b"PK\1\2" + struct.pack("<H", 20) + head + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    data += b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(data) - start, start, 0)
    with open(os.path.join(directory, "f"), "wb") as f:
        f.write(data)
    one_tensor(p, storage=lambda: p.key("w", [0]).place("f", 0, len(data)))


def same_wrapper(p, n, directory):
    """n tensors whose item must be read to find that they are of a subclass; all have the same item, 4 MB of pickle."""
    q = Raw().globl("torch._tensor", "_rebuild_from_type_v2").put(b"(").globl("torch._utils", "_rebuild_wrapper_subclass")
    q.globl("m", "X").put(b"(").globl("m", "X").globl("torch", "float32").numbers([100000]).put(b"t}(").text("a")
    q.globl("torch._utils", "_rebuild_tensor_v2").put(b"((").text("storage").globl("torch", "FloatStorage").text("0")
    q.text("cpu").number(1).put(b"tQ").number(0).numbers([1]).numbers([1]).put(b"\x89NtR")
    q.text("b").put(b"](", struct.pack("<BI", ord("J"), 5) * 800000, b"eutR.")
    with zipfile.ZipFile(os.path.join(directory, "f"), "w") as z:
        z.writestr("archive/data.pkl", q.out.getvalue())
        z.writestr("archive/data/0", bytes(4))
    size = os.path.getsize(os.path.join(directory, "f"))

    def tensors():
        for i in range(n):
            p.text(f"w{i}").tensor([100000], lambda: p.chunk([0], [100000]))

    def items():
        for i in range(n):
            p.key(f"w{i}", [0]).place("f", 0, size)

    p.metadata(tensors, items)


def shared_attributes(p, n, _):
    """n tensors that are one object, with n attributes."""
    memo = {}

    def properties():
        p.new(META, "TensorProperties", dtype=lambda: p.globl("torch", "float32"))

    def one():
        more = {f"{i:x}": lambda: p.put(b"N") for i in range(n)}
        p.new(META, "TensorStorageMetadata", **more, size=lambda: p.size([0]), chunks=lambda: p.put(b"]"),
              properties=properties)

    def tensors():
        for i in range(n):
            p.text(f"t{i}").once(memo, "tensor", one)

    p.metadata(tensors, lambda: None)


def archive(path, more=()):
    """A tensor of one float32, as torch writes it; more: names of empty records."""
    q = Raw().globl("torch._utils", "_rebuild_tensor_v2").put(b"((").text("storage").globl("torch", "FloatStorage")
    q.text("0").text("cpu").number(1).put(b"tQ").number(0).numbers([1]).numbers([1]).put(b"\x89}tR.")
    with zipfile.ZipFile(path, "w") as z:
        for name in more:
            z.writestr(name, b"")
        z.writestr("archive/data.pkl", q.out.getvalue())
        z.writestr("archive/byteorder", b"little")
        z.writestr("archive/data/0", bytes(4))
    return os.path.getsize(path)


def same_item(p, n, directory):
    """n tensors that have one item."""
    size = archive(os.path.join(directory, "f"))
    p.metadata(
        lambda: [p.text(f"t{i}").tensor([1], lambda: p.chunk([0], [1])) for i in range(n)],
        lambda: [p.key(f"t{i}", [0]).place("f", 0, size) for i in range(n)],
    )


def views(_, n, directory):
    """n tensors that are one storage, but for its first or last elements."""
    q = Raw().put(b"}(")
    memo = {}
    for i in range(n):
        q.text(f"t{i}").globl("torch._utils", "_rebuild_tensor_v2").put(b"(")
        q.once(memo, "id", lambda: (q.put(b"(").text("storage").globl("torch", "FloatStorage").text("0"),
                                    q.text("cpu").number(2 * n).put(b"tQ")))
        q.number(i).numbers([n]).numbers([1]).put(b"\x89}tR")
    q.put(b"u.")
    with zipfile.ZipFile(os.path.join(directory, "x.pt"), "w") as z:
        z.writestr("archive/data.pkl", q.out.getvalue())
        z.writestr("archive/byteorder", b"little")
        z.writestr("archive/data/0", bytes(8 * n))


def members_in_members(_, n, directory):
    """n members of an archive, all of them the same bytes."""
    path = os.path.join(directory, "x.pt")
    q = Raw().put(b"}(").text("t").globl("torch._utils", "_rebuild_tensor_v2").put(b"((").text("storage")
    q.globl("torch", "FloatStorage").text("0").text("cpu").number(2500000).put(b"tQ").number(0).numbers([2500000])
    q.numbers([1]).put(b"\x89}tRu.")
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("archive/data.pkl", q.out.getvalue())
        z.writestr("archive/byteorder", b"little")
        z.writestr("archive/data/0", bytes(10000000))
        start = z.start_dir
    with open(path, "r+b") as f:
        f.seek(start)
        rows = f.read()
        rows = rows[:rows.index(b"PK\5\6")]
        head = rows[rows.rindex(b"PK\1\2"):][:46]
        name = b"archive/data/%07d"
        head = head[:28] + struct.pack("<H", len(name % 0)) + head[30:46]
        rows += b"".join(head + name % (i + 1) for i in range(n))
        f.seek(start)
        f.write(rows)
        end = start + len(rows)
        f.write(struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, n + 3, n + 3, end - start, start))
        f.write(struct.pack("<IIQI", 0x07064B50, 0, end, 1))
        f.write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0))


def archive_in_archive(p, _, directory):
    """An item is part of another."""
    path = os.path.join(directory, "f")
    size = archive(path)
    with open(path, "rb") as f:
        inner = f.read()
    name = b"a/x"
    outer = b"PK\3\4" + struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0, zlib.crc32(inner), size, size, len(name), 0) + name
    with open(path, "wb") as f:
        f.write(outer + inner)
    p.metadata(
        lambda: [p.text(s).new(META, "BytesStorageMetadata") for s in "ab"],
        lambda: (p.key("a", None).place("f", 0, len(outer) + size), p.key("b", None).place("f", len(outer), size)),
    )


def long_directory(p, n, directory):
    """A tensor whose archive has n other records."""
    size = archive(os.path.join(directory, "f"), [f"a/{i:0100}" for i in range(n)])
    one_tensor(p, storage=lambda: p.key("w", [0]).place("f", 0, size))


def orbax_strings(_, n, directory):
    """A tree of one array and n strings."""
    def leaf(key, kind):
        return {"key_metadata": [{"key": key, "key_type": 2}],
                "value_metadata": {"value_type": kind, "skip_deserialize": False}}

    array = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "<f4", "compressor": None, "fill_value": None,
             "order": "C", "filters": None}
    tree = {"('w',)": leaf("w", "jax.Array")}
    tree.update((f"('s{i}',)", leaf(f"s{i}", "string")) for i in range(n))
    os.mkdir(os.path.join(directory, "w"))
    for name, value in (("w/.zarray", array), ("_METADATA", {"tree_metadata": tree}),
                        ("_strings.json", {f"s{i}": "x" for i in range(n)})):
        with open(os.path.join(directory, name), "w", encoding="ascii") as f:
            json.dump(value, f)


def zarr_files(_, n, directory):
    """n files that belong to no array."""
    orbax_strings(_, 1, directory)
    os.mkdir(os.path.join(directory, "x"))
    for i in range(n):
        with open(os.path.join(directory, "x", f"f{i}"), "wb"):
            pass


def lora_patterns(_, n, directory):
    """n modules, and an adapter for each with four megabytes of patterns, in base/ and adapter/."""
    def tensors(path, names):
        header = json.dumps({s: {"dtype": "F32", "shape": [1, 1], "data_offsets": [4 * i, 4 * i + 4]}
                             for i, s in enumerate(names)}).encode()
        os.makedirs(os.path.dirname(path))
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(header)) + header + bytes(4 * len(names)))

    tensors(os.path.join(directory, "base", "model.safetensors"), [f"m{i}.weight" for i in range(n)])
    tensors(os.path.join(directory, "adapter", "adapter_model.safetensors"),
            [f"base_model.model.m{i}.lora_{x}.weight" for i in range(n) for x in "AB"])
    with open(os.path.join(directory, "adapter", "adapter_config.json"), "w", encoding="ascii") as f:
        json.dump({"peft_type": "LORA", "r": 1, "lora_alpha": 1,
                   "rank_pattern": {f"p{i:04}" + "x" * 8000: 1 for i in range(490)}}, f)


KINDS = {
    f.__name__: f
    for f in (
        colliding_paths, colliding_names, overlapping_chunks, crossing_chunks, rows_beside_columns,
        empty_chunks, same_chunk, shared_chunks, doubling, deep, deep_marks, far_memo, memo,
        text_that_is_not_there, huge_int, digits, huge_shape, far_item, no_items, escapes, zstd_bomb,
        zstd_window, zip_bomb, same_wrapper, shared_attributes, same_item, views, archive_in_archive,
        members_in_members, long_directory, orbax_strings, zarr_files, lora_patterns,
    )
}
KINDS["absolute_path"] = outside("/etc/passwd")
KINDS["parent_path"] = outside("a/../../secret")
KINDS["link_path"] = outside("link")


def main(kind, n, directory):
    os.makedirs(directory)
    p = Raw()
    KINDS[kind](p, int(n), directory)
    if p.is_written():  # torch's, not another format
        with open(os.path.join(directory, ".metadata"), "wb") as f:
            f.write(p.out.getvalue())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) == 4 else __doc__)
