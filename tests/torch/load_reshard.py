#!/usr/bin/env python3
"""load_reshard.py SEED DIR - load with PyTorch and safetensors what `ckptfs reshard` has written.

DIR is a directory of save_random.py in which reshard_jobs.py has run. For DCP checkpoints, the metadata
are checked, and they are loaded through dcp_to_torch_save, and by dcp.load on four gloo ranks into DTensors
of other meshes, ShardedTensors and plain tensors; safetensors files are loaded by safetensors and, if they
hold parts of tensors, by torch's reader of Hugging Face files. HyperParallel is not available; its rules are
implemented here. All bytes are compared with those that save_random.py has saved. Prints one line per
difference, then "N passed, M failed"; exit status 1 if there is a difference.
"""
import datetime
import hashlib
import io
import json
import logging
import math
import os
import pickle
import sys
import tempfile
import warnings

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("USE_LIBUV", "0")
logging.disable(logging.WARNING)
warnings.simplefilter("ignore")

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors import safe_open
from safetensors.torch import _TYPES as SAFETENSORS
from torch.distributed._shard.sharded_tensor import Shard as LegacyShard, init_from_local_shards
from torch.distributed.checkpoint import CheckpointException, FileSystemReader, HuggingFaceStorageReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from compare import Report
from reshard_jobs import is_part
from save_random import MESHES, WORLD, comparable, load, random_cut, rng, row_major

ALIGNMENT = 64  # of items in a file


