#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sharded training checkpoints as NumPy arrays and PyTorch tensors.

    import ckptfs

    with ckptfs.open("run/step-1000") as ck:
        w = ck["model.embed_tokens.weight"]             # the whole tensor, a NumPy array
        t = ck.tensor("model.embed_tokens.weight")      # nothing is read yet
        t.shape, t.dtype                                # (32000, 4096), 'bfloat16'
        rows = t[1000:1010, ::2]                        # reads only these elements
        p = t.torch()                                   # a torch tensor, of any dtype
        t.read_into(array)                              # into existing memory

Reads every format that `ckptfs mount` reads: PyTorch DCP, Megatron-core, HyperParallel,
safetensors, torch.save. ck is a mapping of the checkpoint's tensors, ck.model one of the model's
tensors as in hf/ (for example with recipe="megatron"), ck.rank(N) one of the parts of them that a
rank of layout=FILE holds, ck.objects one of everything that is not a tensor: ck.objects["step"].value
is a Python value, and no pickle is executed for it. ck.read(path), ck.open_file(path) and
ck.listdir(path) give access to the files of the mount; ck.verdicts()["hf"] tells whether hf/ can be
loaded, and if not, why. series(run, "*.norm.weight") follows tensors from checkpoint to checkpoint of a run.
To load a checkpoint of Megatron-core into a
transformers model, without Megatron-core and without a copy on disk:

    with ckptfs.open("iter_0001000", recipe="megatron", assets="Qwen3-8B") as ck:
        model.load_state_dict({name: ck.model.torch(name) for name in ck.model})

NumPy has no bfloat16 or float8. Such arrays have the types of ml_dtypes if that is installed, otherwise
they raise TypeError; torch() and bits() always work, and dtype="fp32" converts bfloat16 (but not float8).

The module is one file and uses ctypes. It needs libckpt, which `make install` installs (or which
$CKPTFS_LIBRARY names, or `make` has built in the source tree that contains this file); NumPy and torch
are needed only for arrays and tensors. Failures raise ckptfs.Error with the library's message, which is
also a FileNotFoundError, PermissionError, ... according to its errno; unknown names raise KeyError.

Threads: everything may be called from any number of threads at once; reads release the GIL. A checkpoint
that is closed meanwhile stays open until pending reads have finished.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import io
import json
import math
import os
import pathlib
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from ctypes import (POINTER, byref, c_bool, c_char, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint,
                    c_uint64, c_void_p)
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

if TYPE_CHECKING:
    import numpy
    import torch as _torch

__all__ = ["Checkpoint", "Error", "File", "Finding", "Histogram", "Object", "Step", "Tensor", "Tensors", "Values",
           "Verdict", "open", "series"]
__version__ = "0.5.1"

NAME_MAX = 255
ROOT = 1

# torch's names of the types that NumPy has, and of those that ml_dtypes adds.
_NUMPY = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "int64": "<i8", "int32": "<i4",
          "int16": "<i2", "int8": "|i1", "uint64": "<u8", "uint32": "<u4", "uint16": "<u2",
          "uint8": "|u1", "bool": "|b1", "complex128": "<c16", "complex64": "<c8"}
_ML_DTYPES = {"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
              "float8_e8m0fnu", "float8_e3m4", "float8_e4m3b11fnuz", "float4_e2m1fn", "int4", "int2"}

Index = Union[int, slice, type(Ellipsis), tuple]
Option = Union[str, os.PathLike, int, bool, Sequence[Union[str, os.PathLike]], None]


class Error(OSError):
    """An error of the library: .errno, and one sentence as its text; .filename is the checkpoint, or
    the file of its tree, concerned."""

    def __str__(self) -> str:
        return self.strerror if self.strerror else super().__str__()


class NotFoundError(Error, FileNotFoundError):
    pass


class DeniedError(Error, PermissionError):
    pass


class IsDirectoryError(Error, IsADirectoryError):
    pass


class NotDirectoryError(Error, NotADirectoryError):
    pass


_ERRORS = {errno.ENOENT: NotFoundError, errno.EACCES: DeniedError, errno.EPERM: DeniedError,
           errno.EISDIR: IsDirectoryError, errno.ENOTDIR: NotDirectoryError}


# ---- the library: structures of ckpt.h ----

_WARN = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)
_PROGRESS = ctypes.CFUNCTYPE(None, c_void_p, c_uint64, c_uint64)


class _Err(ctypes.Structure):
    _fields_ = [("code", c_int), ("msg", c_char * 384)]


class _Hooks(ctypes.Structure):
    _fields_ = [("warn", _WARN), ("warn_arg", c_void_p), ("progress", _PROGRESS),
                ("progress_arg", c_void_p)]


class _Totals(ctypes.Structure):
    _fields_ = [("format", c_char_p), ("index", c_char_p), ("index_built", c_bool),
                ("tensors", c_uint64), ("objects", c_uint64), ("chunks", c_uint64),
                ("files", c_uint64), ("tensor_bytes", c_uint64), ("stored_bytes", c_uint64),
                ("incomplete", c_uint64), ("mtime_ns", c_uint64), ("has_model", c_bool),
                ("model_tensors", c_uint64), ("model_bytes", c_uint64),
                ("model_prefix", c_void_p), ("model_prefix_len", c_size_t),
                ("identity", c_char_p),
                ("ranks", c_uint64)]


class _Tensor(ctypes.Structure):
    _fields_ = [("fqn", c_void_p), ("fqn_len", c_size_t), ("dtype", c_char_p),
                ("element", c_size_t), ("n_dims", c_size_t), ("shape", POINTER(c_uint64)),
                ("n_logical", c_size_t), ("logical", POINTER(c_uint64)), ("bytes", c_uint64),
                ("chunks", c_uint64), ("files", c_uint64), ("fault", c_char_p)]


class _Object(ctypes.Structure):
    _fields_ = [("fqn", c_void_p), ("fqn_len", c_size_t), ("path", c_char_p),
                ("offset", c_uint64), ("length", c_uint64), ("encoding", c_char_p),
                ("fault", c_char_p)]


