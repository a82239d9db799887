#!/usr/bin/env python3
"""bench.py [CASE...]                - measure ckptfs and its baselines in interleaved runs
bench.py --list                  - list the groups and their cases
bench.py --markdown FILE         - print the table of an earlier run from its JSON

A CASE is a group, or a part of "group: case". Without one, all cases except the slow ones run. Data is
generated from a fixed seed, read from a warm page cache (in the group "cold", from disk), and removed at
the end, as are the mounts. Needs FUSE, and space in BENCH_DIR for 40 times SIZE. As root, and with the
chroot of scripts/chroot.sh, PyTorch is measured, too. Other load on the machine spoils the numbers; each
line says how many of its rounds were affected.

Environment (make bench NAME=VALUE):
  CASES          like CASE...
  SIZE           bytes of a tensor (512M); models have 2 and 8 times that
  ROUNDS         runs of each case (5)
  OUT            the JSON file with the results (build/bench.json)
  BENCH_DIR      directory for the data (build/bench); KEEP=1 keeps it for the next run
  MOUNT_OPTIONS  options for all mounts, such as "--io=cached --threads=4"
  CKPTFS         the program (build/release/ckptfs)
  ZERO_TO_FP32   DeepSpeed's zero_to_fp32.py, of which each of its checkpoints has a copy
"""
import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, f"{TOP}/tests/bench")

from data import Data  # noqa: E402
from harness import BUSY, Bench, Failed, Row, Skip, busy_cpus, short  # noqa: E402
import loading  # noqa: E402
import programs  # noqa: E402
import reads  # noqa: E402
import remote  # noqa: E402

GROUPS = {group: reads.reads for group in reads.READS}
GROUPS |= {f.__name__: f for f in (
    reads.cast, reads.dequantise, reads.merge, reads.zstd, programs.ls, programs.mount, programs.convert, programs.quantise,
    programs.reshard, programs.index, programs.deepspeed, programs.plan, programs.values, loading.python,
    remote.remote)}
ROOM, SPARE = 40, 2 << 30


def say(line):
    print(line, flush=True)


def bytes_of(text):
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper(), 0)
    return int(text[:-1] if unit else text) << unit


def options():
    env = os.environ.get
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cases", nargs="*", metavar="CASE")
    p.add_argument("--list", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--markdown", metavar="FILE", help=argparse.SUPPRESS)
    o = p.parse_args()
    o.cases = o.cases or env("CASES", "").split()
    o.size = bytes_of(env("SIZE") or "512M")
    o.rounds = int(env("ROUNDS") or 5)
    o.out = env("OUT") or f"{TOP}/build/bench.json"
    o.dir = os.path.abspath(env("BENCH_DIR") or f"{TOP}/build/bench")
    o.mount_options = env("MOUNT_OPTIONS", "").split()
    o.ckptfs = os.path.abspath(env("CKPTFS") or f"{TOP}/build/release/ckptfs")
    o.programs = f"{TOP}/build/release/bench"
    return o


class Chosen:
    """Called with the name of a case; tells whether it is to be run."""

    def __init__(self, group, words, listing=None):
        self.group, self.words, self.listing = group, words, listing

    def __call__(self, name, slow=False):
        if self.listing is not None:
            self.listing.append(f"{self.group}: {name}" + (" (slow)" if slow else ""))
            return False
        if not self.words:
            return not slow
        return any(w == self.group and not slow if w in GROUPS else w in f"{self.group}: {name}"
                   for w in self.words)


def cases():
    """The names of all cases."""
    found = []
    for group, run in GROUPS.items():
        run(None, None, group, Chosen(group, [], found))
    return found


def first_line(*argv):
    try:
        return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
                              text=True).stdout.split("\n", 1)[0]
    except (OSError, subprocess.CalledProcessError):
        return None


def field(path, name):
    with open(path, encoding="ascii", errors="replace") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith(name)), None)


