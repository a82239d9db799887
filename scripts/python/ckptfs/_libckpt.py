# SPDX-License-Identifier: Apache-2.0
"""libckpt through ctypes: finding it, its structures and functions, and its errors as exceptions."""

from __future__ import annotations

import ctypes
import errno
import functools
import operator
import os
import pathlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from ctypes import (POINTER, byref, c_bool, c_char, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint,
                    c_uint64, c_void_p)
from typing import Any, Optional, Union

__version__ = "0.5.1"

Option = Union[str, os.PathLike, int, bool, Sequence[Union[str, os.PathLike]], None]


class Error(OSError):
    """An error of the library. Its text is one sentence; .filename is the checkpoint concerned, or the file of its
    tree."""

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
                ("ranks", c_uint64), ("not_shown", c_char_p), ("missing", c_char_p)]


class _Tensor(ctypes.Structure):
    _fields_ = [("fqn", c_void_p), ("fqn_len", c_size_t), ("dtype", c_char_p),
                ("element", c_size_t), ("n_dims", c_size_t), ("shape", POINTER(c_uint64)),
                ("n_logical", c_size_t), ("logical", POINTER(c_uint64)), ("bytes", c_uint64),
                ("chunks", c_uint64), ("files", c_uint64), ("fault", c_char_p)]


class _Chunk(ctypes.Structure):
    _fields_ = [("off", POINTER(c_uint64)), ("len", POINTER(c_uint64)), ("path", c_char_p), ("offset", c_uint64),
                ("length", c_uint64), ("encoding", c_char_p)]


_EACH_CHUNK = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(_Chunk))


class _Step(ctypes.Structure):
    _fields_ = [("text", c_void_p), ("len", c_size_t), ("is_position", c_bool), ("position", c_uint64)]


class _Object(ctypes.Structure):
    _fields_ = [("fqn", c_void_p), ("fqn_len", c_size_t), ("path", c_char_p),
                ("offset", c_uint64), ("length", c_uint64), ("encoding", c_char_p),
                ("fault", c_char_p)]


class _Stat(ctypes.Structure):
    _fields_ = [("node", c_uint64), ("is_dir", c_bool), ("is_link", c_bool), ("changes", c_bool),
                ("partial", c_bool), ("size", c_uint64), ("mtime_ns", c_uint64)]


class _Verdict(ctypes.Structure):
    _fields_ = [("face", c_char_p), ("serves", c_int), ("text", c_char_p)]


class _RunEntry(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("complete", c_bool), ("latest", c_bool), ("mtime_ns", c_uint64), ("fault", c_char_p)]


_EACH_RUN_ENTRY = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(_RunEntry))


class _Slice(ctypes.Structure):
    _fields_ = [("start", POINTER(c_uint64)), ("stop", POINTER(c_uint64)),
                ("step", POINTER(c_uint64)), ("stride", POINTER(c_int64))]


class _Request(ctypes.Structure):
    """What a caller asks for. ctypes would take an integer modulo 2^32 or 2^64."""

    def __init__(self, **words: Any):
        super().__init__(**words)
        for name, value in words.items():
            kept = getattr(self, name)
            if isinstance(kept, int) and kept != operator.index(value):
                raise ValueError(f"{name}={value} is {'negative' if value < 0 else 'too large'}")


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


class _ValuesScan(_Request):
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


class _Series(_Request):
    _fields_ = [("globs", POINTER(c_char_p)), ("model", c_bool), ("jobs", c_uint), ("open", _OPEN_STEP),
                ("each", _EACH_STEP), ("progress", c_void_p), ("arg", c_void_p), ("checkpoints", c_uint64),
                ("incomplete", c_uint64), ("tensors", c_uint64), ("failed", c_uint64)]


class _Fault(ctypes.Structure):
    _fields_ = [("fqn", c_void_p), ("fqn_len", c_size_t), ("what", c_char_p), ("warning", c_bool),
                ("rule", c_char_p)]


_EACH_FAULT = ctypes.CFUNCTYPE(None, c_void_p, POINTER(_Fault))


