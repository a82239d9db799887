"""Cases that run whole programs (ls, mount, cp, reshard, index) and what people run without ckptfs."""
import json
import os
import shutil
import subprocess
import time

import data
from harness import TOP, Sample, Target, in_chroot, no_torch, run_command

MODEL = "model of 1 GiB"
TENSOR = "model.layers.0.mlp.up_proj.weight"
MANY = 100000
CHROOT_RUN = f"{TOP}/scripts/chroot.sh"
# name: tensors, chunks per tensor; a large and a very large model
INDEXES = {"0.4M chunks": (3000, 128), "1.3M chunks": (20000, 64)}


def with_torch(binds, command, *args):
    """A sample from the result of with_torch.py."""
    said = json.loads(in_chroot(binds, "run", command, *args).splitlines()[-1])
    return Sample([(said["wall_s"], 0)], said["cpu_s"], peak_mib=said["rss_mib"]), said


def torch_or_nothing(bench, name, *args):
    """{name: party}; empty without PyTorch."""
    if no_torch():
        bench.skip(name, no_torch())
        return {}
    return {name: lambda: with_torch(*args)[0]}


def build_index(bench, ckpt):
    """Builds the index that a second mount finds."""
    run_command([bench.ckptfs, "index", "-q", ckpt])


def ls(bench, made, group, chosen):
    """First and second `ls -lR` of a new mount, and of as many files on this disk, cached by the kernel."""
    if not chosen("100k tensors"):
        return
    ckpt, files = made.many(MANY), made.files(MANY)
    build_index(bench, ckpt)

    def listing(directory, daemon=None):
        before = daemon.cpu() if daemon else 0
        runs = [run_command(["ls", "-lR", directory]) for _ in range(2)]
        sample = Sample([(wall, 0) for wall, _, _ in runs], sum(cpu for _, cpu, _ in runs))
        if daemon:
            sample.daemon_cpu_s = daemon.cpu() - before
            sample.rss_anon_mib, sample.rss_file_mib = daemon.rss()
        return sample

    def ours():
        with bench.mount(ckpt) as daemon:
            return listing(f"{daemon.mnt}/tensors", daemon)

    bench.measure(group, "100k tensors, ls -lR", {"ckptfs": ours, "files": lambda: listing(files)},
                  (Target(seconds=0.65),), ("first", "again"))


def mount(bench, made, group, chosen):
    """From the mount command to the first byte of a tensor."""
    def first_byte(ckpt, name, *options):
        mnt = bench.where()
        os.mkdir(mnt)
        start = time.perf_counter()
        run_command([bench.ckptfs, "mount", "-q", *bench.mount_options, *options, ckpt, mnt])
        try:
            with open(f"{mnt}/tensors/{name}", "rb", buffering=0) as f:
                f.read(1)
            return Sample([(time.perf_counter() - start, 0)])
        finally:
            run_command([bench.ckptfs, "umount", mnt])

    if chosen("first byte, 1 GiB of 4 ranks"):
        ckpt = made.model(MODEL)
        build_index(bench, ckpt)
        parties = {"ckptfs": lambda: first_byte(ckpt, TENSOR),
                   **torch_or_nothing(bench, "dcp.load", {"/mnt/ckpt": ckpt}, "tensor",
                                      "/mnt/ckpt", TENSOR)}
        bench.measure(group, "first byte, 1 GiB of 4 ranks", parties, (Target(50),),
                      prepare=lambda: bench.warm(data.sources(ckpt)))
        bench.measure(group, "first byte, 1 GiB, never indexed",
                      {"ckptfs": lambda: first_byte(ckpt, TENSOR, "--index=:memory:")})
    if chosen("first byte, 100k tensors"):
        many = made.many(MANY)
        build_index(bench, many)
        bench.measure(group, "first byte, 100k tensors",
                      {"ckptfs": lambda: first_byte(many, "model.layers.0.0.w")})