class _Stat(ctypes.Structure):
    _fields_ = [("node", c_uint64), ("is_dir", c_bool), ("is_link", c_bool), ("changes", c_bool),
                ("partial", c_bool), ("size", c_uint64), ("mtime_ns", c_uint64)]


class _Verdict(ctypes.Structure):
    _fields_ = [("face", c_char_p), ("serves", c_int), ("text", c_char_p)]


class _Slice(ctypes.Structure):
    _fields_ = [("start", POINTER(c_uint64)), ("stop", POINTER(c_uint64)),
                ("step", POINTER(c_uint64)), ("stride", POINTER(c_int64))]


# ckpt_values.h, ckpt_numbers.h

class _Hist(ctypes.Structure):
    _fields_ = [("n", c_size_t), ("edges", POINTER(c_double)), ("counts", POINTER(c_uint64))]


class _Numbers(ctypes.Structure):
    _fields_ = [("known", c_bool), ("is_complex", c_bool), ("elements", c_uint64), ("finite", c_uint64),
                ("nan", c_uint64), ("infinite", c_uint64), ("zero", c_uint64), ("subnormal", c_uint64),
                ("first_nan", c_uint64), ("first_infinite", c_uint64), ("first_zero", c_uint64),
                ("min", c_double), ("min_rest", c_double), ("max", c_double), ("max_rest", c_double),
                ("sum", c_double * 2), ("mean", c_double * 2), ("std", c_double), ("norm", c_double)]


class _ValuesItem(ctypes.Structure):
    _fields_ = [("fqn", c_void_p), ("fqn_len", c_size_t), ("dtype", c_char_p), ("n_dims", c_size_t),
                ("shape", POINTER(c_uint64)), ("bytes", c_uint64), ("tensors", c_uint64),
                ("fault", c_char_p), ("values", _Numbers), ("linear", POINTER(_Hist)),
                ("logarithmic", POINTER(_Hist))]


_EACH_VALUES = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(_ValuesItem))


class _ValuesScan(ctypes.Structure):
    _fields_ = [("globs", POINTER(c_char_p)), ("model", c_bool), ("by", c_int), ("jobs", c_uint),
                ("each", _EACH_VALUES), ("progress", c_void_p), ("arg", c_void_p), ("tensors", c_uint64),
                ("failed", c_uint64), ("bytes", c_uint64), ("total", _Numbers), ("resume", c_char_p),
                ("resume_key", c_char_p), ("bins", c_uint)]


class _SeriesItem(ctypes.Structure):
    _fields_ = [("fqn", c_void_p), ("fqn_len", c_size_t), ("checkpoint", c_char_p), ("dtype", c_char_p),
                ("n_dims", c_size_t), ("shape", POINTER(c_uint64)), ("fault", c_char_p), ("values", _Numbers),
                ("compared", c_bool), ("other_shape", c_bool), ("changed", c_uint64), ("relative", c_double)]


_OPEN_STEP = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_void_p), POINTER(_Err))
_EACH_STEP = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(_SeriesItem))


class _Series(ctypes.Structure):
    _fields_ = [("globs", POINTER(c_char_p)), ("model", c_bool), ("jobs", c_uint), ("open", _OPEN_STEP),
                ("each", _EACH_STEP), ("progress", c_void_p), ("arg", c_void_p), ("checkpoints", c_uint64),
                ("incomplete", c_uint64), ("tensors", c_uint64), ("failed", c_uint64)]


class _Fault(ctypes.Structure):
    _fields_ = [("fqn", c_void_p), ("fqn_len", c_size_t), ("what", c_char_p), ("warning", c_bool),
                ("rule", c_char_p)]


_EACH_FAULT = ctypes.CFUNCTYPE(None, c_void_p, POINTER(_Fault))


class _ValuesCheck(ctypes.Structure):
    _fields_ = [("globs", POINTER(c_char_p)), ("allow_nan", POINTER(c_char_p)),
                ("allow_inf", POINTER(c_char_p)), ("allow_zero", POINTER(c_char_p)),
                ("allow_constant", POINTER(c_char_p)), ("max_abs", c_double), ("jobs", c_uint),
                ("fault", _EACH_FAULT), ("progress", c_void_p), ("arg", c_void_p), ("faults", c_uint64),
                ("tensors", c_uint64), ("bytes", c_uint64)]


