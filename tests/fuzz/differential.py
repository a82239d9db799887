#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""differential.py READERS [-n ROUNDS] [-s SEED] - what ckptfs reads next to what slow readers written apart from it read.

READERS is a folder with dcp/refread.py, orbax/ocdbt_read.py, deepspeed/refread.py and megatron_hp_ref_reader.py, which
reads Megatron-core and HyperParallel. Each round takes a checkpoint of tests/data, makes up to three edits to its files
(bytes, numbers in little-endian and in decimal, parts left out, doubled or taken from elsewhere) and reads every tensor
by both, in a process of its own, with bounds of memory and time. The first rounds take each checkpoint as it is.

Fails if bytes differ where both read a tensor, or if ckptfs crashes or does not end; the edited checkpoint is kept in
build/differential. What only one of them accepts is counted, with examples: a reference reader checks less, and it
stops at what ckptfs can do without.

CKPTFS_LIBRARY names libckpt (see scripts/python/ckptfs)."""

import argparse
import collections
import importlib.util
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile

TOP = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
DATA = os.environ.get("TEST_DATA", os.path.join(TOP, "tests/data"))
sys.path.insert(0, os.path.join(TOP, "scripts/python"))
sys.dont_write_bytecode = True
import ckptfs  # noqa: E402
import numpy  # noqa: E402 - ckptfs needs it later, where its absence would look like a refusal

SECONDS, MEMORY, MAX_FILES, MAX_BYTES = 60, 4 << 30, 40, 1 << 20
ODD = [0, 1, 2, 3, 7, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**64 - 1]


def load(path):
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files_of(path):
    return sorted(os.path.join(d, n) for d, _, names in os.walk(path) for n in names)


def dcp_reader(readers):
    dcp = load(f"{readers}/dcp/refread.py")

    def read(path):
        c = dcp.Ckpt(path) if os.path.exists(f"{path}/.metadata") else dcp.HFCkpt(path)
        for name, item in c.items.items():
            if item is not None:
                yield name, lambda name=name: whole(c.tensor(name))

    def whole(got):
        if isinstance(got, tuple):
            got, covered = got
            if not covered:
                raise ValueError("not covered")
        return bytes(got)

    return read


def orbax_reader(readers):
    orbax = load(f"{readers}/orbax/ocdbt_read.py")

    def read(path):
        _, arrays, _ = orbax.read_item(path)
        for name, (about, data) in arrays.items():
            if "unsupported" not in about:
                yield name, lambda data=data: bytes(data)

    return read


def deepspeed_reader(readers):
    """Of checkpoints without model parallelism, whose slices it does not join."""
    deepspeed = load(f"{readers}/deepspeed/refread.py")

    def names(section, name, sections):
        if section in ("module", "frozen"):
            return [name]
        state = f"optimizer.state.{name}.{section}"
        # ZeRO 3 keeps a parameter only as its fp32 master.
        return [name, state] if section == "fp32" and name not in sections.get("module", ()) else [state]

    def read(path):
        c = deepspeed.Checkpoint(path)
        sections = c.section(0)
        sections.setdefault("module", {}).update(c.experts())
        for section, tensors in sections.items():
            for name, view in tensors.items():
                for shown in names(section, name, sections):
                    yield shown, view.bytes

    return read


def universal_reader(readers):
    deepspeed = load(f"{readers}/deepspeed/refread.py")

    def read_file(name):
        o = deepspeed.load(name)
        return deepspeed.whole(o["param"] if isinstance(o, dict) else o).bytes()

    def read(path):
        with open(f"{path}/latest_universal") as f:
            top = os.path.join(path, f.read().strip(), "zero")
        for name in files_of(top):
            state, kind = os.path.split(os.path.relpath(name, top))
            if kind in ("fp32.pt", "exp_avg.pt", "exp_avg_sq.pt"):
                yield f"optimizer.state.{state}.{kind[:-3]}", lambda name=name: read_file(name)

    return read


def megatron_reader(readers):
    """Megatron-core's torch_dist and zarr, and HyperParallel."""
    both = load(f"{readers}/megatron_hp_ref_reader.py")

    def read(path):
        names = sorted(os.listdir(path))
        if "metadata.json" in names:
            with open(f"{path}/metadata.json") as f:
                if json.load(f).get("sharded_backend") == "zarr":
                    yield from ((k, lambda v=v: v[2]) for k, v in both.read_zarr(path).items())
                    return
        metas = [n for n in names if n.startswith(".") and n.endswith("metadata")]
        tensors, _ = both.read_dcp_family(path, metas)
        yield from ((k, lambda v=v: v[2]) for k, v in tensors.items())

    return read


def checkpoints(readers):
    """Those that a reader knows, small enough to be read many times: (directory, reader)."""
    dcp, orbax, megatron = dcp_reader(readers), orbax_reader(readers), megatron_reader(readers)
    deepspeed, universal = deepspeed_reader(readers), universal_reader(readers)
    found = []
    for path in sorted({os.path.dirname(f) for f in files_of(DATA)}):
        files = files_of(path)
        names = [os.path.relpath(f, path) for f in files]
        if len(files) > MAX_FILES or sum(map(os.path.getsize, files)) > MAX_BYTES:
            continue
        if "metadata.json" in names or any(n.startswith((".rank", "_rank")) for n in names):
            found.append((path, megatron))
        elif ".metadata" in names:
            found.append((path, dcp))
        elif any(f.endswith(".safetensors") for f in names):
            found.append((path, dcp))
        elif "manifest.ocdbt" in names:
            found.append((path, orbax))
        elif "latest_universal" in names:
            found.append((path, universal))
        elif "latest" in names and not any(re.search(r"mp_rank_0[1-9]|/layer_\d+-", n) for n in names):
            found.append((path, deepspeed))
    return found


