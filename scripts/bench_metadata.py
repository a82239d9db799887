#!/usr/bin/env python3
"""bench_metadata.py gen TENSORS CHUNKS OUTDIR - a synthetic DCP checkpoint with a large index
bench_metadata.py load FILE              - what torch pays to read such an index

"gen" writes .metadata as a DTensor save by CHUNKS ranks leaves it: TENSORS two-dimensional
bfloat16 tensors, one chunk of 64 x 64 per rank, cut along dimension 0 and 1 in turn. The data
files have their true length but are sparse; only the first few tensors really are there, on every
rank. 3000 x 128 chunks and 20000 x 64 are the sizes of a large and of a very large model.

"load" prints one line of JSON. Both need PyTorch (scripts/chroot.sh).
"""
import gc
import io
import json
import os
import pathlib
import pickle
import resource
import sys
import time
import uuid

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata, Metadata, MetadataIndex, StorageMeta, TensorProperties,
    TensorStorageMetadata)

SIDE = 64  # of a chunk
REAL = 4   # so many tensors have data
MODULES = ["attention.wq", "attention.wk", "attention.wv", "attention.wo", "feed_forward.w1",
           "feed_forward.w2", "feed_forward.w3"]
STATES = [("model", ""), ("optimizer", ".exp_avg"), ("optimizer", ".exp_avg_sq")]


def path_of(i):
    """The keys that lead to tensor i in the state dict."""
    layer, i = divmod(i, len(MODULES) * len(STATES))
    state, module = divmod(i, len(MODULES))
    top, suffix = STATES[state]
    return top, f"layers.{layer}.{MODULES[module]}.weight{suffix}"


def item():
    """One stored chunk: what torch.save writes, always of the same length."""
    data = io.BytesIO()
    torch.save(torch.randn(SIDE, SIDE).to(torch.bfloat16), data)
    return data.getbuffer()


def offset_of(i, rank):
    return torch.Size((0, rank * SIDE) if i % 2 else (rank * SIDE, 0))


def generate(tensors, chunks, outdir):
    gc.disable()  # nothing becomes garbage here
    started = time.perf_counter()
    os.makedirs(outdir, exist_ok=True)
    length = len(item())
    paths = sorted((path_of(i) for i in range(tensors)), key=lambda path: path[0])
    state_dict_metadata, planner_data, storage_data = {}, {}, {}
    for i, path in enumerate(paths):
        whole = (SIDE, chunks * SIDE) if i % 2 else (chunks * SIDE, SIDE)
        state_dict_metadata[".".join(path)] = TensorStorageMetadata(
            TensorProperties(dtype=torch.bfloat16), torch.Size(whole),
            [ChunkStorageMetadata(offset_of(i, rank), torch.Size((SIDE, SIDE)))
             for rank in range(chunks)])
        planner_data[".".join(path)] = path
    for rank in range(chunks):
        name = f"__{rank}_0.distcp"
        for i, path in enumerate(paths):
            # The coordinator has unpickled every rank's answer by itself, so each brings its own
            # copy of each FQN, and pickle writes them all.
            storage_data[MetadataIndex(".".join(path), offset_of(i, rank), rank)] = _StorageInfo(
                name, i * length, length)
        with open(f"{outdir}/{name}", "wb") as f:
            for _ in range(min(REAL, tensors)):
                f.write(item())
            f.truncate(tensors * length)
    metadata = Metadata(state_dict_metadata, planner_data, storage_data,
                        StorageMeta(pathlib.Path(outdir).absolute(), str(uuid.uuid4())), "1.0.0")
    with open(f"{outdir}/.metadata", "wb") as f:
        pickle.dump(metadata, f, protocol=5)
    print(json.dumps({"tensors": tensors, "chunks": tensors * chunks, "item_length": length,
                      "metadata_bytes": os.path.getsize(f"{outdir}/.metadata"),
                      "wall_s": round(time.perf_counter() - started, 2)}), flush=True)
    os._exit(0)  # freeing millions of objects one by one takes as long as making them


def load(path):
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    with open(path, "rb") as f:
        metadata = pickle.load(f)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({
        "wall_s": round(wall, 3),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3),
        "maxrss_kib_delta": after.ru_maxrss - before.ru_maxrss}), flush=True)
    assert metadata.storage_data
    os._exit(0)


def main():
    if sys.argv[1:2] == ["gen"] and len(sys.argv) == 5:
        generate(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    elif sys.argv[1:2] == ["load"] and len(sys.argv) == 3:
        load(sys.argv[2])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