_BY = ("tensor", "layer", "role", "rank")  # enum ckpt_values_by
_EACH_VERDICT = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(_Verdict))
_SERVES = ("yes", "no", "not checked", "absent")  # enum ckpt_serves
_NUMBERS = POINTER(c_uint64)
_FUNCTIONS = {  # name: result, arguments
    "ckpt_version": (c_char_p,),
    "ckpt_open_sized": (c_int, c_char_p, POINTER(c_char_p), POINTER(_Hooks), c_size_t, POINTER(c_void_p),
                  POINTER(_Err)),
    "ckpt_close": (None, c_void_p),
    "ckpt_totals_sized": (None, c_void_p, POINTER(_Totals), c_size_t),
    "ckpt_tensor_sized": (None, c_void_p, c_uint64, POINTER(_Tensor), c_size_t),
    "ckpt_tensor_find": (c_int64, c_void_p, c_char_p, c_size_t),
    "ckpt_model_tensors": (c_uint64, c_void_p),
    "ckpt_model_tensor_sized": (None, c_void_p, c_uint64, POINTER(_Tensor), c_size_t),
    "ckpt_model_find": (c_int64, c_void_p, c_char_p, c_size_t),
    "ckpt_model_stored": (c_int64, c_void_p, c_char_p, c_size_t),
    "ckpt_rank_box": (c_bool, c_void_p, c_uint64, c_uint64, _NUMBERS, _NUMBERS),
    "ckpt_object_sized": (None, c_void_p, c_uint64, POINTER(_Object), c_size_t),
    "ckpt_similar": (c_size_t, c_void_p, c_char_p, c_size_t, c_void_p, c_size_t),
    "ckpt_object_find": (c_int64, c_void_p, c_char_p, c_size_t),
    "ckpt_object_json": (c_int, c_void_p, c_uint64, POINTER(c_void_p), POINTER(c_size_t), POINTER(_Err)),
    "ckpt_object_node": (c_uint64, c_void_p, c_uint64),
    "ckpt_slice_read_sized": (c_int, c_void_p, c_uint64, POINTER(_Slice), c_size_t, c_void_p, POINTER(_Err)),
    "ckpt_model_slice_read_sized": (c_int, c_void_p, c_uint64, POINTER(_Slice), c_size_t, c_void_p,
                              POINTER(_Err)),
    "ckpt_info_json": (c_int, c_void_p, POINTER(c_void_p), POINTER(c_size_t), POINTER(_Err)),
    "ckpt_values_scan_sized": (c_int, c_void_p, POINTER(_ValuesScan), c_size_t, POINTER(_Err)),
    "ckpt_values_check_sized": (c_int, c_void_p, POINTER(_ValuesCheck), c_size_t, POINTER(_Err)),
    "ckpt_series_sized": (c_int, c_void_p, POINTER(_Series), c_size_t, POINTER(_Err)),
    "ckpt_run_open_sized": (c_int, c_void_p, c_void_p, POINTER(c_char_p), POINTER(_Hooks), c_size_t,
                            POINTER(c_void_p), POINTER(c_char_p), POINTER(_Err)),
    "ckpt_verdicts": (c_int, c_void_p, c_bool, _EACH_VERDICT, c_void_p, POINTER(_Err)),
    "ckpt_walk": (c_int, c_void_p, c_char_p, POINTER(c_uint64), POINTER(_Err)),
    "ckpt_type_sized": (c_int, c_void_p, c_uint64, POINTER(_Stat), c_size_t, POINTER(_Err)),
    "ckpt_enter": (c_int, c_void_p, c_uint64, POINTER(_Err)),
    "ckpt_next": (c_int, c_void_p, c_uint64, POINTER(c_uint64), c_char_p, POINTER(c_uint64)),
    "ckpt_file_open": (c_int, c_void_p, c_uint64, POINTER(c_void_p), POINTER(_Err)),
    "ckpt_file_open_path": (c_int, c_void_p, c_char_p, POINTER(c_void_p), POINTER(_Err)),
    "ckpt_file_close": (None, c_void_p),
    "ckpt_file_size": (c_uint64, c_void_p),
    "ckpt_file_read": (c_int64, c_void_p, c_void_p, c_size_t, c_uint64, POINTER(_Err)),
    "free": (None, c_void_p),
}


def _trusted(top: pathlib.Path, *names: str) -> bool:
    """Do these files below top, and the directories and links on the way, belong to root, to this
    user or to this module's owner? Whoever owns the running module may supply the library, too."""
    owners = {0, os.geteuid(), os.stat(__file__).st_uid}
    paths = {top / part for name in names
             for part in (name, *pathlib.PurePath(name).parents) if str(part) != "."}
    return all(os.path.lexists(p) and os.lstat(p).st_uid in owners for p in paths)


def _soversion(version: str) -> str:
    """The part of a version that determines the library's structures: "0.5" of 0.5.1, "1" of 1.2.3."""
    major, minor = version.split(".")[:2]
    return f"0.{minor}" if major == "0" else major


def _candidates() -> Iterator[str]:
    if os.environ.get("CKPTFS_LIBRARY"):
        yield os.environ["CKPTFS_LIBRARY"]
        return
    name = f"libckpt.so.{_soversion(__version__)}"
    here = pathlib.Path(__file__).resolve().parent
    sources, lib = here.parent, here.parent.parent
    built = f"build/release/{name}"
    if here.name == "scripts" and _trusted(sources, built, "Makefile", "core/include/ckptfs/ckpt.h"):
        yield str(sources / built)
    # lib/python3/dist-packages, lib/python3.11/site-packages
    if (here.parent.name.startswith("python") and here.name in ("dist-packages", "site-packages")
            and _trusted(lib, name)):
        yield str(lib / name)
    yield name


@functools.lru_cache(maxsize=None)
def _library() -> ctypes.CDLL:
    why = ""
    for path in _candidates():
        try:
            lib = ctypes.CDLL(path)
            break
        except OSError as e:
            why = str(e)
    else:
        raise ImportError(f"libckpt: {why}; set CKPTFS_LIBRARY to its path")
    lib.ckpt_version.restype = c_char_p
    version = lib.ckpt_version().decode()
    if _soversion(version) != _soversion(__version__):
        raise ImportError(f"'{path}' is libckpt {version}, and {__file__} is for {__version__}")
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(lib, name, None)  # None: an older library; calling it raises an error
        if function is not None:
            function.restype, function.argtypes = result, arguments
    return lib


def _lent(structure: ctypes.Structure):
    """The size of a structure, of which the library may know fewer or more members."""
    return byref(structure), ctypes.sizeof(structure)


def _check(rc: int, e: _Err, where: str) -> int:
    """where: the error's .filename."""
    if rc < 0:
        raise _ERRORS.get(e.code, Error)(e.code, e.msg.decode("utf-8", "replace"), where)
    return rc


class _Callbacks:
    """Makes the callbacks of one call of the library. ctypes prints what a callback raises and carries on, so
    that the call would return a part of the result as if it were all: here it stops, and the with block raises
    the exception."""

    def __init__(self) -> None:
        self._raised: Optional[BaseException] = None
        self._on_interrupt: Any = None

    def __call__(self, kind, function):
        def call(*arguments):
            if self._raised is None:
                try:
                    return function(*arguments)
                except BaseException as e:  # KeyboardInterrupt, too
                    self._raised = e
            return -errno.EINTR  # which callbacks without a result cannot return: of those the rest is left out

        return kind(call)

    def __enter__(self) -> _Callbacks:
        # Python handles Ctrl-C before the first line of call(), where nothing could catch what that raises.
        self._on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            if callable(self._on_interrupt):
                signal.signal(signal.SIGINT, self._interrupted)
                return self
        except ValueError:  # not the main thread, which has the signals
            pass
        self._on_interrupt = None
        return self

    def _interrupted(self, number, frame) -> None:
        try:
            self._on_interrupt(number, frame)
        except BaseException as e:
            self._raised = e

    def __exit__(self, *_) -> None:
        if self._on_interrupt:
            signal.signal(signal.SIGINT, self._on_interrupt)
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _text(address: Optional[int], size: int) -> str:
    return ctypes.string_at(address, size).decode("utf-8", "surrogatepass") if size else ""


