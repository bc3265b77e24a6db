"""The semantics of reductions: neighbours are combined until one element is left."""

from __future__ import annotations

import numpy as np

from tilewave.interp.arithmetic import Array
from tilewave.interp.numbers import Numbers
from tilewave.ir.types import DType


def reduced(numbers: Numbers, how: str, dtype: DType, x: Array, axis: int) -> Array:
    """Return x reduced along an axis, pairwise; an element without a neighbour moves up a level."""
    x = np.moveaxis(x, axis, -1)
    while (count := x.shape[-1]) > 1:
        pairs = numbers.combined(how, dtype, x[..., 0 : count - 1 : 2], x[..., 1:count:2])
        x = np.concatenate([pairs, x[..., -1:]], axis=-1) if count % 2 else pairs
    return x[..., 0]


def reduced_along(numbers: Numbers, how: str, dtype: DType, x: Array, axes: tuple[int, ...]) -> Array:
    """Return x reduced along several axes, the last of them first."""
    for axis in sorted(axes, reverse=True):
        x = reduced(numbers, how, dtype, x, axis)
    return x


def reduced_by_runs(numbers: Numbers, how: str, dtype: DType, x: Array, axis: int, run: int) -> Array:
    """Return one element for each run of `run` neighbours."""
    shape = (*x.shape[:axis], x.shape[axis] // run, run, *x.shape[axis + 1 :])
    return reduced(numbers, how, dtype, x.reshape(shape), axis + 1)


def shifted(x: Array, axis: int, by: int) -> Array:
    """Return x shifted towards the end of an axis, or by a negative number towards its start; zeros are shifted in."""
    found = np.zeros_like(x)
    to, of, far = np.moveaxis(found, axis, 0), np.moveaxis(x, axis, 0), abs(by)
    if by > 0:
        to[far:] = of[:-far]
    else:
        to[:-far] = of[far:]
    return found
