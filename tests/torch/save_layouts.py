#!/usr/bin/env python3
"""save_layouts.py SEED OUTDIR - write a DCP checkpoint, and DTensor's shards of it on other meshes.

Four gloo ranks save OUTDIR/ckpt, random tensors with random placements. OUTDIR/layoutN has a
target: mesh.txt, a layout file for ckptfs, and RRRRR.safetensors for every rank of that mesh, with
DTensor.to_local() of every tensor. All is a function of SEED.

A line "PATTERN b:0 a:0" splits dimension 0 by axis b and then every part by axis a. DTensor applies
placements from left to right over the dimensions of its mesh. So that line is [Shard(0), Shard(0)]
on a mesh with the dimensions (b, a), which is the mesh of the layout file, transposed.

On meshes of four ranks, each of the four ranks writes its shards. For other meshes there is torch's
"fake" backend, with which one process can be rank 7 of 12; DTensor itself is the same.
"""
import datetime
import fnmatch
import itertools
import logging
import math
import os
import random
import shutil
import sys
import tempfile

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("USE_LIBUV", "0")
logging.disable(logging.WARNING)

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

WORLD = 4
LAYOUTS = 6
MESHES = [(4,), (2, 2), (4, 1), (1, 4), (1, 2, 2), (2, 1, 2), (2, 2, 1)]
OTHER_MESHES = [(1,), (2,), (3,), (5,), (8,), (2, 3), (3, 2), (1, 3), (2, 4), (5, 2), (2, 3, 2),
                (3, 1, 2), (2, 2, 3), (2, 2, 2, 2)]
AXES = ["dp", "tp", "pp", "ep", "x", "axis_2"]
# Types that safetensors can hold.
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8,
          torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2]


def random_tensor(r, n_dims):
    if n_dims == 2 and r.random() < 0.1:
        shape = [r.choice([257, 1031]), r.choice([64, 127, 300])]
    else:
        side = [1, 2, 3, 4, 5, 7, 8, 11, 13, 16] + [0] * (r.random() < 0.1)
        shape = [r.choice(side) for _ in range(n_dims)]
    dtype = r.choice(DTYPES)
    raw = bytearray(r.randbytes(math.prod(shape) * dtype.itemsize))
    if dtype == torch.bool:
        raw = bytearray(b & 1 for b in raw)
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=dtype).reshape(shape)


def random_split(r, axes, n_dims):
    """[(axis, dimension)], outermost first; some dimensions are counted from the end, as -1."""
    some = [a for a in axes if n_dims and r.random() < 0.8]
    return [(a, r.randrange(n_dims) - n_dims * (r.random() < 0.2))
            for a in r.sample(some, len(some))]


def distribute(tensor, meshes, sizes, split):
    """The tensor as a DTensor on the mesh with these axes ({axis: length}), with this split."""
    order = [a for a, _ in split] + [a for a in sizes if a not in dict(split)]
    if tuple(order) not in meshes:
        ranks = torch.arange(math.prod(sizes.values())).reshape(*sizes.values())
        meshes[tuple(order)] = DeviceMesh("cpu", ranks.permute([*map(list(sizes).index, order)]),
                                          mesh_dim_names=order)
    placements = [Shard(d) for _, d in split] + [Replicate()] * (len(order) - len(split))
    # src_data_rank=None: every rank has the tensor already, nothing is sent.
    return distribute_tensor(tensor, meshes[tuple(order)], placements, src_data_rank=None)


