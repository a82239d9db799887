# SPDX-License-Identifier: Apache-2.0
"""Whole state dicts, filled by several threads, and the interface of safetensors over any checkpoint."""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import math
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Optional, Union

from ._checkpoint import Checkpoint, Tensors
from ._libckpt import Option
from ._tensor import _resolve, Index, Tensor

if TYPE_CHECKING:
    import numpy
    import torch as _torch

Box = tuple[slice, ...]

# Bytes that one thread reads at a time: enough that the cost of a call does not matter, and few enough that all threads
# have work until the end.
PIECE = 32 << 20
MAPS = 4096  # files mapped by one call: Linux allows a process 65,530 mappings in all
HUGE = 2 << 20  # bytes of a huge page on x86-64 and, with pages of 4 KiB, on arm64

# The names that safetensors has for torch's types.
_SAFETENSORS = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32",
                "uint32": "U32", "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16",
                "float32": "F32", "float64": "F64", "complex64": "C64", "float8_e4m3fn": "F8_E4M3",
                "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ",
                "float8_e5m2fnuz": "F8_E5M2FNUZ"}
_FRAMEWORKS = {"pt": "pt", "torch": "pt", "pytorch": "pt", "np": "np", "numpy": "np"}


@functools.lru_cache(maxsize=None)
def _madvise() -> Optional[Callable]:
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function and hasattr(mmap, "MADV_HUGEPAGE"):
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        return function
    return None


