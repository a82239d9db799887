"""What all cases share: mounts, readers, the page cache, sampling and results.

A case has parties: first ckptfs, then the baseline for its ratio, then any others. In each round they
take turns in a different order, so that other load on the machine affects them equally.
"""
import contextlib
import dataclasses
import math
import mmap
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
EXAMPLES = "/usr/share/doc/libfuse3-dev/examples"
CHROOT = os.environ.get("CKPTFS_CHROOT", "/var/cache/ckptfs/forky")
MIB, GIB = 1 << 20, 1 << 30
MAP_POPULATE = 0x8000  # in the mmap module from Python 3.10 on
UNITS = [("s", 1), ("ms", 1e3), ("ns", 1e9)]
BUSY = 0.15  # share of one CPU above which a round is marked as busy


class Skip(Exception):
    """Why a case cannot be measured on this machine."""


class Failed(Exception):
    """Why a case that should have been measured could not be."""


@dataclasses.dataclass
class Sample:
    """One run: seconds and bytes of each pass; the other members are of the whole run, if known."""
    passes: list
    client_cpu_s: float = None
    daemon_cpu_s: float = None
    rss_anon_mib: float = None
    rss_file_mib: float = None
    peak_mib: float = None  # of a command, with all of its processes


@dataclasses.dataclass
class Target:
    """The least ratio to the baseline, and a better one to aim at; or the most seconds allowed."""
    least: float = None
    better: float = None
    seconds: float = None

    def __str__(self):
        if self.seconds is not None:
            return f"{self.seconds:g} s"
        return " / ".join(f"{x:g}" for x in (self.least, self.better) if x is not None)

    def reached(self, ratio, seconds):
        """None if there is no target or no baseline."""
        if self.seconds is not None:
            return seconds <= self.seconds
        return None if self.least is None or ratio is None else ratio >= self.least


@dataclasses.dataclass
class Row:
    """One line of the results: one pass of a case."""
    group: str
    name: str
    unit: str  # of the values: GB/s, or one of UNITS
    values: dict  # party: median
    ratio: list  # to the baseline: median, least, most; empty without a baseline
    others: dict  # party: median ratio of ckptfs to it
    memory: dict  # party: MiB
    target: str
    reached: bool  # None: no target
    daemon_cpu_s_per_gib: float
    rss_mib: list  # of the daemon: anonymous, file
    busy_rounds: int
    rounds: int

    def value(self, party):
        return f"{short(self.values[party])} {self.unit}"

    def __str__(self):
        ours, *baseline = list(self.values)[:2]
        out = f"{self.group + ': ' + self.name:45s} {self.value(ours):>10s}"
        if self.ratio:
            low, high = (short(x) for x in self.ratio[1:])
            out += (f"   {baseline[0]} {self.value(baseline[0])}   ratio {short(self.ratio[0])} "
                    f"[{low}..{high}]")
        if self.target:
            out += f"   target {self.target}" + (" MISSED" if self.reached is False else "")
        if self.daemon_cpu_s_per_gib is not None:
            out += f"   daemon {self.daemon_cpu_s_per_gib:.3f} s/GiB"
        if self.rss_mib:
            out += "   RSS {:.1f} + {:.0f} MiB".format(*self.rss_mib)
        for party, ratio in self.others.items():
            out += f"   {party} {self.value(party)} ({short(ratio)})"
        if len(self.memory) > 1:
            out += "   peak MiB: " + ", ".join(f"{p} {m:.0f}" for p, m in self.memory.items())
        if self.busy_rounds:
            out += f"   ({self.busy_rounds} of {self.rounds} rounds on a busy machine)"
        return out


def short(x):
    """A number with three significant digits."""
    return f"{x:.{max(0, 2 - math.floor(math.log10(x)))}f}" if x else "0"


def busy_cpus(seconds):
    """The average number of CPUs that were busy (or taken by the hypervisor) during that time."""
    def read():
        with open("/proc/stat", encoding="ascii") as f:
            v = [int(x) for x in f.readline().split()[1:9]]
        return sum(v) - v[3] - v[4]

    before = read()
    time.sleep(seconds)
    return (read() - before) / os.sysconf("SC_CLK_TCK") / seconds


def run_command(argv, stderr=None):
    """Runs a command; returns seconds, CPU time and peak memory, each including its children. A peak below
    this program's own 20 MiB cannot be measured."""
    start = time.perf_counter()
    p = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=stderr)
    _, status, use = os.wait4(p.pid, 0)
    seconds = time.perf_counter() - start
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        raise Failed(f"'{' '.join(argv)}' failed")
    return seconds, use.ru_utime + use.ru_stime, use.ru_maxrss / 1024


