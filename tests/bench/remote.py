"""Checkpoints behind a link with latency: nginx behind tests/net/proxy.c, at 20 ms, 400 Mbit/s for each connection and
1 Gbit/s in all. Beside them curl, which has the link to itself, and rclone, if it is installed, which mounts the server.
Nothing is cached on disk, except for the second mount.
"""
import concurrent.futures
import contextlib
import os
import random
import shutil
import socket
import subprocess
import time
import urllib.request

from harness import MIB, Daemon, Failed, Sample, Skip, Target, run_command

LINK = "latency_ms=20&each_bps=400000000&all_bps=1000000000"
MODEL = "model of 1 GiB"
TENSOR = "model.layers.0.mlp.up_proj.weight"
CONF = """daemon off; master_process off; pid {dir}/pid; error_log {dir}/log;
events {{ worker_connections 1000; }}
http {{
  access_log off; sendfile on; keepalive_requests 1000000;
  client_body_temp_path {dir}/t; proxy_temp_path {dir}/t; fastcgi_temp_path {dir}/t; uwsgi_temp_path {dir}/t;
  scgi_temp_path {dir}/t;
  server {{ listen 127.0.0.1:{port}; root {root}; autoindex on; }}
}}
"""


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
        self.start(["nginx", "-e", f"{self.dir}/log", "-c", f"{self.dir}/conf"])
        proxy = self.start([f"{os.path.dirname(bench.programs)}/tests/proxy", str(port)], stdout=subprocess.PIPE)
        self.url = f"http://127.0.0.1:{int(proxy.stdout.readline())}"
        for _ in range(100):
            with contextlib.suppress(OSError):
                self.ask(LINK)
                urllib.request.urlopen(f"{self.url}/").read()
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


def remote(bench, made, group, chosen):
    names = ["hf/ in order", "first byte", "random 4 KiB", "second mount, hf/ in order"]
    wanted = [chosen(name) for name in names]
    if not any(wanted):
        return
    ckpt = made.model(MODEL)
    files = [(name, os.path.getsize(f"{ckpt}/{name}")) for name in sorted(os.listdir(ckpt))
             if name.endswith(".distcp")]
    total = sum(size for _, size in files)
    cold = ["-o", "cache_dir=none"]
    with Link(bench, ckpt) as link:
        address = f"{link.url}/"

        def whole(path, address=address, options=cold):
            link.ask()
            before = time.perf_counter()
            with bench.mount(address, *options) as daemon:
                mounted = time.perf_counter()
                run_command(["cat", f"{daemon.mnt}/{path}"])
                seconds = time.perf_counter() - mounted
                sample = Sample([(seconds, total)], daemon_cpu_s=daemon.cpu())
                sample.rss_anon_mib, sample.rss_file_mib = daemon.rss()
            bench.say(f"  (opened in {mounted - before:.2f} s; fetched {link.fetched() / total:.3f} of the data)")
            return sample

        def first(path, options=cold):
            with bench.mount(address, *options) as daemon:
                start = time.perf_counter()
                with open(f"{daemon.mnt}/{path}", "rb", buffering=0) as f:
                    f.read(4096)
                return Sample([(time.perf_counter() - start, 0)])

        def scattered(options=cold):
            with bench.mount(address, *options) as daemon:
                with open(f"{daemon.mnt}/hf/model.safetensors", "rb") as f:
                    f.read(4096)
                link.ask()
                seconds = random_reads(f"{daemon.mnt}/hf/model.safetensors", 50, 1)
                bench.say(f"  (fetched {link.fetched() / 50 / 1024:.0f} KiB for each)")
                return Sample([(seconds, 0)])

        def one_request(size):
            def run():
                name = files[0][0]
                argv = ["curl", "-sS", "--fail", "-r", f"0-{size - 1}", "-o", "/dev/null"]
                argv += ["-w", "%{time_starttransfer}", f"{link.url}/{name}"]
                out = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout
                return Sample([(float(out), 0)])
            return run

        def by_curl():
            return Sample([(in_pieces([(f"{link.url}/{n}", size) for n, size in files]), total)])

        def by_rclone():
            mnt = bench.where()
            argv = ["rclone", "mount", ":http:", "--http-url", address, "--read-only"]
            with Daemon(argv, mnt, stderr=subprocess.DEVNULL):
                return Sample([(run_command([bench.ckptfs, "cat", "-o", "index=:memory:", mnt,
                                             "hf/model.safetensors"])[0], total)])

        others = {"rclone": by_rclone} if shutil.which("rclone") else {}
        if wanted[0]:
            bench.measure(group, names[0], {"ckptfs": lambda: whole("hf/model.safetensors"),
                                            "curl, 16 pieces": by_curl, **others}, (Target(0.93),), rounds=3)
        if wanted[1]:
            bench.measure(group, names[1], {"ckptfs": lambda: first(f"tensors/{TENSOR}"),
                                            "curl, cold": one_request(4096)}, (Target(seconds=0.055),), rounds=3)
        if wanted[2]:
            bench.measure(group, names[2], {"ckptfs": scattered}, (Target(seconds=0.026),), rounds=3)
        if wanted[3]:
            kept = ["-o", f"cache_dir={bench.tmp}/objects,cache_size=8G"]
            run_command([bench.ckptfs, "warm", "-q", *kept, address])

            def local():
                with bench.mount(ckpt) as daemon:
                    return Sample([(run_command(["cat", f"{daemon.mnt}/hf/model.safetensors"])[0], total)])

            bench.measure(group, names[3], {"ckptfs": lambda: whole("hf/model.safetensors", options=kept),
                                            "ckptfs, local": local}, (Target(0.8),), rounds=3)