class Layout:
    def __init__(self, r, shape, tensors, directory):
        self.dir = directory
        self.sizes = dict(zip(r.sample(AXES, len(shape)), shape))
        self.world = math.prod(shape)
        patterns = [f"*.{kind}" for kind in {n.rsplit(".", 1)[1] for n in tensors}]
        patterns = sorted(patterns) + r.sample(sorted(tensors), 3) + ["blocks.1?.*", "*.0.[abc]*"]
        r.shuffle(patterns)
        patterns += ["*"] * r.randint(0, 2)
        # The first line that matches a tensor counts; without one it is replicated.
        first = {name: next((p for p in patterns if fnmatch.fnmatchcase(name, p)), None)
                 for name in tensors}
        self.rules = {}
        for pattern in patterns:
            n_dims = min((t.dim() for n, t in tensors.items() if first[n] == pattern), default=1)
            self.rules.setdefault(pattern, random_split(r, self.sizes, n_dims))
        self.split = {name: self.rules.get(pattern, []) for name, pattern in first.items()}
        self.text = self._text(r, patterns)

    def _text(self, r, patterns):
        lines = ["# a comment", "mesh " + " ".join(f"{a}={n}" for a, n in self.sizes.items())]
        for p in patterns:
            how = " ".join(f"{a}:{d}" for a, d in self.rules[p]) or "replicate"
            lines.append(f"{p}{r.choice([' ', '   ', chr(9)])}{how}{r.choice(['', '  # why'])}")
            lines += r.choice([[], [], [""], ["  # another"]])
        return "\n".join(lines) + "\n"

    def write(self, rank, tensors):
        os.makedirs(self.dir, exist_ok=True)
        meshes = {}
        local = {name: distribute(t, meshes, self.sizes, self.split[name]).to_local()
                 for name, t in tensors.items()}
        save_file({name: t.contiguous().clone() for name, t in local.items()},
                  f"{self.dir}/{rank:05d}.safetensors")
        if rank == 0:
            with open(f"{self.dir}/mesh.txt", "w", encoding="ascii") as f:
                f.write(self.text)


class Scene:
    def __init__(self, seed, outdir):
        r = random.Random(f"layouts/{seed}")
        self.dir = outdir
        self.nested = r.random() < 0.5
        kinds = {"bias": [1, 1, 2], "weight": [2], "q_proj": [2], "conv": [3, 4], "experts": [3]}
        self.tensors = {f"blocks.{i}.{kind}": random_tensor(r, r.choice(kinds[kind]))
                        for i, kind in itertools.product(range(12), kinds) if r.random() < 0.6}
        self.tensors |= {f"{i}.step": random_tensor(r, 0) for i in range(2)}
        self.saved = {}
        for name, t in self.tensors.items():
            sizes = dict(zip("abc", r.choice(MESHES)))
            split = random_split(r, sizes, t.dim())
            self.saved[name] = (sizes, sorted(split))  # in the order of the mesh, like FSDP and TP
        shapes = r.sample(MESHES, LAYOUTS // 2) + r.sample(OTHER_MESHES, LAYOUTS - LAYOUTS // 2)
        self.layouts = [Layout(r, shape, self.tensors, f"{outdir}/layout{i}")
                        for i, shape in enumerate(shapes)]

    def save(self):
        meshes = {}  # by axis lengths
        state = {name: distribute(t, meshes.setdefault(str(self.saved[name][0]), {}),
                                  *self.saved[name]) for name, t in self.tensors.items()}
        dcp.save({"model": state} if self.nested else state, checkpoint_id=f"{self.dir}/ckpt")


def rank_main(rank, scene, rendezvous):
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # silences gloo; exceptions are reported in another way
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank,
                            world_size=WORLD, timeout=datetime.timedelta(seconds=120))
    scene.save()
    for layout in scene.layouts:
        if layout.world == WORLD:
            layout.write(rank, scene.tensors)
    dist.destroy_process_group()


def main():
    seed, outdir = int(sys.argv[1]), os.path.abspath(sys.argv[2])
    shutil.rmtree(outdir, ignore_errors=True)
    os.makedirs(outdir)
    scene = Scene(seed, outdir)
    with tempfile.TemporaryDirectory() as d:
        # By fork, because importing torch four more times would take longer than all the saves.
        mp.start_processes(rank_main, (scene, f"{d}/rendezvous"), WORLD, start_method="fork")
    for layout in scene.layouts:
        for rank in range(layout.world if layout.world != WORLD else 0):
            dist.init_process_group("fake", rank=rank, world_size=layout.world, store=FakeStore())
            layout.write(rank, scene.tensors)
            dist.destroy_process_group()
        print(f"seed {seed} {os.path.basename(layout.dir)}: {layout.world} ranks, {layout.sizes}")


if __name__ == "__main__":
    main()
