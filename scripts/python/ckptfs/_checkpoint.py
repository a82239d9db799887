# SPDX-License-Identifier: Apache-2.0
"""Opened checkpoints: mappings of tensors and objects, and the files of the tree."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import json
import operator
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_char, c_char_p, c_size_t, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from . import _values
from ._libckpt import (_BY, _bytes, _Callbacks, _check, _EACH_CHUNK, _EACH_FAULT, _EACH_RUN_ENTRY, _EACH_STEP,
                       _EACH_VALUES, _EACH_VERDICT, _Err, _globs, _Hooks, _lent, _library, _Object, _OPEN_STEP, _path,
                       _Series, _SERVES, _Stat, _Step, _Tensor, _text, _Totals, _ValuesCheck, _ValuesScan, _WARN,
                       _words, NotDirectoryError, Option)
from ._tensor import Index, Tensor
from ._values import Finding, Step, Values

if TYPE_CHECKING:
    import numpy
    import torch as _torch

NAME_MAX = 255


def _counted(things: Mapping, what: str) -> str:
    try:
        n = len(things)
    except (OSError, ValueError):
        return "closed"
    return f"{n} {what}{'s'[:n != 1]}"


class Tensors(Mapping):
    """Maps names, in natural order, to whole tensors as NumPy arrays, read on access. tensor(name)
    returns a Tensor without reading it."""

    def __init__(self, checkpoint: Checkpoint, model: bool, rank: Optional[int] = None):
        lib = checkpoint._lib
        self._checkpoint = checkpoint
        self._about = lib.ckpt_model_tensor_sized if model else lib.ckpt_tensor_sized
        self._find = lib.ckpt_model_find if model else lib.ckpt_tensor_find
        self._read = lib.ckpt_model_slice_read_sized if model else lib.ckpt_slice_read_sized
        self._backing = lib.ckpt_model_backing if model else lib.ckpt_tensor_backing
        self._model = model
        self._rank = rank
        self._names: Optional[list[str]] = None

    def __reduce__(self) -> tuple:
        return Tensors, (self._checkpoint, self._model, self._rank)

    def _box(self, handle, i: int, about: _Tensor):
        """The rank's part of tensor i, as (off, len), or None if it has none."""
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
        """The values of the tensors that match a glob, or of all, as `ckptfs stat` describes them. by: "tensor",
        "layer", "role" or "rank"; bins: of histograms, 3 to 256. Tensors are read in blocks, by several
        threads."""
        if self._rank is not None:
            raise ValueError("stat() of a rank's part is not supported")
        if by not in _BY:
            raise ValueError(f"by={by!r} is not one of {', '.join(_BY)}")
        found, e = {}, _Err()

        def each(_, item) -> int:
            i = item.contents
            found[_text(i.fqn, i.fqn_len)] = _values.values_of(i)
            return 0

        with self._checkpoint._using() as handle:
            with _Callbacks() as callback:
                scan = _ValuesScan(globs=_globs(globs), model=self._model, by=_BY.index(by), jobs=jobs, bins=bins,
                                   each=callback(_EACH_VALUES, each))
                rc = self._checkpoint._lib.ckpt_values_scan_sized(handle, *_lent(scan), byref(e))
            _check(rc, e, self._checkpoint.path)
        return found

    def tensor(self, name: str) -> Tensor:
        """The tensor with that name, not read yet. A checkpoint's own tensors are also found by the names that the
        model has for them. KeyError if there is none."""
        raw, about, box = _bytes(name), _Tensor(), None
        with self._checkpoint._using() as handle:
            i = self._find(handle, raw, len(raw))
            if not self._model:
                other = self._checkpoint._lib.ckpt_model_stored(handle, raw, len(raw))
                if i >= 0 and other >= 0 and other != i:
                    warnings.warn(f"'{name}' is the name of a stored tensor, and the model's name for another: "
                                  "the stored tensor is used; .model has the other", stacklevel=2)
                i = other if i < 0 else i
            if i >= 0:
                self._about(handle, i, *_lent(about))
                if self._rank is not None:
                    box = self._box(handle, i, about)
            if i < 0 or self._rank is not None and not box:
                raise KeyError(f"no tensor '{name}'{self._checkpoint._meant(handle, raw)}")
            return Tensor(self, i, about, box)

    def in_file_order(self) -> list[str]:
        """The names in the order of the data files; from a disk, reading in this order is fastest. Tensors that do not
        come from a single stored one, such as those of a recipe, are last."""
        first = {}

        def each(_, chunk) -> int:
            first[name] = chunk.contents.path, chunk.contents.offset
            return 1  # stop: the first chunk is enough

        lib, e = self._checkpoint._lib, _Err()
        with self._checkpoint._using() as handle, _Callbacks() as callback:
            on_chunk = callback(_EACH_CHUNK, each)
            for name in self._list():
                raw = _bytes(name)
                i = (lib.ckpt_model_stored if self._model else self._find)(handle, raw, len(raw))
                # A tensor that cannot be opened raises its error when it is read.
                if i >= 0:
                    lib.ckpt_tensor_chunks(handle, i, on_chunk, None, byref(e))
        last = (b"\xff" * 8, 0)
        return sorted(self._list(), key=lambda name: first.get(name, last))

    def state_dict(self, prefix: str = "", device: Any = "cpu", threads: int = 0, *, framework: str = "pt",
                   mmap: bool = False) -> dict[str, Any]:
        """All tensors whose names begin with prefix, under the rest of their names, as torch tensors on a device, or,
        with framework="np", as NumPy arrays. threads: how many read at the same time; 0: one for each CPU.

        mmap: a tensor that a file contains in one piece and unconverted is mapped instead of read: at once, and without
        memory of its own until it is written to. As with safetensors, that file must then not be overwritten or
        truncated: the tensor would change, and access beyond the file's end kills the process. Replacing or removing
        the file is harmless."""
        from ._load import state_dict

        return state_dict(self, prefix, device, threads, framework, mmap)

    # A mapping compares its values, but those of arrays are arrays: it would read all tensors and then fail.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

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
        of = "" if self._rank is None else f" of rank {self._rank}"
        return f"<ckptfs.{type(self).__name__} {self._checkpoint.path!r}: {_counted(self, 'tensor')}{of}>"


