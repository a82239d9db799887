#!/usr/bin/env python3
"""Random zarr arrays, written and read by zarr-python.

    zarr_check.py make SEED N OUT   write N arrays to OUT/ckpt, and their bytes, little-endian in C order, to
                                    OUT/expected/NAME; also arrays with all elements of some types, to OUT/types
    zarr_check.py types OUT         compare OUT/types.NAME, from `ckptfs head --json` of these, with ml_dtypes
    zarr_check.py read DIR RAW      compare the arrays that `ckptfs reshard --format=zarr` wrote to DIR with the files
                                    of RAW, which have the source's bytes
    zarr_check.py dcp DIR RAW       compare what torch loads from DIR, which `ckptfs reshard` wrote, with those files
"""
import json
import math
import os
import random
import sys

import numcodecs
import numpy as np
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
          "float64", "complex64", "complex128"]
# Types that zarr-python lacks, and the integers of the same size.
BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "float8_e4m3b11fnuz": "uint8",
        "float8_e3m4": "uint8", "int4": "int8", "int2": "int8", "float4_e2m1fn": "uint8"}
# Types of one byte that ml_dtypes has; all patterns are tested.
ML_DTYPES = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float8_e3m4",
             "float8_e4m3b11fnuz", "float4_e2m1fn", "int4", "int2"]


def elements(r, dtype, shape):
    """Random elements of the type."""
    g = np.random.default_rng(r.getrandbits(64))
    if dtype == "bool":
        return g.integers(0, 2, shape).astype("bool")
    dtype = np.dtype(BITS.get(dtype, dtype))
    n = int(np.prod(shape, dtype=object))
    return np.frombuffer(g.bytes(n * dtype.itemsize), dtype).reshape(shape).copy()


def divisor(r, n):
    return r.choice([d for d in range(1, n + 1) if n % d == 0])


def transposes(r, n):
    out = []
    while n > 1 and r.random() < 0.4:
        order = list(range(n))
        r.shuffle(order)
        out.append(TransposeCodec(order=tuple(order)))
    return out


def compression(r):
    codecs = [[], [ZstdCodec(level=3)], [ZstdCodec(level=1, checksum=True)], [GzipCodec(level=5)], [Crc32cCodec()],
              [BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=4)],
              [BloscCodec(cname="zstd", clevel=5, shuffle="bitshuffle", typesize=4)], [GzipCodec(level=1), Crc32cCodec()],
              [ZstdCodec(level=1), GzipCodec(level=1)]]
    return r.choice(codecs)


def encoded(shape, before):
    for t in before:
        shape = tuple(shape[i] for i in t.order)
    return shape


def serializer(r, shape, before, depth):
    """A codec from array to bytes, for chunks of this shape after these transposes."""
    if depth == 0 or r.random() < 0.4:
        return BytesCodec(endian=r.choice(["little", "big"]))
    inner = tuple(divisor(r, s) for s in encoded(shape, before))
    if before:  # zarr-python requires a divisor of the shape before the transposes
        inner = (divisor(r, math.gcd(*shape)),) * len(shape)
    transposed = transposes(r, len(shape))
    to_bytes = serializer(r, inner, transposed, depth - 1)
    codecs = transposed + [to_bytes] + (compression(r) if isinstance(to_bytes, BytesCodec) else [])
    index = [BytesCodec(endian=r.choice(["little", "big"]))] + r.choice([[], [Crc32cCodec()]])
    return ShardingCodec(chunk_shape=inner, codecs=codecs, index_codecs=index, index_location=r.choice(["start", "end"]))