def _words(options: Mapping[str, Option]):
    """Options for ckpt_open: "name=value", and "name" for True."""
    words = []
    for name, value in options.items():
        if value is None or value is False or value == 0 or value == ():
            continue
        if value is True:
            words.append(os.fsencode(name))
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            one = str(one) if isinstance(one, int) else os.fspath(one)
            words.append(os.fsencode(name) + b"=" + os.fsencode(one))
    return (c_char_p * (len(words) + 1))(*words, None)


# ---- tensors ----

def _resolve(index: Index, shape: Sequence[int]):
    """For every dimension: first element, step, count, and whether the dimension is kept."""
    items = list(index) if isinstance(index, tuple) else [index]
    dots = [i for i, x in enumerate(items) if x is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    missing = len(shape) - len(items) + len(dots)
    if missing < 0:
        raise IndexError(f"too many indices: the tensor has {len(shape)} dimensions")
    at = dots[0] if dots else len(items)
    items[at:at + 1] = [slice(None)] * missing
    out = []
    for d, (item, size) in enumerate(zip(items, shape)):
        if isinstance(item, slice):
            start, stop, step = item.indices(size)
            out.append((start, step, len(range(start, stop, step)), True))
            continue
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise TypeError(f"an index is an integer, a slice or '...', not {item!r}")
        i = item.__index__()
        if not -size <= i < size:
            raise IndexError(f"index {i} is out of bounds for dimension {d} of size {size}")
        out.append((i % size, 1, 1, False))
    return out


class Tensor:
    """A tensor that is read on demand. t[...] reads, with NumPy's indices: integers, slices with
    any step, '...'; only the selected elements are read."""

    def __init__(self, group: Tensors, number: int, about: _Tensor, box=None):
        self._group = group
        self._number = number
        self._off = box[0] if box else (0,) * about.n_dims
        self.name: str = _text(about.fqn, about.fqn_len)
        #: torch's name of its type: "bfloat16"
        self.dtype: str = about.dtype.decode()
        self.itemsize: int = about.element
        self.shape: tuple[int, ...] = tuple(box[1]) if box else tuple(about.shape[:about.n_dims])
        #: why it cannot be read, or None
        self.fault: Optional[str] = about.fault.decode() if about.fault else None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        n = 1
        for x in self.shape:
            n *= x
        return n

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<ckptfs.Tensor {self.name!r}: {self.dtype} {list(self.shape)}>"

    def numpy_dtype(self) -> numpy.dtype:
        """NumPy's type; TypeError if neither NumPy nor ml_dtypes has one."""
        import numpy as np

        if self.dtype in _NUMPY:
            return np.dtype(_NUMPY[self.dtype])
        if self.dtype in _ML_DTYPES:
            try:
                import ml_dtypes

                return np.dtype(getattr(ml_dtypes, self.dtype))
            except (ImportError, AttributeError):
                pass
        raise TypeError(f"tensor '{self.name}' is {self.dtype}, which NumPy does not have"
                        f"{' without ml_dtypes' if self.dtype in _ML_DTYPES else ''}: take .torch() or "
                        f".bits()" + (", or open the checkpoint with dtype='fp32'"
                                      if self.dtype == "bfloat16" else ""))

    def __getitem__(self, index: Index) -> numpy.ndarray:
        return self._array(index, self.numpy_dtype())

    def __array__(self, dtype=None, copy=None) -> numpy.ndarray:
        if copy is False:
            raise ValueError(f"tensor '{self.name}' is not in memory, so an array of it must be a copy")
        whole = self[...]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def bits(self, index: Index = ...) -> numpy.ndarray:
        """The elements of any type as unsigned integers of the same size; those of 16 bytes as
        pairs along an additional dimension."""
        if self.itemsize > 8:
            whole = self._array(index, f"<u{self.itemsize // 2}", 2)
            return whole
        return self._array(index, f"<u{self.itemsize}")

    def _array(self, index: Index, dtype, parts: int = 1) -> numpy.ndarray:
        import numpy as np

        wanted = _resolve(index, self.shape)
        shape = [count for _, _, count, stays in wanted if stays]
        out = np.empty(shape + [parts] * (parts > 1), dtype)
        self._read(wanted, out.ctypes.data, out.strides[:len(shape)])
        return out

    def torch(self, index: Index = ...) -> _torch.Tensor:
        """Like t[index], as a torch tensor, of any type that torch.empty supports."""
        import torch

        wanted = _resolve(index, self.shape)
        shape = [count for _, _, count, stays in wanted if stays]
        out = torch.empty(shape, dtype=getattr(torch, self.dtype))
        self._read(wanted, out.data_ptr(), [s * self.itemsize for s in out.stride()])
        return out

    def read_into(self, out: Any, index: Index = ...) -> None:
        """Read t[index] into a NumPy array or a torch tensor (in CPU memory) with the same shape and
        element size, which need not be contiguous."""
        wanted = _resolve(index, self.shape)
        shape = tuple(count for _, _, count, stays in wanted if stays)
        if hasattr(out, "data_ptr"):
            if out.device.type != "cpu":
                raise TypeError(f"the tensor must be in CPU memory, not on {out.device}")
            at, itemsize = out.data_ptr(), out.element_size()
            strides = [s * itemsize for s in out.stride()]
        else:
            if not out.flags.writeable:
                raise ValueError("the array is read-only")
            at, itemsize, strides = out.ctypes.data, out.itemsize, out.strides
        if tuple(out.shape) != shape or itemsize != self.itemsize:
            raise ValueError(f"room for {list(out.shape)} elements of {itemsize} bytes, but there "
                             f"are {list(shape)} of {self.itemsize}")
        self._read(wanted, at, strides)

    def _read(self, wanted, at: int, strides: Sequence[int]) -> None:
        """strides: in bytes, of the dimensions that are kept."""
        n, left = len(wanted), list(strides)
        start, stop, step = (c_uint64 * n)(), (c_uint64 * n)(), (c_uint64 * n)()
        stride = (c_int64 * n)()
        for d, (first, by, count, stays) in enumerate(wanted):
            stride[d] = left.pop(0) if stays else 0
            if by < 0 and count:  # the library reads forward in the tensor and writes backward in memory
                first += (count - 1) * by
                at += (count - 1) * stride[d]
                stride[d] = -stride[d]
            start[d] = self._off[d] + (first if count else 0)
            step[d] = abs(by)
            stop[d] = start[d] + ((count - 1) * abs(by) + 1 if count else 0)
        if any(count == 0 for _, _, count, _ in wanted):
            return
        with self._group._checkpoint._using() as handle:
            e = _Err()
            wanted = _Slice(start, stop, step, stride)
            _check(self._group._read(handle, self._number, *_lent(wanted), at, byref(e)), e,
                   self._group._checkpoint.path)


class Histogram(NamedTuple):
    """As of numpy.histogram: bin i has counts[i] elements from edges[i] on and below edges[i + 1]."""

    edges: list[float]
    counts: list[int]


class Values(NamedTuple):
    """What values a tensor has, or all of a group; ckptfs-stat(1) describes the members. What does not
    exist, such as the mean of no elements, is None."""

    dtype: Optional[str]
    shape: Optional[tuple[int, ...]]
    tensors: int
    elements: int
    finite: int
    nan: int
    inf: int
    zero: int
    subnormal: int
    first_nan: Optional[int]
    first_inf: Optional[int]
    first_zero: Optional[int]
    min: Union[int, float, None]
    max: Union[int, float, None]
    sum: Union[float, complex, None]
    mean: Union[float, complex, None]
    std: Optional[float]
    norm: Optional[float]
    linear: Optional[Histogram]
    logarithmic: Optional[Histogram]
    #: why it could not be read; there are no values then
    fault: Optional[str]


class Step(NamedTuple):
    """A tensor in one checkpoint of a run, as series() follows it; ckptfs-stat(1) describes the members. What is
    not known, or does not exist, is None."""

    checkpoint: str
    dtype: Optional[str]
    shape: Optional[tuple[int, ...]]
    elements: int
    nan: int
    inf: int
    zero: int
    rms: Optional[float]
    norm: Optional[float]
    max_abs: Optional[float]
    #: since the checkpoint before: None if that has no such tensor, or one of another shape
    changed: Optional[int]
    changed_share: Optional[float]
    relative: Optional[float]
    #: the checkpoint before has the tensor in another shape
    other_shape: bool
    #: why there are no values: it cannot be read, or the checkpoint has no such tensor
    fault: Optional[str]


class Finding(NamedTuple):
    """What check_values() found."""

    name: str
    #: "nan", "inf", "zero", "constant", "max_abs", "unreadable"
    rule: str
    text: str


def _histogram(h) -> Optional[Histogram]:
    if not h:
        return None
    h = h.contents
    return Histogram(h.edges[:h.n + 1] if h.n else [], h.counts[:h.n])


def _values(i: _ValuesItem) -> Values:
    v, dtype = i.values, i.dtype.decode() if i.dtype else None

    def at(number: int) -> Optional[int]:
        return number if dtype and v.known and number < 1 << 63 else None

    def parts(both) -> Union[float, complex]:
        return complex(*both) if v.is_complex else both[0]

    def extreme(value: float, rest: float) -> Union[int, float]:
        return int(value) + int(rest) if dtype and dtype.startswith(("int", "uint")) else value

    ordered = v.finite and not v.is_complex
    return Values(
        dtype, tuple(i.shape[:i.n_dims]) if dtype else None, i.tensors, v.elements, v.finite, v.nan, v.infinite,
        v.zero, v.subnormal, at(v.first_nan), at(v.first_infinite), at(v.first_zero),
        extreme(v.min, v.min_rest) if ordered else None, extreme(v.max, v.max_rest) if ordered else None,
        parts(v.sum) if v.finite else None, parts(v.mean) if v.finite else None, v.std if v.finite else None,
        v.norm if v.finite else None, _histogram(i.linear), _histogram(i.logarithmic),
        i.fault.decode("utf-8", "replace") if i.fault else None)


def _step(i: _SeriesItem) -> Step:
    v, shape = i.values, tuple(i.shape[:i.n_dims]) if i.dtype else None
    return Step(
        os.fsdecode(i.checkpoint), i.dtype.decode() if i.dtype else None, shape, v.elements,
        v.nan, v.infinite, v.zero, v.norm / math.sqrt(v.finite) if v.finite else None, v.norm if v.finite else None,
        max(abs(v.min), abs(v.max)) if v.finite and not v.is_complex else None, i.changed if i.compared else None,
        (i.changed / math.prod(shape) if i.changed else 0.0) if i.compared else None,
        i.relative if i.compared and not math.isnan(i.relative) else None, i.other_shape,
        i.fault.decode("utf-8", "replace") if i.fault else None)


def _globs(globs: Union[str, Sequence[str]]):
    names = [_bytes(g) for g in ([globs] if isinstance(globs, str) else globs)]
    return (c_char_p * (len(names) + 1))(*names, None)


class Tensors(Mapping):
    """Maps names, in natural order, to whole tensors as NumPy arrays, read on access. tensor(name)
    returns a Tensor without reading it."""

    def __init__(self, checkpoint: Checkpoint, model: bool, rank: Optional[int] = None):
        lib = checkpoint._lib
        self._checkpoint = checkpoint
        self._about = lib.ckpt_model_tensor_sized if model else lib.ckpt_tensor_sized
        self._find = lib.ckpt_model_find if model else lib.ckpt_tensor_find
        self._read = lib.ckpt_model_slice_read_sized if model else lib.ckpt_slice_read_sized
        self._model = model
        self._rank = rank
        self._names: Optional[list[str]] = None

    def _box(self, handle, i: int, about: _Tensor):
        """The rank's part of it, as (off, len); None: nothing."""
        off, size = (c_uint64 * about.n_dims)(), (c_uint64 * about.n_dims)()
        if not self._checkpoint._lib.ckpt_rank_box(handle, self._rank, i, off, size):
            return None
        return tuple(off), tuple(size)

    def _list(self) -> list[str]:
        if self._names is None:
            with self._checkpoint._using() as handle:
                about, names = _Tensor(), []
                for i in range(self._checkpoint._count(handle, self._model)):
                    self._about(handle, i, *_lent(about))
                    if self._rank is None or self._box(handle, i, about):
                        names.append(_text(about.fqn, about.fqn_len))
                self._names = names
        return self._names

    def stat(self, *globs: str, by: str = "tensor", bins: int = 0, jobs: int = 0) -> dict[str, Values]:
        """What values the tensors have that match a glob, or all: as `ckptfs stat` tells. by: "tensor",
        "layer", "role" or "rank"; bins: of histograms, 3 to 256. Tensors are read in blocks, by several
        threads."""
        if self._rank is not None:
            raise ValueError("stat() of a rank's part is not supported")
        if by not in _BY:
            raise ValueError(f"by={by!r} is not one of {', '.join(_BY)}")
        found, e = {}, _Err()

        def each(_, item) -> int:
            i = item.contents
            found[_text(i.fqn, i.fqn_len)] = _values(i)
            return 0

        with self._checkpoint._using() as handle:
            with _Callbacks() as callback:
                scan = _ValuesScan(globs=_globs(globs), model=self._model, by=_BY.index(by), jobs=jobs, bins=bins,
                                   each=callback(_EACH_VALUES, each))
                rc = self._checkpoint._lib.ckpt_values_scan_sized(handle, *_lent(scan), byref(e))
            _check(rc, e, self._checkpoint.path)
        return found

    def tensor(self, name: str) -> Tensor:
        """The tensor with that name, not read yet; of a checkpoint's own tensors also by the name that
        the model has for it. KeyError if there is none."""
        raw, about, box = _bytes(name), _Tensor(), None
        with self._checkpoint._using() as handle:
            i = self._find(handle, raw, len(raw))
            if not self._model:
                other = self._checkpoint._lib.ckpt_model_stored(handle, raw, len(raw))
                if i >= 0 and other >= 0 and other != i:
                    warnings.warn(f"'{name}' is stored, and the model calls another tensor so: the "
                                  "stored one is taken; .model has the other", stacklevel=2)
                i = other if i < 0 else i
            if i >= 0:
                self._about(handle, i, *_lent(about))
                if self._rank is not None:
                    box = self._box(handle, i, about)
            if i < 0 or self._rank is not None and not box:
                raise KeyError(f"no tensor '{name}'{self._checkpoint._meant(handle, raw)}")
            return Tensor(self, i, about, box)

    def __getitem__(self, name: str) -> numpy.ndarray:
        return self.tensor(name)[...]

    def torch(self, name: str, index: Index = ...) -> _torch.Tensor:
        return self.tensor(name).torch(index)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._list()))

    def __len__(self) -> int:
        return len(self._list())

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        try:
            self.tensor(name)
        except KeyError:
            return False
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} in {self._checkpoint.path!r}>"