def convert(bench, made, group, chosen):
    """Turning a checkpoint into one model file: cp from a new mount, and two ways with torch."""
    name = "cp hf/model.safetensors"
    if not chosen(name):
        return
    ckpt, parts = made.model(MODEL), made.parts(MODEL)
    out = f"{bench.tmp}/out"

    def ours():
        start = time.perf_counter()
        with bench.mount(ckpt) as daemon:
            _, cpu, peak = run_command(["cp", f"{daemon.mnt}/hf/model.safetensors", f"{out}/model"])
            wall, (anon, file) = time.perf_counter() - start, daemon.rss()
            return Sample([(wall, 0)], cpu, daemon.cpu(), anon, file, anon + peak)

    def theirs(what, command, source, path):
        return torch_or_nothing(bench, what, {"/mnt/source": source, "/mnt/out": out}, command,
                                "/mnt/source", path)

    def prepare():
        clear(out)
        os.mkdir(out)
        bench.warm(data.sources(ckpt) + data.sources(parts))

    bench.measure(group, name,
                  {"ckptfs": ours,
                   **theirs("dcp_to_torch_save", "save", ckpt, "/mnt/out/model.pt"),
                   **theirs("HF consolidation", "consolidate", parts, "/mnt/out/hf")},
                  (Target(5),), prepare=prepare, rounds=3)
    clear(out)


def quantise(bench, made, group, chosen):
    """CPU time to quantise a model for llama.cpp, of all threads, and of llama-quantize; and for vLLM, to which
    the baseline is reading it."""
    for kind, least in ("q4_k_m", 4), ("q4_0", 1):
        if chosen(f"{kind}, CPU time"):
            quantise_gguf(bench, made, group, kind, least)
    for kind in "fp8_dynamic", "fp8_block":
        if chosen(f"{kind}, CPU time"):
            quantise_fp8(bench, made, group, kind)


def cpu(*argv, stderr=None):
    wall, seconds, peak = run_command(argv, stderr)
    return Sample([(seconds, 0)], wall, peak_mib=peak)


def quantise_gguf(bench, made, group, kind, least):
    ckpt, out = made.small_llama(), f"{bench.tmp}/out"
    parties = {"ckptfs": lambda: cpu(bench.ckptfs, "export", "-q", ckpt, "gguf/model.gguf", f"{out}/a",
                                     f"--gguf_dtype={kind}")}
    if no_torch():
        bench.skip("llama-quantize", no_torch())
    else:
        source = made.gguf(ckpt)
        parties["llama-quantize"] = lambda: cpu(
            CHROOT_RUN, "run", "--bind", f"{source}:/mnt/source", "--bind", f"{out}:/mnt/out", "--",
            "llama-quantize", "/mnt/source/model.gguf", "/mnt/out/b", kind, stderr=subprocess.DEVNULL)  # it says a lot

    def prepare():
        clear(out)
        os.mkdir(out)

    bench.measure(group, f"{kind}, CPU time", parties, (Target(least),), prepare=prepare, rounds=3)
    clear(out)


def quantise_fp8(bench, made, group, kind):
    ckpt = made.small_llama()
    bench.measure(group, f"{kind}, CPU time",
                  {"ckptfs": lambda: cpu(bench.ckptfs, "cat", "-q", ckpt, "hf/model.safetensors", f"--quantize={kind}"),
                   "unchanged": lambda: cpu(bench.ckptfs, "cat", "-q", ckpt, "hf/model.safetensors")},
                  prepare=lambda: bench.warm(data.sources(ckpt)))


def values(bench, made, group, chosen):
    """Statistics or hashes of all elements of a tensor; the baseline is cat of the same files."""
    for name, command in (("stat", ["stat"]), ("sum --xxh", ["sum", "--xxh"])):
        for dtype, tensor in (("float32", "float32"), ("bfloat16", "rows")):
            if not chosen(f"{name}, {dtype}"):
                continue
            ckpt = made.tensor(tensor)

            def party(argv):
                wall, cpu, _ = run_command(argv)
                return Sample([(wall, 0)], cpu)

            build_index(bench, ckpt)
            bench.measure(group, f"{name}, {dtype}",
                          {"ckptfs": lambda: party([bench.ckptfs, *command, "-q", ckpt]),
                           "cat": lambda: party(["cat", *data.sources(ckpt)])},
                          (Target(0.6),) if name == "stat" else (),
                          prepare=lambda: bench.warm(data.sources(ckpt)))


def clear(path):
    """Removes the output of a run and waits until nothing is left to write."""
    shutil.rmtree(path, ignore_errors=True)
    os.sync()


