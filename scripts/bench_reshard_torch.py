#!/usr/bin/env python3
"""bench_reshard_torch.py gen OUTDIR         - a checkpoint of 2 GiB, saved by 4 ranks
bench_reshard_torch.py many SRC DST      - reshard it with torch: 8 gloo ranks load and save
bench_reshard_torch.py one SRC DST       - the same by one process, which holds all of it

All parameters are bfloat16 and lie as FSDP lays them out, along their first dimension. "many" is
dcp.load and dcp.save of DTensors on 8 ranks, forked from a process that has imported torch. "one"
loads whole tensors and saves them from two threads, for one rank: no 8 files of 8 ranks come of it,
but the same bytes.

The last two print one line of JSON: wall_s and cpu_s from the first call of dcp.load to the end of
dcp.save, imports and rendezvous not counted; cpu_s and rss_mib of all processes together: what
torch, imported, takes once, and what each process has grown by at its peak. Needs PyTorch
(scripts/chroot.sh).
"""
import json
import logging
import os
import resource
import sys
import tempfile
import time
import warnings

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("USE_LIBUV", "0")
logging.disable(logging.WARNING)
warnings.simplefilter("ignore")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

LAYERS, HIDDEN, INNER, WORDS = 20, 2048, 5632, 32000
RANKS_BEFORE, RANKS = 4, 8


def shapes():
    out = {"model.embed_tokens.weight": (WORDS, HIDDEN)}
    for i in range(LAYERS):
        for name in "q", "k", "v", "o":
            out[f"model.layers.{i}.self_attn.{name}_proj.weight"] = (HIDDEN, HIDDEN)
        out[f"model.layers.{i}.mlp.gate_proj.weight"] = (INNER, HIDDEN)
        out[f"model.layers.{i}.mlp.up_proj.weight"] = (INNER, HIDDEN)
        out[f"model.layers.{i}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        out[f"model.layers.{i}.input_layernorm.weight"] = (HIDDEN,)
    return out


def on_ranks(world, work, *args):
    with tempfile.TemporaryDirectory() as d:
        mp.start_processes(rank_main, (world, d, work, args), world, start_method="fork")


def rank_main(rank, world, d, work, args):
    torch.set_num_threads(1)
    stderr = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # gloo cannot be told to be quiet
    dist.init_process_group("gloo", init_method=f"file://{d}/rendezvous", rank=rank, world_size=world)
    mesh = DeviceMesh("cpu", list(range(world)))
    os.dup2(stderr, 2)
    work(rank, mesh, *args)
    dist.destroy_process_group()


def cut(shape, mesh, fill):
    rows = -(-shape[0] // mesh.size())  # all these divide
    local = torch.empty((rows, *shape[1:]), dtype=torch.bfloat16)
    if fill:
        local.view(torch.int16).random_()
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False)


def save_first(rank, mesh, outdir):
    torch.manual_seed(rank)
    dcp.save({name: cut(shape, mesh, True) for name, shape in shapes().items()}, checkpoint_id=outdir)


def used():
    """CPU seconds, and MiB at the peak."""
    r = resource.getrusage(resource.RUSAGE_SELF)
    return r.ru_utime + r.ru_stime, r.ru_maxrss / 1024


def reshard(state, src, dst, **writer):
    before = used()
    start = time.perf_counter()
    dcp.load(state, storage_reader=FileSystemReader(src))
    dcp.save(state, storage_writer=FileSystemWriter(dst, **writer))
    wall = time.perf_counter() - start
    after = used()
    return wall, after[0] - before[0], after[1] - before[1]


def reshard_rank(rank, mesh, src, dst, report):
    state = {name: cut(shape, mesh, False) for name, shape in shapes().items()}
    dist.barrier()
    got = reshard(state, src, dst)
    with open(f"{report}/{rank}", "w", encoding="ascii") as f:
        json.dump(got, f)


def many(src, dst):
    with tempfile.TemporaryDirectory() as d:
        on_ranks(RANKS, reshard_rank, src, dst, d)
        return [json.load(open(f"{d}/{rank}", encoding="ascii")) for rank in range(RANKS)]


def one(src, dst):
    torch.set_num_threads(2)
    state = {name: torch.empty(m.size, dtype=m.properties.dtype)
             for name, m in FileSystemReader(src).read_metadata().state_dict_metadata.items()
             if isinstance(m, TensorStorageMetadata)}
    return [reshard(state, src, dst, thread_count=2)]


def main():
    command, paths = sys.argv[1], sys.argv[2:]
    if command == "gen":
        on_ranks(RANKS_BEFORE, save_first, *paths)
        return
    imported = used()[1]
    got = {"many": many, "one": one}[command](*paths)
    print(json.dumps({"wall_s": max(w for w, _, _ in got), "cpu_s": sum(c for _, c, _ in got),
                      "rss_mib": imported + sum(m for _, _, m in got)}))


if __name__ == "__main__":
    main()