class _ValuesCheck(_Request):
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
    "ckpt_tensor_chunks": (c_int, c_void_p, c_uint64, _EACH_CHUNK, c_void_p, POINTER(_Err)),
    "ckpt_tensor_path_sized": (c_size_t, c_void_p, c_uint64, POINTER(_Step), c_size_t, c_size_t),
    "ckpt_object_path_sized": (c_size_t, c_void_p, c_uint64, POINTER(_Step), c_size_t, c_size_t),
    "ckpt_object_sized": (None, c_void_p, c_uint64, POINTER(_Object), c_size_t),
    "ckpt_similar": (c_size_t, c_void_p, c_char_p, c_size_t, c_void_p, c_size_t),
    "ckpt_object_find": (c_int64, c_void_p, c_char_p, c_size_t),
    "ckpt_object_json": (c_int, c_void_p, c_uint64, POINTER(c_void_p), POINTER(c_size_t), POINTER(_Err)),
    "ckpt_object_node": (c_uint64, c_void_p, c_uint64),
    "ckpt_slice_read_sized": (c_int, c_void_p, c_uint64, POINTER(_Slice), c_size_t, c_void_p, POINTER(_Err)),
    "ckpt_model_slice_read_sized": (c_int, c_void_p, c_uint64, POINTER(_Slice), c_size_t, c_void_p,
                              POINTER(_Err)),
    "ckpt_tensor_backing": (c_int, c_void_p, c_uint64, POINTER(c_int), POINTER(c_uint64), POINTER(_Err)),
    "ckpt_model_backing": (c_int, c_void_p, c_uint64, POINTER(c_int), POINTER(c_uint64), POINTER(_Err)),
    "ckpt_info_json": (c_int, c_void_p, POINTER(c_void_p), POINTER(c_size_t), POINTER(_Err)),
    "ckpt_values_scan_sized": (c_int, c_void_p, POINTER(_ValuesScan), c_size_t, POINTER(_Err)),
    "ckpt_values_check_sized": (c_int, c_void_p, POINTER(_ValuesCheck), c_size_t, POINTER(_Err)),
    "ckpt_run_each": (c_int, c_void_p, _EACH_RUN_ENTRY, c_void_p, POINTER(_Err)),
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
    """Whether these files below top, and the directories and links on the way, belong to root, to this user or to this
    module's owner: whoever owns the running module may supply the library, too."""
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
    above, sources = here.parent, here.parents[min(2, len(here.parents) - 1)]
    if _trusted(here, name):  # in a wheel
        yield str(here / name)
    built = f"build/release/{name}"
    if here.parts[-3:-1] == ("scripts", "python") and _trusted(sources, built, "Makefile", "core/include/ckptfs/ckpt.h"):
        yield str(sources / built)
    # lib/python3/dist-packages, lib/python3.11/site-packages
    lib = sources
    if (above.parent.name.startswith("python") and above.name in ("dist-packages", "site-packages")
            and _trusted(lib, name)):
        yield str(lib / name)
    yield name


def _declare(lib: ctypes.CDLL, functions: Mapping[str, tuple]) -> ctypes.CDLL:
    for name, (result, *arguments) in functions.items():
        function = getattr(lib, name, None)  # None: an older library; calling it raises an error
        if function is not None:
            function.restype, function.argtypes = result, arguments
    return lib


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
    return _declare(lib, _FUNCTIONS)


def _lent(structure: ctypes.Structure):
    """A structure with its size, which the library needs because it may know fewer or more members."""
    return byref(structure), ctypes.sizeof(structure)


def _check(rc: int, e: _Err, where: str) -> int:
    """where: the error's .filename."""
    if rc < 0:
        raise _ERRORS.get(e.code, Error)(e.code, e.msg.decode("utf-8", "replace"), where)
    return rc


class _Callbacks:
    """Makes the callbacks of one call of the library. ctypes only prints what a callback raises and carries on, so
    the call would return a part of the result as if it were all. Here the call stops, and the with block raises the
    exception."""

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
            return -errno.EINTR  # a callback without a result cannot stop the call; the rest is then skipped

        return kind(call)

    def __enter__(self) -> _Callbacks:
        # Python may handle Ctrl-C before the first line of call(), where nothing could catch the exception.
        self._on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            if callable(self._on_interrupt):
                signal.signal(signal.SIGINT, self._interrupted)
                return self
        except ValueError:  # only the main thread handles signals
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
    if not isinstance(name, str):
        raise TypeError(f"a name is a str, not {name!r}")
    return name.encode("utf-8", "surrogatepass")


def _whole(text: bytes) -> bytes:
    """For C, where a text ends before its first null byte: "run\\0x" would be another path, "run"."""
    if b"\0" in text:
        raise ValueError("embedded null byte")
    return text


def _path(path: Union[str, bytes, os.PathLike]) -> bytes:
    return _whole(os.fsencode(path))


def _text(address: Optional[int], size: int) -> str:
    return ctypes.string_at(address, size).decode("utf-8", "surrogatepass") if size else ""


def _words(options: Mapping[str, Option]):
    """Options for ckpt_open: "name=value", and "name" for True."""
    words = []
    for name, value in options.items():
        if value is None or value is False or value == 0 or value == ():
            continue
        if value is True:
            words.append(_path(name))
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            one = str(one) if isinstance(one, int) else os.fspath(one)
            words.append(_path(name) + b"=" + _path(one))
    return (c_char_p * (len(words) + 1))(*words, None)


def _globs(globs: Union[str, Sequence[str]]):
    names = [_whole(_bytes(g)) for g in ([globs] if isinstance(globs, str) else globs)]
    return (c_char_p * (len(names) + 1))(*names, None)