def octets(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def blank(shape, dtype):
    """A tensor to load into; not of zeros, so that a hole shows."""
    n = math.prod(shape) * torch._utils._element_size(dtype)
    return torch.full((n,), 0xa5, dtype=torch.uint8).view(dtype).reshape(tuple(shape))


def same_cast(want, got):
    """The same bits, but any NaN for a NaN; cast.py tests which one."""
    if want.dtype != got.dtype or want.shape != got.shape:
        return False
    nan = want.isnan()
    return bool((nan == got.isnan()).all()) and octets(want[~nan]) == octets(got[~nan])


def same_value(a, b):
    """Compares nested state dicts, with objects in them that have no useful ==."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_value(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return (a.dtype, a.shape, octets(a)) == (b.dtype, b.shape, octets(b))
    if type(a) is list and type(b) is list:
        return len(a) == len(b) and all(map(same_value, a, b))
    return type(a) is type(b) and comparable(a) == comparable(b)


# ---- sources


class Source:
    """A checkpoint as torch itself loads it; rank-local ones are not loaded as a whole."""

    def __init__(self, case, directory):
        self.ckpt = f"{directory}/{case}/ckpt"
        self.metadata = self.loaded = self.nested = None
        if os.path.exists(f"{self.ckpt}/.metadata"):
            self.metadata, self.loaded = load(self.ckpt)
            self.nested = torch_save(self.ckpt)

    def paths(self):
        return paths_of(self.metadata)


def paths_of(metadata):
    """The path of each value in the state dict."""
    paths = metadata.planner_data or {}
    return {fqn: tuple(paths.get(fqn, (fqn,))) for fqn in metadata.state_dict_metadata}


def has_gaps(paths):
    """Whether elements of a list have been left out: dcp_to_torch_save then does not find the others."""
    lists = {}
    for path in paths:
        for i, key in enumerate(path):
            if type(key) is int:
                lists.setdefault(path[:i], set()).add(key)
    return any(keys != set(range(len(keys))) for keys in lists.values())


def torch_save(ckpt):
    with tempfile.NamedTemporaryFile() as f:
        dcp_to_torch_save(ckpt, f.name)
        return torch.load(f.name, weights_only=False)


# ---- tensors of any format


class Check:
    """One checkpoint that was written."""

    def __init__(self, report, job, source, directory):
        self.report, self.job, self.source = report, job, source
        self.dest = f"{directory}/{job['name']}"
        self.truth = {}

    def check(self, what, ok, *detail):
        return self.report.check(self.job["name"], what, ok, ", ".join(map(ascii, detail))[:300])

    def tensor(self, how, fqn, got):
        """Checks a tensor, and keeps it to compare what ranks load."""
        want = self.job["tensors"][fqn]
        where = f"{how}: {ascii(fqn)[:80]}"
        if want.get("cast"):
            ok = same_cast(self.source.loaded[fqn].to(getattr(torch, want["dtype"])), got) \
                if self.source.loaded else str(got.dtype) == f"torch.{want['dtype']}"
        else:
            ok = (str(got.dtype), list(got.shape)) == (f"torch.{want['dtype']}", want["shape"]) and \
                hashlib.sha256(octets(got)).hexdigest() == want["sha256"]
        if self.check(f"{where} differs", ok, (got.dtype, list(got.shape), want)):
            self.truth[fqn] = got

    def names(self, how, got, want):
        self.check(f"{how}: names", set(got) == set(want), sorted(set(got) ^ set(want))[:4])
        return [n for n in want if n in got]

    def boxes(self, fqn, boxes):
        want = sorted(self.job["chunks"][fqn])
        self.check(f"chunks of {ascii(fqn)[:80]}", sorted(boxes) == want, (sorted(boxes), want))

    def was(self, fqn):
        return self.job.get("was", {}).get(fqn, fqn)

    def object(self, how, fqn, got):
        """Checks a value, if torch can load the original."""
        if self.source.loaded is None:
            return
        want = self.source.loaded[self.was(fqn)]
        self.check(f"{how}: object {ascii(fqn)[:80]}", comparable(got) == comparable(want), got)

    # ---- DCP

    def dcp(self):
        job = self.job
        metadata = FileSystemReader(self.dest).read_metadata()
        items = metadata.state_dict_metadata
        self.names("metadata", items, [*job["tensors"], *job["objects"]])
        for fqn, item in items.items():
            want = job["tensors"].get(fqn)
            if not want:
                self.check(f"{ascii(fqn)} is no object", isinstance(item, BytesStorageMetadata))
                continue
            if not self.check(f"{ascii(fqn)} is no tensor", isinstance(item, TensorStorageMetadata)):
                continue
            self.check(f"metadata of {ascii(fqn)}", (str(item.properties.dtype), list(item.size)) ==
                       (f"torch.{want['dtype']}", want["shape"]), item)
            self.boxes(fqn, [[list(c.offsets), list(c.sizes)] for c in item.chunks])
        self.dcp_storage(metadata)
        if self.source.metadata and "was" not in job:
            paths = self.source.paths()
            for fqn, path in paths_of(metadata).items():
                self.check("path in the state dict", path == paths[fqn], (path, paths[fqn]))
        self.dcp_values()

    def dcp_storage(self, metadata, besides=()):
        """Every chunk and object must have a place of its own in the files, and nothing else may be there."""
        where, indexes = {}, {}
        for index, info in metadata.storage_data.items():
            where.setdefault(info.relative_path, []).append((info.offset, info.length))
            indexes.setdefault(index.fqn, []).append(index)
            self.check("transforms", (getattr(info, "transform_descriptors", None) or []) ==
                       (["stream.zstd/1"] if self.job["zstd"] else []), info)
        for fqn, item in metadata.state_dict_metadata.items():
            if isinstance(item, BytesStorageMetadata):
                ok = len(indexes.get(fqn, [])) == 1
            else:
                ok = [c.offsets for c in item.chunks] == \
                    [i.offset for i in sorted(indexes.get(fqn, []), key=lambda i: i.index)]
            self.check(f"entries of {ascii(fqn)[:80]}", ok, indexes.get(fqn))
        # Threads that have nothing to write leave empty files, as torch's do.
        self.names("files", {n for n in os.listdir(self.dest) if n not in (".metadata", *besides) and
                             (n in where or os.path.getsize(f"{self.dest}/{n}"))}, where)
        for name, places in where.items():
            at = 0
            for offset, length in sorted(places):
                self.check(f"{name}: item", at <= offset < at + ALIGNMENT and length > 0, (offset, length, at))
                at = offset + length
            self.check(f"{name}: size", os.path.getsize(f"{self.dest}/{name}") == at, at)
        self.check_file_names(where)

    def check_file_names(self, where):
        per_rank = {}
        for name, places in where.items():
            rank, number = name.removeprefix("__").removesuffix(".distcp").split("_")
            per_rank.setdefault(int(rank), []).append(int(number))
            self.check(f"{name}: items", len(places) == 1 or not self.job["file_per_item"])
        for rank, numbers in per_rank.items():
            self.check(f"files of rank {rank}", rank < self.job["ranks"] and
                       sorted(numbers) == list(range(len(numbers))) and
                       (self.job["file_per_item"] or len(numbers) <= max(self.job["threads"], 1)), numbers)

    def dcp_values(self):
        metadata, loaded = load(self.dest)
        for fqn, value in loaded.items():
            if fqn in self.job["tensors"]:
                self.tensor("dcp.load", fqn, value)
            else:
                self.object("dcp.load", fqn, value)
        if has_gaps(paths_of(metadata).values()):
            return
        nested = torch_save(self.dest)
        for fqn, path in paths_of(metadata).items():
            value = nested
            for key in path:
                value = value[key]
            if fqn in self.job["tensors"]:
                self.tensor("dcp_to_torch_save", fqn, value)
        if self.source.nested and loaded.keys() == self.source.loaded.keys() and not self.job["cast"]:
            self.check("state dict", same_value(nested, self.source.nested), list(nested))

    # ---- Megatron-core

    def megatron(self):
        """Load as dist_checkpointing.load does: metadata.json, then common.pt without any class, then by torch's
        planner what is requested; here an object is the list of its parts' values."""
        job = self.job
        with open(f"{self.dest}/metadata.json", encoding="utf-8") as f:
            config = json.load(f)
        self.check("metadata.json", (config["sharded_backend"], config["sharded_backend_version"]) ==
                   ("torch_dist", 1) and set(config) <= {"sharded_backend", "sharded_backend_version",
                                                         "common_backend", "common_backend_version"}, config)
        common = torch.load(f"{self.dest}/common.pt", map_location="cpu", weights_only=True)
        self.check("common.pt", repr(common) == "{'checkpoint_version': 3.0, 'iteration': 0}", common)
        metadata = FileSystemReader(self.dest).read_metadata()
        parts = {n if is_part(n) else f"{n}/shard_0_1": n for n in job["objects"]}
        items = metadata.state_dict_metadata
        self.names("metadata", items, [*job["tensors"], *parts])
        self.check("mcore_data", metadata.mcore_data == {n: {} for n in job["tensors"]})
        self.check("planner_data", not metadata.planner_data, metadata.planner_data)
        for fqn in job["tensors"]:
            self.boxes(fqn, [[list(c.offsets), list(c.sizes)] for c in items[fqn].chunks])
        self.dcp_storage(metadata, besides=("metadata.json", "common.pt"))
        state = {fqn: blank(item.size, item.properties.dtype) if fqn in job["tensors"] else io.BytesIO()
                 for fqn, item in items.items()}
        dcp.load(state, storage_reader=FileSystemReader(self.dest), no_dist=True,
                 planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False))
        for fqn in job["tensors"]:
            self.tensor("dcp.load", fqn, state[fqn])
        for part, fqn in parts.items():
            if part == fqn:  # its name is one of Megatron-core's
                self.object("part", fqn, state[part])
            elif self.check(f"list of {ascii(fqn)[:80]}", type(state[part]) is list and len(state[part]) == 1):
                value, = state[part]
                # A value that contains tensors is stored as the bytes of an archive.
                self.object("part", fqn, torch.load(io.BytesIO(value), weights_only=False)
                            if isinstance(value, bytes) and value[:2] == b"PK" else value)

    # ---- safetensors

    def safetensors(self):
        files = sorted(n for n in os.listdir(self.dest) if n.endswith(".safetensors"))
        pieces, where = {}, {}
        for name in files:
            for fqn, offsets, tensor in self.safetensors_file(name):
                pieces.setdefault(fqn, []).append((offsets, tensor))
                where[fqn] = name
        for fqn in self.names("files", pieces, self.job["tensors"]):
            self.assemble("safetensors", fqn, pieces[fqn])
        self.safetensors_index(files, where)

    def safetensors_file(self, name):
        path = f"{self.dest}/{name}"
        raw = parse_safetensors(path)
        with safe_open(path, "pt") as f:
            told = json.loads((f.metadata() or {}).get("DCP_SHARDING_INFO", "null"))
            self.check(f"{name}: format", (f.metadata() or {}).get("format") == "pt", f.metadata())
            self.check(f"{name}: sharding info", (told is not None) == name.startswith("shard-") and
                       set(told or f.keys()) == set(f.keys()))
            self.names(name, f.keys(), raw)
            for fqn in f.keys():
                # Types that safetensors does not have for torch are compared as bytes.
                tensor = f.get_tensor(fqn) if raw[fqn][0] in SAFETENSORS else opaque(*raw[fqn])
                if raw[fqn][0] in SAFETENSORS:
                    self.check(f"{name}: {ascii(fqn)[:80]} by hand", octets(tensor) == raw[fqn][2])
                yield fqn, told[fqn]["saved_offsets"] if told else [0] * tensor.dim(), tensor

    def safetensors_index(self, files, where):
        path = f"{self.dest}/model.safetensors.index.json"
        if files[0].startswith("shard-"):
            self.check("whole tensors in parts", self.job["layout"])
            return
        if len(files) == 1:
            self.check("name", files == ["model.safetensors"], files)
        if len(files) > 1 or os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                index = json.load(f)
            size = sum(t["nbytes"] for t in self.job["tensors"].values())
            self.check("weight_map", index["weight_map"] == where)
            self.check("total_size", index["metadata"]["total_size"] == size, index["metadata"])

    def assemble(self, how, fqn, pieces):
        """Puts a tensor together from its parts, which must tile it."""
        want = self.job["tensors"][fqn]
        dtype = getattr(torch, want["dtype"])
        self.boxes(fqn, [[list(o), list(t.shape)] for o, t in pieces])
        size = torch._utils._element_size(dtype)
        full = np.full(want["shape"], b"\xa5" * size, np.dtype((np.void, size)))
        for offsets, tensor in pieces:
            self.check(f"{how}: dtype of {ascii(fqn)[:80]}", tensor.dtype == dtype, tensor.dtype)
            full[tuple(slice(o, o + n) for o, n in zip(offsets, tensor.shape))] = np.frombuffer(
                octets(tensor), full.dtype).reshape(tuple(tensor.shape))
        data = bytearray(full.tobytes())
        got = (torch.frombuffer(data, dtype=torch.uint8).view(dtype) if data else
               torch.empty(0, dtype=dtype)).reshape(want["shape"])
        self.tensor(how, fqn, got)

    # ---- HyperParallel

    def hyperparallel(self):
        with open(f"{self.dest}/.metadata", "rb") as f:
            metadata = Unpickler(f).load()
        self.check("class", type(metadata).__name__ == "Metadata" and
                   set(vars(metadata)) == {"state_dict_metadata", "planner_data", "storage_data", "version"},
                   list(vars(metadata)))
        items = metadata.state_dict_metadata
        self.names("metadata", items, [*self.job["tensors"], *self.job["objects"]])
        for fqn, item in items.items():
            places = {tuple(i.offset): info for i, info in metadata.storage_data if i.fqn == fqn}
            if fqn in self.job["tensors"]:
                self.hyperparallel_tensor(fqn, item, places)
            else:
                self.check("class", type(item).__name__ == "BytesStorageMetadata", item)
                self.hyperparallel_object(fqn, places)
        if self.source.metadata:
            paths, ours = self.source.paths(), metadata.planner_data or {}
            self.check("planner_data", {f: tuple(ours.get(f, (f,))) for f in items} ==
                       {f: paths[f] for f in items})
        self.names("files", set(os.listdir(self.dest)) - {".metadata"},
                   {info.relative_path for _, info in metadata.storage_data})

    def hyperparallel_tensor(self, fqn, item, places):
        want = self.job["tensors"][fqn]
        self.check(f"metadata of {ascii(fqn)[:80]}", type(item).__name__ == "TensorStorageMetadata" and
                   (item.properties.dtype, list(item.size)) == (f"torch.{want['dtype']}", want["shape"]),
                   vars(item))
        pieces = []
        for chunk in item.chunks:
            info = places[tuple(chunk.offsets)]
            kind, shape, data = parse_safetensors(f"{self.dest}/{info.relative_path}")[info.tensor_key]
            self.check("shape of a chunk", list(shape) == list(chunk.sizes) or kind == "F4", shape)
            self.check("place", info.offset == 0 and info.length == -1, vars(info))
            pieces.append((list(chunk.offsets), opaque(kind, shape, data)))
        self.assemble("containers", fqn, pieces)

    def hyperparallel_object(self, fqn, places):
        info, = places.values()
        with open(f"{self.dest}/{info.relative_path}", "rb") as f:
            f.seek(info.offset)
            data = f.read(info.length)
        self.check("length", len(data) == info.length)
        # A value that contains tensors is stored as the bytes of an archive.
        self.object("pickle", fqn, torch.load(io.BytesIO(data), weights_only=False)
                    if data[:2] == b"PK" else pickle.loads(data))


