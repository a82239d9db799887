"""Cases that read warm or cold data through a mount; the baseline reads the raw source files.

A ratio compares bytes per second. The raw files of a tensor are the files of its items, which hold the
same bytes.
"""
import contextlib
import dataclasses
import os
import shutil

import data
from harness import MIB, Sample, Skip, Target, run_command

KIB = 1 << 10
FILES = {"tensor": "tensors/w", "npy": "npy/w.npy", "hf": "hf/model.safetensors",
         "tensors": "tensors"}


@dataclasses.dataclass
class Read:
    name: str
    source: str  # a tensor or a model of data.py
    file: str  # key of FILES
    how: str  # mode of reader.c
    n: int = 128 * KIB
    jobs: int = 1
    passes: tuple = ("",)
    targets: tuple = ()
    raw_cat: bool = False  # the baseline reads the raw files as cat does
    stock: bool = False  # also read through libfuse's passthrough_ll
    slow: bool = False


TWICE = ("first", "again")
MAPPINGS = ("first mapping", "second")
HALF = (Target(0.50, 0.60),)
STRIDED = (Target(0.38, 0.45),)


def ways(title, source, file="tensor", targets=(), stock=False, slow=False):
    """The cases for one kind of data; the targets are those of cat."""
    return [
        Read(f"{title}cat", source, file, "cat", targets=targets, stock=stock),
        Read(f"{title}cat, 4 processes", source, file, "cat", jobs=4),
        Read(f"{title}O_DIRECT 1 MiB, raw: cat", source, file, "direct", MIB, raw_cat=True),
        Read(f"{title}touch pages", source, file, "touch"),
        Read(f"{title}random 4 KiB", source, file, "random", 4 * KIB, slow=slow),
    ]


READS = {
    "contiguous": [
        *ways("", "rows", targets=HALF, stock=True),
        Read("read 128 KiB", "rows", "tensor", "read"),
        Read("cat of .npy", "rows", "npy", "cat", passes=TWICE),
        Read("dd bs=4K of .npy", "rows", "npy", "dd", 4 * KIB, targets=(Target(0.6),)),
    ],
    "strided": [
        *ways("runs of 256 B, ", "cols256", targets=STRIDED),
        *ways("runs of 2 KiB, ", "cols2k", targets=STRIDED),
        *ways("runs of 8 KiB, ", "cols8k"),
        *ways("4x4 grid, ", "grid"),
        *ways("transposed items, ", "transposed", slow=True),
    ],
    "mmap": [
        Read("sum of .npy", "rows", "npy", "sum", passes=MAPPINGS,
             targets=(Target(0.25, 0.30), Target(0.55)), stock=True),
        Read("sum of .npy, runs of 2 KiB", "cols2k", "npy", "sum", passes=MAPPINGS),
        Read("touch pages of .npy", "rows", "npy", "touch", passes=MAPPINGS),
    ],
    "random": [
        Read("4 KiB of .npy", "rows", "npy", "random", 4 * KIB, passes=TWICE,
             targets=(Target(0.05, 0.065), Target(0.70)), stock=True),
        Read("4 KiB of .npy, 4 clients", "rows", "npy", "random", 4 * KIB, jobs=4, passes=TWICE),
        Read("1 MiB, two clients", "rows", "tensor", "random", MIB, jobs=2, targets=(Target(0.45),)),
    ],
    "hf": [
        Read("model.safetensors, cat", "model", "hf", "cat", passes=TWICE,
             targets=(Target(0.38), Target(0.55)), stock=True),
        *ways("model.safetensors, ", "model", "hf")[1:],
        Read("model.safetensors, 16 mmap readers", "model", "hf", "sum", jobs=16, passes=TWICE),
    ],
    "passthrough": [
        Read("1:1 file, cat", "one file", "hf", "cat", passes=TWICE, targets=(Target(0.95),) * 2),
        Read("1:1 file, mmap sum", "one file", "hf", "sum", passes=MAPPINGS),
        Read("1:1 file, random 4 KiB", "one file", "hf", "random", 4 * KIB),
    ],
    "cold": [
        Read("cat", "rows", "tensor", "cat", targets=(Target(0.85, 0.95),)),
        Read("runs of 2 KiB, cat", "cols2k", "tensor", "cat"),
        Read("model.safetensors of 1 GiB, cat", "model of 1 GiB", "hf", "cat",
             targets=(Target(0.85, 0.95),)),
        Read("tensors of 1 GiB, cat", "model of 1 GiB", "tensors", "cat"),
    ],
}


