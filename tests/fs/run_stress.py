#!/usr/bin/env python3
"""Save, rename and delete checkpoints of a run for a while, and read all that a mount shows of it.

    run_stress.py RUN MNT SECONDS TEMPLATE...

It runs for SECONDS, or longer, until there have been 20 saves and 50 readers of a whole checkpoint. A TEMPLATE is a
checkpoint of make_dcp.py; TEMPLATE.NAME.bin has the bytes of tensors/NAME. Readers open a checkpoint's directory once
and compare all its tensors with one template: every byte must be right, or the read must fail. Directories named
partial-N are never finished.
"""

import errno
import glob
import hashlib
import os
import random
import shutil
import sys
import threading
import time

RUN, MNT, SECONDS, TEMPLATES = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]
NAMES = sorted(p.rsplit(".", 2)[1] for p in glob.glob(glob.escape(TEMPLATES[0]) + ".*.bin"))
CLEAN = (errno.ENOENT, errno.EIO, errno.ESTALE)
POOL = 8
READERS = 4


def digest(data):
    return hashlib.blake2b(data).digest()


def template_digests(t):
    return tuple(digest(open(f"{t}.{n}.bin", "rb").read()) for n in NAMES)


WANTED = {template_digests(t): t for t in TEMPLATES}
stop = threading.Event()
wrong, saved = [], {}  # saved: name -> template, for complete checkpoints
count = {"saves": 0, "changes": 0, "right": 0, "failed": 0, "torn": 0}


def copy(template, to, finish):
    os.makedirs(to, exist_ok=True)
    for f in os.listdir(template):
        if f != ".metadata":
            shutil.copyfile(f"{template}/{f}", f"{to}/{f}")
    shutil.copyfile(f"{template}/.metadata", f"{to}/.metadata.tmp")
    if finish:
        os.rename(f"{to}/.metadata.tmp", f"{to}/.metadata")


def change(rng):
    name, other = (f"step-{rng.randrange(POOL)}" for _ in range(2))
    what = rng.randrange(6)
    template = rng.choice(TEMPLATES)
    if what == 0:
        shutil.rmtree(f"{RUN}/{name}", ignore_errors=True)
        saved.pop(name, None)
    elif what == 1 and name in saved and not os.path.exists(f"{RUN}/{other}"):
        os.rename(f"{RUN}/{name}", f"{RUN}/{other}")
        saved[other] = saved.pop(name)
    elif what == 2:
        partial = f"{RUN}/partial-{rng.randrange(3)}"
        shutil.rmtree(partial, ignore_errors=True)
        copy(template, partial, False)
    elif what == 3:  # save over the old one, after removing its .metadata
        if os.path.exists(f"{RUN}/{name}/.metadata"):
            os.unlink(f"{RUN}/{name}/.metadata")
        copy(template, f"{RUN}/{name}", True)
        saved[name] = template
        count["saves"] += 1
    else:
        shutil.rmtree(f"{RUN}/{name}", ignore_errors=True)
        copy(template, f"{RUN}/{name}", True)
        saved[name] = template
        count["saves"] += 1
    count["changes"] += 1


def write(rng):
    while not stop.is_set():
        change(rng)
        time.sleep(0.02)  # more than a tick of the kernel, which is the resolution of file times


def read_file(name, dirfd):
    fd = os.open(f"tensors/{name}", os.O_RDONLY, dir_fd=dirfd)
    with os.fdopen(fd, "rb", buffering=0) as f:
        return digest(f.read())


def read_checkpoint(path):
    """The template of a checkpoint; None, with an entry in `wrong`, if its bytes are not those of a single one."""
    dirfd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        got = tuple(read_file(n, dirfd) for n in NAMES)
    finally:
        os.close(dirfd)
    if got not in WANTED:
        wrong.append(f"{path}: bytes of no save")
    return WANTED.get(got)


def read(rng):
    while not stop.is_set():
        names = os.listdir(MNT)
        if any(n.startswith("partial") for n in names):
            wrong.append(f"an incomplete one is shown: {names}")
        rng.shuffle(names)
        for n in names:
            if n == ".ckptfs":
                open(f"{MNT}/.ckptfs/info.json").read()
                continue
            try:
                read_checkpoint(f"{MNT}/{n}")
                count["right"] += 1
            except OSError as e:
                count["failed"] += 1
                if e.errno not in CLEAN:
                    wrong.append(f"{n}: {e}")


def guarded(f, rng):
    try:
        f(rng)
    except Exception as e:  # pylint: disable=broad-except
        wrong.append(repr(e))


def in_the_end():
    """What is still wrong when nothing changes any more: the mount must show exactly the complete checkpoints."""
    names = set(os.listdir(MNT)) - {".ckptfs", "latest"}
    if names != set(saved):
        return f"shown in the end: {sorted(names)}, there: {sorted(saved)}"
    for name, template in saved.items():
        found = read_checkpoint(f"{MNT}/{name}")
        if found != template:
            return f"in the end {name} is {found}, not {template}"
    newest = max(saved, key=lambda n: int(n.split("-")[1]))
    latest = os.readlink(MNT + "/latest")
    return "" if latest == newest else f"latest is {latest}, not {newest}"


def settle():
    """Waits, because the mount looks for changes only once a second and the machine may be busy."""
    for _ in range(120):
        try:
            found = in_the_end()
        except OSError as e:
            found = repr(e)
        if not found:
            return
        time.sleep(0.5)
    wrong.append(found)


def main():
    copy(TEMPLATES[0], f"{RUN}/step-0", True)
    saved["step-0"] = TEMPLATES[0]
    seed = int(os.environ.get("TEST_SEED", time.time_ns()))
    jobs = [(write, seed)] + [(read, seed + 1 + i) for i in range(READERS)]
    threads = [threading.Thread(target=guarded, args=(f, random.Random(s))) for f, s in jobs]
    for t in threads:
        t.start()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or not (wrong or count["right"] >= 50 and count["saves"] >= 20):
        time.sleep(0.1)
    stop.set()
    for t in threads:
        t.join()
    if not saved:
        copy(TEMPLATES[0], f"{RUN}/step-0", True)
        saved["step-0"] = TEMPLATES[0]
    settle()
    print(f"TEST_SEED={seed}", count)
    for w in wrong[:20]:
        print(w)
    if wrong:
        sys.exit(1)


main()
