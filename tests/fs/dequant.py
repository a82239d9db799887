# SPDX-License-Identifier: Apache-2.0
"""Write a checkpoint of float8 weights, and its twin with the bfloat16 weights that they stand for:

    dequant.py SEED QUANTISED TWIN NAME SHAPE...
    dequant.py same CODES SCALES WEIGHTS BLOCK

The second compares the bfloat16 WEIGHTS with float8 CODES, of which BLOCK share one of the bfloat16 SCALES.
Matrices of two dimensions whose name does not begin with lm_head or model.embed are float8 with a scale for each
block of 16 x 32; scales are powers of two, so that nothing is rounded. Scales are in another file than codes.
"""
import json
import os
import random
import struct
import sys

BLOCK = 16, 32


def value(code):
    """The number that a code of float8_e4m3fn stands for."""
    e, m = code >> 3 & 15, code & 7
    return (-1 if code & 0x80 else 1) * (m / 512 if not e else (1 + m / 8) * 2.0 ** (e - 7))


def bf16(x):
    """The bits of a number that bfloat16 can represent exactly."""
    return struct.pack("<f", x)[2:]


def write(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + data)


def quantise(r, m, n):
    """Codes, scales, and the weights as bfloat16."""
    columns = -(-n // BLOCK[1])
    exponents = [r.randrange(-8, 4) for _ in range(-(-m // BLOCK[0]) * columns)]
    codes = bytes(r.choice([c for c in range(256) if c & 0x7F != 0x7F]) for _ in range(m * n))
    weights = b"".join(bf16(value(c) * 2.0 ** exponents[i // n // BLOCK[0] * columns + i % n // BLOCK[1]])
                       for i, c in enumerate(codes))
    return codes, (len(exponents) // columns, columns), struct.pack(f"<{len(exponents)}f",
                                                                     *(2.0 ** e for e in exponents)), weights


def main(seed, quantised, twin, *args):
    r = random.Random(int(seed))
    codes, scales, weights = {}, {}, {}
    for name, shape in zip(args[::2], args[1::2]):
        shape = [int(n) for n in shape.split("x")]
        if len(shape) == 2 and not name.startswith(("lm_head", "model.embed")):
            c, grid, s, w = quantise(r, *shape)
            codes[name] = "F8_E4M3", shape, c
            scales[name + "_scale_inv"] = "F32", grid, s
            weights[name] = "BF16", shape, w
        else:
            n = shape[0] * (shape[1] if len(shape) > 1 else 1)
            raw = b"".join(bf16(r.randrange(-127, 128) / 16) for _ in range(n))
            codes[name] = weights[name] = "BF16", shape, raw
    os.makedirs(quantised)
    os.makedirs(twin)
    write(f"{quantised}/model-00001-of-00002.safetensors", codes)
    write(f"{quantised}/model-00002-of-00002.safetensors", scales)
    index = {**{k: "model-00001-of-00002.safetensors" for k in codes},
             **{k: "model-00002-of-00002.safetensors" for k in scales}}
    with open(f"{quantised}/model.safetensors.index.json", "w") as f:
        json.dump({"metadata": {}, "weight_map": index}, f)
    write(f"{twin}/model.safetensors", weights)
    for where in quantised, twin:
        config = json.load(open("hf/config.json"))
        if where == quantised:
            config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": BLOCK}
        with open(f"{where}/config.json", "w") as f:
            json.dump(config, f, indent=2)
        with open("hf/tokenizer.json") as source, open(f"{where}/tokenizer.json", "w") as f:
            f.write(source.read())


def rounded(x):
    """The bfloat16 nearest to a float32, ties to even."""
    bits, = struct.unpack("<I", struct.pack("<f", x))
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def same(codes, scales, weights, block):
    codes, scales, weights = (open(path, "rb").read() for path in (codes, scales, weights))
    assert len(weights) == 2 * len(codes) and len(scales) == 2 * len(codes) // int(block)
    for i, code in enumerate(codes):
        have, = struct.unpack_from("<H", weights, 2 * i)
        if code & 0x7f == 0x7f:
            assert have & 0x7fff > 0x7f80, i  # a NaN
            continue
        at = i // int(block)
        scale, = struct.unpack("<f", b"\0\0" + scales[2 * at:2 * at + 2])
        assert have == rounded(value(code) * scale), (i, code, scale, have)


if __name__ == "__main__":
    if sys.argv[1] == "same":
        same(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
