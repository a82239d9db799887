#!/usr/bin/env python3
"""bench.py DIR - run every case interleaved with its baseline, print medians and ratios.

index    `ckptfs index --rebuild` of DIR/NAME (its .metadata parsed and the index written and
         synced) against Python's pickle.load of the same .metadata in the chroot: CPU seconds
         (user + system, one core) and peak memory
remount  `ckptfs mount` with a fresh index to the first byte of a tensor, wall clock; memory of
         the daemon afterwards
plan     nanoseconds to plan a read, from build/release/bench_plan

Medians of ROUNDS (environment, default 5); other work on the machine shows in the wall clock.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

CKPTFS = os.path.abspath("build/release/ckptfs")
ROUNDS = int(os.environ.get("ROUNDS", "5"))
median = statistics.median


def cpu_and_rss(argv):
    """CPU seconds and peak RSS in MiB of one process on one core."""
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
        os.execv(argv[0], argv)
    _, status, use = os.wait4(pid, 0)
    if status:
        sys.exit(f"failed: {argv}")
    return use.ru_utime + use.ru_stime, use.ru_maxrss / 1024


def pickle_load(directory, name):
    """The same for pickle.load, over what `import torch` took before."""
    out = subprocess.run(
        ["scripts/chroot.sh", "run", "--bind", f"{os.getcwd()}/scripts:/mnt/scripts",
         "--bind", f"{directory}:/mnt/bench", "--", "python3", "/mnt/scripts/bench_metadata.py",
         "load", f"/mnt/bench/{name}/.metadata"],
        stdout=subprocess.PIPE, check=True, text=True).stdout
    r = json.loads(out.splitlines()[-1])
    return r["cpu_s"], r["maxrss_kib_delta"] / 1024


def bench_index(directory, name):
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(cpu_and_rss([CKPTFS, "index", "--rebuild", f"{directory}/{name}"]))
        theirs.append(pickle_load(directory, name))
    r = {"ckptfs_cpu_s": median(c for c, _ in ours), "ckptfs_rss_mib": median(m for _, m in ours),
         "pickle_cpu_s": median(c for c, _ in theirs),
         "pickle_rss_mib": median(m for _, m in theirs)}
    r["times_faster"] = r["pickle_cpu_s"] / r["ckptfs_cpu_s"]
    r["times_less_memory"] = r["pickle_rss_mib"] / r["ckptfs_rss_mib"]
    print(f"index   {name}  ckptfs {r['ckptfs_cpu_s']:6.2f} s {r['ckptfs_rss_mib']:5.0f} MiB   "
          f"pickle.load {r['pickle_cpu_s']:6.2f} s {r['pickle_rss_mib']:5.0f} MiB   "
          f"{r['times_faster']:.1f} times faster, 1/{r['times_less_memory']:.0f} of the memory")
    return r


def daemon_rss(mnt):
    """MiB of the process that serves the mount."""
    want = f"mount\0{mnt[0]}\0{mnt[1]}\0".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if want in open(f"/proc/{pid}/cmdline", "rb").read():
                for line in open(f"/proc/{pid}/status"):
                    if line.startswith("VmHWM"):
                        return int(line.split()[1]) / 1024
        except OSError:
            pass
    return float("nan")


def bench_remount(directory, name, mnt):
    ckpt = f"{directory}/{name}"
    tensor = subprocess.run([CKPTFS, "ls", ckpt], stdout=subprocess.PIPE, check=True,
                            text=True).stdout.split("\n", 1)[0]
    wall, rss = [], []
    for _ in range(4 * ROUNDS):
        start = time.perf_counter()
        subprocess.run([CKPTFS, "mount", ckpt, mnt], check=True)
        with open(f"{mnt}/tensors/{tensor}", "rb", buffering=0) as f:
            f.read(1)
        wall.append((time.perf_counter() - start) * 1e3)
        rss.append(daemon_rss((ckpt, mnt)))
        subprocess.run([CKPTFS, "umount", mnt], check=True)
    r = {"first_byte_ms": median(wall), "best_ms": min(wall), "daemon_mib": median(rss)}
    print(f"remount {name}  first byte after {r['first_byte_ms']:.1f} ms "
          f"(best {r['best_ms']:.1f}), daemon {r['daemon_mib']:.1f} MiB")
    return r


def bench_plan():
    runs = [json.loads(subprocess.run(["build/release/bench_plan"], stdout=subprocess.PIPE,
                                      check=True, text=True).stdout) for _ in range(ROUNDS)]
    r = {k: median(x[k] for x in runs) for k in runs[0]}
    for k, v in r.items():
        print(f"plan    {k:32s} {v:8.0f} ns")
    return r


def main():
    directory = sys.argv[1]
    names = sorted(n for n in os.listdir(directory) if os.path.exists(f"{directory}/{n}/.metadata"))
    results = {"rounds": ROUNDS, "plan_ns": bench_plan()}
    with tempfile.TemporaryDirectory() as tmp:
        os.environ["XDG_CACHE_HOME"] = tmp
        os.mkdir(f"{tmp}/mnt")
        for name in names:
            results[f"index {name}"] = bench_index(directory, name)
            if os.path.exists("/dev/fuse"):
                results[f"remount {name}"] = bench_remount(directory, name, f"{tmp}/mnt")
    with open(f"{directory}/results.json", "w") as f:
        json.dump(results, f, indent=1)
    print(f"written: {directory}/results.json")


main()