def facts(o):
    """The facts about this machine that the numbers depend on."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": platform.release(), "cpu": field("/proc/cpuinfo", "model name"),
        "cpus": len(os.sched_getaffinity(0)), "memory": field("/proc/meminfo", "MemTotal"),
        "libfuse": first_line("pkg-config", "--modversion", "fuse3"),
        "zstd": first_line("zstd", "--version"),
        "filesystem": first_line("stat", "-f", "-c", "%T", o.dir),
        "damon": first_line("cat", "/sys/kernel/mm/damon/admin/kdamonds/0/state"),
        "ckptfs": first_line(o.ckptfs, "--version"), "commit": first_line(
            "git", "-C", TOP, "describe", "--always", "--dirty"),
        "mount_options": o.mount_options, "size": o.size, "rounds": o.rounds,
        "load": os.getloadavg(), "busy_cpus": round(busy_cpus(1), 2),
    }


def check(o, about):
    """Reasons why the benchmark cannot run here, or should not be trusted."""
    free = shutil.disk_usage(o.dir).free
    if free < ROOM * o.size + SPARE:
        sys.exit(f"bench: {o.dir} has {free >> 30} GiB free; {ROOM} times SIZE and 2 GiB are needed")
    if not os.path.exists("/dev/fuse"):
        sys.exit("bench: no /dev/fuse")
    if about["busy_cpus"] > BUSY or about["load"][0] > 0.5 * about["cpus"]:
        say(f"WARNING: the machine is busy ({about['busy_cpus']} CPUs now, load "
            f"{about['load'][0]:.2f}): ratios may be off, and single numbers are")
    if int(about["memory"].split()[0]) << 10 < 24 * o.size:
        say("WARNING: the sources and the mounts' cached pages may not fit in memory: use a smaller SIZE")


def run(o, bench, made):
    for group, measure in GROUPS.items():
        start = time.perf_counter()
        before = len(bench.rows)
        try:
            measure(bench, made, group, Chosen(group, o.cases))
        except Skip as e:
            bench.skip(group, e)
        except Failed as e:
            bench.fail(group, e)
        if len(bench.rows) > before:
            say(f"({group}: {time.perf_counter() - start:.0f} s)")


def write(o, about, bench):
    os.makedirs(os.path.dirname(os.path.abspath(o.out)), exist_ok=True)
    with open(o.out, "w", encoding="utf-8") as f:
        json.dump({"machine": about, "rows": [vars(r) for r in bench.rows], "skipped": bench.skipped,
                   "failed": bench.failed, "samples": bench.samples}, f, indent=1)
    say(f"written: {o.out}")


def cell(row, party):
    memory = row.memory.get(party)
    return row.value(party) + (f", {memory:.0f} MiB" if memory is not None else "")


def markdown(path):
    with open(path, encoding="utf-8") as f:
        run = json.load(f)
    m = run["machine"]
    out = [f"{m['ckptfs']}, Linux {m['kernel']}, {m['cpus']} CPUs ({m['cpu']}), {m['memory']}; medians "
           f"of {m['rounds']}", "",
           "| case | ckptfs | to compare with | ratio | to reach | CPU of the daemon, s/GiB |",
           "| --- | --- | --- | --- | --- | --- |"]
    for row in (Row(**r) for r in run["rows"]):
        ours, *others = row.values
        baselines = "; ".join(f"{p} {cell(row, p)}" for p in others)
        ratio = short(row.ratio[0]) if row.ratio else ""
        cpu = row.daemon_cpu_s_per_gib
        out.append(f"| {row.group}: {row.name} | {cell(row, ours)} | {baselines} | {ratio} | "
                   f"{row.target} | {'' if cpu is None else format(cpu, '.2f')} |")
    return "\n".join(out)


def main():
    o = options()
    if o.list:
        print("\n".join(cases()))
        return
    if o.markdown:
        print(markdown(o.markdown))
        return
    missing = [w for w in o.cases if w not in GROUPS and not any(w in c for c in cases())]
    if missing:
        sys.exit(f"bench: no such case: {', '.join(missing)}; --list lists them")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.makedirs(o.dir, exist_ok=True)
    about = facts(o)
    check(o, about)
    bench = Bench(o, say)
    try:
        run(o, bench, Data(f"{o.dir}/data", o.size, o.ckptfs, say))
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
    finally:
        write(o, about, bench)
        bench.close()
        if not os.environ.get("KEEP"):
            shutil.rmtree(f"{o.dir}/data", ignore_errors=True)
            with contextlib.suppress(OSError):
                os.rmdir(o.dir)
    sys.exit(1 if bench.failed else 0)


main()
