#!/usr/bin/env python3
"""compare.py MOUNTPOINT EXPECTED.json - compare a live mount with what torch loads.
compare.py --paths EXPECTED.json      - print "SHA256 PATH" of every file of the tree, for scripts.

Every tensor is compared as tensors/NAME and npy/NAME.npy, every object as objects/NAME: names,
sizes, contents, reads at odd places, attributes. Prints one line per difference, then
"N passed, M failed"; exit status 1 if there is a difference. Needs only Python.
"""
import ast
import hashlib
import json
import mmap
import os
import random
import re
import struct
import sys

NAME_MAX = 255
NUMPY = {"bool": "|b1", "int8": "|i1", "uint8": "|u1", "int16": "<i2", "uint16": "<u2",
         "int32": "<i4", "uint32": "<u4", "int64": "<i8", "uint64": "<u8", "float16": "<f2",
         "float32": "<f4", "float64": "<f8", "complex64": "<c8", "complex128": "<c16"}


def encode_name(fqn, suffix=""):
    """The file name of an FQN, as bytes. Written from the specification, independently of the program."""
    raw = fqn.encode("utf-8", "surrogatepass")
    if fqn == "":
        parts = [b"%"]
    elif fqn in (".", ".."):
        parts = [b"%2E"] * len(fqn)
    else:
        parts = [b"%%%02X" % ord(c) if c < " " or c in "/%\x7f"
                 else c.encode("utf-8", "surrogatepass") for c in fqn]
    tail = suffix.encode()
    if sum(map(len, parts)) + len(tail) > NAME_MAX:
        h = 0xcbf29ce484222325  # FNV-1a, 64 bits
        for b in raw:
            h = (h ^ b) * 0x100000001b3 & 0xffffffffffffffff
        tail = b"%%~%016x" % h + tail
        room = NAME_MAX - len(tail)
        for i, part in enumerate(parts):
            room -= len(part)
            if room < 0:
                del parts[i:]
                break
    return b"".join(parts) + tail


class Report:
    passed = failed = 0

    def check(self, where, what, ok, detail=""):
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            print(f"{ascii(where)}: {what}{': ' if detail else ''}{detail}")
        return ok


def read_all(fd, size):
    out = bytearray()
    while len(out) <= size:  # one byte more than expected, to see that the file ends
        piece = os.pread(fd, min(1 << 20, size + 1 - len(out)), len(out))
        if not piece:
            break
        out += piece
    return bytes(out)


def check_ranges(report, path, fd, data):
    where = os.fsdecode(path)
    r = random.Random(os.path.basename(path))  # the same ranges in every run
    ranges = [(0, 1), (max(len(data) - 3, 0), 7), (len(data), 5), (len(data) + 4097, 1)]
    for _ in range(8):
        begin = r.randint(0, len(data))
        ranges.append((begin, r.choice([1, 2, 3, 7, 100, 4097, 131073, len(data) + 1])))
    bad = [(o, n) for o, n in ranges if os.pread(fd, n, o) != data[o:o + n]]
    report.check(where, "pread differs", not bad, f"(offset, length) {bad}")
    if data:
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapping:
            report.check(where, "mapping differs", mapping[:] == data)


def check_file(report, path, want, size):
    """Compares st_size, the whole contents and random ranges; returns the contents, or None."""
    where = os.fsdecode(path)
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as e:
        report.check(where, "open", False, e.strerror)
        return None
    try:
        got = os.fstat(fd).st_size
        if not report.check(where, "st_size", size is None or got == size, f"{got}, not {size}"):
            return None
        data = read_all(fd, got)
        if not report.check(where, "length", len(data) == got, f"{len(data)} of {got} bytes"):
            return None
        if want is not None:
            have = hashlib.sha256(data).hexdigest()
            report.check(where, "sha256", have == want, f"{have}, not {want}")
        check_ranges(report, path, fd, data)
        return data
    except OSError as e:
        report.check(where, "read", False, e.strerror)
        return None
    finally:
        os.close(fd)


def check_attribute(report, path, name, want, parse=lambda x: x):
    try:
        got = parse(os.getxattr(path, name))
    except (OSError, ValueError) as e:
        got = str(e)
    report.check(os.fsdecode(path), name, got == want, f"{ascii(got)}, not {ascii(want)}")


