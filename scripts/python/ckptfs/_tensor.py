# SPDX-License-Identifier: Apache-2.0
"""A tensor that is read on demand."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from ctypes import addressof, Array, byref, c_char, c_int, c_int64, c_uint64
from typing import TYPE_CHECKING, Any, Optional, Union

from ._libckpt import _check, _Err, _lent, _Slice, _Tensor, _text

if TYPE_CHECKING:
    import numpy
    import torch as _torch

    from ._checkpoint import Tensors

# By torch's names: the types that NumPy has, and those that ml_dtypes adds.
_NUMPY = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "int64": "<i8", "int32": "<i4",
          "int16": "<i2", "int8": "|i1", "uint64": "<u8", "uint32": "<u4", "uint16": "<u2",
          "uint8": "|u1", "bool": "|b1", "complex128": "<c16", "complex64": "<c8"}
_ML_DTYPES = {"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
              "float8_e8m0fnu", "float8_e3m4", "float8_e4m3b11fnuz", "float4_e2m1fn", "int4", "int2"}

Index = Union[int, slice, type(Ellipsis), tuple]


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
        # numpy.bool_ and torch's tensors of a bool have __index__, too.
        if isinstance(item, bool) or str(getattr(item, "dtype", "")).endswith("bool") or not hasattr(item, "__index__"):
            raise TypeError(f"an index is an integer, a slice or '...', not {item!r}")
        i = item.__index__()
        if not -size <= i < size:
            raise IndexError(f"index {i} is out of bounds for dimension {d} of size {size}")
        out.append((i % size, 1, 1, False))
    return out


def _address(t: _torch.Tensor) -> int:
    """The address of its elements; subclasses such as FakeTensor have none in memory."""
    at = t.data_ptr()
    if t.numel() and not at:
        raise ValueError(f"a {type(t).__name__} has no elements in memory")
    return at


def _is_array(out: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return bool(numpy) and isinstance(out, numpy.ndarray)


def _buffer(out: Any) -> Array:
    """The bytes of an object with a buffer that can be written to; they keep it in place."""
    try:
        view = memoryview(out)
    except TypeError:
        raise TypeError("only NumPy arrays, torch tensors and buffers, such as a bytearray, can be read into, and not "
                        f"{type(out).__name__}") from None
    if view.readonly:
        raise ValueError(f"the buffer ({type(out).__name__}) is read-only")
    if not view.c_contiguous:
        raise ValueError(f"the buffer ({type(out).__name__}) is not contiguous")
    return (c_char * view.nbytes).from_buffer(view)


def _overlap(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether two elements share a byte. strides: in bytes.

    They do if the sum of all strides, each times the difference of their indices, is nearer to 0 than itemsize. As a
    difference may be negative, strides need not. The sums are made from the largest stride on, and only those are kept
    that the smaller strides could bring back near 0. In an ordinary array there are none; with others it takes longer,
    but the answer is right."""
    dims = sorted(((abs(s), n) for n, s in zip(shape, strides) if n > 1), reverse=True)
    if 0 in shape or not dims:
        return False
    rest = sum(stride * (n - 1) for stride, n in dims) + itemsize - 1  # the furthest byte from the first
    if dims[-1][0] < itemsize or math.prod(shape) * itemsize > rest + 1:
        return True
    sums: set[int] = set()
    for stride, n in dims:
        rest -= stride * (n - 1)
        # The first difference that is not 0 may be taken to be positive.
        found = {d * stride for d in range(1, min(n - 1, rest // stride) + 1)}
        for x in sums:
            first, last = max(1 - n, -((rest + x) // stride)), min(n - 1, (rest - x) // stride)
            found.update(x + d * stride for d in range(first, last + 1))
        sums = found
        if any(-itemsize < x < itemsize for x in sums):
            return True
    return False


class Tensor:
    """A tensor that is read on demand. t[...] reads, with NumPy's indices: integers, slices with
    any step, '...'; only the selected elements are read. The result is an array even if no dimension is left.
    item(), or float(t), int(t), complex(t) and bool(t), read a tensor of one element as a Python value."""

    def __init__(self, group: Tensors, number: int, about: _Tensor, box=None):
        self._group = group
        self._number = number
        self._part = box is not None
        self._off = box[0] if box else (0,) * about.n_dims
        self.name: str = _text(about.fqn, about.fqn_len)
        #: torch's name of its type: "bfloat16"
        self.dtype: str = about.dtype.decode()
        self.itemsize: int = about.element
        self.shape: tuple[int, ...] = tuple(box[1]) if box else tuple(about.shape[:about.n_dims])
        #: why it cannot be read, or None
        self.fault: Optional[str] = about.fault.decode() if about.fault else None

    def __reduce__(self) -> tuple:
        return self._group.tensor, (self.name,)

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

    def torch_dtype(self) -> _torch.dtype:
        """torch's type; TypeError if this torch has none."""
        import torch

        found = getattr(torch, self.dtype, None)
        if found is None:
            raise TypeError(f"tensor '{self.name}' is {self.dtype}, which torch {torch.__version__} does not have: "
                            "take .bits()")
        return found

    def __getitem__(self, index: Index) -> numpy.ndarray:
        return self._array(index, self.numpy_dtype())

    def item(self) -> Any:
        """The only element, as a Python value."""
        if self.size != 1:
            raise ValueError(f"tensor '{self.name}' has {self.size} elements; only one alone is a Python value")
        return self[...].item()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __array__(self, dtype=None, copy=None) -> numpy.ndarray:
        if copy is False:
            raise ValueError(f"tensor '{self.name}' is not in memory, so an array of it must be a copy")
        whole = self[...]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None) -> Any:
        """Reads the tensor, for DLPack: torch.from_dlpack(t), jax.numpy.from_dlpack(t)."""
        del stream, max_version  # CPU memory has no streams, and every consumer accepts an unversioned capsule
        if copy is False or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"tensor '{self.name}' is not in memory; it can be read into that of the CPU only")
        whole = self[...] if self.dtype in _NUMPY and self.dtype != "bool" else self.torch()
        return whole.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU

    def __buffer__(self, flags: int) -> memoryview:
        """Reads the tensor, for memoryview(t), from Python 3.12 on. For types that NumPy has; otherwise use .bits()."""
        del flags
        if self.dtype not in _NUMPY:
            raise BufferError(f"tensor '{self.name}' is {self.dtype}, which no buffer can be of: take .bits()")
        return memoryview(self[...])

    def bits(self, index: Index = ...) -> numpy.ndarray:
        """The elements, of any type, as unsigned integers of the same size; elements of 16 bytes become
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
        """t[index] as a torch tensor, of any type that torch has."""
        import torch

        wanted = _resolve(index, self.shape)
        shape = [count for _, _, count, stays in wanted if stays]
        out = torch.empty(shape, dtype=self.torch_dtype(), device="cpu")  # whatever the default is
        self._read(wanted, _address(out), [s * self.itemsize for s in out.stride()])
        return out

    def read_into(self, out: Any, index: Index = ...) -> None:
        """Read t[index] into a NumPy array or a torch tensor (in CPU memory) with the same shape and
        element size, which need not be contiguous. Refused are a lazily conjugated or negated torch tensor, because
        its memory holds other elements, and memory that several elements share, as those of expand() do.

        Another buffer, such as a bytearray or a mmap, gets the bytes of the elements in C order. It must be contiguous
        and have as many bytes, whatever its own shape and type."""
        wanted = _resolve(index, self.shape)
        shape = tuple(count for _, _, count, stays in wanted if stays)
        if not hasattr(out, "data_ptr") and not _is_array(out):
            buffer = _buffer(out)
            size, strides = self.itemsize, []
            for n in reversed(shape):
                strides.insert(0, size)
                size *= n
            if len(buffer) != size:
                raise ValueError(f"room for {len(buffer)} bytes, but there are {size}: {list(shape)} elements of "
                                 f"{self.itemsize}")
            self._read(wanted, addressof(buffer), strides)
            return
        at, itemsize, strides = self._room(out)
        if tuple(out.shape) != shape or itemsize != self.itemsize:
            raise ValueError(f"room for {list(out.shape)} elements of {itemsize} bytes, but there "
                             f"are {list(shape)} of {self.itemsize}")
        self._read(wanted, at, strides)

    def _room(self, out: Any) -> tuple[int, int, Sequence[int]]:
        """The address of an array or torch tensor that elements can be read into, its element size and its strides in
        bytes."""
        if hasattr(out, "data_ptr"):
            if out.device.type != "cpu":
                raise TypeError(f"the tensor must be in CPU memory, not on {out.device}")
            if out.is_conj() or out.is_neg():
                raise ValueError("the tensor is a lazily conjugated or negated view; read into out.resolve_conj()"
                                 ".resolve_neg(), which is a copy")
            at, itemsize = _address(out), out.element_size()
            strides = [s * itemsize for s in out.stride()]
        else:
            if not out.flags.writeable:
                raise ValueError("the array is read-only")
            if out.dtype.hasobject:
                raise TypeError(f"the array is of Python objects ({out.dtype}), not of numbers")
            if out.dtype.str.startswith(">"):
                raise TypeError(f"the array is big-endian ({out.dtype.str}), but elements are little-endian")
            at, itemsize, strides = out.ctypes.data, out.itemsize, out.strides
        if _overlap(out.shape, strides, itemsize):
            raise ValueError(f"tensor '{self.name}': there is no room for all elements, because those of the "
                             f"{'tensor' if hasattr(out, 'data_ptr') else 'array'} share memory (strides of "
                             f"{list(strides)} bytes): read into a copy")
        return at, itemsize, strides

    def _backing(self) -> Optional[tuple[int, int]]:
        """A descriptor of the file that contains the whole tensor unconverted, and the offset; the caller closes it.
        None if there is no such file."""
        fd, off, e = c_int(-1), c_uint64(), _Err()
        if self._part:
            return None
        with self._group._checkpoint._using() as handle:
            rc = self._group._backing(handle, self._number, byref(fd), byref(off), byref(e))
        return None if _check(rc, e, self._group._checkpoint.path) else (fd.value, off.value)

    def _read(self, wanted, at: int, strides: Sequence[int]) -> None:
        """strides: in bytes, of the kept dimensions."""
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
            step[d] = abs(by) if count > 1 else 1  # which may be too large for C, if nothing comes after the first
            stop[d] = start[d] + ((count - 1) * abs(by) + 1 if count else 0)
        if any(count == 0 for _, _, count, _ in wanted):
            return
        with self._group._checkpoint._using() as handle:
            e = _Err()
            wanted = _Slice(start, stop, step, stride)
            _check(self._group._read(handle, self._number, *_lent(wanted), at, byref(e)), e,
                   self._group._checkpoint.path)