def _decoded(found: dict) -> Any:
    """A part of an object's JSON as the Python value it stands for, where there is one."""
    name, items = found.get("__class__"), found.get("__items__")
    try:
        if name == "builtins.float":
            return float(found["value"])
        if name == "builtins.bytes":
            return bytes.fromhex(found["hex"])
        if name == "builtins.set":
            return set(map(_hashable, items))
        if name == "builtins.frozenset":
            return frozenset(map(_hashable, items))
        if name == "builtins.dict":
            return {_hashable(key): value for key, value in items}
    except (KeyError, TypeError, ValueError):  # "__error__", or elements that cannot be hashed
        pass
    return found


def _hashable(value: Any) -> Any:
    """An element of a set, a key: what is a list in JSON was a tuple."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


class Object(bytes):
    """What is not a tensor: its bytes, as objects/NAME shows them; .value is what they stand for."""

    _checkpoint: Checkpoint
    name: str

    @property
    def value(self) -> Any:
        """The value, without unpickling: that of objects/NAME.json, see ckptfs-formats(5). None, bool, int,
        float, str, bytes, list, dict and set are themselves, tuples are lists, keys that are no strings their
        JSON text ("0"); anything else is a dict with its class as "__class__"."""
        raw, lib = _bytes(self.name), self._checkpoint._lib
        text, size, e = c_void_p(), c_size_t(), _Err()
        with self._checkpoint._using() as handle:
            i = lib.ckpt_object_find(handle, raw, len(raw))
            _check(lib.ckpt_object_json(handle, i, byref(text), byref(size), byref(e)), e,
                   self._checkpoint.path)
            try:
                found = ctypes.string_at(text, size.value)
            finally:
                lib.free(text)
        return json.loads(found, object_hook=_decoded)


class Objects(Mapping):
    """Everything that is not a tensor, by name: its bytes, whose .value is the Python value."""

    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint

    def __getitem__(self, name: str) -> Object:
        raw, lib = _bytes(name), self._checkpoint._lib
        with self._checkpoint._using() as handle:
            i = lib.ckpt_object_find(handle, raw, len(raw))
            if i < 0:
                raise KeyError(f"no object '{name}'{self._checkpoint._meant(handle, raw)}")
            with File(self._checkpoint, lib.ckpt_file_open, lib.ckpt_object_node(handle, i)) as f:
                found = Object(f.readall())
        found._checkpoint, found.name = self._checkpoint, name
        return found

    def __iter__(self) -> Iterator[str]:
        names, about = [], _Object()
        with self._checkpoint._using() as handle:
            for i in range(len(self)):
                self._checkpoint._lib.ckpt_object_sized(handle, i, *_lent(about))
                names.append(_text(about.fqn, about.fqn_len))
        return iter(names)

    def __len__(self) -> int:
        totals = _Totals()
        with self._checkpoint._using() as handle:
            self._checkpoint._lib.ckpt_totals_sized(handle, *_lent(totals))
        return totals.objects


# ---- files ----

class File(io.RawIOBase):
    """A file of the tree, as in the mount; returned by Checkpoint.open_file()."""

    def __init__(self, checkpoint: Checkpoint, function, which: Union[int, bytes]):
        super().__init__()
        self._f = None
        self._at = 0
        self._checkpoint = checkpoint
        handle, f, e = checkpoint._take(), c_void_p(), _Err()
        #: path in the tree; for an object, that of the checkpoint
        self.name: str = os.fsdecode(which) if isinstance(which, bytes) else checkpoint.path
        try:
            _check(function(handle, which, byref(f), byref(e)), e, self.name)
        except BaseException:
            checkpoint._give()
            raise
        self._f = f
        self.size: int = checkpoint._lib.ckpt_file_size(f)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if at < 0:
            raise ValueError(f"seek to {at}")
        self._at = at
        return at

    def pread_into(self, buffer, offset: int) -> int:
        """Read the bytes at offset, at most the buffer's length; from any thread."""
        if self.closed:
            raise ValueError("the file is closed")
        view = memoryview(buffer).cast("B")
        if not view:
            return 0
        e = _Err()
        place = (c_char * len(view)).from_buffer(view)
        return _check(self._checkpoint._lib.ckpt_file_read(self._f, place, len(view), offset,
                                                           byref(e)), e, self.name)

    def readinto(self, buffer) -> int:
        n = self.pread_into(buffer, self._at)
        self._at += n
        return n

    def readall(self) -> bytes:
        out = bytearray(max(self.size - self._at, 0))
        n = self.readinto(out)
        return bytes(out if n == len(out) else out[:n])

    def close(self) -> None:
        if not self.closed and self._f:
            self._checkpoint._lib.ckpt_file_close(self._f)
            self._checkpoint._give()
        super().close()


