#!/usr/bin/env python3
"""What a mount of a fixture must show, from its expected.json.

    expect.py fixtures FORMAT...          names of the fixtures of these formats
    expect.py tree FIXTURE MOUNT          every file of tensors/, npy/, objects/, logical/, byte for byte
    expect.py every-way FIXTURE CKPTFS MOUNT   what CKPTFS mounts, cats, lists and checks; the mount stays
    expect.py holes FORMAT...             names of fixtures with tensors that cannot be opened
    expect.py incomplete FIXTURE          names of the tensors that cannot be opened
    expect.py complete FIXTURE            "NAME SHA256" of those that can

Names are encoded here independently, from the rules in the manual, so that both implementations have to agree.
"""

import ast
import hashlib
import json
import os
import re
import subprocess
import sys

DATA = os.environ.get("DATA") or os.path.join(os.path.dirname(__file__), "..", "data")
NAME_MAX = 255


class Thing:
    """A tensor or, without a dtype, an object: its length in bytes and its hash."""

    def __init__(self, fqn, length, sha256, dtype=None, shape=None, complete=True):
        self.fqn, self.length, self.sha256 = fqn, length, sha256
        self.dtype, self.shape, self.complete = dtype, shape, complete

    def is_content(self, data):
        return len(data) == self.length and hashlib.sha256(data).hexdigest() == self.sha256


def tensor_of(fqn, t, **more):
    return Thing(fqn, t["nbytes"], t["sha256"], t["dtype"], t["shape"], **more)


def fqn_bytes(fqn):
    return fqn.encode("utf-8", "surrogatepass")


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % (1 << 64)
    return h


def encode(fqn, suffix=""):
    """The file name of an FQN, as bytes."""
    raw = fqn_bytes(fqn)
    if not raw:
        return b"%" + suffix.encode()
    if raw in (b".", b".."):
        return b"%2E" * len(raw) + suffix.encode()
    units = []  # characters and escapes, which may not be cut
    for match in re.finditer(rb"[\x00-\x7f]|[\xc0-\xff][\x80-\xbf]*", raw):
        c = match.group()
        escaped = len(c) == 1 and (c in b"/%\x7f" or c < b" ")
        units.append(b"%%%02X" % c[0] if escaped else c)
    name = b"".join(units)
    if len(name) + len(suffix) > NAME_MAX:
        tail = b"%%~%016x" % fnv1a(raw) + suffix.encode()
        name = b""
        for unit in units:
            if len(name) + len(unit) + len(tail) > NAME_MAX:
                break
            name += unit
        return name + tail
    return name + suffix.encode()


def fixture(name):
    path = os.path.join(DATA, name)
    with open(os.path.join(path, "expected.json"), encoding="utf-8") as f:
        return path, json.load(f)


def box_rows(shape, off, size):
    """Element offsets and counts of the contiguous runs of a box."""
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    if not shape:
        yield 0, 1
        return
    starts = [0]
    for d in range(len(shape) - 1):
        starts = [s + (off[d] + i) * strides[d] for s in starts for i in range(size[d])]
    for s in starts:
        yield s + off[-1], size[-1]


def union(parts, shape):
    """A tensor put together from each rank's (bytes, chunks)."""
    out = bytearray(parts[0][0])
    count = 1
    for n in shape:
        count *= n
    item = len(out) // count if count else 1
    for content, chunks in parts:
        for off, size in chunks:
            for start, n in box_rows(shape, off, size):
                out[start * item : (start + n) * item] = content[start * item : (start + n) * item]
    return bytes(out)


def content_of(path, tensor):
    with open(os.path.join(path, tensor["file"]), "rb") as f:
        return f.read()


def plain(j):
    tensors = []
    for fqn, t in j["tensors"].items():
        complete = t.get("complete", True) and "KeyError" not in t.get("unsupported", "")
        tensors.append(tensor_of(fqn, t, complete=complete))
    objects = [Thing(fqn, b["length"], b["sha256"]) for fqn, b in j["bytes"].items()]
    return tensors, objects


