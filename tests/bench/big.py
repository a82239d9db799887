#!/usr/bin/env python3
"""big.py [CASE...] - time and memory of every command on checkpoints with very many parts.

Each case is made in three sizes, a quarter, a half and all of what its line says (SCALE=0.1 takes a tenth of all). For
every command CPU time and peak memory at the full size are printed, and the exponents that fit the three sizes: 1 is
linear. A command is marked whose time grows faster than n^1.2, if it takes more than a second, or whose memory does, if
it takes more than 64 MiB; exit status 1 then. CPU time, because other load does not change it much. Data files are
sparse: a checkpoint of 2 TB takes a few megabytes.

  chunks   1,300,000 chunks of 13,000 tensors (DCP)
  tensors  500,000 tensors in 50 files (safetensors)
  names    500,000 tensors whose names have 64 MiB together
  files    20,000 files of 100 MB, 2 TB (safetensors)
  steps    a run of 10,000 checkpoints

Environment: CKPTFS (build/release/ckptfs), BIG_DIR (a temporary directory), SCALE.
"""
import contextlib
import glob
import json
import math
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{TOP}/tests/fs")

import make_dcp  # noqa: E402  writes DCP checkpoints without torch

CKPTFS = os.path.realpath(os.environ.get("CKPTFS", f"{TOP}/build/release/ckptfs"))
os.environ.setdefault("CKPTFS_LIBRARY", next(iter(sorted(glob.glob(f"{os.path.dirname(CKPTFS)}/libckpt.so.*"))), ""))
MIB = 1 << 20
PARTS = (0.25, 0.5, 1)
TOO_STEEP = 1.2
ENOUGH_S, ENOUGH_MIB = 1, 64  # less is not judged: it is mostly the start of a program
PYTHON = f"""
import sys
sys.path.insert(0, {TOP!r} + "/scripts/python")
import ckptfs
with ckptfs.open(sys.argv[1]) as ck:
    ck[sys.argv[2]][...]
"""


