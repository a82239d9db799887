# SPDX-License-Identifier: Apache-2.0
"""Any checkpoint as one of torch.distributed.checkpoint.

    import torch.distributed.checkpoint as dcp
    from ckptfs.dcp import StorageReader

    state = {"model": model.state_dict()}           # DTensors of any mesh, or plain tensors
    dcp.load(state, storage_reader=StorageReader("run/step-1000"))

Each rank reads the elements that it holds, straight into its tensors, whatever the format, the number of ranks and the
sharding that the checkpoint was saved with.
"""

from __future__ import annotations

import io
import os
import warnings
from typing import Any, Optional, Union

import torch
from torch.distributed.checkpoint import LoadPlan, LoadPlanner
from torch.distributed.checkpoint import StorageReader as _StorageReader
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata, StorageMeta,
                                                   TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.futures import Future

from ._checkpoint import Checkpoint, Object
from ._libckpt import Error, Option
from ._load import read_boxes

__all__ = ["StorageReader"]

_MAGIC = (0x1950a86a20f9469cfc6c).to_bytes(10, "little")  # what torch.save begins a file with that is no archive


class StorageReader(_StorageReader):
    """Reads every checkpoint that ckptfs.open() opens; the options are its.

    model: the names and tensors of hf/, for example with recipe="megatron", in place of those that are stored.
    threads: that read at the same time; 0: the CPUs of this process, divided by $LOCAL_WORLD_SIZE.
    weights_only: of what is not a tensor, only what torch.load(weights_only=True) accepts is unpickled, or, where that
    accepts none of it, values of Python's own types; False: everything, as torch's own reader does. A pickle of a
    stranger can run any program.

    """

    def __init__(self, path: Union[str, os.PathLike, None] = None, *, model: bool = False, threads: int = 0,
                 weights_only: bool = True, **options: Option):
        super().__init__()
        self._path, self._options = path, options
        self._model, self._threads, self._weights_only = model, threads, weights_only
        self._checkpoint: Optional[Checkpoint] = None

    def reset(self, checkpoint_id: Union[str, os.PathLike, None] = None) -> None:
        self.close()
        if checkpoint_id:
            self._path = checkpoint_id

    def close(self) -> None:
        """The checkpoint stays open from one load to the next, until this or reset()."""
        if self._checkpoint:
            self._checkpoint.close()
            self._checkpoint = None

    def _open(self) -> Checkpoint:
        if self._checkpoint is None:
            if self._path is None:
                raise ValueError("there is no path: pass one to StorageReader(), or checkpoint_id= to load()")
            self._checkpoint = Checkpoint(self._path, self._options)
        return self._checkpoint

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        ck = self._open()
        tensors = ck.model if self._model else ck
        entries: dict[str, Any] = {}
        for name in tensors:
            t = tensors.tensor(name)
            try:
                dtype = t.torch_dtype()
            except TypeError as e:  # it cannot be loaded, and the others can
                warnings.warn(f"left out: {e}", stacklevel=2)
                continue
            # Which ranks saved which parts is the library's affair: to torch it is one chunk.
            entries[name] = TensorStorageMetadata(
                TensorProperties(dtype=dtype), torch.Size(t.shape),
                [ChunkStorageMetadata(torch.Size([0] * t.ndim), torch.Size(t.shape))])
        for name in () if self._model else ck.objects:
            entries.setdefault(name, BytesStorageMetadata())
        paths = {} if self._model else ck.paths()
        return Metadata(entries, planner_data={name: paths.get(name, (name,)) for name in entries},
                        storage_meta=StorageMeta(checkpoint_id=os.fspath(self._path)))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        ck = self._open()
        tensors = ck.model if self._model else ck
        wanted: list[tuple[Any, torch.Tensor, tuple[slice, ...]]] = []
        after: list[tuple[ReadItem, torch.Tensor, torch.Tensor]] = []
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._bytes_of(ck.objects[name]))
                continue
            t = tensors.tensor(name)
            target = planner.resolve_tensor(item).detach()
            if list(target.shape) != list(item.lengths):
                raise ValueError(f"tensor '{name}': {list(item.lengths)} elements are to be read, and there is room for "
                                 f"{list(target.shape)}")
            room = target
            if target.device.type != "cpu" or target.dtype != t.torch_dtype():
                room = torch.empty(target.shape, dtype=t.torch_dtype(), device="cpu")
            wanted.append((t, room, tuple(slice(o, o + n) for o, n in zip(item.storage_offsets, item.lengths))))
            after.append((item, target, room))
        threads = self._threads or max(len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 1)
        read_boxes(wanted, threads)
        for item, target, room in after:
            if room is not target:
                target.copy_(room)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _bytes_of(self, found: Object) -> io.BytesIO:
        """What the planner passes to torch.load(weights_only=False)."""
        # Objects of DCP and Megatron-core are files of torch.save's, those of HyperParallel pickles; others are JSON.
        pickled = found.startswith((b"PK\3\4", b"\x80"))
        if pickled and not self._weights_only:
            import pickle  # nothing else here executes one

            of_torch = found.startswith(b"PK") or _MAGIC in found[:32]
            return io.BytesIO(found) if of_torch else _saved(pickle.loads(found))
        try:
            torch.load(io.BytesIO(found), weights_only=True)
            return io.BytesIO(found)
        except Exception as e:  # whatever it says, what follows is as safe
            why = e
        value = found.value
        if _has_class(value):
            raise Error(f"object '{found.name}' of '{self._path}' is not of Python's own types"
                        + (": pass weights_only=False if you trust who saved it" if pickled else "")) from why
        return _saved(value)

    @property
    def checkpoint_id(self) -> Union[str, os.PathLike, None]:
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, os.PathLike]) -> bool:
        try:
            Checkpoint(checkpoint_id, {}).close()
            return True
        except OSError:
            return False


def _saved(value: Any) -> io.BytesIO:
    out = io.BytesIO()
    torch.save(value, out)
    out.seek(0)
    return out


def _has_class(value: Any) -> bool:
    """Does it contain what has no Python value? See Object.value."""
    if isinstance(value, dict):
        return "__class__" in value or "__cycle__" in value or any(map(_has_class, value.values()))
    return isinstance(value, (list, tuple, set, frozenset)) and any(map(_has_class, value))
