#!/usr/bin/env python3
# mutants.py [-n N] [-s SEED] [-j JOBS] [--suites N] [--full] [--only TEXT] [--list] [FILE|GROUP...]
#
# Do the tests notice small mistakes?
#
# Puts one small mistake at a time into a source file: another operator, a bound that is off by one, a call left out,
# a condition negated or ignored, another error or none. Compiles the file, links it with the rest of build/release,
# and runs the tests until one fails, which kills the mutant; the nearest suites first. What survives is printed with
# file, line and mistake: the tests have a gap there, or the mistake changes nothing that can be observed. Mistakes of
# the second kind are listed in tests/mutants.txt with the reason, and are not tried.
#
# The N mutants (default 300) are spread over the groups of files below, or the files and groups given. The same SEED
# (default 1) takes the same ones from the same sources. --suites: run at most so many suites for each mutant; --full:
# try those that survive with the long loops of the nearest three suites, too; --only TEXT: take mutants whose
# "FILE:LINE: WHAT" contains it; --list: run nothing. Exit status 1 if any has survived.
#
# After `make coverage` it runs only suites that reach the line. Nothing else may build in build/release meanwhile.
import argparse
import collections
import ctypes
import functools
import glob
import json
import multiprocessing
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = "build/release"
EQUIVALENT = "tests/mutants.txt"
REACHED = "build/coverage/suites.json"
GROUPS = {
    "plan": ["core/read/plan.c"],
    "box": ["core/model/box.c", "core/model/box_cover.c"],
    "chunkmap": ["core/model/chunkmap.c"],
    "index": ["core/index/*.c"],
    "parse": ["core/parse/*.c"],
    "format": ["core/format/*.c", "core/format/*/*.c"],
    "staging": ["core/store/staging.c", "core/store/staging_place.c"],
    "sandbox": ["fs/mount/sandbox.c", "fs/mount/sandbox_calls.c"],
}
# Suites on mounts, run after the unit suites for files of which these test only a part.
MOUNTS = {"fs/mount/sandbox": ["sandbox", "security"], "fs/": ["mount", "commands", "tree", "bytes"]}
SECONDS = 60  # limit for a suite; normally it takes seconds

Mutant = collections.namedtuple("Mutant", "file line start end new what")


# ---- mistakes ----

TOKEN = re.compile(r"""
    (?P<skip> /\*.*?\*/ | //[^\n]* | ^\#(?:\\\n|[^\n])* | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*')
  | (?P<word> [A-Za-z_]\w* )
  | (?P<number> (?:0[xX][0-9a-fA-F]+|\d+)[uUlL]* )
  | (?P<op> ->|\+\+|--|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%&|^~!<>=?:;,.(){}\[\]] )
""", re.S | re.M | re.X)

SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
         "+=": "-=", "-=": "+=", "|=": "=", "<<": ">>", ">>": "<<", "++": "--", "--": "++"}
BINARY = {"+": "-", "-": "+", "|": "&", "&": "|", "%": "+", "/": "*"}
ERRNO = re.compile(r"E[A-Z0-9]+$|ERR_[A-Z]+$")
TYPES = {"return", "sizeof", "case", "else", "const", "struct", "int", "char", "goto", "enum", "static", "unsigned"}


def tokens_of(text):
    """(kind, text, start, end) of each token, without comments, and with strings as "skip"."""
    return [(m.lastgroup, m.group(), m.start(), m.end()) for m in TOKEN.finditer(text)
            if not m.group().startswith(("/*", "//", "#"))]


def matching(tokens, i):
    """Index of the bracket that closes the one at i."""
    depth = 0
    for k in range(i, len(tokens)):
        if tokens[k][1] in "([{":
            depth += 1
        elif tokens[k][1] in ")]}":
            depth -= 1
            if not depth:
                return k
    return None