def safetensors(path, names, size):
    """Tensors of `size` bytes each, all of them a hole."""
    head = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]}
                       for i, name in enumerate(names)}).encode()
    with open(path, "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head)
        f.truncate(8 + len(head) + size * len(names))
    os.utime(path, (1e9, 1e9))


def shards(directory, names, files, size):
    os.makedirs(directory)
    for i in range(files):
        here = names[len(names) * i // files : len(names) * (i + 1) // files]
        safetensors(f"{directory}/model-{i:05}.safetensors", here, size)


def chunks(directory, n):
    """Tensors of 100 chunks, ten by ten; all chunks are the same item."""
    ck = make_dcp.Checkpoint(directory, "--nested")
    data = make_dcp.item("float32", (1, 1), b"\0\0\x80\x3f")
    with open(f"{directory}/__0_0.distcp", "wb") as f:
        f.write(data)
    where = make_dcp.new(make_dcp.StorageInfo, relative_path="__0_0.distcp", offset=0, length=len(data))
    properties = make_dcp.new(make_dcp.Properties, dtype=make_dcp.torch.float32)
    one = make_dcp.Size((1, 1))
    offsets = [make_dcp.Size((i // 10, i % 10)) for i in range(100)]
    boxes = [make_dcp.new(make_dcp.Chunk, offsets=at, sizes=one) for at in offsets]
    for i in range(n // 100):
        name = f"model.layers.{i}.w"
        ck.state[name] = make_dcp.new(make_dcp.TensorStorage, properties=properties, size=make_dcp.Size((10, 10)), chunks=boxes)
        for at in offsets:
            ck.storage[make_dcp.new(make_dcp.Index, fqn=name, index=0, offset=at)] = where
        ck.place(name)
    ck.finish()
    return name


def tensors(directory, n):
    names = [f"model.layers.{i // 100}.block.{i % 100}.weight" for i in range(n)]
    shards(directory, names, 50, 4)
    return names[n // 2]


def long_names(directory, n):
    names = [f"model.layers.{i:07}." + "a" * (64 * MIB // 500000 - 20) for i in range(n)]
    shards(directory, names, 50, 4)
    return names[n // 2]


def many_files(directory, n):
    shards(directory, [f"model.layers.{i}.weight" for i in range(n)], n, 100_000_000)
    return f"model.layers.{n // 2}.weight"


def steps(directory, n):
    for i in range(n):
        shards(f"{directory}/step-{i + 1}", ["model.w", "model.v"], 1, 4)
    return "model.w"


CASES = {"chunks": (chunks, 1_300_000), "tensors": (tensors, 500_000), "names": (long_names, 500_000),
         "files": (many_files, 20_000), "steps": (steps, 10_000)}


def made(make, directory, n):
    """What `make` returns, in a process of its own: the memory of this one would count as that of the commands, which
    begin as copies of it."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(make, (directory, n))


def run(*command, ok=(0,)):
    """(CPU seconds, peak MiB) of a command."""
    with open(os.devnull, "w") as out, tempfile.TemporaryFile() as err:
        p = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
        _, status, used = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        if p.returncode not in ok:
            err.seek(0)
            sys.exit(f"big.py: {' '.join(command)[:200]}: status {p.returncode}: {err.read().decode()[-300:]}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def daemon_of(directory):
    for p in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{p}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
            if os.path.samefile(f"/proc/{p}/exe", CKPTFS) and directory.encode() in words:
                if any(os.readlink(f"/proc/{p}/fd/{fd}") == "/dev/fuse" for fd in os.listdir(f"/proc/{p}/fd")):
                    yield p


def cpu_of(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def mounted(source, directory, use):
    """The same of a mount's daemon once `use` has read what it wants."""
    os.makedirs(directory, exist_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([CKPTFS, "mount", "-q", source, directory], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        use(directory)
        pid = next(daemon_of(directory))
        with open(f"/proc/{pid}/status") as f:
            peak = next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024
        return cpu_of(pid) + after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, peak
    finally:
        subprocess.run([CKPTFS, "umount", directory], check=True)


def first_byte(name):
    def use(m):
        with open(f"{m}/tensors/{name}", "rb") as f:
            f.read(1)
    return use


def listing(where):
    def use(m):
        with os.scandir(f"{m}/{where}") as entries:
            for entry in entries:
                entry.stat()
    return use


def of_a_checkpoint(d, name, tmp):
    """What is done to one, with the index that `index` has written from then on."""
    yield "info, no index", lambda: run(CKPTFS, "info", "--index=:memory:", d)
    yield "index", lambda: run(CKPTFS, "index", d)
    yield "info", lambda: run(CKPTFS, "info", d)
    yield "info of one tensor", lambda: run(CKPTFS, "info", d, name)
    yield "ls", lambda: run(CKPTFS, "ls", d)
    yield "ls -l", lambda: run(CKPTFS, "ls", "-l", d)
    yield "ls --tree", lambda: run(CKPTFS, "ls", "--tree", d)
    yield "cat of one", lambda: run(CKPTFS, "cat", d, f"tensors/{name}")
    yield "head of one", lambda: run(CKPTFS, "head", d, name)
    yield "stat of one", lambda: run(CKPTFS, "stat", d, name)
    yield "sum of one", lambda: run(CKPTFS, "sum", d, name)
    yield "check", lambda: run(CKPTFS, "check", d, ok=(0, 1))
    yield "diff with itself, one", lambda: run(CKPTFS, "diff", "-q", d, d, name)
    yield "diff of names", lambda: run(CKPTFS, "diff", "-q", d, d, name, "nothing.*")
    yield "report", lambda: run(CKPTFS, "report", "-o", f"{tmp}/report.html", d)
    yield "export of one", lambda: run(CKPTFS, "export", "-q", d, f"tensors/{name}", f"{tmp}/one-{os.path.basename(d)}")
    yield "Python: open, one", lambda: run("/usr/bin/python3", "-c", PYTHON, d, name)
    yield "mount to first byte", lambda: mounted(d, f"{tmp}/m", first_byte(name))
    yield "mount, ls -l tensors", lambda: mounted(d, f"{tmp}/m", listing("tensors"))
    yield "mount, safetensors/", lambda: mounted(d, f"{tmp}/m", listing("safetensors"))


def of_a_run(d, name, tmp):
    latest = sorted(os.listdir(d), key=lambda s: int(s.split("-")[1]))[-1]
    yield "ls", lambda: run(CKPTFS, "ls", d)
    yield "info of the latest", lambda: run(CKPTFS, "info", f"{d}/latest")
    yield "cat of one", lambda: run(CKPTFS, "cat", f"{d}/latest", f"tensors/{name}")
    yield "mount to first byte", lambda: mounted(d, f"{tmp}/m", lambda m: first_byte(name)(f"{m}/{latest}"))
    yield "mount, ls -l", lambda: mounted(d, f"{tmp}/m", listing("."))
    yield "info", lambda: run(CKPTFS, "info", d)


def exponent(sizes, values):
    """The slope of a line through the logarithms, by least squares."""
    x, y = [math.log(v) for v in sizes], [math.log(max(v, 1e-3)) for v in values]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y)) / sum((a - mx) ** 2 for a in x)


def measure(case, tmp):
    """{command: [(CPU, MiB) for each size]}, and the sizes."""
    make, full = CASES[case]
    found, sizes = {}, []
    for part in PARTS:
        n = max(int(full * part * float(os.environ.get("SCALE", 1))), 100)
        d = f"{tmp}/{case}-{n}"
        name = made(make, d, n)
        sizes.append(n)
        for what, do in (of_a_run if case == "steps" else of_a_checkpoint)(d, name, tmp):
            found.setdefault(what, []).append(do())
            print(f"{case} {n} {what}: {found[what][-1][0]:.2f} s {found[what][-1][1]:.0f} MiB", file=sys.stderr, flush=True)
        shutil.rmtree(d)
    return found, sizes


def main(*cases):
    steep = 0
    tmp = tempfile.mkdtemp(dir=os.environ.get("BIG_DIR"))
    os.environ["XDG_CACHE_HOME"] = f"{tmp}/cache"
    try:
        for case in cases or CASES:
            found, sizes = measure(case, tmp)
            print(f"\n{case}: {sizes[-1]:,} ({time.strftime('%Y-%m-%d')})\n\n| command | CPU s | n^ | MiB | n^ | |\n| --- | --- | --- | --- | --- | --- |")
            for what, samples in found.items():
                times, memory = zip(*samples)
                a, b = exponent(sizes, times), exponent(sizes, memory)
                bad = (times[-1] > ENOUGH_S and a > TOO_STEEP) or (memory[-1] > ENOUGH_MIB and b > TOO_STEEP)
                steep += bad
                print(f"| {what} | {times[-1]:.2f} | {a:.2f} | {memory[-1]:.0f} | {b:.2f} | {'steep' if bad else ''} |", flush=True)
    finally:
        shutil.rmtree(tmp)
    return steep > 0


if __name__ == "__main__":
    if set(sys.argv[1:]) - set(CASES):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
