#!/usr/bin/env python3
"""save_random.py SEED OUTDIR - random DCP checkpoints, written and read back by real torch.

Four gloo ranks save 8 to 12 checkpoints, OUTDIR/caseNN/ckpt. Beside each is expected.json, with
dtype, shape and sha256 of every tensor as torch loads it, and sha256 of every stored object. All
is a function of SEED. Needs a PyTorch with torch.distributed, numpy and zstandard.

A tensor is a set of boxes. The bytes of a box come from a random storage seen through random
strides, so numpy alone knows what they must be, and the script fails if torch loads anything else.
"""
import datetime
import hashlib
import importlib.util
import io
import itertools
import json
import logging
import math
import os
import pickle
import random
import shutil
import sys
import tempfile

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("USE_LIBUV", "0")
logging.disable(logging.WARNING)

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import torch.utils.serialization.config as save_config
import zstandard
from torch.distributed._shard.sharded_tensor import Shard as LegacyShard, init_from_local_shards
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint._extension import ZStandard
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

WORLD = 4
CHECKPOINTABLE = importlib.util.find_spec("torch.distributed.checkpoint.protocol")  # >= 2.14
# Name -> bytes per element, for the types that this torch has.
ELEMENT = {d: n for d, n in {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2,
    "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1, "complex32": 4,
    "complex64": 8, "complex128": 16, "float8_e4m3fn": 1, "float8_e4m3fnuz": 1,
    "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1,
}.items() if hasattr(torch, d)}
# The views that torch saves with a conj or neg bit instead of resolving them. (Integers, too.)
FLIPS = {d: ["neg"] for d in ("float64", "float32", "float16", "bfloat16",
                              "int64", "int32", "int16", "int8", "uint8")}
FLIPS |= {"complex128": ["conj", "neg", "negconj"], "complex64": ["conj", "neg", "negconj"],
          "complex32": ["conj", "neg"]}
MESHES = {"4": [0, 1, 2, 3], "2x2": [[0, 1], [2, 3]], "1x4": [[0, 1, 2, 3]],
          "4x1": [[0], [1], [2], [3]], "2x2 shuffled": [[3, 0], [1, 2]], "2 of 4": [3, 1]}

# ---- what is in a box: storages and strides


def rng(*key):
    return random.Random("/".join(map(str, key)))


def row_major(sizes):
    strides, n = [], 1
    for s in reversed(sizes):
        strides.append(n)
        n *= s
    return strides[::-1]


