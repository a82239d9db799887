#!/usr/bin/env python3
"""Independent readers of the files that a mount makes of a model, written from the formats' descriptions.

    readers.py safetensors FILE TENSORS [PREFIX]    check that tensors of FILE have the bytes of TENSORS/PREFIXname,
                                                    and print their names
    readers.py digest FILE                          print "SHA256  NAME" of the tensors in FILE
    readers.py index DIR LIMIT                      check the shards of DIR and their index
    readers.py pt FILE TENSORS [PREFIX]             like safetensors, without running the pickle
    readers.py cast TENSORS CAST TYPE               check that files of CAST are those of TENSORS cast to TYPE
    readers.py map FILE...                          print "SHA256  FILE", read by mmap, as sha256sum prints it
    readers.py layout SEED TENSORS PREFIX           print a random layout that suits those tensors
    readers.py layout-json SEED TENSORS PREFIX      the same in HyperParallel's form
    readers.py ranks MOUNT LAYOUT PREFIX            check that ranks/ has the parts of tensors/ that LAYOUT describes

All directories are in a mount: dtypes and shapes come from extended attributes.
"""

import fnmatch
import hashlib
import itertools
import json
import math
import mmap
import os
import pickletools
import random
import re
import struct
import sys
import zlib

from expect import Thing, check_npy, encode

# safetensors' name, bytes of an element, and torch's storage class.
DTYPES = {
    "float64": ("F64", 8, "DoubleStorage"), "float32": ("F32", 4, "FloatStorage"),
    "float16": ("F16", 2, "HalfStorage"), "bfloat16": ("BF16", 2, "BFloat16Storage"),
    "int64": ("I64", 8, "LongStorage"), "int32": ("I32", 4, "IntStorage"),
    "uint8": ("U8", 1, "ByteStorage"), "bool": ("BOOL", 1, "BoolStorage"),
}


def read(path):
    with open(path, "rb") as f:
        return f.read()


class Tensor:
    """A file of tensors/."""

    def __init__(self, directory, name):
        self.path = os.path.join(os.fsencode(directory), encode(name))
        self.fqn = os.getxattr(self.path, "user.ckptfs.fqn").decode()
        self.dtype = os.getxattr(self.path, "user.ckptfs.dtype").decode()
        self.shape = json.loads(os.getxattr(self.path, "user.ckptfs.shape"))
        self.content = read(self.path)
        self.size = DTYPES[self.dtype][1]
        assert self.fqn == name, (self.fqn, name)
        assert len(self.content) == math.prod(self.shape) * self.size, name


def tensors_of(directory, prefix=""):
    """The tensors of a directory whose names begin with the prefix, under their names without it."""
    names = [n for n in os.listdir(directory) if n.startswith(prefix)]
    return {n[len(prefix) :]: Tensor(directory, n) for n in names}


def unique(pairs):
    assert len(dict(pairs)) == len(pairs), f"a name twice: {pairs}"
    return dict(pairs)


# ---- safetensors ----


def parse_safetensors(data):
    """{name: (dtype, shape, bytes)}, in the file's order."""
    length = int.from_bytes(data[:8], "little")
    start = 8 + length
    assert start % 4096 == 0 and length <= 100_000_000 and start <= len(data), length
    text = data[8:start].decode()
    assert text[0] == "{" and text.rstrip(" ")[-1] == "}"
    header = json.loads(text, object_pairs_hook=unique)
    assert header.pop("__metadata__", None) == {"format": "pt"}, header
    at, out = 0, {}
    for name, t in sorted(header.items(), key=lambda i: i[1]["data_offsets"]):
        assert set(t) == {"dtype", "shape", "data_offsets"}, t
        begin, end = t["data_offsets"]
        size = next(s for st, s, _ in DTYPES.values() if st == t["dtype"])
        assert begin == at and begin % size == 0, f"{name} begins at {begin}, not at {at}"
        assert end - begin == math.prod(t["shape"]) * size, (name, t)
        out[name] = t["dtype"], t["shape"], data[start + begin : start + end]
        at = end
    assert start + at == len(data), f"{len(data) - start - at} bytes too many"
    return out