def ranklocal(path, j):
    tensors, objects = [], []
    ranks = {int(re.match(r"__(\d+)\.", k).group(1)): v for k, v in j["per_metadata"].items()}
    for fqn in {f: 1 for r in ranks.values() for f in r["tensors"]}:
        parts = {n: r["tensors"][fqn] for n, r in ranks.items() if fqn in r["tensors"]}
        kinds = {(t["dtype"], tuple(t["shape"])) for t in parts.values()}
        if len(kinds) == 1:
            t = next(iter(parts.values()))
            all_parts = [(content_of(path, p), p["chunks"]) for p in parts.values()]
            whole = union(all_parts, t["shape"])
            t = {**t, "sha256": hashlib.sha256(whole).hexdigest()}
            tensors.append(tensor_of(fqn, t))
        else:
            for n, t in parts.items():
                tensors.append(tensor_of(f"{fqn}@rank{n}", t))
    for fqn in {f: 1 for r in ranks.values() for f in r["bytes"]}:
        parts = {n: r["bytes"][fqn] for n, r in ranks.items() if fqn in r["bytes"]}
        for n, b in parts.items():
            name = fqn if len(parts) == 1 else f"{fqn}@rank{n}"
            objects.append(Thing(name, b["length"], b["sha256"]))
    return tensors, objects


def load(name):
    path, j = fixture(name)
    return ranklocal(path, j) if "per_metadata" in j else plain(j)


def logical_of(name):
    """Tensors that are stored flattened, in their original shapes."""
    return [
        Thing(fqn, t["nbytes"], t["sha256"], t["dtype"], t["shape"])
        for fqn, t in fixture(name)[1].get("logical", {}).items()
    ]


# NumPy's name for each type; or, if it has none, the type's size in bytes.
DESCR = {
    "float16": "<f2", "float32": "<f4", "float64": "<f8", "complex64": "<c8", "complex128": "<c16",
    "bool": "|b1", "int8": "|i1", "uint8": "|u1", "int16": "<i2", "uint16": "<u2", "int32": "<i4",
    "uint32": "<u4", "int64": "<i8", "uint64": "<u8", "bfloat16": "<V2", "complex32": 4, "qint32": 4,
}


def check_npy(data, tensor):
    if data[:6] != b"\x93NUMPY":
        return "no magic"
    major = data[6]
    size = int.from_bytes(data[8 : 10 if major == 1 else 12], "little")
    start = (10 if major == 1 else 12) + size
    if start % 64 or data[start - 1 : start] != b"\n":
        return f"header of {start} bytes"
    header = ast.literal_eval(data[10 if major == 1 else 12 : start].decode("latin-1"))
    want = DESCR.get(tensor.dtype, 1)
    descr = header["descr"]
    if (descr != want) if isinstance(want, str) else not re.fullmatch(rf"[<|]V{want}", descr):
        return f"descr {descr!r} for {tensor.dtype}"
    if header["fortran_order"] is not False or header["shape"] != tuple(tensor.shape):
        return f"header {header}"
    return None if tensor.is_content(data[start:]) else "data differs"


def read(path):
    with open(path, "rb") as f:
        return f.read()


def tree(name, mount):
    faults = []
    tensors, objects = load(name)
    mount = os.fsencode(mount)

    def names(directory, wanted):
        got = set(os.listdir(os.path.join(mount, directory)))
        wanted = set(wanted)
        for n in sorted(got ^ wanted):
            faults.append(f"{directory}: {n!r} is {'unexpected' if n in got else 'absent'}")

    def file_of(directory, n):
        path = os.path.join(mount, directory, n)
        try:
            data = read(path)
        except OSError as e:
            faults.append(f"{path!r}: {e.strerror}")
            return b""
        if os.stat(path).st_size != len(data):
            faults.append(f"{path!r}: st_size {os.stat(path).st_size}, {len(data)} bytes")
        return data

    names(b"tensors", (encode(t.fqn) for t in tensors))
    names(b"npy", (encode(t.fqn, ".npy") for t in tensors))
    names(b"objects", [encode(o.fqn, suffix) for o in objects for suffix in ("", ".json")])
    for t in (t for t in tensors if t.complete):
        if not t.is_content(file_of(b"tensors", encode(t.fqn))):
            faults.append(f"tensor {t.fqn!r}: content differs")
        fault = check_npy(file_of(b"npy", encode(t.fqn, ".npy")), t)
        if fault:
            faults.append(f"npy of {t.fqn!r}: {fault}")
    for o in objects:
        if not o.is_content(file_of(b"objects", encode(o.fqn))):
            faults.append(f"object {o.fqn!r}: content differs")
    logical = logical_of(name)
    if logical:
        names(b"logical", (encode(t.fqn) for t in logical))
    elif b"logical" in os.listdir(mount):
        faults.append("logical/ is unexpected")
    for t in logical:
        if not t.is_content(file_of(b"logical", encode(t.fqn))):
            faults.append(f"logical {t.fqn!r}: content differs")
        path = os.path.join(mount, b"logical", encode(t.fqn))
        if json.loads(os.getxattr(path, "user.ckptfs.shape")) != t.shape:
            faults.append(f"logical {t.fqn!r}: shape differs")
    return faults


