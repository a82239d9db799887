"""Functions with which test_stats.sh and test_warm.sh look at a mount's statistics."""
import json
import mmap
import os
import time


def stats(mnt):
    with open(f"{mnt}/.ckptfs/stats.json", encoding="utf-8") as f:
        return json.load(f)


def numbers(value, path=""):
    """Every number by its path: {"requests.read": 5, ...}; for latencies, the number of reads."""
    if isinstance(value, dict):
        return {k: v for key, x in value.items() for k, v in numbers(x, f"{path}.{key}" if path else key).items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {path: sum(row["reads"] for row in value)}
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {path: value}
    return {}


LIVE = ("uptime_seconds", "memory.", "threads.")


def change(mnt, act, **late):
    """The numbers that act() changes, and by how much. Some change a little later: a read is timed after its answer,
    and the kernel does not wait for a file to be closed. late: requests to wait for, as in release=5."""
    before = numbers(stats(mnt))
    act()

    def added():
        now = numbers(stats(mnt))
        return {k: v - before.get(k, 0) for k, v in now.items() if v != before.get(k, 0) and not k.startswith(LIVE)}

    got = []
    wait_for(
        lambda: got.append(added())
        or got[-1].get("requests.read") == got[-1].get("read_latency")
        and all(got[-1].get(f"requests.{k}") == n for k, n in late.items())
        and got[-1:] == got[-2:-1]
    )
    return got[-1]


def direct(path):
    return os.open(path, os.O_RDONLY | os.O_DIRECT)


def pread(fd, n, off):
    """A single read that reaches the daemon; n and off are multiples of 4096."""
    m = mmap.mmap(-1, n)
    got = os.preadv(fd, [m], off)
    return m[:got]


def wait_for(condition):
    for _ in range(1200):
        if condition():
            return True
        time.sleep(0.05)
    return False