def same_safetensors(got, name, tensor):
    want = DTYPES[tensor.dtype][0], tensor.shape
    assert got[:2] == want, f"{name}: {got[:2]} instead of {want}"
    assert got[2] == tensor.content, f"{name}: bytes differ"


def safetensors(path, directory, prefix=""):
    got = parse_safetensors(read(path))
    for name, t in got.items():
        same_safetensors(t, name, Tensor(directory, prefix + name))
    print("\n".join(got))


def digest(path):
    for name, (_, _, content) in parse_safetensors(read(path)).items():
        print(hashlib.sha256(content).hexdigest() + "  " + name)


def index(directory, limit):
    name = "model.safetensors.index.json"
    text = read(os.path.join(directory, name)).decode()
    told = json.loads(text, object_pairs_hook=unique)
    # As save_pretrained writes it.
    assert text == json.dumps(told, indent=2, sort_keys=True) + "\n", text[:500]
    listed = os.listdir(directory)
    shards = [n for n in listed if n.endswith(".safetensors")]
    n = len(shards)
    assert n > 1 and shards == [f"model-{i + 1:05}-of-{n:05}.safetensors" for i in range(n)], shards
    where, total, elements = {}, 0, 0
    for shard in shards:
        content = parse_safetensors(read(os.path.join(directory, shard)))
        size = sum(len(t[2]) for t in content.values())
        assert content and (size <= int(limit) or len(content) == 1), (shard, size)
        assert not where.keys() & content.keys(), shard
        where.update(dict.fromkeys(content, shard))
        total += size
        elements += sum(math.prod(t[1]) for t in content.values())
    assert told["weight_map"] == where
    assert told["metadata"] == {"total_parameters": elements, "total_size": total}, told["metadata"]


# ---- .pt ----


def parse_zip(data):
    """{name: (offset, bytes)} for an archive of stored members without gaps."""
    end = data[-22:]
    sig, _, _, _, n, size, at, comment = struct.unpack("<4sHHHHIIH", end)
    assert sig == b"PK\5\6" and not comment
    sig, _, end64, _ = struct.unpack("<4sIQI", data[-42:-22])
    assert sig == b"PK\6\7"
    sig, length, _, _, _, _, _, n64, size64, at64 = struct.unpack("<4sQHHIIQQQQ", data[end64:-42])
    assert sig == b"PK\6\6" and length == 44 and (n64, size64, at64) == (n, size, at)
    assert at + size == end64
    members, next_local, p = {}, 0, at
    for _ in range(n):
        (sig, _, _, flags, method, time, date, crc, packed, plain, n_name, n_extra, n_comment,
         _, _, _, local) = struct.unpack("<4sHHHHHHIIIHHHHHII", data[p : p + 46])
        name = data[p + 46 : p + 46 + n_name]
        assert sig == b"PK\1\2" and method == 0 and packed == plain and not flags & 8
        p += 46 + n_name + n_extra + n_comment
        assert local == next_local, f"{name} at {local}, not at {next_local}"
        head = struct.unpack("<4sHHHHHIIIHH", data[local : local + 30])
        assert head[0] == b"PK\3\4", name
        assert head[2:10] == (flags, method, time, date, crc, packed, plain, n_name), name
        start = local + 30 + n_name + head[10]
        assert data[local + 30 : local + 30 + n_name] == name
        assert start % 64 == 0, f"{name} at {start}"
        content = data[start : start + plain]
        assert crc in (0, zlib.crc32(content)), name
        members[name.decode()] = start, content
        next_local = start + plain
    assert p == end64 and next_local == at and len(members) == n
    return members


class Call:
    def __init__(self, function, args):
        self.function, self.args = function, args


class Persistent:
    def __init__(self, args):
        self.args = args