def bodies(tokens):
    """(first, last) token of each function's body."""
    i = 0
    while i < len(tokens):
        if tokens[i][1] == "{":
            end = matching(tokens, i)
            if end is None:
                return
            if i and tokens[i - 1][1] == ")":
                yield i, end
            i = end
        i += 1


def operand_before(token):
    return token[0] in ("number", "skip") or token[1] in (")", "]") or (token[0] == "word" and token[1] not in TYPES)


def of_token(tokens, i, text):
    """Mistakes in one token: (start, end, new, what)."""
    kind, word, start, end = tokens[i]
    before, after = tokens[i - 1], tokens[i + 1]
    if kind == "number" and word.rstrip("uUlL").isdigit() and before[1] not in ("[", "=", "{", ",") and \
            "alloc(" not in text[text.rfind("\n", 0, start):start]:
        yield start, end, f"({word} + 1)", f"{word} + 1"
    if kind == "word" and ERRNO.match(word) and before[1] in (",", "-", "("):
        yield start, end, "EIO" if word != "EIO" else "EINVAL", f"another error for {word}"
    if kind == "word" and word in ("true", "false"):
        yield start, end, {"true": "false", "false": "true"}[word], f"not {word}"
    if kind != "op":
        return
    if word in ("<", ">") and tokens[i - 1][1] == "include":
        return
    if word in SWAPS:
        yield start, end, SWAPS[word], f"{SWAPS[word]} for {word}"
        if word in ("<", "<=", ">", ">="):
            other = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}[word]
            yield start, end, other, f"{other} for {word}"
    elif word in BINARY and operand_before(before) and text[start - 1] == " " and text[end] == " " and \
            "alloc(" not in text[text.rfind("\n", 0, start):start]:
        yield start, end, BINARY[word], f"{BINARY[word]} for {word}"
    elif word == "!" and after[1] != "!" and before[1] in ("(", "&&", "||", "="):
        yield start, end, "", "! left out"


def of_condition(tokens, i):
    """Mistakes in if (...) and while (...)."""
    close = matching(tokens, i + 1)
    if close is None or close == i + 2:
        return
    start, end = tokens[i + 1][3], tokens[close][2]
    yield start, start, "!(", "condition negated", end, ")"
    yield start, start, "0 && (", "condition ignored", end, ")"


def of_statement(tokens, i, text):
    """Mistakes in the statement that begins at token i."""
    k = i
    while k < len(tokens) and tokens[k][1] not in (";", "{", "}"):
        k = matching(tokens, k) + 1 if tokens[k][1] in ("(", "[") else k + 1
    if k >= len(tokens) or tokens[k][1] != ";" or k == i:
        return
    start, end = tokens[i][2], tokens[k][3]
    first, words = tokens[i], [t[1] for t in tokens[i:k]]
    if first[1] == "return":
        value = text[tokens[i][3]:tokens[k][2]].strip()
        if re.match(r"err_\w+\(", value) or re.fullmatch(r"rc|-E[A-Z]+|-e->code", value):
            yield start, end, f"{{ (void)({value}); return 0; }}", "error not returned"
        return
    called = first[0] == "word" and words[1:2] == ["("] and matching(tokens, i + 1) == k - 1
    ignored = words[:3] == ["(", "void", ")"]
    assigned = "=" in words and (words[1:2] in (["="], ["->"], ["."], ["["]) or first[1] == "*")
    if (called or ignored or assigned) and first[1] not in TYPES | {"if", "while", "for", "switch", "do"}:
        if first[1].isupper() or re.search(r"(^|_)(free|release)$", words[3] if ignored else words[0]):
            return  # only ThreadSanitizer or AddressSanitizer would notice
        if ignored and words[3:4] == [words[-1]]:
            return  # (void)argument;
        yield start, end, ";", "left out"
    if words in (["continue"], ["break"]):
        other = "break" if words == ["continue"] else "continue"
        yield start, end, other + ";", f"{other} for {words[0]}"