def reshard(bench, made, group, chosen):
    """Resharding from 4 ranks to 8 with a warm page cache; the baseline is cp of the same bytes. ckptfs and
    torch sync their output; cp does so in one of the two cases."""
    name = "4 ranks to 8"
    if not chosen(name):
        return
    ckpt = made.model(MODEL)
    out = f"{bench.tmp}/out"
    sync = 'cp -r "$1" "$2" && find "$2" -exec sync {} +'

    def command(*argv):
        def party():
            wall, cpu, peak = run_command(argv)
            return Sample([(wall, 0)], cpu, peak_mib=peak)
        return party

    def theirs(what, how):
        return torch_or_nothing(bench, what, {"/mnt/source": ckpt, "/mnt/out": out}, how,
                                "/mnt/source", "/mnt/out/new")

    def prepare():
        clear(out)
        os.mkdir(out)
        bench.warm(data.sources(ckpt))

    bench.measure(group, name,
                  {"ckptfs": command(bench.ckptfs, "reshard", "-q", ckpt, f"{out}/new", "--ranks=8"),
                   **theirs("torch, 8 processes", "reshard8"),
                   **theirs("torch, 1 process", "reshard"),
                   "cp -r, sync": command("sh", "-c", sync, "sh", ckpt, f"{out}/new"),
                   "cp -r": command("cp", "-r", ckpt, f"{out}/new")}, prepare=prepare, rounds=3)
    clear(out)


def index(bench, made, group, chosen):
    """CPU seconds of building the chunk index, and of pickle.load of the same .metadata in Python, which
    torch does on every rank at every load."""
    for name, (tensors, chunks) in INDEXES.items():
        if not chosen(name, slow=name != next(iter(INDEXES))):
            continue
        if no_torch():
            bench.skip(name, no_torch())
            continue
        build(bench, group, name, made.made(name, lambda path: make_index(path, tensors, chunks)))


def make_index(path, tensors, chunks):
    os.mkdir(path)
    in_chroot({"/mnt/out": path}, "index", str(tensors), str(chunks), "/mnt/out/ckpt")


def build(bench, group, name, made):
    def ours():
        _, cpu, peak = run_command(["taskset", "-c", str(max(os.sched_getaffinity(0))), bench.ckptfs,
                                    "index", "-q", "--rebuild", f"{made}/ckpt"])
        return Sample([(cpu, 0)], cpu, peak_mib=peak)

    def theirs():
        sample, said = with_torch({"/mnt/in": made}, "load", "/mnt/in/ckpt/.metadata")
        sample.passes = [(said["cpu_s"], 0)]
        return sample

    bench.measure(group, f"{name}, CPU", {"ckptfs": ours, "pickle.load": theirs})


def deepspeed(bench, made, group, chosen):
    """Opening a checkpoint of ZeRO 3 that has no index, down to the names and shapes of its weights. DeepSpeed's
    script joins them in memory. Without the script (ZERO_TO_FP32), its steps in torch, without those of imports."""
    name = "open ZeRO 3 of 8 ranks"
    if not chosen(name):
        return
    if no_torch():
        bench.skip(name, no_torch())
        return
    script = os.environ.get("ZERO_TO_FP32")
    top = made.made("ZeRO 3", lambda path: make_zero(path, 2 * made.size))
    binds = {"/mnt/in": top}
    if script:
        os.makedirs(f"{bench.tmp}/script")
        shutil.copy(script, f"{bench.tmp}/script/zero_to_fp32.py")
        binds["/mnt/script"] = f"{bench.tmp}/script"

    def ours():
        wall, cpu, peak = run_command([bench.ckptfs, "ls", "-l", "--index=:memory:", f"{top}/ckpt"])
        return Sample([(wall, 0)], cpu, peak_mib=peak)

    def theirs():
        return with_torch(binds, "zero", "/mnt/in/ckpt", "/mnt/script/zero_to_fp32.py" if script else "-")[0]

    bench.measure(group, name, {"ckptfs": ours, "zero_to_fp32.py" if script else "its steps in torch": theirs},
                  (Target(20),), prepare=lambda: bench.warm(data.files_below(top)), rounds=3)


def make_zero(path, size):
    os.mkdir(path)
    in_chroot({"/mnt/out": path}, "deepspeed", str(size), "/mnt/out/ckpt")


def plan(bench, _made, group, chosen):
    """The time to find the item ranges that a read needs."""
    if not chosen("plan"):
        return
    program = f"{bench.programs}/bench_plan"
    names = list(json.loads(subprocess.check_output([program])))

    def ours():
        took = json.loads(subprocess.check_output([program]))
        return Sample([(took[n] * 1e-9, 0) for n in names])

    bench.measure(group, "plan a read", {"ckptfs": ours}, passes=names)
