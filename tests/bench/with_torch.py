#!/usr/bin/env python3
"""PyTorch's part in the benchmark; runs in the chroot (scripts/chroot.sh).

    with_torch.py run COMMAND [ARG...]       runs one of these in a new process:
      tensor CKPT NAME                       dcp.load of a tensor
      save CKPT FILE                         dcp_to_torch_save
      consolidate PARTS DIR                  consolidate_safetensors_files, into one file
      reshard CKPT DST                       dcp.load and dcp.save in one process
      reshard8 CKPT DST                      the same with 8 ranks and sharded tensors
      load FILE                              pickle.load of a .metadata
      zero CKPT SCRIPT                       DeepSpeed's zero_to_fp32.py, or "-": the same steps
      all HOW CKPT                           a whole model into memory, HOW: ckptfs, safetensors, dcp
      pretrained HOW CKPT ASSETS             the same as a model of transformers, HOW: ckptfs, transformers
    with_torch.py index TENSORS CHUNKS DIR   a synthetic checkpoint with a large .metadata
    with_torch.py deepspeed BYTES DIR        one of DeepSpeed's ZeRO 3, with BYTES of fp32 weights

"run" prints one line of JSON: wall_s, cpu_s and rss_mib of all processes, including the start of Python.
Commands that measure themselves replace these: from the first call to the end of the last, without imports.
"""
import contextlib
import gc
import importlib.util
import io
import json
import mmap
import os
import pathlib
import pickle
import resource
import subprocess
import sys
import tempfile
import time
import types
import uuid

RANKS = 8
SIDE = 64  # of a chunk written by "index"
MODULES = ["attention.wq", "attention.wk", "attention.wv", "attention.wo", "feed_forward.w1",
           "feed_forward.w2", "feed_forward.w3"]
STATES = [("model", ""), ("optimizer", ".exp_avg"), ("optimizer", ".exp_avg_sq")]


def run(*argv):
    start = time.perf_counter()
    p = subprocess.Popen([sys.executable, __file__, *argv], stdout=subprocess.PIPE, text=True)
    said = p.stdout.read()
    _, status, use = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        sys.exit(p.returncode)
    out = {"wall_s": time.perf_counter() - start, "cpu_s": use.ru_utime + use.ru_stime,
           "rss_mib": use.ru_maxrss / 1024}
    print(json.dumps({**out, **json.loads(said or "{}")}))


def used():
    """CPU seconds and peak memory in MiB."""
    r = resource.getrusage(resource.RUSAGE_SELF)
    return r.ru_utime + r.ru_stime, r.ru_maxrss / 1024


# ---- one process ----


def sizes(ckpt, names=None):
    """An empty tensor for each tensor of a checkpoint."""
    import torch
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    return {name: torch.empty(m.size, dtype=m.properties.dtype)
            for name, m in FileSystemReader(ckpt).read_metadata().state_dict_metadata.items()
            if isinstance(m, TensorStorageMetadata) and (names is None or name in names)}


def tensor(ckpt, name):
    import torch.distributed.checkpoint as dcp

    state = sizes(ckpt, {name})
    dcp.load(state, checkpoint_id=ckpt)
    assert state[name].numel()