@functools.cache
def text_of(path):
    """As it was when we started."""
    with open(os.path.join(TOP, path)) as f:
        return f.read()


def mistakes(path):
    """All mutants of a file."""
    text = text_of(path)
    tokens = tokens_of(text)

    def mutant(start, end, new, what):
        line = text.count("\n", 0, start) + 1
        return Mutant(path, line, start, end, new, what)

    for first, last in bodies(tokens):
        for i in range(first + 1, last):
            before = tokens[i - 1][1]
            for start, end, new, what in of_token(tokens, i, text):
                yield mutant(start, end, new, what)
            if tokens[i][1] in ("if", "while") and tokens[i + 1][1] == "(":
                for start, _, opening, what, close, closing in of_condition(tokens, i):
                    yield mutant(start, close, opening + text[start:close] + closing, what)
            if before in (";", "{", "}", "else") or (before == ")" and is_condition(tokens, i - 1)):
                for start, end, new, what in of_statement(tokens, i, text):
                    yield mutant(start, end, new, what)


def is_condition(tokens, close):
    """Whether the bracket at `close` ends the condition of an if, for or while, or the arguments of a loop macro."""
    depth = 0
    for k in range(close, -1, -1):
        if tokens[k][1] == ")":
            depth += 1
        elif tokens[k][1] == "(":
            depth -= 1
            if not depth:
                return tokens[k - 1][1] in ("if", "for", "while") or tokens[k - 1][1].isupper()
    return False


def mutated(m):
    """The file with the mistake; its line before and after."""
    text = text_of(m.file)
    new = text[:m.start] + m.new + text[m.end:]
    begin = text.rfind("\n", 0, m.start) + 1

    def line(s):
        return " ".join(s[begin:(s + "\n").find("\n", begin)].split())

    return new, line(text), line(new)


def label(m):
    return f"{m.file}:{m.line}: {m.what}"


def function_of(m):
    names = re.findall(r"^[a-z][^\n;=]*?(\w+)\(", text_of(m.file)[:m.start], re.M)
    return names[-1] if names else ""


def equivalent():
    """("FILE FUNCTION", line before, line after) of each mistake that changes nothing; see the file."""
    known = set()
    with open(os.path.join(TOP, EQUIVALENT)) as f:
        rows = [row.rstrip("\n") for row in f if row.strip() and not row.startswith("#")]
    for i in range(0, len(rows), 4):
        known.add((rows[i], rows[i + 1][2:].strip(), rows[i + 2][2:].strip()))
    return known


# ---- suites ----

def unit_suites():
    with open(os.path.join(TOP, "tests/suites.h")) as f:
        return re.findall(r"^\tX\(([a-z0-9_]+)\)", f.read(), re.M)


def in_folder(path):
    """Names of the suites in the folder of tests/ that has the file's name."""
    names = set()
    for test in glob.glob(os.path.join(TOP, "tests", os.path.dirname(path), "test_*.c")):
        names.add(re.sub(r".*/test_(.*)\.c", r"\1", test))
    return names


class Suites:
    def __init__(self, most):
        self.most = most
        self.all = unit_suites()
        self.reached = {}
        try:
            with open(os.path.join(TOP, REACHED)) as f:
                self.reached = json.load(f)
        except OSError:
            print(f"no {REACHED} (make coverage): all suites are run for what survives", file=sys.stderr)

    def mounts_of(self, path):
        return next((names for prefix, names in MOUNTS.items() if path.startswith(prefix)), [])

    def of(self, m):
        """The suites that run this line, the nearest first."""
        lines = self.reached.get(m.file)
        reaching = None if lines is None else {s for s, ranges in lines.items()
                                               if any(a <= m.line <= b for a, b in ranges)}
        stem = os.path.basename(m.file)[:-2]
        near = in_folder(m.file)
        if m.file.startswith("fs/") and not lines:  # few suites contain it
            reaching = near

        def distance(name):
            named = stem == name, bool(name) and (stem.startswith(name) or name.startswith(stem))
            words = len(set(name.split("_")) & set(stem.split("_")))
            return not named[0], not named[1], -words, name not in near, self.all.index(name)

        return sorted((s for s in self.all if reaching is None or s in reaching), key=distance)[:self.most]


