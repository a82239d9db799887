# SPDX-License-Identifier: Apache-2.0
"""Storage for torch.distributed.checkpoint: a reader of any checkpoint, and a writer of five formats.

    import torch.distributed.checkpoint as dcp
    from ckptfs.dcp import StorageReader, StorageWriter

    state = {"model": model.state_dict()}           # DTensors of any mesh, or plain tensors
    dcp.save(state, storage_writer=StorageWriter("run/step-1000"))
    dcp.load(state, storage_reader=StorageReader("run/step-1000"))

Each rank reads the elements that it holds, straight into its tensors, whatever the format, the number of ranks and the
sharding that the checkpoint was saved with.

Each rank writes what torch's planner gives it, straight from its tensors. The checkpoint appears all at once, when every
rank's data are on disk; if a rank fails or is killed, the previous contents of the path are unchanged.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import gc
import io
import json
import os
import pickle
import warnings
from typing import Any, Optional, Union

import torch
from torch.distributed.checkpoint import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint import StorageReader as _StorageReader
from torch.distributed.checkpoint import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata, StorageMeta,
                                                   TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ._checkpoint import Checkpoint, Object, _decoded
from ._libckpt import Error, Option
from ._load import read_boxes
from ._writer import FORMATS, Writer, close_failed, is_megatrons

__all__ = ["StorageReader", "StorageWriter"]

_MAGIC = (0x1950a86a20f9469cfc6c).to_bytes(10, "little")  # torch.save's legacy files, which are no archives, have it


class _AtPath:
    """The methods with which torch's readers and writers are told their path."""

    _path: Union[str, os.PathLike, None]

    def close(self) -> None:
        raise NotImplementedError

    def reset(self, checkpoint_id: Union[str, os.PathLike, None] = None) -> None:
        self.close()
        if checkpoint_id:
            self._path = checkpoint_id

    @property
    def checkpoint_id(self) -> Union[str, os.PathLike, None]:
        return self._path


class StorageReader(_AtPath, _StorageReader):
    """Reads every checkpoint that ckptfs.open() opens; the options are its.

    model: read the names and tensors of hf/, for example with recipe="megatron", instead of the stored ones.
    threads: how many read at the same time; 0: the CPUs of this process, divided by $LOCAL_WORLD_SIZE.
    weights_only: objects other than tensors are unpickled only if torch.load(weights_only=True) accepts them; otherwise
    they are read as values of Python's own types, or refused. False: everything is unpickled, as torch's own reader
    does it; a pickle from a stranger can run any program.

    """

    def __init__(self, path: Union[str, os.PathLike, None] = None, *, model: bool = False, threads: int = 0,
                 weights_only: bool = True, **options: Option):
        super().__init__()
        self._path, self._options = path, options
        self._model, self._threads, self._weights_only = model, threads, weights_only
        self._checkpoint: Optional[Checkpoint] = None

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
            except TypeError as e:  # this tensor cannot be loaded, but the others can
                warnings.warn(f"left out: {e}", stacklevel=2)
                continue
            # torch is shown a single chunk; only the library needs to know which ranks saved which parts.
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
            # A lazily conjugated or negated view has other elements in memory, and some subclasses have none.
            if (target.device.type != "cpu" or target.dtype != t.torch_dtype() or target.is_conj() or target.is_neg()
                    or not target.data_ptr()):
                room = torch.empty(target.shape, dtype=t.torch_dtype(), device="cpu")
            wanted.append((t, room, tuple(slice(o, o + n) for o, n in zip(item.storage_offsets, item.lengths))))
            after.append((item, target, room))
        threads = self._threads or max(len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 1)
        read_boxes(wanted, threads)
        for item, target, room in after:
            if room is not target:
                target.copy_(room)
            planner.commit_tensor(item, target)
        return _done(None)

    def _bytes_of(self, found: Object) -> io.BytesIO:
        """The bytes that the planner will pass to torch.load(weights_only=False)."""
        # Objects of DCP and Megatron-core are torch.save files, those of HyperParallel are pickles, others are JSON.
        pickled = found.startswith((b"PK\3\4", b"\x80"))
        if pickled and not self._weights_only:
            of_torch = found.startswith(b"PK") or _MAGIC in found[:32]
            return io.BytesIO(found) if of_torch else _saved(pickle.loads(found))
        try:
            torch.load(io.BytesIO(found), weights_only=True)
            return io.BytesIO(found)
        except Exception as e:  # whatever the reason, the fallback below is just as safe
            why = e
        try:
            return _saved(json.loads(found._json(), object_hook=_of_python))
        except TypeError:
            raise Error(f"object '{found.name}' of '{self._path}' is not of Python's own types"
                        + (": pass weights_only=False if you trust who saved it" if pickled else "")) from why

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, os.PathLike]) -> bool:
        try:
            Checkpoint(checkpoint_id, {}).close()
            return True
        except OSError:
            return False