def make_one(r, name, out):
    dtype = r.choice(DTYPES + list(BITS))
    n = r.choice([0, 1, 1, 2, 2, 2, 3, 4])
    shape = tuple(r.choice([0, 1, 3, 5, 8, 12]) if r.random() < 0.1 else r.randint(1, 14) for _ in range(n))
    chunks = tuple(r.randint(1, 8) if r.random() < 0.8 else 2 * r.randint(1, 10) for _ in range(n))
    data = elements(r, dtype, shape)
    v3 = r.random() < 0.7
    fill = r.choice([0, 1])
    opt = dict(name=name, shape=shape, dtype=data.dtype, fill_value=data.dtype.type(fill), chunks=chunks,
               config={"write_empty_chunks": r.random() < 0.5})
    for _ in range(r.choice([0, 0, 1, 3])):  # holes
        data[tuple(slice(a := r.randint(0, s), r.randint(a, s)) for s in shape)] = fill
    if v3:
        before = transposes(r, n)
        to_bytes = serializer(r, chunks, before, 2)
        opt.update(zarr_format=3, filters=before or None, serializer=to_bytes,
                   compressors=(compression(r) or None) if isinstance(to_bytes, BytesCodec) else None,
                   chunk_key_encoding={"name": r.choice(["default", "v2"]), "separator": r.choice("./")})
    else:
        b = numcodecs
        opt.update(zarr_format=2, order=r.choice("CF"), filters=None,
                   chunk_key_encoding={"name": "v2", "separator": r.choice("./")},
                   compressors=r.choice([None, b.Zstd(level=1), b.GZip(level=1), b.Zlib(level=1), b.Blosc("lz4", 5, 1),
                                         b.Blosc("zstd", 3, 2), b.Blosc("blosclz", 9, 0), b.Blosc("lz4hc", 3, 1)]))
        if data.dtype.itemsize > 1 and r.random() < 0.3:
            opt["dtype"] = data.dtype.newbyteorder(">")
    with zarr.config.set({"array.order": "C"}):
        a = zarr.create_array(store=f"{out}/ckpt", **opt)
    a[...] = data
    if dtype in BITS:
        path = f"{out}/ckpt/{name}/" + ("zarr.json" if v3 else ".zarray")
        meta = json.load(open(path))
        meta["data_type" if v3 else "dtype"] = dtype
        if v3:  # a fill value can be given by its bits
            bits = data.dtype.type(fill).tobytes()[::-1].hex()
            meta["fill_value"] = fill if dtype.startswith("int") else "0x" + bits
        elif not dtype.startswith("int"):
            meta["fill_value"] = 0
        if not v3 and opt["dtype"].byteorder == ">":
            return False  # the name of the type cannot have a byte order
        if not v3 and opt["fill_value"] and not dtype.startswith("int"):
            return False  # zarr 2 cannot give a fill value by its bits
        json.dump(meta, open(path, "w"))
    with open(f"{out}/expected/{name}", "wb") as f:
        f.write(np.ascontiguousarray(data).tobytes())
    return True


def make(seed, many, out):
    import shutil
    r = random.Random(seed)
    os.makedirs(f"{out}/expected")
    n = 0
    while n < many:
        name = f"layers.{n}.w"
        if make_one(r, name, out):
            n += 1
        else:
            shutil.rmtree(f"{out}/ckpt/{name}")


def make_types(out):
    for name in ML_DTYPES:
        os.makedirs(f"{out}/types/{name}")
        json.dump({"zarr_format": 2, "shape": [256], "chunks": [256], "dtype": name, "order": "C", "compressor": None,
                   "filters": None, "fill_value": None}, open(f"{out}/types/{name}/.zarray", "w"))
        open(f"{out}/types/{name}/0", "wb").write(bytes(range(256)))


def number(x):
    return {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.get(x, x) if isinstance(x, str) else x


def types(out):
    import ml_dtypes
    good = bad = 0
    for name in ML_DTYPES:
        got = json.load(open(f"{out}/types.{name}"))
        while isinstance(got, dict):
            got = got["values"]
        bits = np.arange(256, dtype="uint8")
        if name == "float4_e2m1fn":  # clear the other bits, which ml_dtypes does not ignore
            bits &= 15
        want = bits.view(getattr(ml_dtypes, name)).astype("float32")
        # `head` prints the digits that a float32 needs.
        ok = len(got) == 256 and np.array_equal(np.array([number(x) for x in got], "float32"), want, equal_nan=True)
        good += ok
        bad += not ok
        if not ok:
            print(name, [(i, x, w) for i, (x, w) in enumerate(zip(got, want)) if number(x) != w][:8])
    print(f"{good} passed, {bad} failed")


def read(where, raw):
    good = bad = 0
    names = sorted(os.listdir(raw))
    for name in names:
        path = f"{where}/{name}/zarr.json"
        meta = json.load(open(path))
        if meta["data_type"] in BITS:
            meta["data_type"] = BITS[meta["data_type"]]
            meta["fill_value"] = 0
            json.dump(meta, open(path, "w"))
        got = np.ascontiguousarray(zarr.open_array(f"{where}/{name}", mode="r")[...]).tobytes()
        if got == open(f"{raw}/{name}", "rb").read():
            good += 1
        else:
            bad += 1
            print(f"{name}: {meta}")
    if set(names) != {n for n in os.listdir(where) if n != "zarr.json"} or \
            sorted(n for n, _ in zarr.open_group(where, mode="r").arrays()) != names:
        bad += 1
        print("other arrays")
    print(f"{good} passed, {bad} failed")


def dcp(where, raw):
    import tempfile

    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    good = bad = 0
    with tempfile.NamedTemporaryFile() as f:
        dcp_to_torch_save(where, f.name)
        loaded = torch.load(f.name, weights_only=True)
    for name, t in loaded.items():
        flat = t.contiguous().reshape(-1)
        got = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        same = got == open(f"{raw}/{name}", "rb").read()
        good += same
        bad += not same
        if not same:
            print(f"{name}: other bytes")
    print(f"{good} passed, {bad} failed")


if sys.argv[1] == "make":
    make(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    make_types(sys.argv[4])
elif sys.argv[1] == "types":
    types(sys.argv[2])
elif sys.argv[1] == "dcp":
    dcp(sys.argv[2], sys.argv[3])
else:
    read(sys.argv[2], sys.argv[3])
