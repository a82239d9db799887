#!/usr/bin/env python3
"""bench_reshard.py DIR - reshard of a 2 GiB checkpoint of DCP, from 4 ranks to 8.

`ckptfs reshard --ranks 8` of DIR/2GiB.4, next to
torch    dcp.load and dcp.save in the chroot, by 8 processes and by one; the better is the baseline:
         see bench_reshard_torch.py for what is counted
cp       cp -r of the same bytes, and the same with all of it synced, as ckptfs does (and torch)

Wall clock, CPU seconds (user + system) and peak memory, medians of ROUNDS (environment, default
5), all cases taking turns, in any order. Source in the page cache; before each run the result of the
one before is removed and everything written out. Of the peak memory, what is less than this program's
own 25 MiB cannot be seen. DIR needs 5 GB. Results: a table, DIR/reshard.json.
"""
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

CKPTFS = os.path.abspath("build/release/ckptfs")
ROUNDS = int(os.environ.get("ROUNDS", "5"))


def in_chroot(directory, *argv):
    return subprocess.run(
        ["scripts/chroot.sh", "run", "--bind", f"{os.getcwd()}/scripts:/mnt/scripts", "--bind",
         f"{directory}:/mnt/bench", "--", "python3", "/mnt/scripts/bench_reshard_torch.py", *argv],
        stdout=subprocess.PIPE, check=True, text=True).stdout


def run(argv):
    """Wall clock, CPU and peak memory of a command with its children."""
    start = time.perf_counter()
    pid = os.posix_spawnp(argv[0], argv, os.environ)
    _, status, use = os.wait4(pid, 0)
    wall = time.perf_counter() - start
    if status:
        sys.exit(f"failed: {argv}")
    return {"wall_s": wall, "cpu_s": use.ru_utime + use.ru_stime, "rss_mib": use.ru_maxrss / 1024}


def with_torch(directory, how):
    return json.loads(in_chroot(directory, how, "/mnt/bench/2GiB.4", "/mnt/bench/out").splitlines()[-1])


def cases(directory):
    src, dst = f"{directory}/2GiB.4", f"{directory}/out"
    sync = 'cp -r "$1" "$2" && find "$2" -exec sync {} +'
    return {
        "ckptfs": lambda: run([CKPTFS, "reshard", "-q", src, dst, "--ranks=8"]),
        "torch, 8 processes": lambda: with_torch(directory, "many"),
        "torch, 1 process": lambda: with_torch(directory, "one"),
        "cp -r": lambda: run(["cp", "-r", src, dst]),
        "cp -r, sync": lambda: run(["sh", "-c", sync, "sh", src, dst]),
    }


def clear(directory):
    shutil.rmtree(f"{directory}/out", ignore_errors=True)
    os.sync()


def warm(directory):
    """Into the page cache; how many bytes."""
    size = 0
    for name in os.listdir(f"{directory}/2GiB.4"):
        with open(f"{directory}/2GiB.4/{name}", "rb", buffering=0) as f:
            while piece := f.read(1 << 22):
                size += len(piece)
    return size


def measure(directory):
    runs = {name: [] for name in cases(directory)}
    for _ in range(ROUNDS):
        for name, case in random.sample(list(cases(directory).items()), len(runs)):
            clear(directory)
            runs[name].append(case())
    clear(directory)
    return {name: {k: statistics.median(x[k] for x in got) for k in got[0]}
            for name, got in runs.items()}


def main():
    directory = os.path.abspath(sys.argv[1])
    if not os.path.exists(f"{directory}/2GiB.4/.metadata"):
        in_chroot(directory, "gen", "/mnt/bench/2GiB.4")
    size = warm(directory)
    r = measure(directory)
    for name, x in r.items():
        print(f"reshard {name:20s} {x['wall_s']:6.2f} s   {x['cpu_s']:6.2f} s of CPU   "
              f"{x['rss_mib']:6.0f} MiB")
    ours, copy = r["ckptfs"], r["cp -r, sync"]
    torch = min((x for name, x in r.items() if name.startswith("torch")), key=lambda x: x["wall_s"])
    ratios = {"times_faster": torch["wall_s"] / ours["wall_s"],
              "times_less_cpu": torch["cpu_s"] / ours["cpu_s"],
              "times_less_memory": torch["rss_mib"] / ours["rss_mib"],
              "times_of_cp": ours["wall_s"] / r["cp -r"]["wall_s"],
              "times_of_cp_sync": ours["wall_s"] / copy["wall_s"]}
    print(f"reshard {size / 2**30:.2f} GiB: {ratios['times_faster']:.1f} times faster than torch, "
          f"1/{ratios['times_less_cpu']:.1f} of the CPU, 1/{ratios['times_less_memory']:.0f} of the memory; "
          f"{ratios['times_of_cp_sync']:.2f} times cp and sync, {ratios['times_of_cp']:.2f} times cp")
    with open(f"{directory}/reshard.json", "w", encoding="ascii") as f:
        json.dump({"rounds": ROUNDS, "bytes": size, **r, **ratios}, f, indent=1)
    print(f"written: {directory}/reshard.json")


main()
