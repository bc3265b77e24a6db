"""Casts of numbers and arrays to another dtype: rounded once, saturated, or wrapped."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewave.ir.types import BOOL, DType

Array = np.ndarray[Any, Any]
LOST_BITS = 11
"""Bits of a 64-bit integer in excess of the precision of f64."""


def cast(x: Any, dtype: DType) -> Any:
    """Return x in a dtype: floats to nearest even; integers wrap, from floats truncated and saturated, NaN to 0."""
    given = np.asarray(x)
    with np.errstate(all="ignore"):
        result = _converted(given, dtype)
    return result[()] if dtype.is_float or result.ndim else result.item()


def _converted(given: Array, dtype: DType) -> Array:
    if dtype == BOOL:
        return np.asarray(given != 0)
    if dtype.is_int and given.dtype.kind not in "iub":
        return _saturated(given, dtype)
    if dtype.is_float and dtype.bits < 32 and given.dtype.itemsize >= 4 and given.dtype != np.float32:
        return _to_odd(given).astype(dtype.numpy)
    return given.astype(dtype.numpy)


def _saturated(given: Array, dtype: DType) -> Array:
    wide, (least, greatest) = np.trunc(given.astype(np.float64)), dtype.bounds
    above, below = wide >= float(greatest + 1), wide < float(least)
    inside = np.where(above | below | np.isnan(wide), 0, wide).astype(dtype.numpy)
    last, first = dtype.numpy.type(greatest), dtype.numpy.type(least)
    return np.where(above, last, np.where(below, first, inside))


def _to_odd(given: Array) -> Array:
    """Return f32 rounded to odd, so that a second rounding to a narrower dtype gives the correctly rounded result."""
    wide = given if given.dtype == np.float64 else _exactly(given)
    near = wide.astype(np.float32)
    back = near.astype(np.float64)
    bits = np.asarray(near).view(np.uint32)
    below = bits - (np.abs(back) > np.abs(wide)).astype(np.uint32)
    kept = np.where((back == wide) | np.isnan(wide), bits, below | np.uint32(1))
    return kept.view(np.float32)


def _exactly(given: Array) -> Array:
    """Return integers as f64; those of 64 bits with higher precision are rounded to odd."""
    given = given.astype(np.uint64 if given.dtype == np.uint64 else np.int64)
    lost, unit = (given.dtype.type(n) for n in ((1 << LOST_BITS) - 1, 1 << LOST_BITS))
    kept = (given ^ (given & lost)) | np.where(given & lost, unit, given.dtype.type(0))
    is_large = (given >= 1 << 53) | (given <= -(1 << 53))
    return np.where(is_large, kept, given).astype(np.float64)
