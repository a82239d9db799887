# SPDX-License-Identifier: Apache-2.0
"""The results of ckptfs-stat(1) and ckptfs-check(1) as Python values."""

from __future__ import annotations

import math
import os
from typing import NamedTuple, Optional, Union

from ._libckpt import _SeriesItem, _ValuesItem


class Histogram(NamedTuple):
    """As from numpy.histogram: counts[i] elements are at least edges[i] and below edges[i + 1]."""

    edges: list[float]
    counts: list[int]


class Values(NamedTuple):
    """The values of a tensor, or of all tensors of a group; ckptfs-stat(1) describes the members. What does
    not exist, such as the mean of no elements, is None."""

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
    #: why it could not be read; there are then no values
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
    #: since the previous checkpoint; None if that has no such tensor, or one of another shape
    changed: Optional[int]
    changed_share: Optional[float]
    relative: Optional[float]
    #: whether the previous checkpoint has the tensor in another shape
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


def values_of(i: _ValuesItem) -> Values:
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


def step_of(i: _SeriesItem) -> Step:
    v, shape = i.values, tuple(i.shape[:i.n_dims]) if i.dtype else None
    return Step(
        os.fsdecode(i.checkpoint), i.dtype.decode() if i.dtype else None, shape, v.elements,
        v.nan, v.infinite, v.zero, v.norm / math.sqrt(v.finite) if v.finite else None, v.norm if v.finite else None,
        max(abs(v.min), abs(v.max)) if v.finite and not v.is_complex else None, i.changed if i.compared else None,
        (i.changed / math.prod(shape) if i.changed else 0.0) if i.compared else None,
        i.relative if i.compared and not math.isnan(i.relative) else None, i.other_shape,
        i.fault.decode("utf-8", "replace") if i.fault else None)
