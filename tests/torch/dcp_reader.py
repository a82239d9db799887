"""dcp_reader.py check DATA OUT - compare ckptfs.dcp.StorageReader with torch's own reader, on four gloo ranks.
dcp_reader.py time OUT MIB - measure time and memory of both.

DATA is tests/data, OUT a directory to write in. `check` prints a line for each difference, then
"N passed, M failed".
"""

import hashlib
import io
import json
import os
import pathlib
import sys
import time
import traceback

import ckptfs
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor as dtensor
import torch.multiprocessing as mp
from ckptfs.dcp import StorageReader
from fsdp import Net, step
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WORLD = 4


def bits(t):
    t = t.detach()
    t = (t.to_local() if isinstance(t, DTensor) else t).clone(memory_format=torch.contiguous_format)
    return bytes(t.untyped_storage()[:t.numel() * t.element_size()])


def flat(state, at=()):
    if isinstance(state, dict):
        for key, value in state.items():
            yield from flat(value, (*at, key))
    else:
        yield at, state


def plain(value):
    return value.getvalue() if isinstance(value, io.BytesIO) else value


def same(a, b):
    """The differences of two state dicts."""
    a, b = dict(flat(a)), dict(flat(b))
    odd = set(a) ^ set(b)
    return odd or [key for key in a if (bits(a[key]) != bits(b[key]) if isinstance(a[key], torch.Tensor)
                                        else plain(a[key]) != plain(b[key]))]


def training(seed, mesh, plan=None):
    """A model and its optimizer, AdamW, after a step."""
    torch.manual_seed(seed)
    model = Net()
    if plan:
        parallelize_module(model, mesh["tp"], plan)
        mesh = mesh["dp"]
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=0.1 * seed)
    step(model, opt)
    weights, moments = get_state_dict(model, opt)
    return {"model": weights, "optim": moments, "step": seed, "when": {"epoch": [1, 2.5 * seed]}}


def meshes():
    return [(init_device_mesh("cpu", (WORLD,)), None), (init_device_mesh("cpu", (2, 2), mesh_dim_names=("ddp", "fsdp")), None),
            (init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")),
             {"up": ColwiseParallel(), "down": RowwiseParallel()})]


def check_fsdp2(_, out):
    """Checkpoints that are saved from each mesh are loaded into each."""
    for i, (mesh, plan) in enumerate(meshes()):
        path = out / f"fsdp2-{i}"
        dcp.save(training(1, mesh, plan), checkpoint_id=path)
        for other, other_plan in meshes():
            wanted, mine = training(2, other, other_plan), training(2, other, other_plan)
            dcp.load(wanted, checkpoint_id=path)
            dcp.load(mine, storage_reader=StorageReader(path))
            assert not same(wanted, mine), (i, same(wanted, mine))
            assert mine["step"] == 1 and same(mine, training(2, other, other_plan))


def whole_of(path, reader):
    """Load a checkpoint into plain tensors, by this reader."""
    with ckptfs.open(path) as ck:
        state = {name: torch.empty(ck.tensor(name).shape, dtype=ck.tensor(name).torch_dtype()) for name in ck}
    dcp.load(state, storage_reader=reader)
    return state


def check_formats(data, _):
    """Every format is loaded into DTensors of two meshes, with the bytes that the fixture's own framework loads."""
    line, grid = init_device_mesh("cpu", (WORLD,)), init_device_mesh("cpu", (2, 2))
    for case in ("fsw_safetensors", "hp_c_collective", "ds_z3_bf16_w12", "mp4_mesh2d", "torchsave_zip", "dtypes", "zstd",
                 "orbax/v2_two_processes"):
        about = json.loads((data / case / "expected.json").read_text())
        path, expected = data / case / about.get("ckpt", "ckpt"), about["tensors"]
        whole = whole_of(path, StorageReader(path))
        assert set(whole) == set(expected), (case, set(whole) ^ set(expected))
        for name, want in expected.items():
            assert hashlib.sha256(bits(whole[name])).hexdigest() == want["sha256"], (case, name)
        for mesh, by_dim in (line, {1: [Shard(0)], 2: [Shard(1)]}), (grid, {1: [Replicate(), Shard(0)], 2: [Shard(1), Shard(0)]}):
            # Types of which torch cannot make an empty DTensor are left out.
            parts = {name: dtensor.empty(*t.shape, dtype=t.dtype, device_mesh=mesh,
                                         placements=by_dim.get(t.ndim, [Replicate()] * mesh.ndim))
                     for name, t in whole.items() if t.ndim and t.numel()}
            assert parts, case
            dcp.load(parts, storage_reader=StorageReader(path, threads=3))
            for name, part in parts.items():
                shape, off = compute_local_shape_and_global_offset(part.shape, mesh, part.placements)
                box = whole[name][tuple(slice(o, o + n) for o, n in zip(off, shape))]
                assert bits(part) == bits(box), (case, name)