def parse_safetensors(path):
    """{name: (dtype, shape, bytes)}, without the library."""
    with open(path, "rb") as f:
        data = f.read()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[start + t["data_offsets"][0]:start + t["data_offsets"][1]])
            for name, t in header.items()}


def opaque(kind, shape, data):
    dtype = SAFETENSORS.get(kind) or {"F8_E8M0": torch.float8_e8m0fnu, "F4": torch.float4_e2m1fn_x2}[kind]
    if kind == "F4":  # two elements in a byte
        shape = [*shape[:-1], shape[-1] // 2]
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)


class Value:
    """An object of HyperParallel."""

    def __setstate__(self, state):
        self.__dict__.update(state)


class Unpickler(pickle.Unpickler):
    MODULES = {"Metadata": "metadata", "MetadataIndex": "metadata", "ChunkStorageMetadata": "metadata",
               "TensorProperties": "metadata", "TensorStorageMetadata": "metadata",
               "BytesStorageMetadata": "metadata", "StorageInfo": "storage"}

    def find_class(self, module, name):
        if (module, name) == ("torch", "Size"):
            return torch.Size
        home = f"hyper_parallel.core.distributed_checkpoint.{self.MODULES.get(name)}"
        if module != home:
            raise pickle.UnpicklingError(f"global {module}.{name}")
        return type(name, (Value,), {})

    def load(self):
        metadata = super().load()
        metadata.storage_data = list(metadata.storage_data.items())
        return metadata