class StorageWriter(_AtPath, _StorageWriter):
    """Writes checkpoints with libckpt.

    path: a directory that does not exist or is empty; or checkpoint_id= of save().
    format: "dcp", "megatron" (Megatron-core's torch_dist), "hyperparallel", "safetensors" (tensors only; each rank's
    parts in files of its own if a tensor has several), "zarr" (whole tensors only).
    overwrite: replace an existing checkpoint once the new one is complete. Anything but a checkpoint is never replaced.
    zstd: compress (dcp, megatron): the level, 0 for none.
    threads: of each rank, each with a file of its own (dcp, megatron).
    file_per_item: a file for each tensor or part of one (dcp, megatron).
    shard_size: bytes of tensors in a file (safetensors: 0 for 5 GB) or a chunk (zarr: 0 for 256 MiB).
    options: for an address of an object store, see ckptfs-remote(7); only a single rank can save there.

    What is not a tensor is written as torch.save writes it (hyperparallel: as a pickle; megatron: as an object of
    one part, NAME/shard_0_1, unless it has one of Megatron-core's names). A writer can be used for one save after
    another, also by async_save. If writing fails in the only rank, nothing is left. Other files that a failed
    save leaves beside path are removed when the writer is used again, closed or no longer referred to (the exception
    refers to it), or by the next save there.

    """

    def __init__(self, path: Union[str, os.PathLike, None] = None, *, format: str = "dcp", overwrite: bool = False,
                 zstd: int = 0, threads: int = 0, file_per_item: bool = False, shard_size: int = 0, **options: Option):
        super().__init__()
        if format not in FORMATS:
            raise ValueError(f"unknown format {format!r}; choose one of {', '.join(FORMATS)}")
        self._path = path
        self._how = {"format": format, "overwrite": overwrite, "zstd": zstd, "threads": threads,
                     "file_per_item": file_per_item, "shard_size": shard_size}
        self._options = options
        self._writer: Optional[Writer] = None  # of a save that has begun

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writer": None}

    def close(self) -> None:
        """Removes what an unfinished save has left."""
        if self._writer:
            self._writer.close()
            self._writer = None

    def _new(self) -> Writer:
        if self._path is None:
            raise ValueError("there is no path: pass one to StorageWriter(), or checkpoint_id= to save()")
        return Writer(os.fspath(self._path), self._how, self._options)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise ValueError("use_collectives=False makes one checkpoint per rank, which this writer cannot do")
        if is_coordinator and kwargs.get("rank"):
            raise ValueError("the coordinator must be rank 0")
        self.close()
        if is_coordinator:
            self._new().validate()  # before anything is planned

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        if self._how["format"] == "safetensors" and not all(getattr(p, "usable", True) for p in plans):
            raise ValueError("enable_plan_caching=True is not for format='safetensors': its files are numbered anew in "
                             "each save")
        if len(plans) > 1 and self._path is not None and "://" in os.fspath(self._path):
            raise ValueError(f"{os.fspath(self._path)!r}: only one rank can save to an object store: save to a directory "
                             "and upload it")
        try:
            self._writer = self._begun(0, len(plans), plans[0])
        except Error as e:
            if e.errno != errno.EBUSY:
                raise
            # The writer of a failed save lives as long as its exception, whose traceback has the frames that refer to it:
            # until that has been handled, or longer, in a cycle.
            close_failed(os.fspath(self._path))
            gc.collect()
            self._writer = self._begun(0, len(plans), plans[0])
        try:
            told = self._writer.global_plan(plans)
        except BaseException:
            self.close()  # no other rank writes yet
            raise
        return [dataclasses.replace(p, storage_data=(i, len(plans), t)) for i, (p, t) in enumerate(zip(plans, told))]

    def _begun(self, rank: int, size: int, plan: SavePlan) -> Writer:
        writer = self._new()
        try:
            writer.begin(rank, size, plan)
        except BaseException:
            writer.close()
            raise
        return writer

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        rank, size, told = plan.storage_data
        writer = self._writer or self._begun(rank, size, plan)
        try:
            done = _done(writer.write(plan, told, lambda item: self._data_of(item, planner)))
        except BaseException:
            if size == 1:  # no other rank writes
                self.close()
            raise
        finally:
            if writer is not self._writer:
                writer.close()
        return done

    def _data_of(self, item: WriteItem, planner: SavePlanner) -> tuple[int, int, Any]:
        data: Any = planner.resolve_data(item)
        name = item.index.fqn
        if item.type == WriteItemType.BYTE_IO:
            room = self._bytes_of(name, data).getbuffer()
            size = len(room)
            owner = (ctypes.c_char * size).from_buffer(room)
            return ctypes.addressof(owner), size, owner
        t = data.detach()
        if t.shape != item.tensor_data.chunk.sizes or t.dtype != item.tensor_data.properties.dtype:
            raise ValueError(f"tensor '{name}': {t.dtype} {list(t.shape)} is not what the plan says")
        t = t.cpu().resolve_conj().resolve_neg().contiguous()
        if t.numel() and not t.data_ptr():
            raise ValueError(f"tensor '{name}': a {type(t).__name__} has no elements in memory")
        return t.data_ptr(), t.numel() * t.element_size(), t

    def _bytes_of(self, name: str, saved: io.BytesIO) -> io.BytesIO:
        """An object as the format stores it. saved: what torch.save wrote."""
        if self._how["format"] == "hyperparallel":
            return io.BytesIO(pickle.dumps(_loaded(saved)))
        if self._how["format"] == "megatron" and not is_megatrons(name):
            return _saved([_loaded(saved)])
        return saved

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        assert self._writer
        try:
            self._writer.finish(metadata, results)
        finally:
            self.close()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, os.PathLike]) -> bool:
        try:
            cls(checkpoint_id, overwrite=True)._new().validate()
            return True
        except OSError:
            return False


def _done(value: Any) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(value)
    return done


def _saved(value: Any) -> io.BytesIO:
    out = io.BytesIO()
    torch.save(value, out)
    out.seek(0)
    return out


def _loaded(saved: io.BytesIO) -> Any:
    saved.seek(0)
    return torch.load(saved, weights_only=False)


def _of_python(found: dict) -> Any:
    """Like _decoded(), but raises TypeError for a value of a type that is not Python's own (see pickle_json.h)."""
    value = _decoded(found)
    if value is found and not found.keys().isdisjoint(("__class__", "__cycle__", "__global__")):
        raise TypeError
    return value
