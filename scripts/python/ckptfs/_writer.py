# SPDX-License-Identifier: Apache-2.0
"""The storage writers of ckpt_storage.h, for the plans of torch.distributed.checkpoint."""

from __future__ import annotations

import ctypes
import errno
import functools
import itertools
import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_uint64, c_void_p
from typing import Any, Optional

import torch
from torch.distributed.checkpoint import Metadata, SavePlan
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from ._libckpt import Option, _bytes, _Callbacks, _check, _Err, _lent, _path, _text, _words
from ._storage import (_ChunkMeta, _CLOSE_DATA, _FqnPath, _GET_DATA, _Index, _MetaEntry, _Metadata, _PathStep, _Props,
                       _SaveOpts, _SavePlan, _SavePlanner, _SavePlannerOps, _StorageRanks, _StorageWriter, _WriteItem,
                       _WriteResult, _WriteResults, _writers)

FORMATS = ("dcp", "hyperparallel", "safetensors", "megatron", "zarr")  # enum ckpt_format
_TYPES = {WriteItemType.BYTE_IO: 0, WriteItemType.TENSOR: 1, WriteItemType.SHARD: 2}  # enum ckpt_write_type
_MEMORY_FORMATS = {torch.contiguous_format: 0, torch.channels_last: 1, torch.preserve_format: 2}
Names = Callable[[MetadataIndex], str]
#: the address and size of an item's bytes, and what owns them; called from any thread
DataOf = Callable[[WriteItem], tuple[int, int, Any]]
_STEP_FINISHED = 3  # enum ckpt_planner_step
_NO_HINT = -1
_NOTHING = ctypes.create_string_buffer(1)  # its address is that of items without bytes


@functools.lru_cache(maxsize=None)
def _dtype(dtype: torch.dtype) -> int:
    name = str(dtype).partition(".")[2].encode()
    return _writers().ckpt_dtype_by_name(name, len(name))


# ---- torch's values as C structures ----