def _want_huge_pages(address: int, size: int) -> None:
    """Ask for huge pages for memory that has not been touched yet: a fault for every 4 KiB, instead of every 2 MiB,
    would take as long as the copy. Nothing happens if the kernel has none."""
    start = -(-address // HUGE) * HUGE
    end = (address + size) // HUGE * HUGE
    if end > start and _madvise():
        _madvise()(start, end - start, mmap.MADV_HUGEPAGE)


def _pieces(box: Box, itemsize: int) -> Iterator[tuple[Index, Index]]:
    """Parts of a box, cut along its first dimension: their indices in the tensor and in memory."""
    rows = box[0].stop - box[0].start if box else 0
    size = itemsize * math.prod(x.stop - x.start for x in box)
    if size <= 2 * PIECE or rows < 2:
        yield box or ..., ...
        return
    step = max(1, PIECE * rows // size)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        yield (slice(box[0].start + first, box[0].start + last), *box[1:]), slice(first, last)


def read_boxes(wanted: Iterable[tuple[Tensor, Any, Box]], threads: int = 0) -> None:
    """Read a box of each Tensor (slices with start and stop) into the array or torch tensor beside it, by several
    threads; see read_into(). The boxes should be in the order of the files. threads: 0 is one for each CPU that this
    process may use. If one read fails, so does the call, and the contents of all the memory are undefined."""
    jobs = []
    for t, out, box in wanted:
        pieces = list(_pieces(box, t.itemsize))
        if len(pieces) > 1:
            t._room(out)  # its parts may be in order although the whole is not
        jobs += [(t, out, here, there) for here, there in pieces]
    threads = min(threads or len(os.sched_getaffinity(0)), len(jobs))

    def read(job) -> None:
        t, out, here, there = job
        t.read_into(out if there is ... else out[there], here)

    if threads < 2:
        for job in jobs:
            read(job)
        return
    pool = concurrent.futures.ThreadPoolExecutor(threads, "ckptfs")
    try:
        for done in concurrent.futures.as_completed([pool.submit(read, job) for job in jobs]):
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def fill(wanted: Iterable[tuple[Tensor, Any]], threads: int = 0) -> None:
    """Read each Tensor into the array or torch tensor beside it, as read_boxes() does."""
    read_boxes([(t, out, tuple(slice(0, n) for n in t.shape)) for t, out in wanted], threads)


def _new_torch(t: Tensor) -> _torch.Tensor:
    import torch

    out = torch.empty(t.shape, dtype=t.torch_dtype(), device="cpu")  # whatever torch's default device is
    _want_huge_pages(out.data_ptr(), t.nbytes)
    return out


def _new_numpy(t: Tensor) -> numpy.ndarray:
    import numpy as np

    out = np.empty(t.shape, t.numpy_dtype())
    _want_huge_pages(out.ctypes.data, t.nbytes)
    return out


@functools.lru_cache(maxsize=None)
def _mmap() -> tuple[Callable, Callable]:
    libc = ctypes.CDLL(None)
    begin = getattr(libc, "mmap64", None) or libc.mmap  # with an offset of 64 bits
    begin.restype = ctypes.c_void_p
    begin.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return begin, libc.munmap


def _map(fd: int, size: int) -> Optional[ctypes.Array]:
    """Map the whole file, for as long as something refers to the result. The module mmap would keep a descriptor for
    each file, and there may be more files than a process may have open. The mapping is private, so that tensors can be
    written to, and reserves no memory for that. None: no room, an empty file, or a file system that maps nothing."""
    begin, end = _mmap()
    if size > sys.maxsize:
        return None
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)
    address = begin(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        return None
    whole = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(whole, end, address, size).atexit = False  # it may still be in use at exit
    return whole


class _Maps:
    """Mapped files; each is mapped once."""

    def __init__(self, framework: str):
        self._framework = framework
        self._files: dict[tuple[int, int], Optional[ctypes.Array]] = {}

    def _map(self, fd: int) -> Optional[ctypes.Array]:
        about = os.fstat(fd)
        key = about.st_dev, about.st_ino
        if key not in self._files:
            self._files[key] = _map(fd, about.st_size) if len(self._files) < MAPS else None
        return self._files[key]

    def get(self, t: Tensor) -> Any:
        """The tensor in a mapping, which lives as long as the tensor; or None if it must be read."""
        found = t._backing()
        if found is None:
            return None
        fd, off = found
        try:
            whole = self._map(fd)
        finally:
            os.close(fd)
        if whole is None or off % t.itemsize or off + t.nbytes > len(whole):
            return None
        if self._framework == "np":
            import numpy as np

            return np.frombuffer(whole, t.numpy_dtype(), t.size, off).reshape(t.shape)
        import torch

        # As bytes first, because frombuffer() does not know all types.
        return torch.frombuffer(whole, dtype=torch.uint8, count=t.nbytes, offset=off).view(t.torch_dtype()).view(t.shape)


def load_tensors(tensors: Iterable[Tensor], framework: str = "pt", device: Any = "cpu", threads: int = 0,
                 mapped: bool = False) -> list[Any]:
    """Whole tensors, in memory of their own or, if `mapped`, in mapped files where that is possible."""
    framework = _framework(framework, device)
    new = _new_torch if framework == "pt" else _new_numpy
    maps = _Maps(framework)
    found, wanted = [], []
    for t in tensors:
        out = maps.get(t) if mapped else None
        if out is None:
            out = new(t)
            wanted.append((t, out))
        found.append(out)
    fill(wanted, threads)
    return [_moved(out, device) for out in found]


def _moved(out: Any, device: Any) -> Any:
    return out if str(device) == "cpu" else out.to(device)


def _framework(name: str, device: Any) -> str:
    if name not in _FRAMEWORKS:
        raise ValueError(f"framework={name!r} is neither 'pt' nor 'np'")
    if _FRAMEWORKS[name] == "np" and str(device) != "cpu":
        raise ValueError(f"NumPy's arrays cannot be on {device!r}")
    return _FRAMEWORKS[name]


def _model_of(checkpoint: Checkpoint) -> Tensors:
    """The model's tensors, with their names in hf/, or the stored tensors if there is no model."""
    return checkpoint.model if len(checkpoint.model) else checkpoint


def load_file(path: Union[str, os.PathLike], device: Any = "cpu", *, framework: str = "pt", prefix: str = "",
              threads: int = 0, mmap: bool = True, **options: Option) -> dict[str, Any]:
    """Like safetensors.torch.load_file, for any checkpoint: the model's tensors, under their names in hf/, in memory.

    framework="np": NumPy arrays. prefix, threads and mmap: see Tensors.state_dict(). Like safetensors, it maps tensors
    where that is possible. The options are those of open(): recipe="megatron", dequantize="bf16", ...

    """
    with Checkpoint(path, options) as ck:
        return _model_of(ck).state_dict(prefix, device, threads, framework=framework, mmap=mmap)


class SafeSlice:
    """A tensor of safe_open() that is not read yet: slice[2:4, ::2] reads only these elements. The indices are
    integers, slices with any step, and '...'."""

    def __init__(self, tensor: Tensor, framework: str, device: Any):
        self._tensor, self._framework, self._device = tensor, framework, device

    def get_shape(self) -> list[int]:
        shape = list(self._tensor.shape)
        if self.get_dtype() == "F4":  # torch stores two in one element
            shape[-1] *= 2
        return shape

    def get_dtype(self) -> str:
        """safetensors' name for the type ("BF16"), or torch's if safetensors has none."""
        if self._tensor.dtype == "float4_e2m1fn_x2" and self._tensor.shape:
            return "F4"
        return _SAFETENSORS.get(self._tensor.dtype, self._tensor.dtype)

    def _packed(self, index: Index) -> Index:
        """The index of the bytes that contain these elements, which take half a byte each."""
        wanted = _resolve(index, self.get_shape())
        first, step, count, stays = wanted[-1]
        if not stays or step != 1 or first % 2 or count % 2:
            raise ValueError(f"tensor '{self._tensor.name}' has two elements in a byte: along its last dimension a slice "
                             "begins and ends at even elements and has no step")
        wanted[-1] = first // 2, 1, count // 2, True
        return tuple(slice(at, end if (end := at + by * n) >= 0 else None, by) if stays else at
                     for at, by, n, stays in wanted)

    def __getitem__(self, index: Index) -> Any:
        if self.get_dtype() == "F4":
            index = self._packed(index)
        if self._framework == "np":
            return self._tensor[index]
        return _moved(self._tensor.torch(index), self._device)


class safe_open:
    """Like safetensors.safe_open, for any checkpoint: the model's tensors, under their names in hf/.

        with ckptfs.safe_open("run/step-1000", framework="pt", device="cpu") as f:
            for name in f.keys():
                tensor = f.get_tensor(name)
            rows = f.get_slice("lm_head.weight")[:, ::8]

    framework is "pt" or "np". mmap: whole tensors are mapped where that is possible, see Tensors.state_dict(). The
    options are those of open(): recipe="megatron", dequantize="bf16", ...
    If a checkpoint's tensors have no unique names in hf/, they have their stored names.

    """

    def __init__(self, filename: Union[str, os.PathLike], framework: str, device: Any = "cpu", *, mmap: bool = True,
                 **options: Option):
        self._framework, self._device = _framework(framework, device), device
        self._maps = _Maps(self._framework) if mmap else None
        self._checkpoint = Checkpoint(filename, options)
        self._tensors = _model_of(self._checkpoint)

    def __enter__(self) -> safe_open:
        self._checkpoint.__enter__()
        return self

    def __exit__(self, *_) -> None:
        self._checkpoint.close()

    def keys(self) -> list[str]:
        """Names, in natural order."""
        return list(self._tensors)

    def offset_keys(self) -> list[str]:
        """Names in the order of the data files; reading in this order is fastest."""
        return self._tensors.in_file_order()

    def metadata(self) -> Optional[dict[str, str]]:
        """The metadata in the header of hf/model.safetensors."""
        return {"format": "pt"}

    def get_tensor(self, name: str) -> Any:
        tensor = self._tensors.tensor(name)
        found = self._maps.get(tensor) if self._maps else None
        return self.get_slice(name)[...] if found is None else _moved(found, self._device)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors, read by several threads."""
        return self._tensors.state_dict(device=self._device, framework=self._framework, mmap=self._maps is not None)

    def get_slice(self, name: str) -> SafeSlice:
        return SafeSlice(self._tensors.tensor(name), self._framework, self._device)


def state_dict(tensors: Tensors, prefix: str, device: Any, threads: int, framework: str, mapped: bool) -> dict[str, Any]:
    """See Tensors.state_dict()."""
    names = [name for name in tensors.in_file_order() if name.startswith(prefix)]
    if not names and prefix and len(tensors):
        raise KeyError(f"no tensor's name begins with '{prefix}'")
    loaded = dict(zip(names, load_tensors(map(tensors.tensor, names), framework, device, threads, mapped)))
    return {name[len(prefix):]: loaded[name] for name in tensors if name in loaded}