# ---- checkpoints ----

class Verdict(NamedTuple):
    """Whether what a directory of the tree shows can be loaded by the programs that it is for."""

    #: "yes"; "no"; "not checked": what the model needs is not known; "absent": there is no such directory
    serves: str
    #: "complete for LlamaForCausalLM (config.json from assets)", or what is missing and what to try
    text: str


class Checkpoint(Tensors):
    """An opened checkpoint; see open(). A mapping of its tensors, with access to everything else."""

    def __init__(self, path: Union[str, os.PathLike], options: Mapping[str, Option]):
        self.path = os.fspath(path)
        self._lib = _library()
        self._lock = threading.Lock()
        self._users = 0  # calls in progress; the following must stay until they are done:
        self._handle: Optional[c_void_p] = None
        self._open = False
        handle, e, odd = c_void_p(), _Err(), []
        try:
            with _Callbacks() as callback:
                warn = callback(_WARN, lambda _, what: odd.append(what.decode("utf-8", "replace")))
                rc = self._lib.ckpt_open_sized(os.fsencode(self.path), _words(options), *_lent(_Hooks(warn=warn)),
                                               byref(handle), byref(e))
        except BaseException:
            if handle:
                self._lib.ckpt_close(handle)
            raise
        _check(rc, e, self.path)
        self._warn = warn  # the library keeps a pointer to it
        self._handle, self._open = handle, True
        super().__init__(self, False)
        #: the model's tensors, under their names in hf/
        self.model = Tensors(self, True)
        self.objects = Objects(self)
        for what in odd:
            warnings.warn(f"{self.path}: {what}", stacklevel=3)

    def rank(self, number: int) -> Tensors:
        """The part of the model that a rank holds; requires open(..., layout=...)."""
        return Tensors(self, True, number)

    def info(self) -> dict:
        """The same as `ckptfs info --json` prints."""
        text, size, e = c_void_p(), c_size_t(), _Err()
        with self._using() as handle:
            _check(self._lib.ckpt_info_json(handle, byref(text), byref(size), byref(e)), e,
                   self.path)
        try:
            return json.loads(ctypes.string_at(text, size.value))
        finally:
            self._lib.free(text)

    def verdicts(self) -> dict[str, Verdict]:
        """Of hf, gguf, pt and safetensors: as `ckptfs info` prints them, see ckptfs-info(1)."""
        found, e = {}, _Err()

        def each(_, verdict) -> int:
            v = verdict.contents
            found[v.face.decode()] = Verdict(_SERVES[v.serves], v.text.decode("utf-8", "replace"))
            return 0

        with self._using() as handle:
            with _Callbacks() as callback:
                rc = self._lib.ckpt_verdicts(handle, False, callback(_EACH_VERDICT, each), None, byref(e))
            _check(rc, e, self.path)
        return found

    def check_values(self, *globs: str, allow_nan: Sequence[str] = (), allow_inf: Sequence[str] = (),
                     allow_zero: Sequence[str] = (), allow_constant: Sequence[str] = (), max_abs: float = 0,
                     jobs: int = 0) -> list[Finding]:
        """What `ckptfs check --values` finds in the tensors that match a glob, or in all: nothing, if
        training can go on with them. The others are globs, too; ckptfs-check(1) describes the rules."""
        found, e = [], _Err()

        def each(_, fault) -> None:
            f = fault.contents
            found.append(Finding(_text(f.fqn, f.fqn_len), f.rule.decode(), f.what.decode("utf-8", "replace")))

        with self._using() as handle:
            with _Callbacks() as callback:
                check = _ValuesCheck(globs=_globs(globs), allow_nan=_globs(allow_nan), allow_inf=_globs(allow_inf),
                                     allow_zero=_globs(allow_zero), allow_constant=_globs(allow_constant),
                                     max_abs=max_abs, jobs=jobs, fault=callback(_EACH_FAULT, each))
                rc = self._lib.ckpt_values_check_sized(handle, *_lent(check), byref(e))
            _check(rc, e, self.path)
        return found

    def listdir(self, path: str = "") -> list[str]:
        """Names in a directory of the tree."""
        with self._using() as handle:
            node, pos, child, about, e = c_uint64(), c_uint64(0), c_uint64(), _Stat(), _Err()
            _check(self._lib.ckpt_walk(handle, os.fsencode(path), byref(node), byref(e)), e, path)
            _check(self._lib.ckpt_type_sized(handle, node, *_lent(about), byref(e)), e, path)
            if not about.is_dir:
                raise NotDirectoryError(errno.ENOTDIR, f"'{path}' is not a directory", path)
            name, names = ctypes.create_string_buffer(NAME_MAX + 1), []
            _check(self._lib.ckpt_enter(handle, node, byref(e)), e, path)
            while not self._lib.ckpt_next(handle, node, byref(pos), name, byref(child)):
                names.append(os.fsdecode(name.value))
        return names

    def open_file(self, path: str) -> File:
        """Open a file of the tree, such as "hf/model.safetensors", for reading and seeking."""
        return File(self, self._lib.ckpt_file_open_path, os.fsencode(path))

    def read(self, path: str) -> bytes:
        """The contents of a file of the tree."""
        with self.open_file(path) as f:
            return f.readall()

    def close(self) -> None:
        """Memory is freed once no read is in progress and no file is open."""
        with self._lock:
            last = self._open and not self._users
            self._open = False
        if last:
            self._release()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self.close()

    def _count(self, handle, model: bool) -> int:
        totals = _Totals()
        if model:
            return self._lib.ckpt_model_tensors(handle)
        self._lib.ckpt_totals_sized(handle, *_lent(totals))
        return totals.tensors

    def _meant(self, handle, raw: bytes) -> str:
        buf = ctypes.create_string_buffer(256)
        n = self._lib.ckpt_similar(handle, raw, len(raw), buf, len(buf))
        return f"; did you mean {_text(buf, n)}?" if n else ""

    def _take(self) -> c_void_p:
        with self._lock:
            if not self._open:
                raise ValueError(f"'{self.path}' is closed")
            self._users += 1
        return self._handle

    def _give(self) -> None:
        with self._lock:
            self._users -= 1
            last = not self._open and not self._users
        if last:
            self._release()

    def _release(self) -> None:
        self._lib.ckpt_close(self._handle)
        self._handle = None

    @contextlib.contextmanager
    def _using(self):
        handle = self._take()
        try:
            yield handle
        finally:
            self._give()


