#!/usr/bin/env python3
"""The golden numbers of tests/core/codec/test_blocks.c: blocks.py prints type and CRC-32C of ggml's bytes."""
import ctypes
import math
import struct

TYPES = (2, 3, 6, 7, 8, 12, 13, 14, 39)
GOLDEN = 64 * 256


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def elements():
    state = 1
    for i in range(GOLDEN):
        state = (state * 1664525 + 1013904223) % 2**32
        yield math.ldexp((state >> 8) - 2**23, -23 - i // 256 % 16 - i // 16 % 5 * (i // 256 // 16))


def main():
    ggml = ctypes.CDLL("libggml-base.so.0")
    ggml.ggml_row_size.restype = ctypes.c_size_t
    ggml.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p] + \
        3 * [ctypes.c_int64] + [ctypes.c_void_p]
    source = struct.pack(f"<{GOLDEN}f", *elements())
    for kind in TYPES:
        out = ctypes.create_string_buffer(ggml.ggml_row_size(kind, GOLDEN))
        ggml.ggml_quantize_chunk(kind, source, out, 0, 1, GOLDEN, None)
        print(kind, hex(crc32c(out.raw)))


if __name__ == "__main__":
    main()
