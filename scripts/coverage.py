#!/usr/bin/env python3
# coverage.py [--report] [--missing FILE...] - run the tests on build/coverage (unit suites, corpora of the fuzz targets,
# suites on mounts) and print how much of core/ and fs/ they reach, by folder: lines, and branches (each condition both
# ways).
#
# $UNIT, $MOUNTS, $JOBS and $CHECK_FULL are those of check.sh. --report: print the last run's table again. --missing:
# print the lines and conditions of a file that no test reaches. Also writes build/coverage/suites.json, from which
# scripts/mutants.py learns which unit suites reach a function.
#
# The counters of a program are a mapped file, so confined and killed processes count. Code that no test can reach is
# marked in the source by a comment "not covered: REASON" at the end of a line; this line and those below that are
# indented further are left out.
import argparse
import collections
import glob
import json
import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = "build/coverage"
PROFILE = f"{BUILD}/suites"  # counters of each suite
OTHER = f"{BUILD}/profile"  # counters of programs that are started without our environment
LEAST = {"core": (97, 92), "fs": (92, 82)}
# These suites test the build and the test runner.
NOT_RUN = {"build", "check", "library"}
PROGRAMS = ["tests/unit", "ckptfs", "ckptfs-fetch", "tests/dir-fetch", "libckpt.so.0.5"]
MARK = re.compile(r"/\* not covered: .*\*/\s*$")


def tool(name):
    """The path of one of LLVM's tools, of the same version as clang."""
    path = subprocess.run([os.environ.get("CC", "clang"), f"-print-prog-name={name}"], capture_output=True, text=True,
                          check=True).stdout.strip()
    return path if os.path.isabs(path) else name


def run_suites():
    mounts = os.environ.get("MOUNTS") or " ".join(
        sorted({re.sub(r".*/test_(.*)\.sh", r"\1", f) for f in glob.glob(f"{TOP}/tests/fs/test_*.sh")} - NOT_RUN))
    for directory in (PROFILE, OTHER):
        os.makedirs(os.path.join(TOP, directory), exist_ok=True)
        os.chmod(os.path.join(TOP, directory), 0o1777)  # some tests run as another user
        for f in glob.glob(os.path.join(TOP, directory, "*")):
            os.unlink(f)
    env = dict(os.environ, MOUNTS=mounts, PROFILE=os.path.join(TOP, PROFILE))
    return subprocess.run(["scripts/check.sh", BUILD], cwd=TOP, env=env).returncode


def merged(files, out):
    """Merges profiles into one."""
    files = [f for f in files if os.path.getsize(f)]
    subprocess.run([tool("llvm-profdata"), "merge", "-sparse", "-failure-mode=all", "-f", "/dev/stdin", "-o", out],
                   input="\n".join(files), text=True, check=True)


class Source:
    def __init__(self):
        self.lines = collections.Counter()
        self.branches = collections.Counter()
        self.functions = []  # (first line, name)


def exported(profile, form):
    objects = [os.path.join(TOP, BUILD, p) for p in PROGRAMS]
    more = [word for o in objects[1:] if os.path.exists(o) for word in ("-object", o)]
    return subprocess.run([tool("llvm-cov"), "export", *form, objects[0], *more, f"-instr-profile={profile}"], cwd=TOP,
                          capture_output=True, text=True, check=True).stdout


def counts_of(profile):
    """{file: Source} of core/ and fs/."""
    files, now = collections.defaultdict(Source), None

    def source_of(path):
        path = os.path.relpath(os.path.join(TOP, path), TOP)
        return files[path] if path.startswith(("core/", "fs/")) else None

    for row in exported(profile, ["-format=lcov"]).splitlines():
        key, _, rest = row.partition(":")
        if key == "SF":
            now = source_of(rest)
        elif now and key == "FN":
            line, name = rest.split(",", 1)
            now.functions.append((int(line), name))
        elif now and key == "DA":
            line, n = rest.split(",")[:2]
            now.lines[int(line)] += int(n)
    # A function in a header is in many objects; its branches are added up by their place in the source.
    for file in json.loads(exported(profile, ["-format=text", "-skip-functions"]))["data"][0]["files"]:
        now = source_of(file["filename"])
        for line, column, last, end, true, false, *_ in file["branches"] if now else []:
            for way, n in ("true", true), ("false", false):
                now.branches[line, column, last, end, way] += n
    return files


def left_out(path):
    """Numbers of the lines that are marked as out of reach."""
    found, depth = set(), None
    with open(os.path.join(TOP, path)) as f:
        for number, row in enumerate(f, 1):
            indent = len(row) - len(row.lstrip("\t"))
            if depth is not None and row.strip() and indent <= depth:
                depth = None
            if MARK.search(row):
                found.add(number)
                depth = indent
            elif depth is not None:
                found.add(number)
    return found


