#!/usr/bin/env python3
"""reshard_jobs.py SEED DIR CKPTFS - reshard every checkpoint of DIR, at random.

DIR is a directory of save_random.py: caseNN/ckpt and caseNN/expected.json. CKPTFS writes each case
several times (to caseNN/NAME), with options, ranks and layouts that are a function of SEED. Checks that
do not need torch are made here: every command works, `ckptfs diff` finds no difference, the same command
writes the same files again, SRC is not changed. The rest is done by load_reshard.py, which reads
DIR/jobs.json. Ends with "N passed, M failed". Needs only Python.
"""
import fnmatch
import glob
import hashlib
import itertools
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys

from compare import Report

FLOATS = {"float64", "float32", "float16", "bfloat16"}
AXES = ["dp", "tp", "pp", "ep", "axis_2"]
MESHES = [(1,), (2,), (3,), (4,), (5,), (7,), (9,), (2, 2), (1, 4), (2, 3), (3, 3), (4, 2), (3, 1, 2),
          (2, 2, 2)]
RULES = "s/^model\\.layers\\.([0-9]+)/trunk.block-\\1/\ns/weight$/w/\n"


def renamed(fqn):
    return re.sub(r"weight\Z", "w", re.sub(r"^model\.layers\.([0-9]+)", r"trunk.block-\1", fqn))


def like(fqn):
    """(A glob of ours, a pattern of Python's) for a name that may not be possible in an argument, and similar names."""
    raw = fqn.encode("utf-8", "surrogatepass")
    return "".join(chr(b) if chr(b).isalnum() and b < 128 or b in b"._-" else "?" for b in raw), \
        re.compile(b"".join(re.escape(bytes([b])) if chr(b).isalnum() and b < 128 or b in b"._-" else b"."
                            for b in raw) + b"\\Z", re.DOTALL)


def fits_safetensors(fqn, tensor):
    """Whether safetensors can hold a tensor of that type and name."""
    return tensor["dtype"] not in ("complex32", "complex128") and "\0" not in fqn and \
        not any("\ud800" <= c <= "\udfff" for c in fqn) and \
        (tensor["dtype"] != "float4_e2m1fn_x2" or tensor["shape"] != [])


def is_part(fqn):
    """Whether a name is one that Megatron-core gives to a part of an object."""
    return bool(re.match(r"[^/]*/shard_\d+(\.\d+)*_\d+(\.\d+)*\Z", fqn, re.ASCII | re.DOTALL))


# ---- which rank has which part of a tensor