class _Memory:
    """Owns what C structures point to: names, numbers and arrays. Equal ones are kept once."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[int, int, bytes]] = {}
        self._numbers: dict[tuple[int, ...], tuple[int, Any]] = {}
        self._arrays: list[Any] = []

    def text(self, s: str) -> tuple[int, int]:
        """Its address and its length."""
        found = self._texts.get(s)
        if found is None:
            b = _bytes(s)
            found = self._texts[s] = ctypes.cast(c_char_p(b), c_void_p).value or 0, len(b), b
        return found[:2]

    def numbers(self, v: Sequence[int]) -> int:
        v = tuple(v)
        found = self._numbers.get(v)
        if found is None:
            room = (c_uint64 * (len(v) or 1))(*v)
            found = self._numbers[v] = ctypes.addressof(room), room
        return found[0]

    def array(self, kind: Any, n: int) -> Any:
        room = (kind * (n or 1))()
        self._arrays.append(room)
        return room

    def index(self, to: _Index, i: MetadataIndex, name: str) -> None:
        to.fqn, to.fqn_len = self.text(name)
        to.hint = _NO_HINT if i.index is None else i.index
        if i.offset is not None:
            to.offset, to.n_dims, to.has_offset = self.numbers(i.offset), len(i.offset), True

    def props(self, to: _Props, p: TensorProperties, name: str) -> None:
        if p.layout != torch.strided or not _dtype(p.dtype):
            raise ValueError(f"tensor '{name}': {p.dtype}, {p.layout}: it cannot be written")
        to.dtype, to.memory_format = _dtype(p.dtype), _MEMORY_FORMATS[p.memory_format]
        to.requires_grad, to.pin_memory = p.requires_grad, p.pin_memory

    def chunk(self, to: _ChunkMeta, c: Any) -> None:
        to.off, to.len = self.numbers(c.offsets), self.numbers(c.sizes)

    def plan(self, plan: SavePlan, names: Names, storage: bytes = b"") -> _SavePlan:
        """A plan as a C structure, without its paths, which only the metadata need."""
        items = self.array(_WriteItem, len(plan.items))
        for to, item in zip(items, plan.items):
            self.index(to.index, item.index, names(item.index))
            to.type = _TYPES[item.type]
            if item.tensor_data:
                self.chunk(to.chunk, item.tensor_data.chunk)
                self.props(to.props, item.tensor_data.properties, item.index.fqn)
                to.size = self.numbers(item.tensor_data.size)
        room = self.array(ctypes.c_char, len(storage))
        room[:len(storage)] = storage
        return _SavePlan(ctypes.addressof(items), len(plan.items), None, 0, ctypes.addressof(room), len(storage))

    def results(self, v: Sequence[WriteResult], names: Names) -> _WriteResults:
        room = self.array(_WriteResult, len(v))
        for to, r in zip(room, v):
            self.index(to.index, r.index, names(r.index))
            path, offset, length, key, transform = r.storage_data
            to.info.path, to.info.offset, to.info.length, to.info.transform = path, offset, length, transform
            if key is not None:
                to.info.tensor_key, to.info.tensor_key_len = self.text(key)
        return _WriteResults(room, len(v))

    def metadata(self, md: Metadata, names: Names, version: Optional[bytes], with_paths: bool) -> _Metadata:
        entries = self.array(_MetaEntry, len(md.state_dict_metadata))
        for to, (fqn, m) in zip(entries, md.state_dict_metadata.items()):
            to.is_tensor = isinstance(m, TensorStorageMetadata)
            to.fqn, to.fqn_len = self.text(fqn if to.is_tensor else names(MetadataIndex(fqn)))
            if to.is_tensor:
                self.props(to.tensor.props, m.properties, fqn)
                to.tensor.size, to.tensor.n_dims = self.numbers(m.size), len(m.size)
                chunks = self.array(_ChunkMeta, len(m.chunks))
                for c, chunk in zip(chunks, m.chunks):
                    self.chunk(c, chunk)
                to.tensor.chunks, to.tensor.n_chunks = ctypes.addressof(chunks), len(m.chunks)
        out = _Metadata(ctypes.addressof(entries), len(md.state_dict_metadata), version=version)
        if with_paths and md.planner_data is not None:
            self._paths(out, md.planner_data)
        return out

    def _paths(self, to: _Metadata, paths: Any) -> None:
        if not isinstance(paths, Mapping):
            raise ValueError(f"the planner's data are of {type(paths)}, not the paths that DefaultSavePlanner makes")
        room = self.array(_FqnPath, len(paths))
        for p, (fqn, path) in zip(room, paths.items()):
            steps = self.array(_PathStep, len(path))
            for step, key in zip(steps, path):
                if isinstance(key, str):
                    step.key, step.key_len = self.text(key)
                elif isinstance(key, int) and 0 <= key < 1 << 63:
                    step.position = key
                else:
                    raise ValueError(f"'{fqn}' has the key {key!r}, which is neither text nor a number from 0 on")
            p.fqn, p.fqn_len = self.text(fqn)
            p.steps, p.n_steps = ctypes.addressof(steps), len(path)
        to.paths, to.n_paths = ctypes.addressof(room), len(paths)


# ---- names ----

_PART = re.compile(r"[^/]*/shard_\d+(\.\d+)*_\d+(\.\d+)*")


def is_megatrons(name: str) -> bool:
    """Whether an object has a name of Megatron-core's. Others are written as NAME/shard_0_1, a list of one value."""
    return name == "common.pt" or bool(_PART.fullmatch(name))


def _as_it_is(i: MetadataIndex) -> str:
    return i.fqn


def _megatrons(i: MetadataIndex) -> str:
    if i.offset is not None or is_megatrons(i.fqn):
        return i.fqn
    if "/" in i.fqn:
        raise ValueError(f"object '{i.fqn}': names of Megatron-core's objects have no '/'")
    return i.fqn + "/shard_0_1"


# ---- a save ----


def _free(writer: _StorageWriter, pid: int) -> None:
    if os.getpid() == pid:  # not in a child of fork: the files are its parent's
        _writers().ckpt_storage_writer_free(byref(writer))


#: by path: the writer that was the last to begin a save there
_last: weakref.WeakValueDictionary[str, Writer] = weakref.WeakValueDictionary()


def close_failed(path: str) -> None:
    """Close the writer of a save to path that has failed. A save occupies its thread to its end, so that none is under
    way in this thread, which begins another one, nor in one that has ended."""
    last = _last.get(os.path.abspath(path))
    if last and (last.thread is threading.current_thread() or not last.thread.is_alive()):
        last.close()