# ---- four ranks


def box_slice(box):
    return tuple(slice(o, o + n) for o, n in zip(*box))


def random_target(r, tensor, meshes, rank):
    """(the target of a load, [(a box of the tensor, the part of the target that gets it)])."""
    shape = list(tensor.shape)
    kind = r.choice(["dtensor"] * 4 + ["plain", "sharded"])
    if tensor.dtype == getattr(torch, "float4_e2m1fn_x2", None):  # torch copies these only as a whole
        kind = "plain"
    if kind == "sharded" and (not shape or 0 in shape):
        kind = "dtensor"
    whole = ([0] * len(shape), shape)
    if kind == "plain":
        t = blank(shape, tensor.dtype)
        return t, [(whole, t)]
    if kind == "sharded":
        mine = [box for box in random_cut(r, shape, r.randint(1, 8)) if r.randrange(WORLD) == rank]
        shards = [LegacyShard.from_tensor_and_offsets(blank(n, tensor.dtype), list(o), rank)
                  for o, n in mine]
        return init_from_local_shards(shards, *shape), [(b, s.tensor) for b, s in zip(mine, shards)]
    # No mesh of fewer ranks for a scalar: a rank outside of it would have an empty tensor, which has a dimension.

    name = r.choice([m for m in MESHES if shape or m != "2 of 4"])
    choices = [Replicate()] + [Shard(d) for d in range(len(shape))] * 2
    places = [r.choice(choices) for _ in range(np.array(MESHES[name]).ndim)]
    sizes, offsets = compute_local_shape_and_global_offset(torch.Size(shape), meshes[name], places)
    if meshes[name].get_coordinate() is None:
        sizes, offsets = [0] * max(len(shape), 1), [0] * max(len(shape), 1)
    local = blank(sizes, tensor.dtype)
    t = DTensor.from_local(local, meshes[name], places, run_check=False, shape=torch.Size(shape),
                           stride=tuple(row_major(shape)))
    in_mesh = meshes[name].get_coordinate() is not None
    return t, [((list(offsets), list(sizes)), t.to_local())] * in_mesh