def check_model(data, out):
    """The model that a recipe makes of a Megatron-core checkpoint, with a cast."""
    path = data / "mcore_gpt_dense/ckpt"
    about = json.loads((data / "mcore_gpt_dense/expected_hf.json").read_text())
    assets, expected = out / f"assets-{dist.get_rank()}", about["tensors"]
    assets.mkdir()
    (assets / "config.json").write_text(json.dumps({"model_type": "qwen3", **about["arch"]}))
    options = {"recipe": "megatron", "assets": assets, "index": ":memory:"}
    with ckptfs.open(path, **options) as ck:
        about = {name: ck.model.tensor(name) for name in ck.model}
        state = {name: torch.empty(t.shape, dtype=t.torch_dtype()) for name, t in about.items()}
        wide = {name: torch.empty(t.shape, dtype=torch.float64) for name, t in about.items()}
    dcp.load(state, checkpoint_id=path, storage_reader=StorageReader(model=True, **options))
    for name, want in expected.items():
        assert hashlib.sha256(bits(state[name])).hexdigest() == want["sha256"], name
    dcp.load(wide, storage_reader=StorageReader(path, model=True, **options))
    assert all(torch.equal(wide[name], state[name].double()) for name in state)


def raised(function, *args, **named):
    try:
        function(*args, **named)
    except BaseException as e:
        return f"{type(e).__name__} {e}"
    return ""


class Odd:
    """A class that only the writer of the checkpoint has."""

    def __eq__(self, other):
        return isinstance(other, Odd)


def check_objects_and_errors(data, out):
    path = out / "objects"
    state = {"w": torch.arange(6.0), "odd": Odd(), "plain": {"a": (1, 2), "b": None}}
    dcp.save(state, checkpoint_id=path)
    mine = {"w": torch.zeros(6), "odd": None, "plain": {"a": 0, "b": 0}}
    assert "pass weights_only=False" in raised(dcp.load, mine, storage_reader=StorageReader(path))
    dcp.load(mine, storage_reader=StorageReader(path, weights_only=False))
    assert not same(mine, state)
    mine = {"w": torch.zeros(6), "plain": {"a": 0, "b": 0}}
    reader = StorageReader(path)
    dcp.load(mine, storage_reader=reader)
    assert mine["plain"] == {"a": (1, 2), "b": None} and reader.checkpoint_id == path
    assert "Missing key" in raised(dcp.load, {"x": torch.zeros(6)}, storage_reader=reader)
    assert raised(dcp.load, {"w": torch.zeros(5)}, storage_reader=reader)
    assert "open '/no/where'" in raised(dcp.load, {"w": torch.zeros(6)}, storage_reader=StorageReader("/no/where"))
    assert StorageReader.validate_checkpoint_id(path) and not StorageReader.validate_checkpoint_id("/no/where")
    assert "there is no path" in raised(dcp.load, {"w": torch.zeros(6)}, storage_reader=StorageReader())
    # Objects that are not torch.save files: JSON, and the pickles of HyperParallel.
    single = out / f"values-{dist.get_rank()}.pt"
    torch.save({"w": torch.arange(6.0), "step": 7, "when": {"epoch": 2.5}}, single)
    with ckptfs.open(single, index=":memory:") as ck:
        names = list(ck.objects)
    for weights_only in True, False:
        mine = dict.fromkeys(names, 0)
        dcp.load(mine, storage_reader=StorageReader(single, index=":memory:", weights_only=weights_only))
        assert mine and all(mine.values()), mine
    for weights_only in True, False:
        mine = {"epoch": None}
        dcp.load(mine, storage_reader=StorageReader(data / "hp_a_collective/ckpt", weights_only=weights_only))
        assert mine["epoch"] is not None
    # A nested state dict without a template, as dcp_to_torch_save loads it.
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
    nested = _load_state_dict_from_keys(storage_reader=StorageReader(
        data / "mp4_fsdp2_adamw/ckpt", weights_only=False))
    wanted = _load_state_dict_from_keys(checkpoint_id=data / "mp4_fsdp2_adamw/ckpt")
    assert not same(nested, wanted), same(nested, wanted)