def _decoded(found: dict) -> Any:
    """The Python value that a part of an object's JSON stands for; the part itself if there is none."""
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
    """An element of a set, or a key: a list in JSON must have been a tuple."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


class Object(bytes):
    """What is not a tensor: its bytes, as objects/NAME shows them; .value is what they stand for."""

    _checkpoint: Checkpoint
    name: str

    @property
    def value(self) -> Any:
        """The value, without unpickling: that of objects/NAME.json, see ckptfs-formats(5). None, bool, int,
        float, str, bytes, list, dict and set are themselves, tuples become lists, keys other than strings become
        their JSON text ("0"), and anything else becomes a dict with its class as "__class__"."""
        return json.loads(self._json(), object_hook=_decoded)

    def _json(self) -> bytes:
        """objects/NAME.json."""
        raw, lib = _bytes(self.name), self._checkpoint._lib
        text, size, e = c_void_p(), c_size_t(), _Err()
        with self._checkpoint._using() as handle:
            i = lib.ckpt_object_find(handle, raw, len(raw))
            _check(lib.ckpt_object_json(handle, i, byref(text), byref(size), byref(e)), e,
                   self._checkpoint.path)
            try:
                return ctypes.string_at(text, size.value)
            finally:
                lib.free(text)


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

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        raw = _bytes(name)
        with self._checkpoint._using() as handle:
            return self._checkpoint._lib.ckpt_object_find(handle, raw, len(raw)) >= 0

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

    def __repr__(self) -> str:
        return f"<ckptfs.Objects {self._checkpoint.path!r}: {_counted(self, 'object')}>"


# ---- files ----

class File(io.RawIOBase):
    """A file of the tree, as in the mount; returned by Checkpoint.open_file()."""

    def __init__(self, checkpoint: Checkpoint, function, which: Union[int, bytes]):
        super().__init__()
        self._f = None
        self._lock = threading.RLock()  # the collector may close a File in the middle
        self._readers = 0  # in progress, during which _f must exist
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

    def __reduce_ex__(self, protocol) -> tuple:
        """For pickle and copy: no second File may close the same one."""
        raise TypeError(f"a File cannot be pickled or copied: open '{self.name}' again")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")

    def tell(self) -> int:
        self._check_open()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check_open()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}.get(whence)
        if base is None:
            raise ValueError(f"whence={whence!r} is not 0, 1 or 2")
        at = base + operator.index(offset)
        if at < 0:
            raise ValueError(f"seek to {at}")
        self._at = at
        return at

    def pread_into(self, buffer, offset: int) -> int:
        """Read the bytes at offset, at most the buffer's length; from any thread."""
        self._check_open()
        if offset < 0:
            raise ValueError(f"read at {offset}")
        view = memoryview(buffer)
        if not view.nbytes or offset >= self.size:  # ctypes would take an offset modulo 2**64
            return 0
        view = view.cast("B")
        e = _Err()
        place = (c_char * len(view)).from_buffer(view)
        with self._lock:
            self._check_open()
            self._readers += 1
        try:
            return _check(self._checkpoint._lib.ckpt_file_read(self._f, place, len(view), offset,
                                                               byref(e)), e, self.name)
        finally:
            with self._lock:
                self._readers -= 1
                last = self.closed and not self._readers
            if last:
                self._release()

    def readinto(self, buffer) -> int:
        n = self.pread_into(buffer, self._at)
        self._at += n
        return n

    def readall(self) -> bytes:
        out = bytearray(max(self.size - self._at, 0))
        n = self.readinto(out)
        return bytes(out if n == len(out) else out[:n])

    def write(self, data) -> int:
        self._check_open()
        raise io.UnsupportedOperation("the file cannot be written to")

    def close(self) -> None:
        """Memory is freed once no read is in progress."""
        with self._lock:
            last = not self.closed and self._f and not self._readers
            super().close()
        if last:
            self._release()

    def _release(self) -> None:
        f, self._f = self._f, None
        self._checkpoint._lib.ckpt_file_close(f)
        self._checkpoint._give()