def unmount(mnt):
    """Unmounts, even if the mount is in use."""
    for lazy in [], ["-z"]:
        if not subprocess.run(["fusermount3", "-u", *lazy, mnt], check=False,
                              stderr=subprocess.DEVNULL).returncode:
            return


class Daemon:
    """A context manager that runs a FUSE server in the foreground."""

    def __init__(self, argv, mnt, **kwargs):
        self.argv, self.mnt, self.kwargs = argv, mnt, kwargs

    def __enter__(self):
        os.makedirs(self.mnt)
        # Outside the terminal's process group, so that Ctrl-C lets the benchmark unmount first.
        self.process = subprocess.Popen([*self.argv, self.mnt], start_new_session=True, **self.kwargs)
        try:
            while not os.path.ismount(self.mnt):
                if self.process.poll() is not None:
                    raise Failed(f"'{' '.join(self.argv)}' does not mount")
                time.sleep(0.005)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        unmount(self.mnt)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def cpu(self):
        """CPU seconds so far, by the clock of clock_getcpuclockid(3)."""
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def rss(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            kib = dict(re.findall(r"^(Rss\w+):\s+(\d+) kB", f.read(), re.M))
        return int(kib["RssAnon"]) / 1024, int(kib["RssFile"]) / 1024


class Bench:
    """One run of the benchmark: its options and results."""

    def __init__(self, options, say):
        self.rounds, self.ckptfs, self.programs = options.rounds, options.ckptfs, options.programs
        self.mount_options = options.mount_options
        self.say, self.rows, self.samples, self.skipped, self.failed = say, [], {}, {}, []
        self.tmp = tempfile.mkdtemp(dir=options.dir, prefix="tmp.")
        os.environ["XDG_CACHE_HOME"] = f"{self.tmp}/cache"  # of the chunk index
        self.mounts = 0

    def close(self):
        with open("/proc/self/mounts", encoding="utf-8") as f:
            left = [line.split()[1] for line in f if line.split()[1].startswith(f"{self.tmp}/")]
        for mnt in left:  # of an interrupted command
            unmount(mnt)
        shutil.rmtree(self.tmp)

    def where(self):
        """Creates a new mount point."""
        self.mounts += 1
        return f"{self.tmp}/mnt{self.mounts}"

    def mount(self, ckpt, *options):
        return Daemon([self.ckptfs, "mount", "-f", "-q", *self.mount_options, *options, ckpt],
                      self.where())

    def passthrough_ll(self, directory):
        return Daemon([self.example(), "-f", "-o", f"source={directory}"], self.where(),
                      stderr=subprocess.DEVNULL)  # it prints warnings about libfuse's own defaults

    def example(self):
        """Compiles libfuse's example of a pass-through file system; returns its path."""
        program = f"{self.programs}/passthrough_ll"
        if os.path.exists(program):
            return program
        for name in "passthrough_ll.c", "passthrough_helpers.h":
            have = [f"{EXAMPLES}/{name}{end}" for end in ("", ".gz")]
            have = [f for f in have if os.path.exists(f)]
            if not have:
                raise Skip(f"no {name} in {EXAMPLES}")
            with open(f"{self.tmp}/{name}", "wb") as f:
                subprocess.run(["gzip", "-dcf", have[0]], stdout=f, check=True)
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], check=True, text=True,
                               stdout=subprocess.PIPE).stdout.split()
        subprocess.run(["cc", "-O2", "-w", f"{self.tmp}/passthrough_ll.c", "-o", program, *flags],
                       check=True)
        return program

    # ---- reading ----

    def reader(self, how, files, n=128 << 10, jobs=1, passes=1, daemon=None):
        """A sample by tests/bench/reader.c, with the daemon's CPU time and memory."""
        before = daemon.cpu() if daemon else 0
        p = subprocess.Popen([f"{self.programs}/reader", how, str(n), str(jobs), str(passes), *files],
                             stdout=subprocess.PIPE, text=True)
        out = p.stdout.read()
        _, status, use = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        if p.returncode:
            raise Failed(f"reader {how} of {files[0]} failed")
        times = [line.split() for line in out.splitlines()]
        sample = Sample([(float(s), int(b)) for s, b in times], use.ru_utime + use.ru_stime)
        if daemon:
            sample.daemon_cpu_s = daemon.cpu() - before
            sample.rss_anon_mib, sample.rss_file_mib = daemon.rss()
        return sample

    def warm(self, files):
        """Reads whole files into the page cache."""
        self.reader("warm", files, MIB)

    def fresh(self, files):
        """Evicts files from the page cache if possible and reads them again, so that folio sizes
        do not depend on how the files were written or mapped."""
        with contextlib.suppress(Failed):
            self.cold(files)
        self.warm(files)

    def cold(self, files):
        """Evicts files from the page cache completely; nothing may have them mapped."""
        self.reader("cold", files)

    @staticmethod
    def forget(files):
        """Evicts files of a FUSE mount from the page cache. A virtual machine may have returned free memory
        to its host, and getting it back is slow, so the memory that the files need is touched once."""
        size = 0
        for name in files:
            fd = os.open(name, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            size += os.fstat(fd).st_size
            os.close(fd)
        mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_POPULATE).close()

    # ---- measuring ----

    def quiet(self):
        """Waits until the CPUs are idle; False if they do not become idle."""
        for _ in range(5):
            if busy_cpus(0.1) < BUSY:
                return True
        return False

    def skip(self, name, why):
        if name not in self.skipped:
            self.say(f"{name}: skipped: {why}")
        self.skipped[name] = str(why)

    def fail(self, name, why):
        self.failed.append(f"{name}: {why}")
        self.say(f"{name}: FAILED: {why}")

    def measure(self, group, name, parties, targets=(), passes=("",), prepare=None, rounds=None):
        """Runs the parties, {name: function that returns a Sample}, in turn; adds a row for each pass."""
        try:
            samples, busy, rounds = self.take_turns(parties, prepare, rounds or self.rounds)
        except Failed as e:
            self.fail(f"{group}: {name}", e)
            return
        self.samples[f"{group}: {name}"] = {
            p: [dataclasses.asdict(s) for s in got] for p, got in samples.items()}
        for i, label in enumerate(passes):
            target = targets[i] if i < len(targets) else Target()
            title = f"{name}, {label}" if label else name
            row = make_row(group, title, samples, i, target, busy, rounds)
            self.rows.append(row)
            self.say(str(row))

    def take_turns(self, parties, prepare, rounds):
        """Returns the samples of each party, the number of busy rounds, and the number of rounds."""
        samples, busy = {p: [] for p in parties}, 0
        order = list(parties)
        rounds = min(rounds, self.rounds)
        for _ in range(rounds):
            busy += not self.quiet()
            for party in order:
                if prepare:
                    prepare()
                samples[party].append(parties[party]())
            order = order[1:] + order[:1]
        return samples, busy, rounds