def parse_pickle(data):
    """What a pickle builds; calls are recorded, not made."""
    stack, marks = [], []

    def to_mark():
        at = marks.pop()
        items = stack[at:]
        del stack[at:]
        return items

    for op, arg, _ in pickletools.genops(data):
        if op.name in ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE"):
            stack.append(arg)
        elif op.name == "GLOBAL":
            stack.append(arg)
        elif op.name == "MARK":
            marks.append(len(stack))
        elif op.name == "EMPTY_DICT":
            stack.append({})
        elif op.name == "EMPTY_TUPLE":
            stack.append(())
        elif op.name == "NEWFALSE":
            stack.append(False)
        elif op.name == "TUPLE":
            stack.append(tuple(to_mark()))
        elif op.name == "BINPERSID":
            stack.append(Persistent(stack.pop()))
        elif op.name == "REDUCE":
            args = stack.pop()
            stack.append(Call(stack.pop(), args))
        elif op.name == "SETITEMS":
            items = to_mark()
            assert not set(items[::2]) & stack[-1].keys()
            stack[-1].update(zip(items[::2], items[1::2]))
        else:
            assert op.name in ("PROTO", "STOP"), f"opcode {op.name}"
    assert len(stack) == 1 and not marks
    return stack[0]


def pt(path, directory, prefix=""):
    members = parse_zip(read(path))
    content = {n.removeprefix("model/"): c for n, (_, c) in members.items()}
    assert content.pop("byteorder") == b"little" and content.pop("version") == b"3\n"
    state = parse_pickle(content.pop("data.pkl"))
    for name, call in state.items():
        t = Tensor(directory, prefix + name)
        storage, offset, size, stride, grad, hooks = call.args
        kind, cls, key, place, elements = storage.args
        assert call.function == "torch._utils _rebuild_tensor_v2", call.function
        assert (kind, place, offset, grad) == ("storage", "cpu", 0, False), name
        assert hooks.function == "collections OrderedDict" and hooks.args == (), name
        assert cls == "torch " + DTYPES[t.dtype][2], (name, cls)
        assert list(size) == t.shape and elements == math.prod(size), (name, size)
        assert list(stride) == [
            math.prod(max(n, 1) for n in size[d + 1 :]) for d in range(len(size))], (name, stride)
        assert content.pop(f"data/{key}") == t.content, f"{name}: bytes differ"
    assert not content, content.keys()
    print("\n".join(state))


# ---- casts ----


def values(tensor):
    """Elements as Python's floats, which hold all of these exactly."""
    if tensor.dtype == "bfloat16":
        wide = b"".join(b"\0\0" + tensor.content[i : i + 2] for i in range(0, len(tensor.content), 2))
        return [v for v, in struct.iter_unpack("<f", wide)]
    code = {"float64": "<d", "float32": "<f", "float16": "<e"}[tensor.dtype]
    return [v for v, in struct.iter_unpack(code, tensor.content)]


def pack(code, x):
    """Rounded to nearest even; numbers that struct refuses as too large become infinity."""
    try:
        return struct.pack(code, x)
    except OverflowError:
        return struct.pack(code, math.copysign(math.inf, x))


def cast_one(x, to):
    """A value in another type; float64 goes through float32, as in torch."""
    single = pack("<f", x)
    if to == "float32":
        return single
    if to == "float16":
        return pack("<e", struct.unpack("<f", single)[0])
    bits = int.from_bytes(single, "little")
    upper, lower = bits >> 16, bits & 0xFFFF
    if lower > 0x8000 or (lower == 0x8000 and upper & 1):
        upper += 1
    return upper.to_bytes(2, "little")


def is_nan(data, to):
    infinity = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}[to]
    return int.from_bytes(data, "little") % (1 << (8 * len(data) - 1)) > infinity


def cast(directory, cast_directory, to):
    tensors = tensors_of(directory)
    assert sorted(os.listdir(cast_directory)) == sorted(os.listdir(directory))
    seen = set()
    for name, t in tensors.items():
        got = Tensor(cast_directory, name)
        seen.add(t.dtype)
        assert got.shape == t.shape, name
        if "float" not in t.dtype or t.dtype == to:
            assert (got.dtype, got.content) == (t.dtype, t.content), name
            continue
        assert got.dtype == to, (name, got.dtype)
        for i, x in enumerate(values(t)):
            bits = got.content[i * got.size : (i + 1) * got.size]
            if math.isnan(x):
                assert is_nan(bits, to), f"{name}[{i}]: {bits.hex()} for NaN"
            else:
                want = cast_one(x, to)
                assert bits == want, f"{name}[{i}]: {x.hex()}: {bits.hex()} instead of {want.hex()}"
    print(*sorted(seen))


# ---- layouts ----


