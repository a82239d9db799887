# SPDX-License-Identifier: Apache-2.0
"""Structures and functions of ckpt_plan.h, ckpt_storage.h and ckpt_save.h, as _libckpt has those of ckpt.h.

Pointers into memory that _writer._Memory owns are plain addresses."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int32, c_size_t, c_uint, c_uint8, c_uint32, c_uint64, c_void_p

from ._libckpt import _declare, _Err, _library, _Request


class _Index(ctypes.Structure):
    _fields_ = [("fqn", c_void_p), ("offset", c_void_p), ("fqn_len", c_uint32), ("hint", c_int32),
                ("n_dims", c_uint8), ("has_offset", c_bool)]


class _ChunkMeta(ctypes.Structure):
    _fields_ = [("off", c_void_p), ("len", c_void_p)]


class _Props(ctypes.Structure):
    _fields_ = [("dtype", c_uint8), ("memory_format", c_uint8), ("requires_grad", c_bool), ("pin_memory", c_bool)]


class _TensorMeta(ctypes.Structure):
    _fields_ = [("props", _Props), ("n_dims", c_uint8), ("size", c_void_p), ("chunks", c_void_p),
                ("n_chunks", c_size_t), ("logical", c_void_p), ("n_logical", c_uint8)]


class _MetaEntry(ctypes.Structure):
    _fields_ = [("fqn", c_void_p), ("fqn_len", c_uint32), ("is_tensor", c_bool), ("tensor", _TensorMeta)]


class _PathStep(ctypes.Structure):
    _fields_ = [("key", c_void_p), ("key_len", c_uint32), ("position", c_uint64)]


class _FqnPath(ctypes.Structure):
    _fields_ = [("fqn", c_void_p), ("steps", c_void_p), ("fqn_len", c_uint32), ("n_steps", c_uint32)]


class _StorageInfo(ctypes.Structure):
    _fields_ = [("path", c_char_p), ("offset", c_uint64), ("length", c_uint64), ("tensor_key", c_void_p),
                ("tensor_key_len", c_uint32), ("transform", c_char_p)]


class _WriteResult(ctypes.Structure):
    _fields_ = [("index", _Index), ("info", _StorageInfo)]


class _Metadata(ctypes.Structure):
    _fields_ = [("entries", c_void_p), ("n_entries", c_size_t), ("paths", c_void_p), ("n_paths", c_size_t),
                ("stored", c_void_p), ("n_stored", c_size_t), ("storage", c_char_p * 2), ("version", c_char_p)]


class _WriteItem(ctypes.Structure):
    _fields_ = [("index", _Index), ("chunk", _ChunkMeta), ("size", c_void_p), ("props", _Props), ("type", c_uint8)]


class _SavePlan(ctypes.Structure):
    _fields_ = [("items", c_void_p), ("n_items", c_size_t), ("paths", c_void_p), ("n_paths", c_size_t),
                ("storage", c_void_p), ("storage_len", c_size_t), ("unchanged", c_bool)]


class _StorageRanks(ctypes.Structure):
    _fields_ = [("rank", c_size_t), ("size", c_size_t)]


class _WriteResults(ctypes.Structure):
    _fields_ = [("v", POINTER(_WriteResult)), ("n", c_size_t)]


class _StorageWriter(ctypes.Structure):
    _fields_ = [("ops", c_void_p), ("self", c_void_p), ("step", c_uint8), ("is_coordinator", c_bool)]


_CLOSE_DATA = ctypes.CFUNCTYPE(None, c_void_p)


class _Data(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("len", c_uint64), ("read", c_void_p), ("close", _CLOSE_DATA), ("arg", c_void_p)]


_GET_DATA = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(_WriteItem), POINTER(_Data), POINTER(_Err))


class _SavePlannerOps(ctypes.Structure):
    _fields_ = [("configure", c_void_p), ("local_plan", c_void_p), ("global_plan", c_void_p), ("finish", c_void_p),
                ("get_data", _GET_DATA), ("free", c_void_p)]


class _SavePlanner(ctypes.Structure):
    _fields_ = [("ops", POINTER(_SavePlannerOps)), ("self", c_void_p), ("step", c_uint8)]


class _SaveOpts(_Request):
    _fields_ = [("format", c_int), ("overwrite", c_bool), ("zstd", c_int), ("file_per_item", c_bool),
                ("threads", c_uint), ("shard_size", c_uint64), ("no_paths", c_bool), ("save_to_lowest_rank", c_bool),
                ("planner", c_void_p), ("writer", c_void_p), ("cache_plans", c_bool), ("progress", c_void_p),
                ("progress_arg", c_void_p), ("open", POINTER(c_char_p)), ("stop", c_void_p), ("stop_arg", c_void_p),
                ("warn", c_void_p), ("warn_arg", c_void_p)]


_WRITER = POINTER(_StorageWriter)
_FUNCTIONS = {
    "ckpt_dtype_by_name": (c_int, c_char_p, c_size_t),
    "ckpt_save_writer_sized": (c_int, POINTER(_SaveOpts), c_size_t, _WRITER, POINTER(_Err)),
    "ckpt_storage_writer_validate_checkpoint_id": (c_int, _WRITER, c_char_p, POINTER(_Err)),
    "ckpt_storage_writer_reset": (c_int, _WRITER, c_char_p, POINTER(_Err)),
    "ckpt_storage_writer_set_up": (c_int, _WRITER, POINTER(_StorageRanks), POINTER(_Err)),
    "ckpt_storage_writer_prepare_local_plan": (c_int, _WRITER, POINTER(_SavePlan), POINTER(_SavePlan), POINTER(_Err)),
    "ckpt_storage_writer_prepare_global_plan": (c_int, _WRITER, POINTER(_SavePlan), c_size_t, POINTER(_Err)),
    "ckpt_storage_writer_write_data": (c_int, _WRITER, POINTER(_SavePlan), POINTER(_SavePlanner),
                                       POINTER(_WriteResults), POINTER(_Err)),
    "ckpt_storage_writer_finish": (c_int, _WRITER, POINTER(_Metadata), POINTER(_WriteResults), c_size_t, POINTER(_Err)),
    "ckpt_storage_writer_free": (None, _WRITER),
}


@functools.lru_cache(maxsize=None)
def _writers() -> ctypes.CDLL:
    return _declare(_library(), _FUNCTIONS)
