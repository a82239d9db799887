"""dcp_writer.py check OUT - compare ckptfs.dcp.StorageWriter with torch's own reader and writer, on four gloo ranks.
dcp_writer.py time OUT MIB - measure time and memory of both.

OUT is a directory to write in. `check` prints a line for each difference, then "N passed, M failed".
"""

import dataclasses
import gc
import os
import pathlib
import pickle
import signal
import sys
import threading
import time

import ckptfs
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from ckptfs.dcp import StorageReader, StorageWriter
from dcp_reader import WORLD, Odd, bits, checked, meshes, peak, raised, same, training
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def check_fsdp2(out):
    """This writer saves from each mesh, in all forms of files; torch's reader and ours load into each mesh."""
    options = {}, {"threads": 3, "zstd": 3}, {"file_per_item": True}
    for i, ((mesh, plan), how) in enumerate(zip(meshes(), options)):
        path, theirs = out / f"fsdp2-{i}", out / f"theirs-{i}"
        dcp.save(training(1, mesh, plan), storage_writer=StorageWriter(path, **how))
        dcp.save(training(1, mesh, plan), checkpoint_id=theirs)
        for other, other_plan in meshes():
            wanted = training(2, other, other_plan)
            dcp.load(wanted, checkpoint_id=theirs)
            readers = [StorageReader(path)] + ([] if how.get("zstd") else [dcp.FileSystemReader(path)])
            for reader in readers:
                mine = training(2, other, other_plan)
                dcp.load(mine, storage_reader=reader)
                assert not same(wanted, mine), (i, reader, same(wanted, mine))
        # Without a template the state dict is nested as it was saved.
        if not how.get("zstd"):
            assert not same(_load_state_dict_from_keys(checkpoint_id=path), _load_state_dict_from_keys(checkpoint_id=theirs))
            ours, torchs = (dcp.FileSystemReader(p).read_metadata() for p in (path, theirs))
            assert ours.planner_data == torchs.planner_data
            assert ours.state_dict_metadata == torchs.state_dict_metadata
            assert set(ours.storage_data) == set(torchs.storage_data)


class Paths(dcp.DefaultSavePlanner):
    """A planner with other data than torch's."""

    def __init__(self, paths):
        super().__init__()
        self.paths = paths

    def create_global_plan(self, all_plans):
        plans, metadata = super().create_global_plan(all_plans)
        return plans, dataclasses.replace(metadata, planner_data=self.paths)


def check_values(out):
    """Every dtype, views, tensors without elements or dimensions; objects."""
    path = out / "values"
    wide = torch.arange(24.0).reshape(4, 6)
    state = {"view": wide.t(), "part": wide[1:, ::2], "scalar": torch.tensor(3), "empty": torch.empty(0, 5),
             "conj": torch.tensor([1 + 2j, 3 - 1j]).conj(), "odd": Odd(), "none": None, "": {"a/b": (1, 2)},
             "list": [torch.ones(2), {"x": b"\0"}], "by number": {0: torch.zeros(1), 7: "text"},
             **{str(t): torch.zeros(3).to(t) for t in (torch.float8_e4m3fn, torch.bfloat16, torch.bool, torch.uint16)}}
    writer = StorageWriter()
    dcp.save(state, checkpoint_id=path, storage_writer=writer)
    assert writer.checkpoint_id == path
    nested = _load_state_dict_from_keys(checkpoint_id=path)
    dcp.save(state, checkpoint_id=out / "values-torch")
    wanted = _load_state_dict_from_keys(checkpoint_id=out / "values-torch")
    for (ones, value), (want, other) in [(nested.pop("list"), wanted.pop("list"))]:
        assert bits(ones) == bits(want) and value == other == {"x": b"\0"}
    assert not same(nested, wanted), same(nested, wanted)
    assert torch.equal(nested["view"], wide.t())
    for paths, why in ({"x": (-1,)}, "nor a number"), ([1], "not the paths"):
        assert why in raised(dcp.save, {"x": torch.ones(1)}, storage_writer=StorageWriter(out / "x"), planner=Paths(paths))
    assert not [name for name in os.listdir(out) if name.startswith("x")]
    assert pickle.loads(pickle.dumps(writer)).checkpoint_id == path


