#!/usr/bin/env python3
"""test_layouts.py [MOUNTPOINT EXPECTED]... - compare ranks/ of mounts with DTensor's shards.

EXPECTED is a layout directory of save_layouts.py; the mount was made with its mesh.txt. Every
rank's tensors/, npy/ and model.safetensors are opened with torch, numpy and safetensors. Prints one
line per difference, then "N passed, M failed"; exit status 1 if there is a difference.
"""
import glob
import os
import sys

import numpy as np
import safetensors.torch
import torch
from safetensors import safe_open

from compare import Report, check_listing, encode_name


def octets(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def check_consolidated(report, where, want):
    with safe_open(where, "pt") as f:
        names = set(f.keys())
        have = {k: f.get_tensor(k) for k in names & set(want)}
    report.check(where, "names", names == set(want), sorted(names ^ set(want))[:4])
    for name, tensor in have.items():
        report.check(where, name, (tensor.dtype, tensor.shape, octets(tensor)) ==
                     (want[name].dtype, want[name].shape, octets(want[name])),
                     f"{tensor.dtype} {list(tensor.shape)}, not {list(want[name].shape)}")


def check_rank(report, top, rank, want):
    home = f"{top}/ranks/{rank:05d}"
    check_listing(report, home, ["tensors", "npy", "model.safetensors"])
    check_listing(report, os.fsencode(f"{home}/tensors"), [encode_name(n) for n in want])
    check_listing(report, os.fsencode(f"{home}/npy"), [encode_name(n, ".npy") for n in want])
    for name, tensor in want.items():
        where = f"{home}/tensors/{name}"
        with open(where, "rb") as f:
            data = f.read()
        report.check(where, "size", os.path.getsize(where) == len(data))
        report.check(where, "bytes", data == octets(tensor), f"{len(data)} for {tensor.shape}")
        where = f"{home}/npy/{name}.npy"
        array = np.load(where, mmap_mode="r" if data and tensor.dim() else None)
        report.check(where, "shape", array.shape == tuple(tensor.shape), array.shape)
        report.check(where, "bytes", array.tobytes() == octets(tensor))
    check_consolidated(report, f"{home}/model.safetensors", want)
    # The name for which vLLM's loader of sharded states looks.
    link = f"{top}/ranks/model-rank-{rank}-part-0.safetensors"
    report.check(link, "target", os.path.realpath(link) ==
                 os.path.realpath(f"{home}/model.safetensors"), os.path.realpath(link))
    check_consolidated(report, link, want)


def main():
    report = Report()
    if len(sys.argv) % 2 == 0:
        sys.exit(__doc__)
    for top, expected in zip(sys.argv[1::2], sys.argv[2::2]):
        files = sorted(glob.glob(f"{glob.escape(expected)}/*.safetensors"))
        names = [f"{i:05d}" for i in range(len(files))]
        check_listing(report, f"{top}/ranks",
                      names + [f"model-rank-{i}-part-0.safetensors" for i in range(len(files))])
        report.check(top, "no expectations", files)
        for rank, file in enumerate(files):
            try:
                check_rank(report, top, rank, safetensors.torch.load_file(file))
            except Exception as e:
                report.check(f"{top}/ranks", f"rank {rank}", False, f"{type(e).__name__}: {e}")
    print(f"{report.passed} passed, {report.failed} failed")
    sys.exit(report.failed != 0)


if __name__ == "__main__":
    main()
