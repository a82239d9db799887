"""Checkpoints behind a link with latency: nginx with a listing as S3 gives it, behind tests/net/proxy.c, at 20 ms,
400 Mbit/s for each connection and 1 Gbit/s in all. Beside them curl, and rclone and s3fs, if they are installed, which
mount the bucket: their readers read the checkpoint's files. Nothing is cached on disk, except for the second mount.
Requests and bytes are counted by the proxy, so that a busy machine does not change them.
"""
import concurrent.futures
import contextlib
import functools
import glob
import http.client
import mmap
import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from xml.sax.saxutils import escape

from harness import MIB, Daemon, Failed, Sample, Skip, Target, run_command

LINK = "latency_ms=20&each_bps=400000000&all_bps=1000000000"
BYTES_PER_S = 125e6
MODEL = "model of 1 GiB"
TENSOR = "model.layers.0.mlp.up_proj.weight"
READERS, READ_EACH = 16, 8 * MIB
CONF = """daemon off; master_process off; pid {dir}/pid; error_log {dir}/log;
events {{ worker_connections 1000; }}
http {{
  access_log off; sendfile on; keepalive_requests 1000000; default_type application/octet-stream;
  client_body_temp_path {dir}/t; proxy_temp_path {dir}/t; fastcgi_temp_path {dir}/t; uwsgi_temp_path {dir}/t;
  scgi_temp_path {dir}/t;
  server {{
    listen 127.0.0.1:{port};
    location ~ ^/bucket/?$ {{ default_type application/xml; root {dir}; try_files /list.xml =404; }}
    location /bucket/ {{ alias {root}/; error_page 404 /none; }}
    location = /none {{ default_type application/xml; return 404 "<Error><Code>NoSuchKey</Code></Error>"; }}
  }}
}}
"""