def check_formats(out):
    """Each format is loaded by our reader."""
    mesh = init_device_mesh("cpu", (WORLD,))
    full = torch.arange(40.0).reshape(8, 5)
    rank = dist.get_rank()
    tensors = {"a.weight": DTensor.from_local(full[2 * rank:2 * rank + 2], mesh, [Shard(0)]), "b": torch.arange(3)}
    objects = {"step": 7, "when": {"epoch": [1, 2.5]}}
    for how, state in (("dcp", {**tensors, **objects}), ("megatron", {**tensors, **objects}),
                       ("hyperparallel", {**tensors, **objects}), ("safetensors", tensors),
                       ("zarr", {"b": torch.arange(3), "c": full})):
        path = out / how
        dcp.save(state, storage_writer=StorageWriter(path, format=how))
        with ckptfs.open(path, index=":memory:") as ck:
            got = {name: ck.tensor(name).torch() for name in ck}
            assert set(got) == {k for k, v in state.items() if isinstance(v, torch.Tensor)}, (how, set(got))
            for name, t in state.items():
                if isinstance(t, torch.Tensor):
                    whole = full if name in ("a.weight", "c") else t
                    assert bits(got[name]) == bits(whole), (how, name)
            values = {name: o.value for name, o in ck.objects.items()}
        if how == "megatron":
            assert values["step/shard_0_1"] == [7] and values["when.epoch/shard_0_1" if "when.epoch/shard_0_1" in values
                                                             else "when.epoch.0/shard_0_1"], values
        elif "step" in state:
            assert values["step"] == 7 and 2.5 in [*values.values(), *values.get("when.epoch", [])], (how, values)
    assert "only tensors" in raised(dcp.save, {**tensors, **objects}, storage_writer=StorageWriter(
        out / "no", format="safetensors"))
    assert "as a whole" in raised(dcp.save, tensors, storage_writer=StorageWriter(out / "no", format="zarr"))
    assert "have no '/'" in raised(dcp.save, {"a/b": 1}, storage_writer=StorageWriter(out / "no", format="megatron"))
    assert "unknown format" in raised(StorageWriter, "x", format="gguf")
    assert "only one rank" in raised(StorageWriter("s3://bucket/x").prepare_global_plan, [SavePlan([]), SavePlan([])])
    dist.barrier()
    assert not [name for name in os.listdir(out) if name.startswith("no")], os.listdir(out)


class Failing(dcp.DefaultSavePlanner):
    """A planner by which one rank fails or is killed while it writes: with a tensor, or with all of its plan."""

    def __init__(self, rank, where):
        super().__init__()
        self.where = where if dist.get_rank() == rank else ""

    def finish_plan(self, new_plan):
        if self.where == "plan":
            raise KeyError("as was to be expected")
        return super().finish_plan(new_plan)

    def resolve_data(self, write_item):
        if self.where == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.where == "data":
            raise KeyError("as was to be expected")
        data = super().resolve_data(write_item)
        return data[:1] if self.where == "shape" and isinstance(data, torch.Tensor) else data


