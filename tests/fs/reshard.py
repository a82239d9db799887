#!/usr/bin/env python3
"""The parts of test_reshard.sh that need Python.

    reshard.py same DIFF LISTED all|tensors|megatron|megatron-tensors
                                              check by DIFF, from `ckptfs diff --json A B`, that B has
                                              everything readable in LISTED, from `ckptfs ls --json A`
                                              (all); the tensors that safetensors files can hold
                                              (tensors); all tensors, while objects may differ
                                              (megatron); or both of the latter
    reshard.py excludes < LISTED              print options that leave out what safetensors cannot hold
    reshard.py kill CKPTFS SRC                kill saves over a checkpoint: see kill()
    reshard.py memory MIB COMMAND...          check that it needs less memory than that
"""
import ctypes
import hashlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time


def fits_safetensors(entry):
    name = entry["fqn"]
    return entry["dtype"] not in ("complex32", "complex128") and "\0" not in name and \
        not re.match("qu?int", entry["dtype"]) and \
        (entry["dtype"], entry["shape"]) != ("float4_e2m1fn_x2", [])


NOTES = {"missing", "not_shown", "index_differs"}  # objects about the files of the checkpoint that is read


def same(diff, listed, what):
    with open(diff, encoding="utf-8") as f:
        told = json.load(f)
    with open(listed, encoding="utf-8") as f:
        entries = json.load(f)
    left_out = {x["fqn"] for x in entries if x.get("fault") is not None or
                x["type"] == "object" and x["fqn"] in NOTES or
                what != "all" and x["type"] != "tensor" or what.endswith("tensors") and not fits_safetensors(x)}
    bad = [x for x in told["tensors"] if (x["fqn"] not in left_out or x["result"] in ("only_b", "kind")) and
           not (what.startswith("megatron") and x["result"] == "only_b" and x["b"]["type"] == "object")]
    assert not bad, bad[:3]
    count = sum(x["fqn"] not in left_out for x in entries)
    assert told["summary"]["equal"] >= count, (told["summary"], count)


def excludes():
    for x in json.load(sys.stdin):
        if x["type"] == "tensor" and not fits_safetensors(x):
            # A glob, because some bytes cannot be part of an argument.
            print("--exclude=" + re.sub(rb"[^A-Za-z0-9._-]", b"?", x["fqn"].encode()).decode())


def state(directory):
    """The names and contents of a directory's files."""
    found = []
    for name in sorted(os.listdir(directory)):
        with open(f"{directory}/{name}", "rb") as f:
            found.append((name, hashlib.sha256(f.read()).digest()))
    return found


def can_exchange():
    """Whether the file system can exchange two directories: NFS cannot."""
    os.mkdir("one")
    os.mkdir("two")
    rc = ctypes.CDLL(None).renameat2(-100, b"one", -100, b"two", 2)  # AT_FDCWD, RENAME_EXCHANGE
    os.rmdir("one")
    os.rmdir("two")
    return rc == 0


def kill(ckptfs, src):
    """Two commands that write SRC, with results a and b, take turns at x. After every kill, x is one of the two; one in
    ten saves is not killed, and leaves nothing but its result. Kills after the new checkpoint has taken its place do
    not count: this goes on until enough kills have left the old one. If directories cannot be exchanged, the old one
    may be beside x, and the next save puts it back."""
    exchange = can_exchange()
    args = {"a": ["--ranks=4"], "b": ["--ranks=3", "--threads=2", "--include=model.*"]}
    seed = random.SystemRandom().randrange(1 << 32)
    r = random.Random(seed)
    print("seed", seed)

    def start(to):
        return subprocess.Popen([ckptfs, "reshard", "-q", "--index=:memory:", "--overwrite", src, "x", *args[to]])

    kills = 200 if os.environ.get("CHECK_FULL") else 40 if os.environ.get("VARIANT", "release") != "release" else 15
    want = {to: state(to) for to in args}
    assert want["a"] != want["b"]
    at, took, killed, late = "a", [], 0, 0
    while killed - late < kills:
        to = "b" if at == "a" else "a"
        whole = len(took) < 3 or r.random() < 0.1
        began = time.monotonic()
        p = start(to)
        if whole:
            assert p.wait() == 0, f"after {killed} kills"
            took.append(time.monotonic() - began)
            left = [n for n in os.listdir(".") if "partial" in n]
            assert not left, left
        else:
            time.sleep(r.random() * 1.1 * sorted(took)[len(took) // 2])
            p.kill()
            was_killed = p.wait() == -signal.SIGKILL
            killed += was_killed
        if not exchange and not os.path.exists("x"):
            assert not whole and state("x.partial.old") == want[at]
            continue
        found = [d for d in want if state("x") == want[d]]
        assert found, f"neither the old nor the new after {killed} kills: {[n for n, _ in state('x')]}"
        assert found == [to] or not whole, found
        late += found == [to] and not whole and was_killed
        at = found[0]
    print(f"{killed} kills, {late} of them after the exchange, {len(took)} saves were left alone")
    assert start("a").wait() == 0 and state("x") == want["a"]


def memory(limit, *command):
    subprocess.run(command, check=True)
    mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{mib:.1f} MiB")
    assert mib < float(limit), f"{mib} MiB"


if __name__ == "__main__":
    {"same": same, "excludes": excludes, "kill": kill, "memory": memory}[sys.argv[1]](*sys.argv[2:])