def checkpoint(made, source):
    if source in data.TENSORS:
        return made.tensor(source)
    if source == "one file":
        return made.safetensors("model of 1 GiB")
    return made.model(source)


def reads(bench, made, group, chosen):
    """Runs the chosen cases of a group of READS."""
    for case in READS[group]:
        if chosen(case.name, case.slow):
            ckpt = checkpoint(made, case.source)
            if group == "cold":
                read_cold(bench, group, case, ckpt)
            else:
                read_warm(bench, group, case, ckpt)


def read_warm(bench, group, case, ckpt):
    """Each run begins with all source files in the page cache, and no file of the mounts."""
    raw = data.sources(ckpt)
    bench.fresh(raw)
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(bench.mount(ckpt))
        file = f"{daemon.mnt}/{FILES[case.file]}"

        def through(server, files):
            bench.forget(files)
            return bench.reader(case.how, files, case.n, case.jobs, len(case.passes), server)

        parties = {
            "ckptfs": lambda: through(daemon, [file]),
            "raw": lambda: bench.reader("cat", raw) if case.raw_cat else bench.reader(
                case.how, raw, case.n, case.jobs, len(case.passes)),
        }
        with contextlib.suppress(Skip):
            if case.stock:
                stock = stack.enter_context(bench.passthrough_ll(ckpt))
                copies = [f"{stock.mnt}/{os.path.basename(f)}" for f in raw]
                parties["passthrough_ll"] = lambda: through(stock, copies)
        bench.measure(group, case.name, parties, case.targets, case.passes,
                      prepare=lambda: bench.warm(raw))


def read_cold(bench, group, case, ckpt):
    """Each run begins with no source file in the page cache, and with a new mount, since pages that a
    daemon has mapped cannot be evicted."""
    raw = data.sources(ckpt)

    def ours():
        with bench.mount(ckpt) as daemon:
            file = f"{daemon.mnt}/{FILES[case.file]}"
            files = [file]
            if os.path.isdir(file):
                files = [f"{file}/{name}" for name in sorted(os.listdir(file))]
            return bench.reader(case.how, files, case.n, daemon=daemon)

    bench.measure(group, case.name,
                  {"ckptfs": ours, "raw": lambda: bench.reader(case.how, raw, case.n)},
                  case.targets, prepare=lambda: bench.cold(raw))


def cast(bench, made, group, chosen):
    """Bytes of float32 read per second, with and without a cast to bfloat16."""
    for jobs in 1, 4:
        name = "float32 to bfloat16, cat" + (f", {jobs} processes" if jobs > 1 else "")
        if chosen(name):
            read_cast(bench, made.tensor("float32"), group, name, jobs)


def read_cast(bench, ckpt, group, name, jobs):
    raw = data.sources(ckpt)
    bench.fresh(raw)
    with bench.mount(ckpt, "--dtype=bf16") as narrow, bench.mount(ckpt) as plain:
        def cat(server, factor):
            file = f"{server.mnt}/{FILES['tensor']}"
            bench.forget([file])
            got = bench.reader("cat", [file], jobs=jobs, daemon=server)
            got.passes = [(s, b * factor) for s, b in got.passes]
            return got

        bench.measure(group, name,
                      {"ckptfs": lambda: cat(narrow, 2), "without the cast": lambda: cat(plain, 1),
                       "raw": lambda: bench.reader("cat", raw, jobs=jobs)},
                      (Target(0.8, 1.0),) if jobs == 1 else (), prepare=lambda: bench.warm(raw))