class Writer:
    """One rank's part of one save. close(), or the end of the last reference, removes an unfinished save."""

    def __init__(self, path: str, options: Mapping[str, Any], far: Mapping[str, Option]):
        self._path = path
        self._format = options["format"]
        self._names = _megatrons if self._format == "megatron" else _as_it_is
        self._memory = _Memory()
        self._writer = _StorageWriter()
        words = _words(far)
        opts = _SaveOpts(**{**options, "format": FORMATS.index(self._format)}, open=ctypes.cast(words, POINTER(c_char_p)))
        e = _Err()
        _check(_writers().ckpt_save_writer_sized(*_lent(opts), byref(self._writer), byref(e)), e, path)
        self.close = weakref.finalize(self, _free, self._writer, os.getpid())

    def _call(self, function: str, *arguments: Any) -> None:
        if not self.close.alive:
            raise ValueError(f"the save to '{self._path}' has been given up")
        e = _Err()
        with _Callbacks() as calls:
            rc = getattr(_writers(), "ckpt_storage_writer_" + function)(
                byref(self._writer), *(a(calls) if callable(a) else a for a in arguments), byref(e))
        _check(rc, e, self._path)

    def validate(self) -> None:
        self._call("validate_checkpoint_id", _path(self._path))

    def begin(self, rank: int, size: int, plan: SavePlan) -> None:
        self._call("reset", _path(self._path))
        self._call("set_up", byref(_StorageRanks(rank, size)))
        local = self._memory.plan(plan, self._names)
        self._call("prepare_local_plan", byref(local), byref(local))
        if rank == 0:
            self.thread = threading.current_thread()
            _last[os.path.abspath(self._path)] = self

    def global_plan(self, plans: Sequence[SavePlan]) -> list[bytes]:
        """What each rank's writer must be told."""
        parts = (_SavePlan * len(plans))(*(self._memory.plan(p, self._names) for p in plans))
        self._call("prepare_global_plan", parts, len(plans))
        return [ctypes.string_at(p.storage, p.storage_len) if p.storage_len else b"" for p in parts]

    def write(self, plan: SavePlan, storage: bytes, data_of: DataOf) -> list[WriteResult]:
        items = {(_bytes(self._names(i.index)), i.index.offset): i for i in plan.items}
        lent: dict[int, Any] = {}
        numbers = itertools.count(1)

        def get_data(_, item, to, e) -> int:
            # If this raises an exception, _Callbacks raises it again.
            e.contents.code, e.contents.msg = errno.EINTR, b"interrupted"
            address, size, owner = data_of(items[_key(item.contents.index)])
            number = next(numbers)
            lent[number] = owner
            to.contents.data, to.contents.len = address or ctypes.addressof(_NOTHING), size
            to.contents.close, to.contents.arg = close, number
            return 0

        @_CLOSE_DATA
        def close(number) -> None:
            lent.pop(number, None)

        results = _WriteResults()

        def planner(calls: _Callbacks) -> Any:
            ops = _SavePlannerOps(get_data=calls(_GET_DATA, get_data))
            return byref(_SavePlanner(ctypes.pointer(ops), None, _STEP_FINISHED))

        self._call("write_data", byref(self._memory.plan(plan, self._names, storage)), planner, byref(results))
        return [_result(results.v[i], items) for i in range(results.n)]

    def finish(self, metadata: Metadata, results: Sequence[Sequence[WriteResult]]) -> None:
        version = b"2.0" if self._format == "hyperparallel" else None  # for the others the library knows it
        md = self._memory.metadata(metadata, self._names, version, with_paths=self._format != "megatron")
        every = (_WriteResults * len(results))(*(self._memory.results(r, self._names) for r in results))
        self._call("finish", byref(md), every, len(results))


def _key(i: _Index) -> tuple[bytes, Optional[tuple[int, ...]]]:
    offset = tuple((c_uint64 * i.n_dims).from_address(i.offset)) if i.has_offset else None
    return ctypes.string_at(i.fqn, i.fqn_len), offset


def _result(r: _WriteResult, items: Mapping[Any, WriteItem]) -> WriteResult:
    info = r.info
    key = _text(info.tensor_key, info.tensor_key_len) if info.tensor_key else None
    return WriteResult(items[_key(r.index)].index, info.length,
                       (info.path, info.offset, info.length, key, info.transform))