# ---- checkpoints ----

class Verdict(NamedTuple):
    """Whether a directory of the tree can be loaded by the programs for which it is meant."""

    #: "yes", "no", "not checked" (what the model needs is not known) or "absent" (there is no such directory)
    serves: str
    #: "complete for LlamaForCausalLM (config.json from assets)", or what is missing and what to try
    text: str


class Checkpoint(Tensors):
    """An opened checkpoint; see open(). A mapping of its tensors, with access to everything else."""

    def __init__(self, path: Union[str, os.PathLike], options: Mapping[str, Option]):
        self.path = os.fspath(path)
        self._options = dict(options)
        self._lib = _library()
        self._lock = threading.RLock()  # the collector may close a File in the middle
        self._users = 0  # calls in progress, during which the following must exist:
        self._handle: Optional[c_void_p] = None
        self._open = False
        handle, e, odd = c_void_p(), _Err(), []
        path, opened = self.path, False

        def say(_, what) -> None:
            text = f"{path}: {what.decode('utf-8', 'replace')}"
            if opened:  # a run opens its checkpoints when they are read
                warnings.warn(text, stacklevel=3)
            else:
                odd.append(text)

        try:
            with _Callbacks():
                warn = _WARN(say)
                rc = self._lib.ckpt_open_sized(_path(self.path), _words(options), *_lent(_Hooks(warn=warn)),
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
        opened = True
        for text in odd:
            warnings.warn(text, stacklevel=3)

    def __reduce__(self) -> tuple:
        """For pickle: another process, such as a worker of a DataLoader, opens the checkpoint again."""
        with self._using():  # not closed
            return Checkpoint, (self.path, self._options)

    def rank(self, number: int) -> Tensors:
        """The part of the model that a rank holds; requires open(..., layout=...). NotFoundError if the layout has no
        such rank."""
        number = operator.index(number)
        if number < 0:
            raise ValueError(f"rank {number} is negative")
        path, node, e = f"ranks/{number:05d}", c_uint64(), _Err()
        with self._using() as handle:
            _check(self._lib.ckpt_walk(handle, _path(path), byref(node), byref(e)), e, path)
        return Tensors(self, True, number)

    def paths(self) -> dict[str, tuple[Union[str, int], ...]]:
        """For each tensor and object, the keys and list positions that led to it in the nested state dict that was
        saved, or just its name if the checkpoint does not record them."""
        lib, found = self._lib, {}
        with self._using() as handle:
            for function, names in ((lib.ckpt_tensor_path_sized, self), (lib.ckpt_object_path_sized, self.objects)):
                for i, name in enumerate(names):
                    n = function(handle, i, None, ctypes.sizeof(_Step), 0)
                    steps = (_Step * n)()
                    function(handle, i, steps, ctypes.sizeof(_Step), n)
                    found.setdefault(name, tuple(s.position if s.is_position else _text(s.text, s.len)
                                                 for s in steps) or (name,))
        return found

    def info(self) -> dict:
        """What `ckptfs info --json` prints."""
        text, size, e = c_void_p(), c_size_t(), _Err()
        with self._using() as handle:
            _check(self._lib.ckpt_info_json(handle, byref(text), byref(size), byref(e)), e,
                   self.path)
        try:
            return json.loads(ctypes.string_at(text, size.value))
        finally:
            self._lib.free(text)

    def verdicts(self) -> dict[str, Verdict]:
        """The verdicts on hf, gguf, pt and safetensors that `ckptfs info` prints, see ckptfs-info(1)."""
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
        """What `ckptfs check --values` finds in the tensors that match a glob, or in all; nothing, if training
        can continue with them. The other arguments are globs, too; ckptfs-check(1) describes the rules."""
        found, e = [], _Err()

        def each(_, fault) -> None:
            f = fault.contents
            found.append(_values.Finding(_text(f.fqn, f.fqn_len), f.rule.decode(), f.what.decode("utf-8", "replace")))

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
            _check(self._lib.ckpt_walk(handle, _path(path), byref(node), byref(e)), e, path)
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
        return File(self, self._lib.ckpt_file_open_path, _path(path))

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
        with self._using():  # not closed
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
    """How the tensors of a run that match a glob, or all, change from checkpoint to checkpoint, as `ckptfs stat RUN`
    describes it. Each list has one Step for each complete checkpoint, in order; incomplete ones are left out, with a
    warning. model: take the tensors and names of .model. The other options are those of open(), for all checkpoints."""
    lib, path, e = _library(), os.fspath(run), _Err()
    found, odd, words = {}, [], {"allow_missing": True, **options}
    given, handle = _words(words), c_void_p()

    def open_step(_, checkpoint, ret, err) -> int:
        rest = c_char_p()
        return lib.ckpt_run_open_sized(handle, checkpoint, given, *_lent(hooks), ret, byref(rest), err)

    def each(_, item) -> int:
        i = item.contents
        found.setdefault(_text(i.fqn, i.fqn_len), []).append(_values.step_of(i))
        return 0

    def each_checkpoint(_, entry) -> int:
        x = entry.contents
        if not x.complete:
            why = x.fault.decode("utf-8", "replace") if x.fault else "it is not complete"
            odd.append(f"left out: {os.fsdecode(x.name)}: {why}")
        return 0

    try:
        with _Callbacks() as callback:
            hooks = _Hooks(warn=callback(_WARN, lambda _, what: odd.append(what.decode("utf-8", "replace"))))
            wanted = _Series(globs=_globs(globs), model=model, jobs=jobs, open=callback(_OPEN_STEP, open_step),
                             each=callback(_EACH_STEP, each))
            rc = lib.ckpt_open_sized(_path(path), _words({**words, "runs": True}), *_lent(hooks), byref(handle),
                                     byref(e))
            if not rc:
                rc = lib.ckpt_series_sized(handle, *_lent(wanted), byref(e))
            if not rc and wanted.incomplete:
                rc = lib.ckpt_run_each(handle, callback(_EACH_RUN_ENTRY, each_checkpoint), None, byref(e))
        _check(rc, e, path)
    finally:
        if handle:
            lib.ckpt_close(handle)
    for what in odd:
        warnings.warn(f"{path}: {what}", stacklevel=2)
    return found