class Wrapper(torch.Tensor):
    """Wraps another tensor; has no elements in memory itself."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return function(*(a.inner if isinstance(a, Wrapper) else a for a in args), **(kwargs or {}))


def check_lazy_views(_, out):
    """Tensors whose values are not those in memory."""
    path = out / "lazy"
    state = {"c": torch.tensor([1 + 2j, 3 - 4j]), "n": torch.tensor([1., -2.]), "w": torch.arange(3.)}
    dcp.save(state, checkpoint_id=path)
    mine = {"c": torch.zeros(2, dtype=torch.complex64).conj(), "n": torch._neg_view(torch.zeros(2)),
            "w": Wrapper(torch.zeros(3))}
    dcp.load(mine, storage_reader=StorageReader(path))
    assert mine["c"].tolist() == state["c"].tolist() and mine["n"].tolist() == state["n"].tolist(), mine
    assert mine["w"].inner.tolist() == [0, 1, 2], mine["w"].inner


def check_types_are_no_values(_, out):
    """A class, function or constant must not become a dict with its name."""
    path = out / "globals"
    values = {"dtype": torch.bfloat16, "class": int, "function": len, "dots": ..., "in": {Odd, 1}}
    named = {"__global__": 1, "__class__": {"__cycle__": "x"}}
    dcp.save(values, checkpoint_id=path)
    for name, value in values.items():
        mine = {name: None}
        said = raised(dcp.load, mine, storage_reader=StorageReader(path))
        assert "pass weights_only=False" in said or mine[name] == value, (name, said, mine)
    # A real dict with such keys stays a dict.
    single = out / f"named-{dist.get_rank()}.pt"
    torch.save({"w": torch.arange(6.0), "named": [named]}, single)
    with ckptfs.open(single, index=":memory:") as ck:
        (name,) = ck.objects
    mine = {name: None}
    dcp.load(mine, storage_reader=StorageReader(single, index=":memory:"))
    assert named in (mine[name], mine[name][0]), mine


def peak():
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024


def timed(rank, out, mib):
    """Each rank has a quarter of bfloat16 matrices. Both readers take turns, with a warm page cache."""
    mesh = init_device_mesh("cpu", (WORLD,))
    n = max(mib // 64, 1)

    def state(fill):
        return {f"layers.{i}.weight": DTensor.from_local(
            torch.full((4096 // WORLD, 8192), fill, dtype=torch.bfloat16), mesh, [Shard(0)]) for i in range(n)}
    path = out / "timed"
    dcp.save(state(1.5), checkpoint_id=path)
    other = init_device_mesh("cpu", (2, 2))
    for turn in range(3):
        for name, reader in ("torch", dcp.FileSystemReader(path)), ("ckptfs", StorageReader(path)):
            room = {f"layers.{i}.weight": dtensor.zeros(4096, 8192, dtype=torch.bfloat16, device_mesh=other,
                                                        placements=[Shard(1), Shard(0)]) for i in range(n)}
            for t in room.values():
                t.to_local().fill_(0)
            with open("/proc/self/clear_refs", "w", encoding="ascii") as f:
                f.write("5")
            dist.barrier()
            before, start = peak(), time.monotonic()
            dcp.load(room, storage_reader=reader)
            dist.barrier()
            took, more = time.monotonic() - start, peak() - before
            assert all((t.to_local() == 1.5).all() for t in room.values())
            del room
            if rank == 0:
                print(f"turn {turn} {name}: {took:.2f} s, {more:.0f} MiB beyond the tensors on rank 0", flush=True)


def checked(checks, *args):
    """All ranks' failures. A check has passed if it has passed on all ranks."""
    counts = [0, 0]
    for check in checks:
        said = io.StringIO()
        try:
            check(*args)
        except BaseException:  # dcp's CheckpointException is one
            traceback.print_exc(file=said)
        all_said = [None] * WORLD
        dist.all_gather_object(all_said, said.getvalue())
        counts[any(all_said)] += 1
        if dist.get_rank() == 0 and any(all_said):
            print(f"{check.__name__}:", next(filter(None, all_said)))
    if dist.get_rank() == 0:
        print(f"{counts[0]} passed, {counts[1]} failed")


def work(rank, how, data, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("PORT", "29541"),
                      RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    if how == "time":
        timed(rank, pathlib.Path(data), int(out))
        dist.destroy_process_group()
        return
    checked((check_fsdp2, check_formats, check_model, check_objects_and_errors, check_lazy_views,
             check_types_are_no_values), pathlib.Path(data), pathlib.Path(out))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=tuple(sys.argv[1:4]), nprocs=WORLD)