def check_failures(out):
    """After a failure the old checkpoint is there, and nothing else; overwrite replaces it."""
    path = out / "old"
    mesh = init_device_mesh("cpu", (WORLD,))

    def state(value):
        return {"w": DTensor.from_local(torch.full((2, 3), value), mesh, [Shard(0)]), "step": value}

    def is_old(value):
        got = state(0.0)
        dcp.load(got, checkpoint_id=path)
        return not same(got, state(value))

    dcp.save(state(1.0), storage_writer=StorageWriter(path))
    assert "exists" in raised(dcp.save, state(2.0), storage_writer=StorageWriter(path))
    assert is_old(1.0)
    for rank in 0, 2:
        for where, why in ("data", "expected"), ("plan", "expected"), ("shape", "not what the plan says"):
            for threads in 1, 2:
                said = raised(dcp.save, state(2.0), planner=Failing(rank, where),
                              storage_writer=StorageWriter(path, overwrite=True, threads=threads))
                assert why in said, (rank, where, said)
                assert is_old(1.0), (rank, where)
    gc.collect()
    dist.barrier()
    assert [x for x in os.listdir(out) if x.startswith("old")] == ["old"], os.listdir(out)
    dist.barrier()
    writer = StorageWriter(path, overwrite=True)
    assert "expected" in raised(dcp.save, state(2.0), planner=Failing(3, "data"), storage_writer=writer)
    dcp.save(state(3.0), storage_writer=writer)  # the same again
    assert is_old(3.0)
    # While the exceptions of failed saves live, so do their frames, and the writers that these refer to.
    kept = []
    for rank in 0, 2:
        try:
            dcp.save(state(4.0), planner=Failing(rank, "data"), storage_writer=StorageWriter(path, overwrite=True))
        except BaseException as e:
            kept.append(e)
            dcp.save(state(5.0 + rank), storage_writer=StorageWriter(path, overwrite=True))
        assert is_old(5.0 + rank), rank
    dist.barrier()
    assert len(kept) == 2 and [x for x in os.listdir(out) if x.startswith("old")] == ["old"], os.listdir(out)
    alone = out / f"alone-again-{dist.get_rank()}"
    for where in "data", "plan":
        writer = StorageWriter(alone)
        try:
            dcp.save({"w": torch.ones(2)}, planner=Failing(dist.get_rank(), where), storage_writer=writer, no_dist=True)
        except BaseException as e:
            kept.append((writer, e))
        assert where == "plan" or not [x for x in os.listdir(out) if x.startswith(alone.name)], os.listdir(out)
    dcp.save({"w": torch.ones(2)}, storage_writer=StorageWriter(alone), no_dist=True)
    assert [x for x in os.listdir(out) if x.startswith(alone.name)] == [alone.name] and len(kept) == 4, os.listdir(out)
    assert "given up" in raised(kept[-1][0]._writer.global_plan, [])
    # A save of another thread may be under way.
    began, go_on = threading.Event(), threading.Event()
    slow = Failing(-1, "")
    slow.resolve_data = lambda item: (began.set(), go_on.wait(), dcp.DefaultSavePlanner.resolve_data(slow, item))[2]
    thread = threading.Thread(target=dcp.save, args=[{"w": torch.zeros(2)}], kwargs={
        "planner": slow, "storage_writer": StorageWriter(alone, overwrite=True), "no_dist": True})
    thread.start()
    began.wait()
    assert "is under way" in raised(dcp.save, {"w": torch.ones(2)}, storage_writer=StorageWriter(alone, overwrite=True), no_dist=True)
    go_on.set()
    thread.join()
    with ckptfs.open(alone, index=":memory:") as ck:
        assert ck["w"].tolist() == [0, 0]
    dist.barrier()
    if dist.get_rank() == 0:
        (path / "mine").write_text("not of the checkpoint")
    dist.barrier()
    assert "mine" in raised(dcp.save, state(4.0), storage_writer=StorageWriter(path, overwrite=True))
    assert is_old(7.0)
    assert "there is no path" in raised(dcp.save, state(4.0), storage_writer=StorageWriter())
    assert "use_collectives" in raised(dcp.save, state(4.0), storage_writer=StorageWriter(out / "z"), use_collectives=False)
    assert StorageWriter.validate_checkpoint_id(out / "z") and not StorageWriter.validate_checkpoint_id("/no/where")