def save(ckpt, path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(ckpt, path)


def consolidate(parts, outdir):
    from torch.distributed.checkpoint._consolidate_hf_safetensors import (
        consolidate_safetensors_files)

    names = set()
    for part in os.listdir(parts):
        with open(f"{parts}/{part}", "rb") as f:
            names |= set(json.loads(f.read(int.from_bytes(f.read(8), "little"))))
    names.discard("__metadata__")
    os.makedirs(outdir, exist_ok=True)
    consolidate_safetensors_files(parts, outdir, dict.fromkeys(names, 1), num_threads=2)


def copy(state, src, dst, **writer):
    """Loads and saves; returns time, CPU and memory."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

    before, start = used(), time.perf_counter()
    dcp.load(state, storage_reader=FileSystemReader(src))
    dcp.save(state, storage_writer=FileSystemWriter(dst, **writer))
    wall, after = time.perf_counter() - start, used()
    return {"wall_s": wall, "cpu_s": after[0] - before[0], "grown_mib": after[1] - before[1]}


def reshard(src, dst):
    """Writes one rank's files with two threads: the same bytes as 8 ranks write, in fewer files."""
    import torch

    imported = used()[1]
    torch.set_num_threads(2)
    report([copy(sizes(src), src, dst, thread_count=2)], imported)


def report(got, imported):
    """Sums up all processes: the memory of the imported torch counts once, what each grew by is added."""
    print(json.dumps({"wall_s": max(r["wall_s"] for r in got), "cpu_s": sum(r["cpu_s"] for r in got),
                      "rss_mib": imported + sum(r["grown_mib"] for r in got)}))


# ---- 8 processes, forked after torch has been imported ----


def reshard8(src, dst):
    import torch.multiprocessing as mp

    imported = used()[1]
    with tempfile.TemporaryDirectory() as d:
        mp.start_processes(reshard_rank, (src, dst, d), RANKS, start_method="fork")
        got = []
        for rank in range(RANKS):
            with open(f"{d}/{rank}", encoding="ascii") as f:
                got.append(json.load(f))
    report(got, imported)


def reshard_rank(rank, src, dst, d):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    torch.set_num_threads(1)
    stderr = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # gloo prints to stderr and has no option against it
    dist.init_process_group("gloo", init_method=f"file://{d}/rendezvous", rank=rank,
                            world_size=RANKS)
    mesh = DeviceMesh("cpu", list(range(RANKS)))
    os.dup2(stderr, 2)

    def part(whole):  # all dimensions are divisible by 8
        local = torch.empty((whole.shape[0] // RANKS, *whole.shape[1:]), dtype=whole.dtype)
        return DTensor.from_local(local, mesh, [Shard(0)], run_check=False)

    state = {name: part(whole) for name, whole in sizes(src).items()}
    dist.barrier()
    got = copy(state, src, dst)
    with open(f"{d}/{rank}", "w", encoding="ascii") as f:
        json.dump(got, f)
    dist.destroy_process_group()


# ---- a large index ----


def item():
    """One stored chunk as torch.save writes it; always the same length."""
    import torch

    data = io.BytesIO()
    torch.save(torch.randn(SIDE, SIDE).to(torch.bfloat16), data)
    return data.getbuffer()


def path_of(i):
    """The path of tensor i in the state dict."""
    layer, i = divmod(i, len(MODULES) * len(STATES))
    state, module = divmod(i, len(MODULES))
    top, suffix = STATES[state]
    return top, f"layers.{layer}.{MODULES[module]}.weight{suffix}"


def index(tensors, chunks, outdir):
    """Writes .metadata as `chunks` ranks leave it when they save DTensors: two-dimensional bfloat16 tensors
    with one chunk per rank, sharded along dimension 0 or 1 in turn. The data files have their true length
    but are sparse, and contain only the first tensors."""
    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata, Metadata, MetadataIndex, StorageMeta, TensorProperties,
        TensorStorageMetadata)

    gc.disable()  # there is no garbage to collect
    tensors, chunks, length = int(tensors), int(chunks), len(item())
    os.makedirs(outdir)
    paths = sorted((path_of(i) for i in range(tensors)), key=lambda path: path[0])

    def offset_of(i, rank):
        return torch.Size((0, rank * SIDE) if i % 2 else (rank * SIDE, 0))

    state, storage = {}, {}
    for i, path in enumerate(paths):
        whole = (SIDE, chunks * SIDE) if i % 2 else (chunks * SIDE, SIDE)
        state[".".join(path)] = TensorStorageMetadata(
            TensorProperties(dtype=torch.bfloat16), torch.Size(whole),
            [ChunkStorageMetadata(offset_of(i, rank), torch.Size((SIDE, SIDE)))
             for rank in range(chunks)])
    for rank in range(chunks):
        name = f"__{rank}_0.distcp"
        for i, path in enumerate(paths):
            # The coordinator unpickles the ranks' answers separately, so each has its own copy of
            # each FQN, and pickle writes all of them.
            storage[MetadataIndex(".".join(path), offset_of(i, rank), rank)] = _StorageInfo(
                name, i * length, length)
        with open(f"{outdir}/{name}", "wb") as f:
            for _ in range(min(4, tensors)):
                f.write(item())
            f.truncate(tensors * length)
    metadata = Metadata(state, {".".join(p): p for p in paths}, storage,
                        StorageMeta(pathlib.Path(outdir).absolute(), str(uuid.uuid4())), "1.0.0")
    with open(f"{outdir}/.metadata", "wb") as f:
        pickle.dump(metadata, f, protocol=5)
    os._exit(0)  # freeing millions of objects takes as long as creating them


def load(path):
    """Does not count the import of torch, which programs that load tensors need anyway."""
    importlib.import_module("torch.distributed.checkpoint.filesystem")  # has the classes
    before, start = used(), time.perf_counter()
    with open(path, "rb") as f:
        metadata = pickle.load(f)
    wall, after = time.perf_counter() - start, used()
    assert metadata.storage_data
    print(json.dumps({"wall_s": wall, "cpu_s": after[0] - before[0],
                      "rss_mib": after[1] - before[1]}), flush=True)
    os._exit(0)


# ---- DeepSpeed ----


def deepspeed(nbytes, outdir):
    """ZeRO 3 of RANKS ranks, as DeepSpeed 0.19 lays it out: a parameter is a slice of each rank's flat tensor."""
    import torch

    hidden, layers = 1024, max(1, int(nbytes) // (4 * 12 << 20))
    shapes = {f"model.layers.{i}.{name}.weight": torch.Size(shape) for i in range(layers) for name, shape in (
        *((f"self_attn.{x}_proj", (hidden, hidden)) for x in "qkvo"), ("norm", (hidden,)),
        ("mlp.up_proj", (4 * hidden, hidden)), ("mlp.down_proj", (hidden, 4 * hidden)))}
    numel = sum(shape.numel() for shape in shapes.values()) // RANKS
    tag = f"{outdir}/global_step1"
    os.makedirs(tag)
    with open(f"{outdir}/latest", "w", encoding="ascii") as f:
        f.write("global_step1")
    for rank in range(RANKS):
        stem = f"{tag}/zero_pp_rank_{rank}_mp_rank_00"
        torch.save({"module": {name: torch.empty(0, dtype=torch.bfloat16) for name in shapes}, "buffer_names": [],
                    "optimizer": None, "param_shapes": [shapes], "frozen_param_shapes": {}, "shared_params": {},
                    "frozen_param_fragments": {}, "global_steps": 1, "dp_world_size": RANKS, "mp_world_size": 1,
                    "ds_version": "0.19.6"}, f"{stem}_model_states.pt")
        flat, *moments = torch.randn(1 << 20).repeat(3, numel // (1 << 20) + 1)[:, :numel].clone()
        states = {0: dict(zip(("step", "exp_avg", "exp_avg_sq"), (torch.tensor(1.0), *moments)))}
        torch.save({"optimizer_state_dict": {
            "zero_stage": 3, "partition_count": RANKS, "fp32_flat_groups": [flat.clone()],
            "optimizer_state_dict": {"state": {k: {n: t.clone() for n, t in v.items()} for k, v in states.items()},
                                     "param_groups": [{"lr": 1e-4, "params": [0]}]}},
            "ds_version": "0.19.6"}, f"{tag}/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def steps_of_zero(ckpt):
    """What zero_to_fp32.py does for ZeRO 3: model states are loaded, optimizer states mapped, and each parameter is
    joined out of all ranks' flat tensors."""
    import torch

    tag = f"{ckpt}/{pathlib.Path(ckpt, 'latest').read_text(encoding='ascii')}"
    files = {end: sorted(pathlib.Path(tag).glob(f"*_{end}_states.pt")) for end in ("model", "optim")}
    models = [torch.load(f, map_location="cpu", weights_only=False) for f in files["model"]]
    flats = [torch.load(f, map_location="cpu", mmap=True, weights_only=False)["optimizer_state_dict"][
        "fp32_flat_groups"][0] for f in files["optim"]]
    state, at = {}, 0
    for name, shape in models[0]["param_shapes"][0].items():
        n = -(-shape.numel() // len(flats))
        state[name] = torch.cat([flat[at:at + n] for flat in flats])[:shape.numel()].view(shape)
        at += n
    return state


def script_of_zero(ckpt, script):
    """The script needs names of DeepSpeed's, which say what they stand for, and otherwise only torch."""
    class Words(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return name.lower()

    os.environ["TQDM_DISABLE"] = "1"
    for name in ("deepspeed", "deepspeed.utils", "deepspeed.checkpoint", "deepspeed.checkpoint.constants"):
        sys.modules[name] = Words(name)
    spec = importlib.util.spec_from_file_location("zero_to_fp32", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with contextlib.redirect_stdout(io.StringIO()):
        return module.get_fp32_state_dict_from_zero_checkpoint(ckpt)


def zero(ckpt, script):
    importlib.import_module("torch")
    before, start = used(), time.perf_counter()
    state = steps_of_zero(ckpt) if script == "-" else script_of_zero(ckpt, script)
    wall, after = time.perf_counter() - start, used()
    assert all(t.numel() for t in state.values())
    print(json.dumps({"wall_s": wall, "cpu_s": after[0] - before[0], "rss_mib": after[1] - before[1]}), flush=True)
    os._exit(0)


# ---- whole models ----


def peak():
    """Peak memory in MiB since it was forgotten."""
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024


def loaded(path, load):
    """Calls load() and touches each page of the tensors that it returns: those of a mapped file are not there yet."""
    # A virtual machine may have returned free memory to its host, and getting it back takes longer than the rest.
    room = sum(os.path.getsize(f"{d}/{f}") for d, _, files in os.walk(path) for f in files) or os.path.getsize(path)
    with mmap.mmap(-1, room + room // 8, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
    with open("/proc/self/clear_refs", "w", encoding="ascii") as f:
        f.write("5")  # forgets the peak
    memory, before, start = peak(), used()[0], time.perf_counter()
    tensors = load()
    returned = time.perf_counter() - start
    for t in tensors:
        t.detach().reshape(-1)[::2048].clone()  # elements have two bytes
    wall, cpu = time.perf_counter() - start, used()[0] - before
    size = sum(t.numel() * t.element_size() for t in {t.data_ptr(): t for t in tensors}.values())
    print(json.dumps({"wall_s": wall, "cpu_s": cpu, "returned_s": returned,
                      "rss_mib": max(peak() - memory - size / (1 << 20), 0)}), flush=True)
    os._exit(0)  # freeing the memory takes as long for all


def all_of(how, ckpt):
    import torch.distributed.checkpoint as dcp

    if how == "dcp":
        state = sizes(ckpt)
        loaded(ckpt, lambda: dcp.load(state, checkpoint_id=ckpt) or list(state.values()))
    load_file = importlib.import_module("ckptfs" if how == "ckptfs" else "safetensors.torch").load_file
    loaded(ckpt, lambda: list(load_file(ckpt).values()))


def pretrained(how, ckpt, assets):
    import transformers

    transformers.logging.disable_progress_bar()
    model = transformers.LlamaForCausalLM
    if how == "transformers":
        loaded(ckpt, lambda: list(model.from_pretrained(ckpt, dtype="bfloat16").parameters()))
    from ckptfs.transformers import from_pretrained

    loaded(ckpt, lambda: list(from_pretrained(model, ckpt, assets=assets, dtype="bfloat16").parameters()))


COMMANDS = {f.__name__: f for f in (
    run, tensor, save, consolidate, reshard, reshard8, index, load, deepspeed, zero, pretrained)} | {"all": all_of}


def main():
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        COMMANDS[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