# ---- building and running ----

def commands_of(targets):
    """The command with which make would make each target. targets: {target: a file that it is made from}."""
    newer = [word for name in targets.values() for word in ("-W", name)]
    # $MUTANTS_MAKE names the compiler of the existing build.
    out = subprocess.run(["make", "-n", "V=1", *newer, *os.environ.get("MUTANTS_MAKE", "").split(), *targets],
                         cwd=TOP, capture_output=True, text=True, check=True).stdout
    found = {}
    for row in out.replace("\\\n", " ").splitlines():
        if " -o " in row:
            target = row.split(" -o ")[1].split()[0]
            found.setdefault(target, shlex.split(row.split("&&")[-1]))
    for target in targets:
        if target not in found:
            sys.exit(f"mutants.py: make does not say how {target} is made")
    return found


def replaced(command, old, new):
    return [new if word == old else word for word in command]


class Program:
    """tests/unit or ckptfs, linked with one object of a mutant."""

    def __init__(self, target, command):
        self.target = target
        self.command = command + ["-Wl,-S"]
        if shutil.which("ld.gold"):
            self.command += ["-fuse-ld=gold"]

    def link(self, source, obj, out):
        own = f"{RELEASE}/{source[:-2]}.o"
        command = replaced(self.command, self.target, out)
        if own in command:
            command = replaced(command, own, obj)
        else:  # in front of the library, so that the linker does not take the library's own object
            command.insert(command.index(f"{RELEASE}/libcore.a"), obj)
        return subprocess.run(command, cwd=TOP, capture_output=True, text=True)


def adopt_orphans():
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def kill_descendants():
    """Ends everything that this process has started, including what has left its group."""
    for _ in range(100):
        parents = {}
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                with open(path) as f:
                    pid, rest = f.read().split(" (", 1)
                parents[int(pid)] = int(rest.rsplit(") ", 1)[1].split()[1])
            except OSError:
                pass
        ours, found = {os.getpid()}, True
        while found:
            found = {p for p, parent in parents.items() if parent in ours} - ours
            ours |= found
        ours.discard(os.getpid())
        for pid in ours:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if not ours:
            return
        time.sleep(0.05)


def limits():
    gib = 1 << 30
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 * gib, 8 * gib))
    resource.setrlimit(resource.RLIMIT_AS, (32 * gib, 32 * gib))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.setsid()


def run_unit(program, suite, tmp, full):
    """The name of the test that failed, or None."""
    env = dict(os.environ, TMPDIR=tmp, CK_TAP_LOG_FILE_NAME="-", CK_VERBOSITY="silent", TEST_SEED="1",
               CK_TIMEOUT_MULTIPLIER="2")
    env.pop("CHECK_FULL", None)
    if full:
        env["CHECK_FULL"] = "1"
    p = subprocess.Popen([program, suite], cwd=TOP, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True, errors="replace", preexec_fn=limits)
    signal.alarm(SECONDS * (4 if full else 1))
    try:
        for row in p.stdout:
            if row.startswith("not ok"):
                return row.split(":")[-2].strip() if row.count(":") > 1 else row.strip()
        return f"{suite}: exit status {p.returncode}" if p.wait() else None
    except TimeoutError:
        return f"{suite}: takes too long"
    finally:
        signal.alarm(0)
        kill_descendants()
        p.stdout.close()