def random_layout(r, sizes, kinds):
    """(strides, offset, storage length), in elements. torch saves a storage of exactly the right
    size as it is, and clones every other one."""
    n = math.prod(sizes)
    kind = r.choice(kinds)
    if n == 0:
        return row_major(sizes), 0, r.choice([0, 0, 3])
    if kind == "row":
        return row_major(sizes), 0, n
    if kind == "slice":
        return row_major(sizes), 3, n + 5
    if kind == "ones":  # the stride of a dimension of size 1 does not matter
        strides = [r.randint(0, 999) if s == 1 else t for s, t in zip(sizes, row_major(sizes))]
        return strides, 0, n
    if kind == "fitting":  # overlaps, zero strides and offsets that happen to fit n elements
        strides, room = [r.randint(0, 9)] * len(sizes), n - 1
        for d in r.sample(range(len(sizes)), len(sizes)):
            if sizes[d] > 1:
                strides[d] = r.randint(0, room // (sizes[d] - 1))
                room -= strides[d] * (sizes[d] - 1)
        return strides, r.randint(0, room), n
    strides, step = [0] * len(sizes), 1
    for d in r.sample(range(len(sizes)), len(sizes)):
        strides[d] = step
        step *= sizes[d] + (r.randint(0, 2) if kind == "padded" else 0)
    if kind == "permuted":
        return strides, 0, n
    offset = r.randint(0, 5)
    return strides, offset, offset + step + r.randint(0, 5)


ANY_LAYOUT = ["row", "permuted", "permuted", "padded", "fitting", "fitting", "ones", "slice"]
CONTIGUOUS = ["row", "ones", "slice"]
NO_OFFSET = ["row", "permuted", "ones"]


def random_box(r, dtype, sizes, kinds, may_flip):
    """A torch tensor with a random layout, and its value as a numpy array of opaque elements."""
    size = ELEMENT[dtype]
    strides, offset, length = random_layout(r, sizes, kinds)
    flip = r.choice(FLIPS[dtype]) if dtype in FLIPS and may_flip and r.random() < 0.2 else ""
    raw = bytearray(r.randbytes(length * size))
    if dtype == "bool":
        raw = bytearray(b & 1 for b in raw)
    if flip and "int" not in dtype:
        # No NaNs (the exponent's highest bit is 0), because it varies which NaN torch makes when it
        # resolves a view.
        part = size // 2 if "complex" in dtype else size
        raw[part - 1::part] = bytes(b & 0xbf for b in raw[part - 1::part])
    flat = np.frombuffer(raw, np.dtype((np.void, size)))
    value = np.array(np.lib.stride_tricks.as_strided(
        flat[offset:], sizes, [s * size for s in strides]), order="C")
    storage = torch.empty(len(raw), dtype=torch.uint8)
    if raw:
        storage.copy_(torch.frombuffer(raw, dtype=torch.uint8))
    tensor = storage.view(getattr(torch, dtype)).as_strided(sizes, strides, offset)
    if "neg" in flip:
        tensor = torch._neg_view(tensor)
        value = negated(value, dtype)
    if "conj" in flip:
        tensor = tensor.conj()
        value = negated(value, dtype, imaginary_only=True)
    return tensor, value


def negated(value, dtype, imaginary_only=False):
    size = ELEMENT[dtype]
    if "int" in dtype:
        return (-value.view(f"u{size}")).view(value.dtype)
    octets = np.frombuffer(bytearray(value.tobytes()), np.uint8).reshape(-1, size)
    octets[:, size - 1] ^= 0x80
    if "complex" in dtype and not imaginary_only:
        octets[:, size // 2 - 1] ^= 0x80
    return octets.reshape(-1).view(value.dtype).reshape(value.shape)


# ---- how a tensor is cut


def random_shape(r):
    kind = r.random()
    if kind < 0.06:
        return []
    if kind < 0.12:
        return [r.choice([257, 1031]), r.choice([64, 127, 300])]
    while True:
        side = [1, 1, 2, 3, 4, 4, 5, 7, 8, 8, 11, 13, 16, 29] + [0] * (r.random() < 0.15)
        shape = [r.choice(side) for _ in range(r.choice([1, 1, 2, 2, 2, 3, 3, 4, 5, 6]))]
        if math.prod(shape) <= 6000:
            return shape


def mesh_box(shape, mesh_shape, where, placements):
    """The box of the rank at coordinates `where`: ceil-sized parts, placements from left to right,
    except that a strided one (S'n) is applied after the others, as in FSDP x TP."""
    offsets, sizes = [0] * len(shape), list(shape)
    for i in sorted(range(len(placements)), key=lambda i: placements[i].startswith("S'")):
        if placements[i] == "R":
            continue
        d = int(placements[i][-1])
        part = -(-sizes[d] // mesh_shape[i])
        begin = min(part * where[i], sizes[d])
        offsets[d] += begin
        sizes[d] = min(part, sizes[d] - begin)
    return tuple(offsets), tuple(sizes)


def random_cut(r, shape, n):
    boxes = [((0,) * len(shape), tuple(shape))]
    for _ in range(n - 1):
        i = r.randrange(len(boxes))
        offsets, sizes = boxes[i]
        dims = [d for d, s in enumerate(sizes) if s > 1]
        if dims:
            d = r.choice(dims)
            at = r.randint(1, sizes[d] - 1)
            boxes[i] = (offsets, sizes[:d] + (at,) + sizes[d + 1:])
            boxes.append((offsets[:d] + (offsets[d] + at,) + offsets[d + 1:],
                          sizes[:d] + (sizes[d] - at,) + sizes[d + 1:]))
    r.shuffle(boxes)
    return boxes


class Tensor:
    """A random tensor under one FQN. boxes: {rank: [(offsets, sizes)]}."""

    def __init__(self, key, kind, flavour):
        r = rng(*key)
        self.key, self.kind = key, kind
        # Staging for async_save silently loses conj and neg bits, and cannot copy a DTensor with a
        # storage offset. ShardedTensor refuses shards that are not contiguous.
        self.may_flip = "async" not in flavour
        self.layouts = (CONTIGUOUS if kind == "sharded" else
                        NO_OFFSET if kind == "dtensor" and "async" in flavour else ANY_LAYOUT)
        self.dtype, self.shape = r.choice(list(ELEMENT)), random_shape(r)
        if self.dtype == "float4_e2m1fn_x2":  # torch can copy these only if contiguous
            if kind in ("plain", "unique") and "async" not in flavour:
                self.layouts = CONTIGUOUS
            else:
                self.dtype = "uint8"
        if kind in ("sharded", "boxes") and (not self.shape or 0 in self.shape):
            self.shape = [r.randint(1, 20), r.randint(1, 20)]
        if kind == "dtensor":
            self.mesh = r.choice(list(MESHES))
            ranks = np.array(MESHES[self.mesh])
            choices = ["R"] + [f"S{d}" for d in range(len(self.shape))] * 2
            self.placements = [r.choice(choices) for _ in range(ranks.ndim)]
            if ranks.ndim == 2 and self.shape and self.shape[0] % 4 == 0 and r.random() < 0.4:
                self.placements = ["S'0", "S0"]
            self.boxes = {int(ranks[at]): [mesh_box(self.shape, ranks.shape, at, self.placements)]
                          for at in np.ndindex(ranks.shape)}
            self.how = f"DTensor {self.mesh} {','.join(self.placements)}"
        elif kind in ("sharded", "boxes"):
            self.boxes = {i: [] for i in range(WORLD)}
            for box in random_cut(r, self.shape, r.randint(1, 10)):
                self.boxes[r.randrange(WORLD)].append(box)
            self.how = "ShardedTensor" if kind == "sharded" else "CheckpointableTensor"
        else:
            some = [r.randrange(WORLD)] if kind == "unique" else range(WORLD)
            self.boxes = {i: [((0,) * len(self.shape), tuple(self.shape))] for i in some}
            self.how = f"plain on {list(self.boxes)}"

    def single(self):
        """The tensor for a save by rank 0 alone."""
        self.boxes = {0: [box for boxes in self.boxes.values() for box in boxes]}

    def _box(self, offsets, sizes):
        return random_box(rng(*self.key, offsets, sizes), self.dtype, sizes, self.layouts,
                          self.may_flip)

    def _buffer(self, rank):
        """All boxes of a rank in one padded buffer, one after the other along dimension d."""
        r = rng(*self.key, "buffer", rank)
        boxes, d, at, local = self.boxes[rank], r.randrange(len(self.shape)), 0, []
        for _, sizes in boxes:
            at += r.randint(0, 1)
            local.append(tuple(at if i == d else 0 for i in range(len(sizes))))
            at += sizes[d]
        shape = [max([s[i] for _, s in boxes], default=0) + r.randint(0, 1)
                 for i in range(len(self.shape))]
        shape[d] = at + r.randint(0, 1)
        tensor, value = random_box(r, self.dtype, shape, self.layouts, self.may_flip)
        return tensor, value, local

    def pieces(self):
        """Yields (rank, offsets, sizes, value) for every box of every rank."""
        for rank, boxes in self.boxes.items():
            if self.kind == "boxes":
                _, value, local = self._buffer(rank)
                for (offsets, sizes), begin in zip(boxes, local):
                    yield rank, offsets, sizes, value[tuple(
                        slice(b, b + s) for b, s in zip(begin, sizes))]
            else:
                for offsets, sizes in boxes:
                    yield rank, offsets, sizes, self._box(offsets, sizes)[1]

    def value(self):
        full = np.zeros(self.shape, np.dtype((np.void, ELEMENT[self.dtype])))
        for _, offsets, sizes, value in self.pieces():
            full[tuple(slice(o, o + s) for o, s in zip(offsets, sizes))] = value
        return full

    def build(self, rank, meshes):
        """The value for the state dict of this rank."""
        boxes = self.boxes[rank]
        if self.kind == "dtensor":
            places = [Replicate() if p == "R" else
                      _StridedShard(0, split_factor=meshes[self.mesh].shape[1]) if p == "S'0" else
                      Shard(int(p[1:])) for p in self.placements]
            local, _ = self._box(*boxes[0])
            sizes, offsets = compute_local_shape_and_global_offset(
                torch.Size(self.shape), meshes[self.mesh], places)
            assert tuple(sizes) == boxes[0][1], (self.how, self.shape, sizes, boxes)
            assert 0 in sizes or tuple(offsets) == boxes[0][0], (self.how, offsets, boxes)
            return DTensor.from_local(local, meshes[self.mesh], places, run_check=False,
                                      shape=torch.Size(self.shape),
                                      stride=tuple(row_major(self.shape)))
        if self.kind == "sharded":
            shards = [LegacyShard.from_tensor_and_offsets(self._box(o, s)[0], list(o), rank)
                      for o, s in boxes]
            return init_from_local_shards(shards, *self.shape)
        if self.kind == "boxes":
            tensor, _, local = self._buffer(rank)
            tensor.global_shape = tuple(self.shape)
            tensor.global_offsets = tuple(o for o, _ in boxes)
            tensor.local_offsets = tuple(local)
            tensor.local_sizes = tuple(s for _, s in boxes)
            return tensor
        tensor, _ = self._box(*boxes[0])
        if self.dtype.startswith(("float3", "bfloat")) and rng(*self.key, "p").random() < 0.3:
            return torch.nn.Parameter(tensor)
        return tensor


class Differing:
    """An FQN under which every rank has a different tensor, which only rank-local saves can hold."""

    def __init__(self, key, flavour):
        self.key, self.how, self.kind = key, "differs between ranks", "differing"
        self.each = [Tensor((*key, i), "plain", flavour) for i in range(WORLD)]
        self.boxes = dict.fromkeys(range(WORLD))
        if len({(t.dtype, tuple(t.shape)) for t in self.each}) == 1:
            self.each[0].dtype = "int16" if self.each[0].dtype != "int16" else "int8"

    def build(self, rank, meshes):
        return self.each[rank].build(rank, meshes)


class Object:
    def __init__(self, key, kind):
        r = rng(*key)
        self.key, self.kind = key, kind
        ranks = range(WORLD) if kind != "unique object" else [r.randrange(WORLD)]
        self.values = {i: self._random(r) for i in ranks}
        if kind == "object":  # the same on all ranks
            self.values = dict.fromkeys(ranks, self.values[0])
        self.boxes, self.how = self.values, kind

    @staticmethod
    def _random(r):
        return r.choice([
            lambda: r.choice([0, 7, -5, 255, 256, 65536, 2**31, 2**40, -2**200]),
            lambda: r.random(), lambda: None, lambda: r.random() < 0.5, lambda: "",
            lambda: "h\u00e9llo \u4e16\u754c \U0001f600" * r.randint(1, 300),
            lambda: r.randbytes(r.choice([0, 5, 300, 70000])), lambda: [],
            lambda: [1, "two", 3.0, None, [4, [r.random()]]], lambda: (1, (2, {"k": r.random()})),
            lambda: list(range(r.randint(900, 2500))), lambda: {r.random(), 1},
            lambda: 1 + 2j, lambda: torch.Size([3, 4]),
            lambda: torch.bfloat16, lambda: np.float32(r.random()),
            lambda: np.arange(r.randint(0, 50), dtype=np.int16),
            lambda: (torch.arange(r.randint(0, 9)), torch.ones(2, 3).t()),
            lambda: io.BytesIO(r.randbytes(99)),
        ])()

    def build(self, rank, meshes):
        return self.values[rank]


# ---- names and contents of a checkpoint

# A str may have lone surrogates; but not a high one before a low one, because JSON joins these.
FRAGMENTS = ["a", "w", "bias", "layers", "0", "10", ".", "..", "/", "//", "../", " ", "  ", "%",
             "%2F", "%~", "\n", "\t", "\0", "\x7f", "\x1f", "'", '"', "\\", "*", "[", "\u00e9",
             "e\u0301", "\u4e16\u754c", "\U0001f600", "\u202e", "\udc80", "\uffff",
             "@rank0", "-", "~", ":", "Case", "case", "shard_0_1"]
SPECIAL = ["", ".", "..", "...", "/", "/etc/passwd", "../../x", "%", " ", "a", "a.b", "a.b.c",
           "\n", "\0", ".metadata", "\ud800z", "-rf", "CON", "x.npy", "x"]


def random_name(r, i):
    kind = r.random()
    if kind < 0.35:
        return f"model.layers.{i}.{r.choice(['attention.wq.weight', 'mlp.w1', 'norm.bias'])}"
    if kind < 0.5:
        return r.choice(SPECIAL)
    if kind < 0.8:
        return "".join(r.choice(FRAGMENTS) for _ in range(r.randint(1, 7)))
    # Around the limits of a file name: 255 bytes, 251 with .npy, and escapes that triple it.
    unit = r.choice(["x", "x", "very.", "\u4e16", "\U0001f600", "/", "ab\n", "\u00e9%"])
    bytes_wanted = r.choice([236, 237, 238, 250, 251, 252, 253, 254, 255, 256, 257, 300, 1000])
    encoded = len("".join(c if c not in "/\n%" else "%XX" for c in unit).encode())
    return unit * (bytes_wanted // encoded) + "y" * (bytes_wanted % encoded) + \
        r.choice(["", "", "A", "B"])


FLAVOURS = ["base", "threads", "file per item", "zstd", "zstd twice", "alignment", "no crc",
            "protocol", "rank-local", "async", "async by writer", "not flattened", "overwritten",
            "plan cache", "one process"]


class Case:
    def __init__(self, seed, number, flavour, outdir):
        r = rng(seed, number)
        self.seed, self.number, self.flavour = seed, number, flavour
        self.dir = f"{outdir}/case{number:02d}"
        self.ckpt = f"{self.dir}/ckpt"
        maybe = lambda name, p: flavour == name or r.random() < p
        self.rank_local = flavour == "rank-local"
        self.single = flavour == "one process"
        self.protocol = r.randint(2, 5) if maybe("protocol", 0.1) else None
        self.alignment = r.choice([1, 8, 256, 4096]) if maybe("alignment", 0.05) else 64
        self.crc = not maybe("no crc", 0.05)
        self.writer = {"thread_count": r.randint(2, 4) if maybe("threads", 0.1) else 1,
                       "single_file_per_rank": not maybe("file per item", 0.05),
                       "sync_files": r.random() < 0.2}
        self.zstd = 2 if flavour == "zstd twice" else int(maybe("zstd", 0.05))
        self.planner = {"flatten_state_dict": not maybe("not flattened", 0),
                        "flatten_sharded_tensors": flavour != "not flattened" or r.random() < 0.5,
                        "dedup_save_to_lowest_rank": r.random() < 0.3,
                        "enable_plan_caching": flavour == "plan cache"}
        self.nested = self.planner["flatten_state_dict"] and r.random() < 0.7
        self.entries = self._entries(r)

    def _entries(self, r):
        kinds = ["dtensor"] * 5 + ["sharded", "boxes", "plain", "plain", "plain", "unique",
                                   "object", "object", "unique object", "differing object"]
        if self.single:
            kinds = ["plain"] * 3 + ["boxes", "object"]
        if self.rank_local:
            kinds.append("differing")
        if self.flavour == "async":  # it cannot stage a ShardedTensor
            kinds.remove("sharded")
        if self.flavour == "async by writer":  # it takes such an object for a plain tensor
            kinds.remove("boxes")
        if not CHECKPOINTABLE:
            kinds = [k for k in kinds if k != "boxes"]
        entries = {}
        for i in range(r.randint(10, 40)):
            name, kind = random_name(r, i), r.choice(kinds)
            key = (self.seed, self.number, i)
            if kind == "differing":
                entry = Differing(key, self.flavour)
            elif "object" in kind:
                entry = Object(key, kind)
            else:
                entry = Tensor(key, kind, self.flavour)
            if self.single and kind == "boxes":
                entry.single()
            entries.setdefault(name, entry)
        if self.nested:  # torch flattens the keys to FQNs
            for i, path in enumerate([("nest", "a", 3, "b"), ("nest", "list", [0]),
                                      ("nest", "list", [1]), ("nest", "x/y", "", "z.w")]):
                fqn = ".".join(str(k[0] if isinstance(k, list) else k) for k in path)
                entries[fqn] = Tensor((self.seed, self.number, "nest", i), "plain", self.flavour)
                entries[fqn].path = path
        return entries

    def options(self):
        return {"flavour": self.flavour, "writer": self.writer, "zstd": self.zstd,
                "planner": self.planner, "metadata protocol": self.protocol,
                "storage_alignment": self.alignment, "crc32": self.crc, "nested": self.nested,
                "how": {fqn: e.how for fqn, e in self.entries.items()}}

    def state_dict(self, rank, meshes):
        state = {}
        for fqn, entry in self.entries.items():
            if rank not in entry.boxes:
                continue
            value = entry.build(rank, meshes)
            path = getattr(entry, "path", (fqn,))
            at = state
            for key, following in itertools.pairwise(path):
                at = at.setdefault(key, [] if isinstance(following, list) else {})
            if isinstance(path[-1], list):
                at.append(value)
            else:
                at[path[-1]] = value
        return state

    def save(self, rank, meshes):
        planner = DefaultSavePlanner(**self.planner)
        writer = FileSystemWriter(self.ckpt, _extensions=[ZStandard()] * self.zstd, **self.writer)
        if self.flavour == "overwritten":  # leaves longer files and more of them
            dcp.save({"old": torch.ones(30000), f"old{rank}": torch.ones(rank)},
                     storage_writer=FileSystemWriter(self.ckpt, thread_count=6))
        save_config.save.storage_alignment = self.alignment
        torch.serialization.set_crc32_options(self.crc)
        state = self.state_dict(rank, meshes)
        try:
            if self.single:
                if rank == 0:
                    dcp.save(state, storage_writer=writer, planner=planner, no_dist=True)
            elif self.rank_local:
                dcp.save(state, storage_writer=writer, planner=planner, use_collectives=False)
            elif self.flavour == "async":
                answer = dcp.async_save(state, checkpoint_id=self.ckpt, planner=planner)
                getattr(answer, "upload_completion", answer).result()
            elif self.flavour == "async by writer":
                answer = dcp.async_save(state, storage_writer=writer, planner=planner)
                getattr(answer, "upload_completion", answer).result()
            elif self.flavour == "plan cache":  # the second save sends no plan
                for _ in range(2):
                    dcp.save(state, storage_writer=writer,
                             planner=DefaultSavePlanner(**self.planner))
                for cache in (SavePlanner._cached_save_plan, SavePlanner._cached_final_save_plan,
                              SavePlanner._cached_all_plans, SavePlanner._cached_global_plan,
                              SavePlanner._cached_metadata):
                    cache.clear()
            else:
                dcp.save(state, storage_writer=writer, planner=planner)
        finally:
            save_config.save.storage_alignment = 64
            torch.serialization.set_crc32_options(True)

    def rewrite_metadata(self):
        """Changes the pickle protocol, and the order, on which no program should rely."""
        names = [n for n in sorted(os.listdir(self.ckpt)) if n.endswith(".metadata")]
        r = rng(self.seed, self.number, "order")
        for name in names if self.protocol else []:
            with open(f"{self.ckpt}/{name}", "rb") as f:
                metadata = pickle.load(f)
            for item in metadata.state_dict_metadata.values():
                r.shuffle(getattr(item, "chunks", []))
            metadata.storage_data = dict(r.sample(list(metadata.storage_data.items()),
                                                  len(metadata.storage_data)))
            with open(f"{self.ckpt}/{name}", "wb") as f:
                pickle.dump(metadata, f, protocol=self.protocol)

    # ---- expectations

    def expect(self):
        tensors, objects = {}, {}
        if self.rank_local:
            self._expect_rank_local(tensors, objects)
        else:
            metadata, loaded = load(self.ckpt)
            assert set(loaded) == set(self.entries), set(loaded) ^ set(self.entries)
            for fqn, entry in self.entries.items():
                if isinstance(entry, Object):
                    objects[fqn] = describe_object(self.ckpt, metadata, fqn, entry.values.values())
                else:
                    same_bytes(fqn, entry, entry.value(), as_opaque(loaded[fqn]))
                    tensors[fqn] = describe_tensor(entry, as_opaque(loaded[fqn]))
        with open(f"{self.dir}/expected.json", "w") as f:
            json.dump({"format": "dcp", "ckpt": "ckpt", "torch": torch.__version__,
                       "seed": self.seed, "case": self.number, "options": self.options(),
                       "tensors": tensors, "objects": objects}, f, indent=1, ensure_ascii=True)
        return len(tensors), len(objects)

    def _expect_rank_local(self, tensors, objects):
        """Every rank's file must hold what the rank had; expected are the names of a merged tree."""
        seen = set()
        for rank in range(WORLD):
            metadata, loaded = load(self.ckpt, rank)
            for fqn, value in loaded.items():
                entry = self.entries[fqn]
                seen.add(fqn)
                if isinstance(entry, Object):
                    name = fqn if len(entry.values) == 1 else f"{fqn}@rank{rank}"
                    objects[name] = describe_object(self.ckpt, metadata, fqn, [entry.values[rank]])
                    continue
                source = entry.each[rank] if isinstance(entry, Differing) else entry
                full, value = source.value(), as_opaque(value)
                for chunk in metadata.state_dict_metadata[fqn].chunks:
                    box = tuple(slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes))
                    same_bytes(fqn, source, full[box], value[box])
                name = f"{fqn}@rank{rank}" if source is not entry else fqn
                tensors[name] = describe_tensor(source, full)
        # A rank without boxes of a tensor does not list it, but some rank must.
        assert seen == set(self.entries), seen ^ set(self.entries)


def as_opaque(tensor):
    size = tensor.element_size()
    flat = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, "u1")
    return flat.view(np.dtype((np.void, size))).reshape(tuple(tensor.shape))


def same_bytes(fqn, entry, want, got):
    if want.tobytes() != got.tobytes():
        raise AssertionError(f"torch loads {ascii(fqn)} with other bytes: {entry.how}, "
                             f"{entry.dtype} {entry.shape}\nsaved  {want.tobytes()[:64].hex()}\n"
                             f"loaded {got.tobytes()[:64].hex()}")


def describe_tensor(entry, value):
    data = value.tobytes()
    return {"dtype": entry.dtype, "shape": list(entry.shape), "nbytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest()}


def describe_object(ckpt, metadata, fqn, values):
    info, = [i for k, i in metadata.storage_data.items() if k.fqn == fqn]
    with open(f"{ckpt}/{info.relative_path}", "rb") as f:
        f.seek(info.offset)
        data = f.read(info.length)
    for transform in info.transform_descriptors or []:
        assert transform == "stream.zstd/1", transform
        data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    value = torch.load(io.BytesIO(data), weights_only=False)
    assert any(comparable(value) == comparable(v) for v in values), (fqn, value)
    return {"length": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def comparable(value):
    """A form in which values without a useful == can be compared."""
    if isinstance(value, io.BytesIO):
        return value.getvalue()
    if isinstance(value, tuple) and any(isinstance(v, torch.Tensor) for v in value):
        return [v.tolist() for v in value]
    if isinstance(value, torch.Size):  # async_save makes a tuple of it
        value = tuple(value)
    return repr(value)


def load(ckpt, rank=None):
    """(metadata, {fqn: value}) as torch loads it; with a rank, from that rank's file."""
    class Reader(FileSystemReader):
        def read_metadata(self, *args, **kwargs):
            return super().read_metadata(rank=rank)

    metadata = Reader(ckpt).read_metadata()
    state = {}
    for fqn, item in metadata.state_dict_metadata.items():
        if isinstance(item, TensorStorageMetadata):  # not filled with zeros, so that a hole shows
            n = math.prod(item.size) * torch._utils._element_size(item.properties.dtype)
            state[fqn] = torch.full((n,), 0xa5, dtype=torch.uint8).view(
                item.properties.dtype).reshape(item.size)
        else:
            state[fqn] = None
    _load_state_dict(state, Reader(ckpt), no_dist=True, planner=DefaultLoadPlanner(
        flatten_state_dict=False, flatten_sharded_tensors=False))
    return metadata, state


def rank_main(rank, cases, rendezvous):
    torch.set_num_threads(1)
    stderr = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # gloo cannot be told to be quiet
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank,
                            world_size=WORLD, timeout=datetime.timedelta(seconds=120))
    meshes = {name: DeviceMesh("cpu", ranks) for name, ranks in MESHES.items()}
    os.dup2(stderr, 2)
    for case in cases:
        try:
            case.save(rank, meshes)
        except BaseException:
            print(f"case {case.number} ({case.flavour}), rank {rank}:", file=sys.stderr)
            raise
        dist.barrier()
    dist.destroy_process_group()


def main():
    seed, outdir = int(sys.argv[1]), os.path.abspath(sys.argv[2])
    r = rng(seed)
    flavours = r.sample(FLAVOURS, r.randint(8, 12))
    cases = [Case(seed, i, flavour, outdir) for i, flavour in enumerate(flavours)]
    for case in cases:
        shutil.rmtree(case.dir, ignore_errors=True)
        os.makedirs(case.dir)
    with tempfile.TemporaryDirectory() as d:
        # By fork, because importing torch four more times would take longer than all the saves.
        mp.start_processes(rank_main, (cases, f"{d}/rendezvous"), WORLD, start_method="fork")
    for case in cases:
        case.rewrite_metadata()
        try:
            tensors, objects = case.expect()
        except BaseException:
            print(f"seed {seed} case {case.number} ({case.flavour}):", file=sys.stderr)
            raise
        print(f"seed {seed} case{case.number:02d} {case.flavour}: "
              f"{tensors} tensors, {objects} objects")


if __name__ == "__main__":
    main()