def listing(root):
    """As S3 answers a request for all keys, with the ETags of nginx."""
    rows = []
    for name in sorted(os.listdir(root)):
        st = os.stat(f"{root}/{name}")
        when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(st.st_mtime))
        rows.append(f"<Contents><Key>{escape(name)}</Key><LastModified>{when}</LastModified>"
                    f'<ETag>"{int(st.st_mtime):x}-{st.st_size:x}"</ETag><Size>{st.st_size}</Size>'
                    "<StorageClass>STANDARD</StorageClass></Contents>")
    return ('<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>bucket</Name><Prefix></Prefix><KeyCount>{len(rows)}</KeyCount><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>")


class Link:
    """A server of a directory, and the address of the proxy in front of it."""

    def __init__(self, bench, root):
        self.dir, self.root, self.ended = f"{bench.tmp}/link", root, contextlib.ExitStack()
        os.makedirs(f"{self.dir}/t")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        with open(f"{self.dir}/conf", "w", encoding="ascii") as f:
            f.write(CONF.format(dir=self.dir, port=port, root=root))
        with open(f"{self.dir}/list.xml", "w", encoding="utf-8") as f:
            f.write(listing(root))
        self.start(["nginx", "-e", f"{self.dir}/log", "-c", f"{self.dir}/conf"])
        proxy = self.start([f"{os.path.dirname(bench.programs)}/tests/proxy", str(port)], stdout=subprocess.PIPE)
        self.url = f"http://127.0.0.1:{int(proxy.stdout.readline())}"
        for _ in range(100):
            with contextlib.suppress(OSError):
                self.ask(LINK)
                urllib.request.urlopen(f"{self.url}/bucket").read()
                return
            time.sleep(0.05)
        raise Failed("nginx does not start")

    def start(self, argv, **how):
        try:
            p = subprocess.Popen(argv, start_new_session=True, **how)
        except OSError as e:
            raise Skip(f"{argv[0]}: {e.strerror}") from e
        self.ended.callback(p.wait)
        self.ended.callback(p.kill)
        return p

    def ask(self, query=""):
        """The counters of the proxy, which are set to 0."""
        with urllib.request.urlopen(f"{self.url}/.proxy?{query or 'from=0'}") as r:
            return dict(word.split("=") for word in r.read().decode().split())

    def fetched(self):
        return int(self.ask()["bytes"])

    def requests(self):
        return int(self.ask()["requests"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended.close()


def in_pieces(urls, piece=8 * MIB, at_once=16):
    """curl has one range for all addresses of a command: so many commands at a time."""
    jobs = [(url, at, min(at + piece, length) - 1) for url, length in urls for at in range(0, length, piece)]

    def one(job):
        run_command(["curl", "-sS", "--fail", "-r", f"{job[1]}-{job[2]}", "-o", "/dev/null", job[0]])

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, jobs))
    return time.perf_counter() - start


def random_reads(path, n, seed):
    """The seconds that reads of 4 KiB take, one after the other, at places far apart."""
    r = random.Random(seed)
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(fd, 1, 0)
        start = time.perf_counter()
        for _ in range(n):
            os.pread(fd, 4096, r.randrange(size // 4096) * 4096)
        return (time.perf_counter() - start) / n
    finally:
        os.close(fd)


def random_requests(link, name, size, n, seed):
    """The same without ckptfs: ranges of 4 KiB over a connection that is open."""
    r = random.Random(seed)
    c = http.client.HTTPConnection(urllib.parse.urlsplit(link.url).netloc)
    try:
        for i in range(n + 1):
            if i == 1:  # the connection is there
                start = time.perf_counter()
            at = r.randrange(size // 4096) * 4096
            c.request("GET", f"/bucket/{name}", headers={"Range": f"bytes={at}-{at + 4095}"})
            c.getresponse().read()
        return (time.perf_counter() - start) / n
    finally:
        c.close()


def mapped_reads(paths):
    """The seconds in which so many processes read a part each of the files, through mappings."""
    start, pids, size = time.perf_counter(), [], os.path.getsize(paths[0])
    for i in range(READERS):
        pid = os.fork()
        if not pid:
            with open(paths[i % len(paths)], "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
                at = size // READERS * i
                for k in range(at, min(at + READ_EACH, size), 4096):
                    m[k]  # pylint: disable=pointless-statement
            os._exit(0)
        pids.append(pid)
    if any(os.waitpid(pid, 0)[1] for pid in pids):
        raise Failed("a reader fails")
    return time.perf_counter() - start


def fetcher_memory(program):
    """MiB that the only running fetcher has, and the process that starts it: the most of each, and the files in memory
    that blocks are kept in."""
    hwm, kept = 0, {}
    for exe in glob.glob("/proc/[0-9]*/exe"):
        with contextlib.suppress(OSError):
            if os.path.samefile(exe, program):
                at = os.path.dirname(exe)
                for fd in glob.glob(f"{at}/fd/*"):
                    with contextlib.suppress(OSError):
                        if os.readlink(fd).startswith("/memfd:"):
                            st = os.stat(fd)
                            kept[st.st_ino] = st.st_blocks * 512
                with open(f"{at}/status", encoding="ascii") as f:
                    hwm += int(re.search(r"^VmHWM:\s+(\d+) kB", f.read(), re.M)[1]) * 1024
    if not hwm:
        raise Failed("no fetcher runs")
    return (hwm + sum(kept.values())) / MIB


# What they are by default, but for rclone's mappings, which fetch 56 times the bytes unless it has a cache.
PEERS = {
    "rclone": ["rclone", "mount", "--s3-provider", "Other", "--s3-endpoint", "{url}", "--read-only", "--cache-dir",
               "{cache}", ":s3:bucket"],
    "s3fs": ["s3fs", "-f", "-o", "url={url},use_path_request_style,public_bucket=1,ro", "bucket"],
}
MORE = {("rclone", "mapped"): ["--vfs-cache-mode", "full"]}


NAMES = ["hf/ in order", "first byte", "random 4 KiB", "16 mmap readers", "index", "second mount, hf/ in order"]


class Cases:
    """The parties of the cases."""

    def __init__(self, bench, link, ckpt):
        self.bench, self.link = bench, link
        self.files = [(f"{link.url}/bucket/{name}", os.path.getsize(f"{ckpt}/{name}"))
                      for name in sorted(os.listdir(ckpt)) if name.endswith(".distcp")]
        self.total = sum(size for _, size in self.files)
        self.here = ["-o", f"endpoint={link.url},anonymous"]
        self.cold = [*self.here, "-o", "cache_dir=none"]

    def most(self, what, got, most):
        self.bench.say(f"  ({what}: {got:.4g}, at most {most:.4g})")
        if got > most:
            raise Failed(f"{what}: {got:.4g}, more than {most:.4g}")

    def mount(self, options=None):
        return self.bench.mount("s3://bucket", *(options or self.cold))

    def whole(self, options=None, most=1.02):
        self.link.ask()
        with self.mount(options) as daemon:
            opened = self.link.fetched()
            seconds = run_command(["cat", f"{daemon.mnt}/hf/model.safetensors"])[0]
            sample = Sample([(seconds, self.total)], daemon_cpu_s=daemon.cpu())
            sample.rss_anon_mib, sample.rss_file_mib = daemon.rss()
            memory = fetcher_memory(f"{os.path.dirname(self.bench.ckptfs)}/ckptfs-fetch")
        self.most("bytes fetched, of the data", (opened + self.link.fetched()) / self.total, most)
        # 256 MiB are kept where there is no directory, and 64 MiB may be on their way at this speed.
        self.most("MiB of the fetcher", memory, 256 + 64 + 40)
        self.bench.say(f"  ({self.total / seconds / BYTES_PER_S:.3f} of the link)")
        return sample

    def first(self):
        with self.mount() as daemon:
            start = time.perf_counter()
            with open(f"{daemon.mnt}/tensors/{TENSOR}", "rb", buffering=0) as f:
                f.read(4096)
            return Sample([(time.perf_counter() - start, 0)])

    def scattered(self):
        with self.mount() as daemon:
            path = f"{daemon.mnt}/hf/model.safetensors"
            with open(path, "rb", buffering=0) as f:
                f.read(4096)
            time.sleep(0.3)  # what the kernel reads ahead of that
            self.link.ask()
            seconds = random_reads(path, 50, 1)
            self.most("KiB for each", self.link.fetched() / 50 / 1024, 128)
            return Sample([(seconds, 0)])

    def mapped(self):
        with self.mount() as daemon:
            path = f"{daemon.mnt}/hf/model.safetensors"
            with open(path, "rb", buffering=0) as f:
                f.read(4096)
            time.sleep(0.3)
            self.link.ask()
            seconds = mapped_reads([path])
            self.most("bytes fetched, of those read", self.link.fetched() / (READERS * READ_EACH), 1.1)
            return Sample([(seconds, READERS * READ_EACH)])

    def index(self):
        kept = [*self.here, "-o", f"cache_dir={self.bench.tmp}/index.objects,index={self.bench.tmp}/index"]
        self.link.ask()
        for what, most in (("requests to open", 3), ("to open again", 1)):
            start = time.perf_counter()
            run_command([self.bench.ckptfs, "ls", *kept, "s3://bucket"])
            seconds = time.perf_counter() - start
            self.most(what, self.link.requests(), most)
        shutil.rmtree(f"{self.bench.tmp}/index.objects")
        os.unlink(f"{self.bench.tmp}/index")
        return Sample([(seconds, 0)])

    def by_curl(self):
        return Sample([(in_pieces(self.files), self.total)])

    def curl_range(self):
        argv = ["curl", "-sS", "--fail", "-r", "0-4095", "-o", "/dev/null", "-w", "%{time_starttransfer}", self.files[0][0]]
        out = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout
        return Sample([(float(out), 0)])

    def one_after_another(self):
        name = os.path.basename(self.files[0][0])
        return Sample([(random_requests(self.link, name, self.files[0][1], 50, 1), 0)])

    def by_peer(self, name, what):
        """What `what` does, of another program's mount of the bucket. Says how much of the bytes it fetched."""
        cache = tempfile.mkdtemp(dir=self.bench.tmp)
        argv = [word.format(url=self.link.url, cache=cache) for word in PEERS[name]]
        argv[2:2] = MORE.get((name, what), [])
        with Daemon(argv, self.bench.where(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as daemon:
            paths = [f"{daemon.mnt}/{os.path.basename(url)}" for url, _ in self.files]
            os.listdir(daemon.mnt)
            self.link.ask()
            if what == "whole":
                seconds, nbytes = run_command(["cat", *paths])[0], self.total
            elif what == "mapped":
                seconds, nbytes = mapped_reads(paths), READERS * READ_EACH
            else:
                seconds, nbytes = random_reads(paths[0], 50, 1), 0
            fetched = self.link.fetched()
        shutil.rmtree(cache)
        self.bench.say(f"  ({name}: {fetched / MIB:.1f} MiB fetched)")
        return Sample([(seconds, nbytes)])


def remote(bench, made, group, chosen):
    wanted = {name: chosen(name) for name in NAMES}
    if not any(wanted.values()):
        return
    ckpt = made.model(MODEL)
    os.environ.pop("AWS_CA_BUNDLE", None)  # rclone fails with it
    with Link(bench, ckpt) as link:
        c = Cases(bench, link, ckpt)

        def peers(what):
            return {name: functools.partial(c.by_peer, name, what) for name in PEERS if shutil.which(name)}

        cases = {
            "hf/ in order": ({"ckptfs": c.whole, "curl, 16 pieces": c.by_curl, **peers("whole")}, Target(0.93)),
            "first byte": ({"ckptfs": c.first, "curl, cold": c.curl_range}, Target(seconds=0.055)),
            "random 4 KiB": ({"ckptfs": c.scattered, "one connection": c.one_after_another, **peers("scattered")},
                             Target(1 / 1.3)),
            "16 mmap readers": ({"ckptfs": c.mapped, **peers("mapped")}, Target()),
            "index": ({"ckptfs": c.index}, Target()),
        }
        for name, (parties, target) in cases.items():
            if wanted[name]:
                bench.measure(group, name, parties, (target,), rounds=3)
        if wanted[NAMES[5]]:
            kept = [*c.here, "-o", f"cache_dir={bench.tmp}/objects,cache_size=8G"]
            run_command([bench.ckptfs, "warm", "-q", *kept, "s3://bucket"])

            def local():
                with bench.mount(ckpt) as daemon:
                    return Sample([(run_command(["cat", f"{daemon.mnt}/hf/model.safetensors"])[0], c.total)])

            bench.measure(group, NAMES[5], {"ckptfs": lambda: c.whole(kept, 0.001), "ckptfs, local": local},
                          (Target(0.8),), rounds=3)