def table(files):
    """Prints it; returns whether the targets are reached."""
    folders = collections.defaultdict(lambda: [0, 0, 0, 0])
    marked = 0
    for path, source in files.items():
        out = left_out(path)
        lines = {k: n for k, n in source.lines.items() if k not in out}
        branches = {k: n for k, n in source.branches.items() if k[0] not in out}
        marked += len(source.lines) - len(lines)
        words = path.split("/")
        for folder in (words[0], "/".join(words[:2])):
            for i, n in enumerate((sum(map(bool, lines.values())), len(lines), sum(map(bool, branches.values())),
                                   len(branches))):
                folders[folder][i] += n
    print("| folder | lines | reached | branches | taken |\n| --- | --- | --- | --- | --- |")
    enough = True
    for folder in sorted(folders, key=lambda f: ("/" not in f, f)):
        hit, lines, taken, branches = folders[folder]
        share = 100 * hit / max(lines, 1), 100 * taken / max(branches, 1)
        enough &= all(s >= least for s, least in zip(share, LEAST.get(folder, (0, 0))))
        print(f"| {folder} | {lines:,} | {share[0]:.1f} % | {branches:,} | {share[1]:.1f} % |")
    print(f"\n{marked} lines are marked as out of reach and left out")
    return enough


def print_missing(path, source):
    out = left_out(path)
    with open(os.path.join(TOP, path)) as f:
        text = f.read().split("\n")
    for number in sorted(set(source.lines) | {k[0] for k in source.branches}):
        ways = {k: n for k, n in source.branches.items() if k[0] == number}
        if number in out or (source.lines[number] and all(ways.values())):
            continue
        never = f"{sum(not n for n in ways.values())} of {len(ways)} ways" if source.lines[number] else "line"
        print(f"{path}:{number}: never: {never}: {text[number - 1].strip()}")


def suites_of(files):
    """{file: {suite: [[first, last line]...]}} for the functions that each unit suite runs."""
    where = {}
    for path, source in files.items():
        starts = sorted(source.functions)
        for i, (line, name) in enumerate(starts):
            last = starts[i + 1][0] - 1 if i + 1 < len(starts) else 1 << 30
            where[os.path.basename(path), name.split(":")[-1]] = path, line, last
            where.setdefault(name.split(":")[-1], (path, line, last))
    found = {}
    names = {re.sub(r".*/unit-(.*)-\d+_\d+\.profraw", r"\1", f) for f in glob.glob(f"{TOP}/{PROFILE}/unit-*.profraw")}
    for suite in sorted(names):
        raw = [f for f in glob.glob(f"{TOP}/{PROFILE}/unit-{suite}-*.profraw") if re.search(r"-\d+_\d+\.profraw$", f)]
        one = f"{TOP}/{BUILD}/one.profdata"
        merged(raw, one)
        shown = subprocess.run([tool("llvm-profdata"), "show", "-all-functions", "-counts", one], capture_output=True,
                               text=True, check=True).stdout
        for m in re.finditer(r"^  (\S.*):\n    Hash: .*\n    Counters: .*\n    Function count: (\d+)", shown, re.M):
            if m[2] == "0":
                continue
            file, _, name = m[1].rpartition(":")
            place = where.get((os.path.basename(file), name)) or where.get(name)
            if place:
                found.setdefault(place[0], {}).setdefault(suite, []).append(place[1:])
    return found


def main():
    p = argparse.ArgumentParser(usage="coverage.py [--report] [--missing FILE...]")
    p.add_argument("--report", action="store_true")
    p.add_argument("--missing", nargs="+", default=[])
    args = p.parse_args()
    status = 0 if args.report or args.missing else run_suites()
    whole = os.path.join(TOP, BUILD, "whole.profdata")
    if not args.missing or not os.path.exists(whole):
        merged(glob.glob(f"{TOP}/{PROFILE}/*.profraw") + glob.glob(f"{TOP}/{OTHER}/*.profraw"), whole)
    files = counts_of(whole)
    for path in args.missing:
        if path not in files:
            sys.exit(f"coverage.py: '{path}' is not in build/coverage")
        print_missing(path, files[path])
    if args.missing:
        return 0
    enough = table(files)
    if not args.report:
        with open(os.path.join(TOP, BUILD, "suites.json"), "w") as f:
            json.dump(suites_of(files), f)
    if not enough:
        print("below the targets: " + ", ".join(f"{k} {a} % of lines, {b} % of branches" for k, (a, b) in LEAST.items()))
    return status or not enough


if __name__ == "__main__":
    sys.exit(main())