def stream(things, data):
    """The contents of all things, one after the other."""
    faults, at = [], 0
    for x in things:
        if not x.is_content(data[at : at + x.length]):
            faults.append(f"{x.fqn!r}: content differs")
        at += x.length
    if at < len(data):
        faults.append(f"{len(data) - at} bytes too many")
    return faults


def ls(name, listed):
    faults = []
    tensors, objects = load(name)
    got = {e["fqn"]: e for e in listed}
    if len(got) != len(listed):
        faults.append("an FQN twice")
    for fqn in set(got) ^ {x.fqn for x in tensors + objects}:
        faults.append(f"{fqn!r}: {'unexpected' if fqn in got else 'absent'}")
    for t in tensors:
        e = got.get(t.fqn, {})
        mine = ("tensor", t.dtype, t.shape, t.length, t.complete)
        theirs = tuple(map(e.get, ("type", "dtype", "shape", "bytes"))) + (e.get("fault") is None,)
        if mine != theirs:
            faults.append(f"{t.fqn!r}: {theirs} instead of {mine}")
    stored = {t.fqn: t.shape for t in tensors}
    want = {t.fqn: t.shape for t in logical_of(name) if t.shape != stored[t.fqn]}
    if {fqn: e["logical"] for fqn, e in got.items() if "logical" in e} != want:
        faults.append("logical shapes differ")
    for o in objects:
        e = got.get(o.fqn, {})
        if e.get("type") != "object" or e.get("fault") is not None:
            faults.append(f"{o.fqn!r}: {e}")
    return faults


def every_way(name, ckptfs, mount):
    """Differences in a mount (which stays), in cat by path and by FQN, in ls and in check."""
    ckpt = os.path.join(DATA, name, "ckpt")
    tensors, objects = load(name)
    things = [t for t in tensors if t.complete] + objects
    missing = sum(not t.complete for t in tensors)

    def run(*args, status=0):
        done = subprocess.run([ckptfs, *args], stdout=subprocess.PIPE, check=False)
        if done.returncode != status:
            sys.exit(f"{name}: {args[0]} returns {done.returncode} instead of {status}")
        return done.stdout

    os.mkdir(mount)
    run("mount", ckpt, mount, *["-oallow_missing"] * bool(missing))
    yield "mount", tree(name, mount)
    paths = [(b"tensors/" if x.dtype else b"objects/") + encode(x.fqn) for x in things]
    if paths:
        yield "cat", stream(things, run("cat", ckpt, *paths))
    named = [x for x in things if "\0" not in x.fqn]
    if named:
        yield "cat --fqn", stream(named, run("cat", "--fqn", ckpt, "--", *(fqn_bytes(x.fqn) for x in named)))
    yield "ls", ls(name, json.loads(run("ls", "--json", ckpt)))
    last = run("check", "--data", ckpt, status=int(missing > 0)).decode().splitlines()[-1]
    told = re.search(r", (\d+) faults?\b", last)
    yield "check", [] if told and int(told.group(1)) >= missing else [last]


def main(command, *args):
    out = sys.stdout.buffer
    if command in ("fixtures", "holes"):
        for name in sorted(os.listdir(DATA)):
            if os.path.exists(os.path.join(DATA, name, "expected.json")):
                if fixture(name)[1]["format"] in args and (
                    command == "fixtures" or not all(t.complete for t in load(name)[0])
                ):
                    print(name)
        return 0
    if command == "tree":
        faults = tree(*args)
        print("\n".join(faults[:20]))
        return bool(faults)
    if command == "every-way":
        faults = [f"{way}: {fault}" for way, found in every_way(*args) for fault in found]
        print("\n".join(faults[:20]))
        return bool(faults)
    tensors, _ = load(args[0])
    if command == "incomplete":
        out.writelines(encode(t.fqn) + b"\n" for t in tensors if not t.complete)
    elif command == "complete":
        out.writelines(encode(t.fqn) + b" " + t.sha256.encode() + b"\n" for t in tensors if t.complete)
    else:
        sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else __doc__)