def load_on_ranks(report, seed, check, rank, meshes):
    targets, parts = {}, {}
    for fqn, tensor in check.truth.items():
        # A generator of its own for each tensor, so that all ranks draw the same.
        targets[fqn], parts[fqn] = random_target(rng(seed, check.job["name"], ascii(fqn)), tensor, meshes, rank)
    reader = HuggingFaceStorageReader if check.job["format"] == "safetensors" else FileSystemReader
    dcp.load(targets, storage_reader=reader(check.dest),
             planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False))
    for fqn, boxes in parts.items():
        full = check.truth[fqn]
        for box, got in boxes:
            report.check(check.job["name"], f"rank {rank}: {type(targets[fqn]).__name__} "
                         f"{ascii(fqn)[:80]} {box} differs", octets(full[box_slice(box)]) == octets(got))


def rank_main(rank, seed, checks, directory):
    torch.set_num_threads(1)
    stderr = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # gloo cannot be told to be quiet
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank,
                            world_size=WORLD, timeout=datetime.timedelta(seconds=120))
    meshes = {name: DeviceMesh("cpu", ranks) for name, ranks in MESHES.items()}
    os.dup2(stderr, 2)
    report = Report()
    for check in checks:
        try:
            load_on_ranks(report, seed, check, rank, meshes)
        except (Exception, CheckpointException) as e:  # raised on all ranks
            report.check(check.job["name"], f"rank {rank}", False, str(e).strip().splitlines()[-1:])
    with open(f"{directory}/report.{rank}", "w", encoding="ascii") as f:
        f.write(f"{report.passed} {report.failed}")
    dist.destroy_process_group()