def ceil_part(n, parts, part):
    """The part that torch.chunk makes."""
    each = -(-n // parts)
    start = min(part * each, n)
    return start, min(each, n - start)


def balanced_part(n, parts, part):
    """The part that numpy.array_split makes."""
    lengths = [n // parts + (i < n % parts) for i in range(parts)]
    return sum(lengths[:part]), lengths[part]


def box_of(shape, splits):
    """The box, [(offset, length)], after nested splits [(dimension, parts, part, how)]."""
    box = [(0, n) for n in shape]
    for d, parts, part, how in splits:
        start, length = how(box[d][1], parts, part)
        box[d] = box[d][0] + start, length
    return box


def slice_of(tensor, box):
    """The bytes and the shape of a box."""
    strides = [math.prod(tensor.shape[d + 1 :]) for d in range(len(box))]
    ranges = [range(o, o + n) for o, n in box]
    at = (sum(i * s for i, s in zip(p, strides)) * tensor.size for p in itertools.product(*ranges))
    return b"".join(tensor.content[a : a + tensor.size] for a in at), [n for _, n in box]


def place_in(mesh, rank):
    """The rank's coordinates, in row-major order."""
    return list(itertools.product(*map(range, mesh)))[rank]


def read_layout_text(text, tensors):
    """{rank: {name: splits}}."""
    axes, mesh, rules = [], [], []
    for line in text.splitlines():
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if words[:1] == ["mesh"]:
            axes = [w.split("=")[0] for w in words[1:]]
            mesh = [int(w.split("=")[1]) for w in words[1:]]
        elif words:
            placed = [w.split(":") for w in words[1:] if w != "replicate"]
            rules.append((words[0], [(axes.index(a), int(d)) for a, d in placed]))
    ranks = {}
    for rank in range(math.prod(mesh)):
        place, held = place_in(mesh, rank), {}
        for name, t in tensors.items():
            rule = next((r for glob, r in rules if fnmatch.fnmatchcase(name, glob)), [])
            held[name] = [(d % len(t.shape), mesh[a], place[a], ceil_part) for a, d in rule]
        ranks[rank] = held
    return ranks


def read_layout_json(text, tensors):
    ranks = {}
    for rank, params in json.loads(text).items():
        held = ranks[int(rank)] = {}
        for name, p in params.items():
            if name not in tensors:
                continue
            held[name] = splits = []
            if "tensor_map" not in p:
                continue
            mesh = p.get("mesh_shape") or p["device_matrix"]
            place = place_in(mesh, p["rank_list"].index(int(rank)))
            ceil = p.get("uneven_shard_mesh_dims") or []
            for d, entry in enumerate(p["tensor_map"]):
                for from_right in entry if isinstance(entry, list) else [entry]:
                    axis = len(mesh) - 1 - from_right
                    if from_right >= 0:
                        how = ceil_part if axis in ceil else balanced_part
                        splits.append((d, mesh[axis], place[axis], how))
    return ranks


def check_rank(directory, tensors, held):
    assert os.listdir(directory) == ["model.safetensors", "npy", "tensors"], os.listdir(directory)
    for kind, suffix in ("tensors", ""), ("npy", ".npy"):
        want = {encode(n, suffix).decode() for n in held}
        got = os.listdir(os.path.join(directory, kind))
        assert set(got) == want and len(got) == len(want), (directory, kind, got, want)
    together = parse_safetensors(read(os.path.join(directory, "model.safetensors")))
    assert set(together) == set(held), (directory, list(together))
    for name, splits in held.items():
        content, shape = slice_of(tensors[name], box_of(tensors[name].shape, splits))
        t = Tensor(os.path.join(directory, "tensors"), name)
        where = f"{directory}: {name}"
        assert (t.dtype, t.shape) == (tensors[name].dtype, shape), (where, t.shape, shape)
        assert t.content == content, f"{where}: bytes differ, {splits}"
        same_safetensors(together[name], where, t)
        npy = read(os.path.join(os.fsencode(directory), b"npy", encode(name, ".npy")))
        fault = check_npy(npy, Thing(
            name, len(content), hashlib.sha256(content).hexdigest(), t.dtype, shape))
        assert not fault, f"{where}: {fault}"


def ranks(mount, layout, prefix):
    text = read(layout).decode()
    tensors = tensors_of(os.path.join(mount, "tensors"), prefix)
    reader = read_layout_json if text.lstrip().startswith("{") else read_layout_text
    want = reader(text, tensors)
    top = os.path.join(mount, "ranks")
    listed = os.listdir(top)
    numbers = sorted(want)
    links = [f"model-rank-{n}-part-0.safetensors" for n in numbers]
    assert listed[: 2 * len(numbers)] == [f"{n:05}" for n in numbers] + links, listed
    empty = parts = 0
    for n, link in zip(numbers, links):
        assert os.readlink(os.path.join(top, link)) == f"{n:05}/model.safetensors"
        check_rank(os.path.join(top, f"{n:05}"), tensors, want[n])
        for name, splits in want[n].items():
            parts += 1
            shape = tensors[name].shape
            empty += 0 in [k for _, k in box_of(shape, splits)] and 0 not in shape
    print(f"{len(numbers)} ranks, {parts} parts, {empty} of them empty")


def random_mesh(source):
    while True:
        mesh = [source.randint(1, 5) for _ in range(source.randint(1, 4))]
        if math.prod(mesh) <= 24:
            return mesh


def random_splits(source, n_axes, n_dims):
    """[(axis, dimension)] in any order, often several on one dimension."""
    axes = source.sample(range(n_axes), source.randint(0, n_axes)) if n_dims else []
    return [(a, source.randrange(n_dims)) for a in axes]


def layout(seed, directory, prefix):
    source, tensors = random.Random(seed), tensors_of(directory, prefix)
    mesh = random_mesh(source)
    names = [f"a{i}" for i in range(len(mesh))]
    print(f"# seed {seed}\n\nmesh", *(f"{a}={n}" for a, n in zip(names, mesh)))
    order = list(tensors)
    source.shuffle(order)
    for name in order:
        glob = source.choice([name, "*" + name[1:], name[:-1] + "?", "*" + name.split(".")[-1]])
        counts = {len(t.shape) for n, t in tensors.items() if fnmatch.fnmatchcase(n, glob)}
        least = min(counts)
        back = least if len(counts) == 1 and source.random() < 0.3 else 0
        splits = random_splits(source, len(mesh), least)
        words = [f"{names[a]}:{d - back}" for a, d in splits]
        if source.random() < 0.9:
            print(glob, *(words or ["replicate"]), " # a comment")


def layout_json(seed, directory, prefix):
    source, tensors = random.Random(seed), tensors_of(directory, prefix)
    mesh = random_mesh(source)
    n = math.prod(mesh)
    numbers = source.sample(range(n + 5), n)
    out = {str(r): {} for r in numbers}
    for name, t in tensors.items():
        tensor_map = [[] for _ in t.shape]
        for a, d in random_splits(source, len(mesh), len(t.shape)):
            tensor_map[d].append(len(mesh) - 1 - a)
        even = all(size % math.prod(mesh[len(mesh) - 1 - a] for a in axes) == 0
                   for size, axes in zip(t.shape, tensor_map))
        p = {
            source.choice(["mesh_shape", "device_matrix"]): mesh,
            "tensor_map": [m if len(m) > 1 else m[0] if m else -1 for m in tensor_map],
            "rank_list": numbers, "full_shape": t.shape, "interleaved_parallel": False,
            "alias_name": [f"a{i}" for i in range(len(mesh))], "type": "torch." + t.dtype,
        }
        if not even or source.random() < 0.5:
            p["uneven_shard_mesh_dims"] = source.sample(
                range(len(mesh)), source.randint(0, len(mesh)))
        if source.random() < 0.2:
            p = {}
        for r in numbers:
            if source.random() < 0.9:
                out[str(r)][name] = p
    print(json.dumps(out))


# ---- mmap ----


def by_map(*paths):
    for path in paths:
        with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
            print(hashlib.sha256(m).hexdigest() + "  " + path)


COMMANDS = {
    "safetensors": safetensors, "digest": digest, "index": index, "pt": pt, "cast": cast, "map": by_map,
    "layout": layout, "layout-json": layout_json, "ranks": ranks,
}

if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    COMMANDS[sys.argv[1]](*sys.argv[2:])
