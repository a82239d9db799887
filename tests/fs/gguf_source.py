#!/usr/bin/env python3
"""GGUF files of blocks, made without libraries.

    gguf_source.py make FILE [NO COUNT]   - write "w", 3 x 96 elements in blocks of Q8_0 (34 bytes, 32 elements), and
                                            "v", 5 float32; in a part, the names end with its number, from 0
    gguf_source.py edges MOUNTED          - check the values in all ranges of a mounted "w", as float32, that begin or
                                            end near the edge of a block
"""
import os
import struct
import sys

ROWS, COLUMNS = 3, 96
BLOCKS = COLUMNS // 32


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def raw(seed):
    """Three blocks for every row: a float16 scale that is a power of two, and 32 signed bytes."""
    state = seed
    for i in range(ROWS * BLOCKS):
        yield struct.pack("<e", 2.0 ** (i - 4))
        for _ in range(32):
            state = (state * 1103515245 + 12345) % 2**31
            yield bytes([state >> 16 & 255])


def values(seed):
    data = b"".join(raw(seed))
    for i in range(0, len(data), 34):
        scale, = struct.unpack_from("<e", data, i)
        yield from (scale * q for q in struct.unpack_from("<32b", data, i + 2))


def make(path, number=None, count=None):
    keys = [text("general.name") + struct.pack("<I", 8) + text("test")]
    end = "" if number is None else str(number)
    if number is not None:
        keys += [text("split.no") + struct.pack("<IH", 2, number), text("split.count") + struct.pack("<IH", 2, count),
                 text("split.tensors.count") + struct.pack("<Ii", 5, 2 * count)]
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, len(keys)) + b"".join(keys)
    data = b"".join(raw(1))
    data += bytes(-len(data) % 32)
    head += text("w" + end) + struct.pack("<IQQIQ", 2, COLUMNS, ROWS, 8, 0)
    head += text("v" + end) + struct.pack("<IQIQ", 1, 5, 0, len(data))
    head += bytes(-len(head) % 32)
    with open(path, "wb") as f:
        f.write(head + data + struct.pack("<5f", 1, 2, 3, 4, 5))


def edges(path):
    want = struct.pack(f"<{ROWS * COLUMNS}f", *values(1))
    fd = os.open(path, os.O_RDONLY)
    assert os.fstat(fd).st_size == len(want)
    near = sorted({max(0, min(len(want), 128 * i + k)) for i in range(len(want) // 128 + 1) for k in range(-5, 6)})
    for a in near:
        for b in near:
            if b > a and os.pread(fd, b - a, a) != want[a:b]:
                sys.exit(f"bytes {a} to {b} are wrong")
    os.close(fd)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        edges(sys.argv[2])
