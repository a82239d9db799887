#!/usr/bin/env python3
"""bench_read.py CKPTFS READER DIR [CASE...] - reading warm data through a mount, interleaved with the
same reads of raw files.

DIR gets four tensors of 256 MiB (fixed seed): rows (4 row shards), cols256 and cols2k (8 column
shards, runs of 256 B and 2 KiB), grid (4x4 shards, runs of 8 KiB), and MiB-sized raw baselines are
their data files. Prints medians of ROUNDS (environment, default 5): GB/s, ratio to the baseline, CPU
seconds per GiB of the reader and of the daemon.

Environment: MOUNT_OPTIONS, for -o of the mount.
"""
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SIZE = 256 << 20
TENSORS = {"rows": ("65536x1024", "4x1"), "cols256": ("131072x512", "1x8"),
           "cols2k": ("16384x4096", "1x8"), "grid": ("8192x8192", "4x4")}
# name: path in the mount, how, bytes at a time
CASES = {}
for t in TENSORS:
    CASES[f"cat {t}"] = (f"tensors/{t}", "cat", 0)
CASES["read 1M rows"] = ("tensors/rows", "seq", 1 << 20)
CASES["read 128K rows"] = ("tensors/rows", "seq", 128 << 10)
CASES["O_DIRECT 1M rows"] = ("tensors/rows", "direct", 1 << 20)
CASES["4K rows"] = ("npy/rows.npy", "seq", 4096)
CASES["random 4K rows"] = ("npy/rows.npy", "random", 4096)
CASES["random 1M rows"] = ("tensors/rows", "random1m", 1 << 20)
CASES["mmap rows"] = ("npy/rows.npy", "mmap", 4096)
CASES["mmap cols2k"] = ("npy/cols2k.npy", "mmap", 4096)
CASES["npy cat rows"] = ("npy/rows.npy", "cat", 0)
CASES["npy cat cols2k"] = ("npy/cols2k.npy", "cat", 0)
CASES["hf cat"] = ("safetensors/model.safetensors", "cat", 0)


def generate(directory):
    if os.path.exists(f"{directory}/ckpt/.metadata"):
        return
    args = []
    os.makedirs(directory, exist_ok=True)
    for name, (shape, grid) in TENSORS.items():
        r = random.Random(name)
        with open(f"{directory}/{name}.bin", "wb") as f:
            for _ in range(SIZE >> 20):
                f.write(r.randbytes(1 << 20))
        args += [name, shape, f"{grid}:{directory}/{name}.bin"]
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    subprocess.run([sys.executable, f"{here}/tests/fs/make_dcp.py", f"{directory}/ckpt", *args],
                   check=True)


def cpu_of(pid):
    total = 0
    for t in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{t}/schedstat") as f:
                total += int(f.read().split()[0])
        except OSError:
            pass
    return total / 1e9


def drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def run(reader, how, n, files):
    """Seconds of each pass, CPU seconds."""
    if how == "cat":  # as coreutils does
        how, n = "seq", max(128 << 10, os.stat(files[0]).st_blksize)
    p = subprocess.Popen([reader, how, str(n), *files], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True)
    out = p.stdout.read()
    _, status, use = os.wait4(p.pid, 0)
    p.returncode = status
    if status:
        sys.exit(f"failed: {how} {n} {files}")
    return [float(x) for x in out.split()], use.ru_utime + use.ru_stime


def bench(name, case, reader, mnt, pid, raw):
    path, how, n = case
    files = raw[path.split("/")[1].split(".")[0]] if "model" not in path else sum(raw.values(), [])
    how = "random" if how == "random1m" else how
    size = sum(os.path.getsize(f) for f in files)
    done = 20000 * n if how == "random" else size
    raw_files = files[:1] if how == "random" else files
    rows = []
    for _ in range(ROUNDS):
        run(reader, "seq", 1 << 20, files)  # warm
        theirs, theirs_cpu = run(reader, how, n, raw_files)
        drop(f"{mnt}/{path}")
        before = cpu_of(pid)
        ours, ours_cpu = run(reader, how, n, [f"{mnt}/{path}"])
        rows.append((ours, ours_cpu, cpu_of(pid) - before, theirs, theirs_cpu))
    gib = done * len(rows[0][0]) / (1 << 30)
    result = {"passes": []}
    for i in range(len(rows[0][0])):
        g = statistics.median(done / r[0][i] / 1e9 for r in rows)
        b = statistics.median(done / r[3][i] / 1e9 for r in rows)
        result["passes"].append({"GBps": g, "raw_GBps": b, "ratio": g / b})
    result["reader_cpu_per_gib"] = statistics.median(r[1] for r in rows) / gib
    result["daemon_cpu_per_gib"] = statistics.median(r[2] for r in rows) / gib
    result["raw_cpu_per_gib"] = statistics.median(r[4] for r in rows) / gib
    text = "   ".join(f"{p['GBps']:6.2f} of {p['raw_GBps']:5.1f} GB/s ({p['ratio']:.2f})"
                      for p in result["passes"])
    print(f"{name:18s} {text}   CPU s/GiB: reader {result['reader_cpu_per_gib']:.3f} "
          f"daemon {result['daemon_cpu_per_gib']:.3f} raw {result['raw_cpu_per_gib']:.3f}",
          flush=True)
    return result


def main():
    ckptfs, reader, directory, *names = sys.argv[1:]
    generate(directory)
    ckpt = f"{directory}/ckpt"
    raw = {t: sorted(f"{ckpt}/{f}" for f in os.listdir(ckpt) if f.startswith(f"__{t}_"))
           for t in TENSORS}
    results = {}
    print(f"load {os.getloadavg()[0]:.2f}")
    with tempfile.TemporaryDirectory() as mnt:
        p = subprocess.Popen([ckptfs, "mount", "-f", ckpt, mnt, "--index=:memory:",
                              *filter(None, os.environ.get("MOUNT_OPTIONS", "").split())])
        try:
            while not os.path.ismount(mnt):
                time.sleep(0.01)
            for name, case in CASES.items():
                if not names or any(n in name for n in names):
                    results[name] = bench(name, case, reader, mnt, p.pid, raw)
            with open(f"/proc/{p.pid}/status") as f:
                print("".join(x for x in f if x.startswith(("RssAnon", "RssFile", "VmPTE"))), end="")
        finally:
            subprocess.run([ckptfs, "umount", mnt], check=True)
            p.wait()
    print(f"load {os.getloadavg()[0]:.2f}")
    if "OUT" in os.environ:
        with open(os.environ["OUT"], "w") as f:
            json.dump(results, f, indent=1)


main()