def speed(sample, i):
    seconds, nbytes = sample.passes[i]
    return (nbytes or 1) / seconds


def make_row(group, name, samples, i, target, busy, rounds):
    parties = list(samples)
    ours = samples[parties[0]]
    rated = bool(ours[0].passes[i][1])  # bytes were counted, so the result is a rate

    def ratios(party):
        return [speed(a, i) / speed(b, i) for a, b in zip(ours, samples[party])]

    def middle(field, party):
        got = [getattr(s, field) for s in samples[party] if getattr(s, field) is not None]
        return statistics.median(got) if got else None

    values = {p: statistics.median(speed(s, i) / 1e9 if rated else s.passes[i][0] for s in got)
              for p, got in samples.items()}
    unit, factor = next(u for u in UNITS if values[parties[0]] * u[1] >= 1 or u == UNITS[-1])
    if rated:
        unit, factor = "GB/s", 1
    ratio = []
    if len(parties) > 1:
        r = ratios(parties[1])
        ratio = [statistics.median(r), min(r), max(r)]
    cpu, moved = middle("daemon_cpu_s", parties[0]), sum(b for _, b in ours[0].passes)
    rss = [middle("rss_anon_mib", parties[0]), middle("rss_file_mib", parties[0])]
    memory = {p: middle("peak_mib", p) for p in parties}
    return Row(group, name, unit, {p: v * factor for p, v in values.items()}, ratio,
               {p: statistics.median(ratios(p)) for p in parties[2:]},
               {p: m for p, m in memory.items() if m is not None}, str(target),
               target.reached(ratio[0] if ratio else None, values[parties[0]]),
               cpu / moved * GIB if cpu is not None and moved else None,
               rss if None not in rss else [], busy, rounds)


def no_torch():
    """The reason why PyTorch cannot be run, or None."""
    if os.geteuid():
        return "not root, so no chroot with PyTorch"
    if not os.path.exists(f"{CHROOT}/var/lib/ckptfs-ready"):
        return "no PyTorch: scripts/chroot.sh make"
    return None


def in_chroot(binds, *argv, environment=()):
    """The result of tests/bench/with_torch.py in the chroot. binds: {path inside: path outside}."""
    args = []
    for inside, outside in {"/mnt/bench": HERE, **binds}.items():
        args += ["--bind", f"{outside}:{inside}"]
    p = subprocess.run(
        [f"{TOP}/scripts/chroot.sh", "run", *args, "--", "env", *environment, "python3",
         "/mnt/bench/with_torch.py", *argv],
        stdout=subprocess.PIPE, check=False, text=True)
    if p.returncode:
        raise Failed(f"with_torch.py {' '.join(argv)} failed")
    return p.stdout