def check_npy(report, path, tensor):
    where = os.fsdecode(path)
    data = check_file(report, path, None, None)
    if data is None:
        return
    try:
        if data[:6] != b"\x93NUMPY" or data[6:8] not in (b"\1\0", b"\2\0", b"\3\0"):
            raise ValueError(f"magic {data[:8]}")
        kind = "<H" if data[6] == 1 else "<I"
        length, = struct.unpack_from(kind, data, 8)
        begin = 8 + struct.calcsize(kind) + length
        header = ast.literal_eval(data[begin - length:begin].decode("latin-1").strip())
        if set(header) != {"descr", "fortran_order", "shape"} or data[begin - 1:begin] != b"\n":
            raise ValueError(f"header {header}")
    except (ValueError, SyntaxError, struct.error) as e:
        report.check(where, "npy header", False, e)
        return
    report.check(where, "fortran_order", header["fortran_order"] is False)
    report.check(where, "shape", header["shape"] == tuple(tensor["shape"]), header["shape"])
    report.check(where, "alignment of the data", begin % 64 == 0, begin)
    descr, elements = header["descr"], 1
    for n in tensor["shape"]:
        elements *= n
    if tensor["dtype"] in NUMPY:
        report.check(where, "descr", descr == NUMPY[tensor["dtype"]], descr)
    elif elements:  # NumPy has no such type: an opaque type of the same size will do
        size = re.fullmatch(r"[|<][Vu](\d+)", descr)
        report.check(where, "descr", bool(size) and
                     int(size[1]) * elements == tensor["nbytes"], descr)
    have = hashlib.sha256(data[begin:]).hexdigest()
    report.check(where, "sha256 of the data", have == tensor["sha256"], have)


def check_listing(report, directory, want):
    try:
        have = os.listdir(directory)
    except FileNotFoundError:
        have = []
    where = os.fsdecode(directory)
    report.check(where, "names listed twice", len(have) == len(set(have)))
    for name in sorted(set(want) - set(have)):
        report.check(where, "not listed", False, ascii(name))
    for name in sorted(set(have) - set(want)):
        report.check(where, "listed but not expected", False, ascii(name))
    report.passed += len(set(want) & set(have))


def compare(mountpoint, expected):
    report = Report()
    tensors = expected["tensors"]
    objects = expected.get("objects", expected.get("bytes", {}))
    top = os.fsencode(mountpoint)
    check_listing(report, top + b"/tensors", [encode_name(f) for f in tensors])
    check_listing(report, top + b"/npy", [encode_name(f, ".npy") for f in tensors])
    told = ["not_shown"] if expected.get("warned") else []
    check_listing(report, top + b"/objects", [encode_name(f, s) for f in [*objects, *told] for s in ("", ".json")])
    for fqn, tensor in tensors.items():
        if tensor.get("complete") is False or "unsupported" in tensor:
            continue
        path = top + b"/tensors/" + encode_name(fqn)
        check_file(report, path, tensor["sha256"], tensor["nbytes"])
        check_attribute(report, path, "user.ckptfs.fqn", fqn.encode("utf-8", "surrogatepass"))
        check_attribute(report, path, "user.ckptfs.dtype", tensor["dtype"].encode())
        check_attribute(report, path, "user.ckptfs.shape", tensor["shape"], json.loads)
        check_npy(report, top + b"/npy/" + encode_name(fqn, ".npy"), tensor)
    for fqn, item in objects.items():
        path = top + b"/objects/" + encode_name(fqn)
        check_file(report, path, item["sha256"], item["length"])
    print(f"{report.passed} passed, {report.failed} failed")
    return report.failed != 0


def print_paths(expected):
    objects = expected.get("objects", expected.get("bytes", {}))
    for directory, entries in (("tensors", expected["tensors"]), ("objects", objects)):
        for fqn, entry in entries.items():
            sys.stdout.buffer.write(f"{entry['sha256']} {directory}/".encode() +
                                    encode_name(fqn) + b"\n")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[2], encoding="ascii") as f:
        expected = json.load(f)
    if sys.argv[1] == "--paths":
        print_paths(expected)
    else:
        sys.exit(compare(sys.argv[1], expected))


if __name__ == "__main__":
    main()
