#!/usr/bin/env python3
"""Read a file of a mount while things happen to the files behind it.

    live_reader.py FILE WANTED UNTIL [FROM TO]

Reads random pieces of FILE's bytes [FROM, TO), comparing each with the same bytes of WANTED, until
the file UNTIL exists. Makes a file ready.PID after the first piece that was right, and failed.PID
after an error. Prints how many pieces were right and which errors the others ended with, by name.
Exits 1 at the first wrong byte.
"""

import collections
import errno
import os
import random
import sys
import time


def main(path, wanted, until, first=0, last=None):
    rnd = random.Random(os.getpid())
    with open(wanted, "rb") as f:
        want = f.read()
    first, last = int(first), int(last or len(want))
    found = collections.Counter()
    fd = os.open(path, os.O_RDONLY)
    while not os.path.exists(until):
        time.sleep(0.001)  # leaves CPU time to others
        n = rnd.choice((4096, 100000, 1 << 20))
        off = rnd.randrange(first, last)
        n = min(n, last - off)
        if rnd.random() < 0.2:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            got = os.pread(fd, n, off)
        except OSError as e:
            found[errno.errorcode[e.errno]] += 1
            open(f"failed.{os.getpid()}", "w").close()
            continue
        if not got or got != want[off : off + len(got)]:
            sys.exit(f"{path}: {len(got)} bytes at {off} are wrong")
        if not found["right"]:
            open(f"ready.{os.getpid()}", "w").close()
        found["right"] += 1
    print(*(f"{k}={n}" for k, n in sorted(found.items())))


if __name__ == "__main__":
    main(*sys.argv[1:])