def run_mounts(build, suite, tmp, full):
    env = dict(os.environ, UNIT="none", MOUNTS=suite, JOBS="1", TEST_SEED="1", TMPDIR=tmp)
    if full:
        env["CHECK_FULL"] = "1"
    p = subprocess.Popen(["scripts/check.sh", build], cwd=TOP, env=env, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace")
    signal.alarm(SECONDS * 4)
    try:
        failed = [row.strip() for row in p.stdout if row.startswith("FAILED")]
        return failed[0] if failed else f"{suite}: exit status {p.returncode}" if p.wait() else None
    except TimeoutError:
        return f"{suite}: takes too long"
    finally:
        signal.alarm(0)
        if p.poll() is None:
            p.terminate()
            try:
                p.wait(30)
            except subprocess.TimeoutExpired:
                pass
        kill_descendants()
        p.stdout.close()


def on_alarm(_sig, _frame):
    raise TimeoutError


class Worker:
    """Tries mutants in a process of its own, with a build directory of its own."""

    def __init__(self, programs, compilers, suites, full):
        self.programs, self.compilers, self.suites, self.full = programs, compilers, suites, full
        self.build = os.path.join(TOP, "build/mutants", str(os.getpid()), "release")
        os.makedirs(os.path.join(self.build, "tests"))
        for f in glob.glob(os.path.join(TOP, RELEASE, "tests/*")):
            if os.access(f, os.X_OK) and os.path.isfile(f) and not f.endswith("/unit"):
                os.symlink(f, os.path.join(self.build, "tests", os.path.basename(f)))
        os.symlink(os.path.join(TOP, RELEASE, "ckptfs-fetch"), os.path.join(self.build, "ckptfs-fetch"))
        adopt_orphans()
        signal.signal(signal.SIGALRM, on_alarm)

    def attempt(self, m):
        """(result, by what): killed, survived, invalid (does not compile)."""
        obj = os.path.join(self.build, "mutant.o")
        source = os.path.join(self.build, "mutant.c")
        with open(source, "w") as f:
            f.write(mutated(m)[0])
        command = replaced(replaced(self.compilers[m.file], f"{RELEASE}/{m.file[:-2]}.o", obj), m.file, source)
        command = [w for w in command if w not in ("-MMD", "-MP", "-g") and not w.startswith("-W")] + ["-w"]
        if subprocess.run(command, cwd=TOP, capture_output=True).returncode:
            return "invalid", ""
        tmp = tempfile.mkdtemp(prefix="ckptfs-mutant-")
        os.chmod(tmp, 0o711)
        try:
            return self.test(m, obj, tmp)
        finally:
            shutil.rmtree(tmp, ignore_errors=True)

    def test(self, m, obj, tmp):
        mounts, units = self.suites.mounts_of(m.file), self.suites.of(m)
        if not mounts and not units:
            return "survived", "no suite reaches the line"
        for kind, suites, run in ("unit", units, run_unit), ("ckptfs", mounts, run_mounts):
            out = os.path.join(self.build, "ckptfs" if kind == "ckptfs" else "tests/unit")
            if suites and self.programs[kind].link(m.file, obj, out).returncode:
                return "invalid", ""
            for suite in suites:
                by = run(self.build if kind == "ckptfs" else out, suite, tmp, self.full and kind == "ckptfs")
                if by:
                    return "killed", by
            for suite in suites[:3] if self.full and kind == "unit" else []:
                by = run_unit(out, suite, tmp, True)
                if by:
                    return "killed", by + " (full run)"
        return "survived", f"{len(units) + len(mounts)} suites"


worker = None


def start_worker(*args):
    global worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker(*args)


def attempt(numbered):
    number, m = numbered
    start = time.monotonic()
    result, by = worker.attempt(m)
    return number, result, by, time.monotonic() - start


# ---- the sample ----

def files_of(group):
    return sorted(os.path.relpath(f, TOP) for pattern in GROUPS[group] for f in glob.glob(os.path.join(TOP, pattern)))


def sample(args):
    """(group, mutant) pairs: the same number from each group, or all of a group that has fewer."""
    groups = {f: files_of(f) if f in GROUPS else [f] for f in args.files or GROUPS}
    known, pools, skipped = equivalent(), {}, 0
    for group, files in groups.items():
        pool = []
        for m in (m for f in files for m in mistakes(f)):
            _, before, after = mutated(m)
            if (f"{m.file} {function_of(m)}", before, after) in known:
                skipped += 1
            elif not args.only or args.only in label(m):
                pool.append(m)
        random.Random(f"{args.seed} {group}").shuffle(pool)
        pools[group] = pool
    print(f"{sum(map(len, pools.values()))} mistakes are possible; {skipped} more are known to change nothing")
    left, chosen = args.n, []
    for k, group in enumerate(sorted(pools, key=lambda g: len(pools[g]))):
        share = left // (len(pools) - k)
        chosen += [(group, m) for m in pools[group][:share]]
        left -= min(share, len(pools[group]))
    return sorted(chosen, key=lambda c: c[1].file.startswith("fs/"))  # what takes longest last


def report(chosen, results):
    survivors = 0
    print("\n| group | mutants | killed | |\n| --- | --- | --- | --- |")
    for group in dict.fromkeys(g for g, _ in chosen):
        found = [results[i][0] for i, (g, _) in enumerate(chosen) if g == group and i in results]
        n = sum(r != "invalid" for r in found)
        killed = found.count("killed")
        survivors += n - killed
        print(f"| {group} | {n} | {killed} | {100 * killed / max(n, 1):.0f} % |")
    return survivors


def arguments():
    p = argparse.ArgumentParser(usage="mutants.py [-n N] [-s SEED] [-j JOBS] [--suites N] [--full] [--only TEXT] [--list] [FILE|GROUP...]")
    p.add_argument("-n", type=int, default=300)
    p.add_argument("-s", "--seed", default="1")
    p.add_argument("-j", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--suites", type=int, default=1000, help="at most so many for each")
    p.add_argument("--only")
    p.add_argument("--list", action="store_true")
    p.add_argument("--full", action="store_true", help="what survives also meets the long loops of the nearest suites")
    p.add_argument("files", nargs="*")
    return p.parse_args()


def main():
    args = arguments()
    sys.stdout.reconfigure(line_buffering=True)
    chosen = sample(args)
    if args.list:
        for _, m in chosen:
            print(label(m) + "\n  - " + mutated(m)[1] + "\n  + " + mutated(m)[2])
        return 0
    shutil.rmtree(os.path.join(TOP, "build/mutants"), ignore_errors=True)
    files = sorted({m.file for _, m in chosen})
    linked = {f"{RELEASE}/tests/unit": f"{RELEASE}/tests/runner.o", f"{RELEASE}/ckptfs": f"{RELEASE}/fs/cmd/main.o"}
    commands = commands_of(linked | {f"{RELEASE}/{f[:-2]}.o": f for f in files})
    compilers = {f: commands[f"{RELEASE}/{f[:-2]}.o"] for f in files}
    programs = {os.path.basename(target): Program(target, commands[target]) for target in linked}
    results = {}
    with multiprocessing.get_context("fork").Pool(args.j, start_worker,
                                                  (programs, compilers, Suites(args.suites), args.full)) as pool:
        for number, result, by, seconds in pool.imap_unordered(attempt, enumerate(m for _, m in chosen)):
            results[number] = result, by
            m = chosen[number][1]
            print(f"{result:8} {label(m)} ({by}; {seconds:.1f} s)")
            if result == "survived":
                print(f"  - {mutated(m)[1]}\n  + {mutated(m)[2]}")
    survivors = report(chosen, results)
    print("\nsurvivors:" if survivors else "\nno survivor")
    for number in sorted(n for n, r in results.items() if r[0] == "survived"):
        m = chosen[number][1]
        print(f"{m.file} {function_of(m)}\n- {mutated(m)[1]}\n+ {mutated(m)[2]}\n= line {m.line}, {m.what}: {results[number][1]}\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
