#!/usr/bin/env python3
"""Prints the golden numbers of tests/core/codec/test_blocks.c: type and CRC-32C of ggml's bytes, and then of the values
of blocks."""
import ctypes
import math
import struct

TYPES = (2, 3, 6, 7, 8, 12, 13, 14, 39)
DECODED = ("q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K q8_K iq2_xxs iq2_xs iq3_xxs iq1_s iq4_nl iq3_s iq2_s iq4_xs "
           "iq1_m tq1_0 tq2_0 mxfp4 nvfp4").split()
BLOCKS = 64
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
    state = 1
    raw = bytearray()
    for _ in range(BLOCKS * 292):
        state = (state * 1664525 + 1013904223) % 2**32
        raw.append(state >> 24 & 0xbf)  # no scale is infinite
    for name in DECODED:
        n = BLOCKS * {"nvfp4": 64}.get(name, 256 if "K" in name or name[:2] in ("iq", "tq") and name != "iq4_nl" else 32)
        out = ctypes.create_string_buffer(4 * n)
        getattr(ggml, f"dequantize_row_{name}")(bytes(raw), out, ctypes.c_int64(n))
        print(f"\t{{ GGML_{name.upper()}, {crc32c(out.raw):#010x} }},")


if __name__ == "__main__":
    main()