def open(path: Union[str, os.PathLike], **options: Option) -> Checkpoint:
    """Open a checkpoint: a directory, or a file.

    The options are those of `ckptfs mount -o`, see ckptfs-mount(1), and those for programs in ckpt(3):
    include="model.*" or a list, dtype="bf16", layout=path, allow_missing=True, cache="1GiB" or bytes.
    An option that is None, False or 0 is not set.

    """
    return Checkpoint(path, options)


def series(run: Union[str, os.PathLike], *globs: str, model: bool = False, jobs: int = 0,
           **options: Option) -> dict[str, list[Step]]:
    """How the tensors of a run that match a glob, or all, change from checkpoint to checkpoint: as `ckptfs stat
    RUN` tells. Each list has one Step for each complete checkpoint, in order; incomplete ones are left out, with a
    warning. model: the tensors and names of .model; the other options are those of open(), for all checkpoints."""
    lib, path, e = _library(), os.fspath(run), _Err()
    found, odd, words = {}, [], {"allow_missing": True, **options}
    given, handle = _words(words), c_void_p()

    def open_step(_, checkpoint, ret, err) -> int:
        rest = c_char_p()
        return lib.ckpt_run_open_sized(handle, checkpoint, given, *_lent(hooks), ret, byref(rest), err)

    def each(_, item) -> int:
        i = item.contents
        found.setdefault(_text(i.fqn, i.fqn_len), []).append(_step(i))
        return 0

    try:
        with _Callbacks() as callback:
            hooks = _Hooks(warn=callback(_WARN, lambda _, what: odd.append(what.decode("utf-8", "replace"))))
            wanted = _Series(globs=_globs(globs), model=model, jobs=jobs, open=callback(_OPEN_STEP, open_step),
                             each=callback(_EACH_STEP, each))
            rc = lib.ckpt_open_sized(os.fsencode(path), _words({**words, "runs": True}), *_lent(hooks), byref(handle),
                                     byref(e))
            if not rc:
                rc = lib.ckpt_series_sized(handle, *_lent(wanted), byref(e))
        _check(rc, e, path)
    finally:
        if handle:
            lib.ckpt_close(handle)
    if wanted.incomplete:
        odd.append(f"{wanted.incomplete} incomplete checkpoint{' is' if wanted.incomplete == 1 else 's are'} left out")
    for what in odd:
        warnings.warn(f"{path}: {what}", stacklevel=2)
    return found


def main(argv: Sequence[str]) -> int:
    """List the tensors of a checkpoint."""
    options = dict(word.partition("=")[::2] for word in argv[2:])
    model = options.pop("model", None) is not None
    if len(argv) < 2 or argv[1].startswith("-"):
        print(f"usage: {argv[0]} CHECKPOINT [model] [OPTION=VALUE...]", file=sys.stderr)
        return 2
    try:
        with open(argv[1], **options) as ck:
            group = ck.model if model else ck
            for name in group:
                t = group.tensor(name)
                print(f"{t.dtype:<16} {str(list(t.shape)):<20} {ascii(name)[1:-1]}")
    except (Error, TypeError) as e:
        print(f"{argv[0]}: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