def edit(rng, data, other):
    """One change."""
    at = rng.randrange(len(data) + 1)
    n = min(rng.choice([1, 2, 4, 8, 16, 64]), len(data) - at)
    kind = rng.randrange(7)
    if kind == 0:
        return data[:at] + rng.choice(ODD).to_bytes(8, "little")[:n] + data[at + n:]
    if kind == 1:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1:]
    if kind == 2:
        return data[:at] + data[at + n:]
    if kind == 3:
        return data[:at + n] + data[at:at + n] + data[at + n:]
    if kind == 4 and other:
        k = rng.randrange(len(other))
        return data[:at] + other[k:k + n] + data[at + n:]
    if kind == 5:
        return data[:at]
    digits = [i for i in range(at, min(at + 400, len(data))) if 48 <= data[i] < 58]
    if not digits:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1:] if at < len(data) else data
    return data[:digits[0]] + str(rng.choice(ODD + [4, 5, 6, 8, 10])).encode() + data[digits[0] + 1:]


def edit_files(rng, path):
    files = [f for f in files_of(path) if not os.path.islink(f)]
    heads = [f for f in files if re.search(r"metadata$|manifest\.ocdbt$|\.json$|\.zarray$|model_states\.pt$|/latest", f)]
    for _ in range(rng.randrange(4)):
        name = rng.choice(heads if heads and rng.randrange(2) else files)
        with open(name, "rb") as f, open(rng.choice(files), "rb") as g:
            data, other = f.read(), g.read()
        if data:
            with open(name, "wb") as f:
                f.write(edit(rng, data, other))


def all_of(tensors):
    """{name: bytes, or the sentence why not}, or that sentence for all."""
    got = {}
    try:
        for name, read in tensors:
            try:
                got[name] = read()
            except MemoryError:
                raise
            except Exception as e:  # whatever a reader of hostile bytes stumbles over
                got[name] = f"{type(e).__name__}: {e}"
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return got


def by_ckptfs(path):
    with ckptfs.open(path, index=":memory:", allow_missing=True) as c:
        for name in c:
            yield name, lambda name=name: c.tensor(name).bits().tobytes()


def compare(ours, theirs):
    out = collections.Counter()
    examples, wrong = {}, []
    if isinstance(ours, str) and isinstance(theirs, str):
        out["refused by both"] += 1
    for name in sorted(set(ours if isinstance(ours, dict) else ()) | set(theirs if isinstance(theirs, dict) else ())):
        a = ours.get(name, "absent") if isinstance(ours, dict) else ours
        b = theirs.get(name, "absent") if isinstance(theirs, dict) else theirs
        if isinstance(a, bytes) and isinstance(b, bytes):
            out["same" if a == b else "different"] += 1
            if a != b:
                wrong.append(name)
        elif isinstance(a, bytes) or isinstance(b, bytes):
            key = "only ckptfs reads it" if isinstance(a, bytes) else "only the reference reads it"
            out[key] += 1
            examples.setdefault(key, f"{name}: {(b if isinstance(a, bytes) else a)[:200]}")
        else:
            out["neither reads it"] += 1
    return out, examples, wrong


def one_round(path, reader, write):
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        ours = all_of(by_ckptfs(path))
    except MemoryError:
        os.write(write, json.dumps([{"ckptfs has no memory": 1}, {}, ["?"]]).encode())
        os._exit(0)
    os.write(write, b"\n")  # what comes now is the reference's
    try:
        theirs = all_of(reader(path))
    except MemoryError:
        theirs = "no memory"
    os.write(write, json.dumps(compare(ours, theirs)).encode())
    os._exit(0)


def run(path, reader):
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            one_round(path, reader, write)
        finally:
            os._exit(3)
    os.close(write)
    with open(read, "rb") as f:
        said = f.read()
    _, status = os.waitpid(pid, 0)
    if status == 0 and said.strip():
        return json.loads(said)
    if said[:1] == b"\n":
        return [{"the reference did not end": 1}, {}, []]
    return [{f"ckptfs ended with status {status}": 1}, {}, ["?"]]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("readers")
    p.add_argument("-n", type=int, default=200)
    p.add_argument("-s", type=int, default=random.randrange(1 << 32))
    a = p.parse_args()
    print(f"seed {a.s}, numpy {numpy.__version__}", flush=True)
    all_ = checkpoints(a.readers)
    total, examples, bad = collections.Counter(), {}, 0
    for i in range(a.n):
        rng = random.Random(f"{a.s} {i}")
        source, reader = rng.choice(all_)
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as top:
            path = f"{top}/ckpt"
            shutil.copytree(source, path, symlinks=True)
            if i >= len(all_):
                edit_files(rng, path)
            else:  # first, each of them as it is
                source, reader = all_[i]
                shutil.rmtree(path)
                shutil.copytree(source, path, symlinks=True)
            out, some, wrong = run(path, reader)
            total.update(out)
            for key, text in some.items():
                examples.setdefault(key, []).append(f"round {i}, {os.path.relpath(source, DATA)}: {text}")
            if wrong:
                bad += 1
                kept = f"{TOP}/build/differential/{a.s}-{i}"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(path, kept, symlinks=True)
                print(f"round {i}: {dict(out)}: {wrong[:5]} of {os.path.relpath(source, DATA)}, see {kept}", flush=True)
    for key, n in total.most_common():
        print(f"{n:8} {key}")
        for text in examples.get(key, [])[:8]:
            print(f"         {text}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