# ---- all


def readable_by_torch(check):
    """Whether torch's reader of Hugging Face files supports these types and parts of tensors."""
    if check.job["format"] == "safetensors" and check.job["layout"]:
        check.truth = {n: t for n, t in check.truth.items() if t.dtype in SAFETENSORS.values()}
        return len(check.truth) == len(check.job["tensors"])
    return check.job["format"] == "dcp"


def main():
    seed, directory = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    with open(f"{directory}/jobs.json", encoding="ascii") as f:
        jobs = json.load(f)
    report, sources, checks = Report(), {}, []
    for job in jobs:
        if job["case"] not in sources:
            sources[job["case"]] = Source(job["case"], directory)
        check = Check(report, job, sources[job["case"]], directory)
        try:
            getattr(check, job["format"])()
            if readable_by_torch(check):
                checks.append(check)
        except (Exception, CheckpointException) as e:
            why = str(e).strip().splitlines()[-1:]
            report.check(job["name"], "stopped", False, f"{type(e).__name__}: {ascii(why)[:300]} ({job['args']})")
    with tempfile.TemporaryDirectory() as d:
        # By fork, because importing torch four more times would take longer than all the loads.
        mp.start_processes(rank_main, (seed, checks, d), WORLD, start_method="fork")
        for rank in range(WORLD):
            with open(f"{d}/report.{rank}", encoding="ascii") as f:
                passed, failed = map(int, f.read().split())
            report.passed += passed
            report.failed += failed
    print(f"{report.passed} passed, {report.failed} failed")
    sys.exit(report.failed != 0)


if __name__ == "__main__":
    main()