def check_other_ways(out):
    """async_save by a thread and by a process; cached plans; a single process; a group of only some ranks."""
    mesh = init_device_mesh("cpu", (WORLD,))
    state = {"w": DTensor.from_local(torch.full((2, 3), 1.5), mesh, [Shard(0)]), "step": 4}
    path = out / "async"
    dcp.async_save(state, storage_writer=StorageWriter(path)).result()
    dcp.async_save(state, storage_writer=StorageWriter(out / "process"),
                   async_checkpointer_type=AsyncCheckpointerType.PROCESS).result()
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
    writer = StorageWriter()
    for i in range(3):
        dcp.save(state, checkpoint_id=out / f"kept-{i}", storage_writer=writer, planner=planner)
    for one in path, out / "process", out / "kept-0", out / "kept-2":
        got = {"w": DTensor.from_local(torch.zeros(2, 3), mesh, [Shard(0)]), "step": 0}
        dcp.load(got, checkpoint_id=one)
        assert not same(got, state), one
    alone = out / f"alone-{dist.get_rank()}"
    dcp.save({"x": torch.arange(4), "rank": dist.get_rank()}, storage_writer=StorageWriter(alone), no_dist=True)
    got = {"x": torch.zeros(4, dtype=torch.int64), "rank": -1}
    dcp.load(got, checkpoint_id=alone, no_dist=True)
    assert got["x"].tolist() == [0, 1, 2, 3] and got["rank"] == dist.get_rank()
    some = dist.new_group([1, 3])
    if dist.get_rank() in (1, 3):
        dcp.save({"x": torch.arange(4)}, storage_writer=StorageWriter(out / "some"), process_group=some)
        got = {"x": torch.zeros(4, dtype=torch.int64)}
        dcp.load(got, checkpoint_id=out / "some", process_group=some)
        assert got["x"].tolist() == [0, 1, 2, 3]


def timed(rank, out, mib):
    """Each rank has a quarter of bfloat16 matrices. Both writers take turns."""
    mesh = init_device_mesh("cpu", (WORLD,))
    state = {f"layers.{i}.weight": DTensor.from_local(
        torch.full((4096 // WORLD, 8192), 1.5, dtype=torch.bfloat16), mesh, [Shard(0)]) for i in range(max(mib // 64, 1))}
    for turn in range(3):
        for name, kind in ("torch", dcp.FileSystemWriter), ("ckptfs", StorageWriter):
            with open("/proc/self/clear_refs", "w", encoding="ascii") as f:
                f.write("5")
            dist.barrier()
            before, start = peak(), time.monotonic()
            dcp.save(state, storage_writer=kind(out / f"{name}-{turn}"))
            took, more = time.monotonic() - start, peak() - before
            if rank == 0:
                print(f"turn {turn} {name}: {took:.2f} s, {more:.0f} MiB beyond the tensors on rank 0", flush=True)


def work(rank, how, out, mib="0"):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("PORT", "29543"),
                      RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD))
    dist.init_process_group("cpu:gloo", rank=rank, world_size=WORLD)
    if how == "kill":
        dcp.save({"w": torch.full((8, 3), 2.0), f"of {rank}": torch.full((4,), 2.0)}, planner=Failing(2, "kill"),
                 storage_writer=StorageWriter(pathlib.Path(out) / "killed", overwrite=True))
    elif how == "time":
        timed(rank, pathlib.Path(out), int(mib))
    else:
        checked((check_fsdp2, check_values, check_formats, check_failures, check_other_ways), pathlib.Path(out))
    dist.destroy_process_group()


def check_killed(out):
    """A rank is killed while it writes over a checkpoint: that stays, and the next save removes what is left."""
    path = out / "killed"

    def save(value, **options):
        dcp.save({"w": torch.full((8, 3), value)}, storage_writer=StorageWriter(path, **options), no_dist=True)

    def values():
        got = {"w": torch.zeros(8, 3)}
        dcp.load(got, checkpoint_id=path, no_dist=True)
        return got["w"].unique().tolist()

    save(1.0)
    try:
        mp.spawn(work, args=("kill", out), nprocs=WORLD)
    except mp.ProcessExitedException as e:
        assert e.signal_name == "SIGKILL", e
    except mp.ProcessRaisedException as e:  # another rank noticed first
        assert "as was" not in str(e)
    else:
        raise AssertionError("no rank was killed")
    assert values() == [1.0], values()
    save(3.0, overwrite=True)
    assert values() == [3.0], values()
    assert [x for x in os.listdir(out) if "killed" in x] == ["killed"], os.listdir(out)


if __name__ == "__main__":
    if sys.argv[1] == "check":
        check_killed(pathlib.Path(sys.argv[2]))
    mp.spawn(work, args=tuple(sys.argv[1:4]), nprocs=WORLD)