def merge(bench, made, group, chosen):
    """Bytes of bfloat16 read per second: the average of four checkpoints, a weight with an adapter."""
    name = "average of 4, cat"
    if chosen(name):
        ckpt = made.safetensors("model of 1 GiB")
        read_merged(bench, ckpt, group, name, "--average=" + ",".join([f"{ckpt}:0.25"] * 4))
    name = "LoRA of rank 16, cat"
    if chosen(name):
        read_merged(bench, made.safetensors("model of 1 GiB"), group, name,
                    f"--lora={made.adapter('model of 1 GiB', 16)}")


def read_merged(bench, ckpt, group, name, option):
    raw = data.sources(ckpt)
    bench.fresh(raw)
    elements = sum(os.path.getsize(f) for f in raw) // 2

    def cpu():
        return Sample([(run_command([bench.ckptfs, "cat", "-q", ckpt, "hf/model.safetensors", option])[1], 0)])

    bench.measure(group, name.replace("cat", "CPU time"), {"ckptfs": cpu}, (Target(seconds=elements / 5e8),),
                  prepare=lambda: bench.warm(raw))
    with bench.mount(ckpt, option) as merged, bench.mount(ckpt) as plain:
        def cat(server):
            file = f"{server.mnt}/{FILES['hf']}"
            bench.forget([file])
            return bench.reader("cat", [file], daemon=server)

        bench.measure(group, name, {"ckptfs": lambda: cat(merged), "one checkpoint": lambda: cat(plain),
                                    "raw": lambda: bench.reader("cat", raw)},
                      (), prepare=lambda: bench.warm(raw))


def dequantise(bench, made, group, chosen):
    """Bytes of bfloat16 read per second: computed from codes and scales, and stored."""
    for jobs in 1, 4:
        name = "float8 blocks to bfloat16, cat" + (f", {jobs} processes" if jobs > 1 else "")
        if chosen(name):
            read_dequantised(bench, made.float8(), group, name, jobs)


def read_dequantised(bench, ckpt, group, name, jobs):
    raw = data.sources(ckpt)
    bench.fresh(raw)
    with bench.mount(ckpt) as plain:
        def cat(server, tensor):
            file = f"{server.mnt}/tensors/{tensor}"
            bench.forget([file])
            return bench.reader("cat", [file], jobs=jobs, daemon=server)

        def ours():
            with bench.mount(ckpt, "--dequantize=bf16") as server:  # a new one, which has computed nothing
                return cat(server, "w")

        bench.measure(group, name, {"ckptfs": ours, "stored as bfloat16": lambda: cat(plain, "plain")},
                      (Target(0.5),) if jobs == 1 else (), prepare=lambda: bench.warm(raw))


def zstd(bench, made, group, chosen):
    """The baseline is `zstd -dc` of the same items; all but a kilobyte of its output is elements."""
    for source, name in ("zstd frames", "frames of 256 KiB, cat"), ("zstd", "one frame, cat"):
        for jobs in 1, 4:
            title = f"{name}, {jobs} processes" if jobs > 1 else name
            if chosen(title):
                read_zstd(bench, made.tensor(source), group, title, jobs)


def read_zstd(bench, ckpt, group, name, jobs):
    if not shutil.which("zstd"):
        raise Skip("no zstd")
    raw = data.sources(ckpt)
    bench.fresh(raw)
    size = []

    def ours():
        with bench.mount(ckpt) as daemon:  # a new mount, which has not decoded anything
            file = f"{daemon.mnt}/{FILES['tensor']}"
            size.append(os.path.getsize(file))
            return bench.reader("cat", [file], jobs=jobs, daemon=daemon)

    def decode():
        seconds, cpu, _ = run_command(["zstd", "-dcq", *raw])
        return Sample([(seconds, size[0])], cpu)

    bench.measure(group, name, {"ckptfs": ours, "zstd -dc": decode},
                  (Target(0.9),) if jobs == 1 else (), prepare=lambda: bench.warm(raw))