def part_of(n, parts, i):
    """The part that torch.chunk makes."""
    size = -(-n // parts)
    begin = min(i * size, n)
    return begin, min(size, n - begin)


def chunks_of(shape, ranks, splits_of):
    """The boxes that are stored. splits_of(rank): [(dimension, parts, part)], nested in this order."""
    whole = [[0] * len(shape), list(shape)]
    if 0 in shape:
        return [whole]
    boxes = []
    for rank in range(ranks):
        offsets, sizes = [0] * len(shape), list(shape)
        for d, parts, i in splits_of(rank):
            begin, sizes[d] = part_of(sizes[d], parts, i)
            offsets[d] += begin
        if 0 not in sizes and [offsets, sizes] not in boxes:
            boxes.append([offsets, sizes])
    return boxes


class Rows:
    """Chunks without a layout file."""

    def __init__(self, ranks, tensors):
        self.ranks = ranks
        self.chunks = {name: chunks_of(t["shape"], ranks, lambda rank, t=t: [(0, ranks, rank)] * bool(t["shape"]))
                       for name, t in tensors.items()}


class Whole:
    """Chunks of safetensors files without a layout."""

    def __init__(self, ranks, tensors):
        self.ranks = ranks
        self.chunks = {name: [[[0] * len(t["shape"]), t["shape"]]] for name, t in tensors.items()}


def as_glob(r, name):
    """A pattern that matches this name, and perhaps others."""
    if len(name) > 300 or r.random() < 0.2:
        name = name[:r.randint(0, 12)] + "*"
    safe = re.sub(r"[^A-Za-z0-9._/-]+", "*", name)
    return "*" + safe if safe in ("", "mesh") else safe


class Mesh:
    """Chunks with a layout file of random rules."""

    def __init__(self, r, tensors):
        shape = r.choice(MESHES)
        self.ranks = math.prod(shape)
        self.axes = dict(zip(r.sample(AXES, len(shape)), shape))
        patterns = [as_glob(r, name) for name in tensors if r.random() < 0.8]
        r.shuffle(patterns)
        patterns += ["*"] * r.randint(0, 1)
        first = {name: next((p for p in patterns if fnmatch.fnmatchcase(name, p)), None)
                 for name in tensors}
        rules = {}
        for p in patterns:
            dims = {len(t["shape"]) for name, t in tensors.items() if first[name] == p}
            rules.setdefault(p, self._random_splits(r, dims))
        self.text = "".join(f"{line}\n" for line in [
            "mesh " + " ".join(f"{a}={n}" for a, n in self.axes.items()),
            *(f"{p} " + (" ".join(f"{a}:{d}" for a, d in rules[p]) or "replicate")
              for p in patterns)])
        places = list(itertools.product(*map(range, shape)))
        self.chunks = {}
        for name, t in tensors.items():
            splits = rules.get(first[name], [])
            self.chunks[name] = chunks_of(t["shape"], self.ranks, lambda rank: [
                (d % len(t["shape"]), self.axes[a], places[rank][list(self.axes).index(a)])
                for a, d in splits])

    def _random_splits(self, r, dims):
        """[(axis, dimension)]: dimensions that all these tensors have, sometimes counted from the end."""
        least = min(dims, default=1)
        if not least:
            return []
        some = [a for a in self.axes if r.random() < 0.8]
        return [(a, r.randrange(least) - least * (len(dims) == 1 and r.random() < 0.2))
                for a in r.sample(some, len(some))]


# ---- one command


class Job:
    def __init__(self, case, name, kind, source=None):
        self.case, self.name, self.kind = case, name, kind
        self.source = source or f"{case.dir}/ckpt"
        self.dest = f"{case.dir}/{name}"
        self.tensors, self.objects = dict(case.tensors), dict(case.objects)
        self.args, self.refused = ["--format", kind], None
        self.more = {"zstd": False, "threads": 0, "file_per_item": False, "cast": name == "cast"}

    def place(self, plan):
        self.plan = plan
        if hasattr(plan, "text"):
            path = f"{self.dest}.layout"
            with open(path, "w", encoding="utf-8") as f:
                f.write(plan.text)
            self.args += ["--layout", path]
        if not hasattr(plan, "text") or self.case.r.random() < 0.3:
            self.args += ["--ranks", str(plan.ranks)]

    def options(self, r):
        """Options for DCP."""
        self.more |= {"zstd": r.random() < 0.3, "threads": r.choice([0, 0, 1, 2, 3, 16]),
                      "file_per_item": r.random() < 0.2}
        if self.more["zstd"]:
            self.args.append(r.choice(["--zstd", "--zstd=1", "--zstd=9"]))
        if self.more["threads"]:
            self.args += ["--threads", str(self.more["threads"])]
        if self.more["file_per_item"]:
            self.args.append("--file-per-item")
        if r.random() < 0.3:
            self.args.append("--save-to-lowest-rank")
        if r.random() < 0.3:
            self.args += ["--jobs", str(r.choice([1, 2, 5]))]

    def command(self, dest):
        return [self.case.ckptfs, "reshard", self.source, dest, "-q", *self.args]

    def describe(self):
        return {"name": f"{os.path.basename(self.case.dir)}/{self.name}", "format": self.kind,
                "case": os.path.basename(self.case.dir), "ranks": self.plan.ranks,
                "tensors": self.tensors, "objects": self.objects, "chunks": self.plan.chunks,
                "layout": hasattr(self.plan, "text"), "args": self.args, **self.more}


def digest_of(directory):
    """The names, times and contents of all files."""
    out = []
    for name in sorted(os.listdir(directory)):
        path = f"{directory}/{name}"
        with open(path, "rb") as f:
            out.append((name, os.stat(path).st_mtime_ns, hashlib.sha256(f.read()).hexdigest()))
    return out


class Case:
    def __init__(self, report, seed, directory, ckptfs):
        with open(f"{directory}/expected.json", encoding="ascii") as f:
            e = json.load(f)
        self.report, self.dir, self.ckptfs = report, directory, ckptfs
        self.tensors, self.objects = e["tensors"], e["objects"]
        self.r = random.Random(f"reshard/{seed}/{os.path.basename(directory)}")

    def jobs(self):
        r = self.r
        yield self.dcp("rows", Rows(r.randint(1, 9), self.tensors))
        yield self.dcp("mesh", Mesh(r, self.tensors))
        yield self.safetensors("st", Whole(r.randint(1, 5), self.tensors))
        yield self.safetensors("st-mesh", Mesh(r, self.tensors))
        plan = r.choice([Mesh, lambda r, t: Rows(r.randint(1, 9), t)])(r, self.tensors)
        yield self.that_fits(self.simple("hp", "hyperparallel", plan))
        yield self.cast()
        yield self.subset()
        yield self.megatron()

    def simple(self, name, kind, plan, **kwargs):
        job = Job(self, name, kind, **kwargs)
        job.place(plan)
        return job

    def dcp(self, name, plan, **kwargs):
        job = self.simple(name, "dcp", plan, **kwargs)
        job.options(self.r)
        return job

    def megatron(self):
        job = self.dcp("megatron", self.r.choice([Mesh, lambda r, t: Rows(r.randint(1, 9), t)])(self.r, self.tensors))
        job.kind, job.args[1] = "megatron", "megatron"
        job.args = [a for a in job.args if not a.startswith("--zstd")]
        job.more["zstd"] = False
        # In Megatron-core's names a slash separates an object from its part; other names must not have one.
        job.objects = {n: o for n, o in job.objects.items() if "/" not in n or is_part(n)}
        return job

    def safetensors(self, name, plan):
        job = self.that_fits(self.simple(name, "safetensors", plan))
        job.objects = {}
        if self.r.random() < 0.5:
            job.args += ["--shard-size", self.r.choice(["1000", "20KB", "1MB"])]
        return job

    def that_fits(self, job):
        """Tensors that safetensors files cannot hold are refused, or left out on request."""
        bad = [n for n, t in job.tensors.items() if not fits_safetensors(n, t)]
        if bad:
            job.refused = job.command(f"{job.dest}.refused")
        for name in bad:
            ours, pattern = like(name)
            job.args += ["--exclude", ours] if name else ["--include", "?*"]
            for entries in job.tensors, job.objects:
                for n in [n for n in entries if pattern.match(n.encode("utf-8", "surrogatepass"))]:
                    del entries[n]
        return job

    def cast(self):
        to, want = self.r.choice([("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
        job = self.dcp("cast", Mesh(self.r, self.tensors))
        job.args += ["--dtype", to]
        for name, t in job.tensors.items():
            if t["dtype"] in FLOATS and t["dtype"] != want:
                job.tensors[name] = {"dtype": want, "shape": t["shape"], "cast": True}
        return job

    def subset(self):
        """Takes some of the names, and renames some of them."""
        job = Job(self, "subset", "dcp")
        globs = "model.*", "nest.*"
        kept = lambda fqn: any(fqn.startswith(g.rstrip("*")) for g in globs) and not fqn.endswith(".norm.bias")
        if not any(map(kept, [*job.tensors, *job.objects])):  # an error: test_reshard.sh
            globs = ("*",)
        job.args += [*(word for g in globs for word in ("--include", g)), "--exclude", "*.norm.bias"]
        for kind in ("tensors", "objects"):
            entries = {n: e for n, e in getattr(job, kind).items() if kept(n)}
            setattr(job, kind, {renamed(n): e for n, e in entries.items()})
            job.more["was"] = job.more.get("was", {}) | {renamed(n): n for n in entries}
        with open(f"{job.dest}.rename", "w", encoding="ascii") as f:
            f.write(RULES)
        job.args += ["--rename", f"{job.dest}.rename"]
        job.place(Rows(self.r.randint(1, 5), job.tensors))
        return job

    # ---- running them

    def run(self, what, argv, status=0):
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        return self.report.check(
            f"{self.dir}: {what}", f"exit status {done.returncode}", done.returncode == status,
            f"{' '.join(argv[1:])}: {done.stderr.decode(errors='replace')[:500]}"), done.stdout

    def same(self, job, a, objects=True):
        """`ckptfs diff` must find no difference between another checkpoint and the job's."""
        done = subprocess.run([self.ckptfs, "diff", "--json", a, job.dest], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=120)
        where = f"{job.dest}: diff of {a}"
        if not self.report.check(where, f"exit status {done.returncode}", done.returncode < 2,
                                 done.stderr.decode(errors="replace")[:500]):
            return
        found = json.loads(done.stdout)
        left_out = {*self.tensors, *self.objects} - {*job.tensors, *job.objects}
        bad = [line for line in found["tensors"]
               if not (line["result"] == "only_a" and line["fqn"] in left_out) and
               (objects or line["a"]["type"] == "tensor")]
        self.report.check(where, f"{len(bad)} differ", not bad, ascii(bad[:2])[:500])
        # All tensors must have been compared, and objects, too, if they have the same form.
        wanted = len(job.tensors) + (len(job.objects) if objects else 0)
        equal = found["summary"]["equal"]
        self.report.check(where, f"{equal} equal, not {wanted}", equal >= wanted)

    def check(self, job):
        if job.name in ("cast", "subset", "megatron"):
            return
        self.same(job, f"{self.dir}/ckpt", objects=job.name in ("rows", "mesh"))

    def again(self, job):
        if self.run(f"{job.name} again", job.command(f"{job.dest}.again"))[0]:
            self.run(f"{job.name} twice", ["diff", "-r", job.dest, f"{job.dest}.again"])
        shutil.rmtree(f"{job.dest}.again", ignore_errors=True)

    def back(self, hp):
        """From DCP to HyperParallel and back: objects may change their form, but not their values."""
        job = self.dcp("back", Rows(self.r.randint(1, 4), hp.tensors), source=hp.dest)
        job.tensors, job.objects = dict(hp.tensors), {n: {} for n in hp.objects}
        return job

    def run_all(self):
        before, done = digest_of(f"{self.dir}/ckpt"), []
        jobs = list(self.jobs())
        jobs.append(self.back(jobs[4]))
        for job in jobs:
            if job.refused:
                self.run(f"{job.name} without --exclude", job.refused, 2)
            if self.run(job.name, job.command(job.dest))[0]:
                done.append(job.describe())
                self.check(job)
        self.again(self.r.choice(jobs[:-1]))
        self.report.check(self.dir, "SRC is not what it was", digest_of(f"{self.dir}/ckpt") == before)
        left = glob.glob(f"{self.dir}/*.partial*")
        self.report.check(self.dir, "left over", not left, left)
        return done


def main():
    seed, top, ckptfs = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    report, jobs = Report(), []
    for directory in sorted(glob.glob(f"{top}/case*")):
        jobs += Case(report, seed, directory, ckptfs).run_all()
    with open(f"{top}/jobs.json", "w", encoding="ascii") as f:
        json.dump(jobs, f)
    print(f"{report.passed} passed, {report.failed} failed")
    sys.exit(report.failed != 0)


if __name__ == "__main__":
    main()
