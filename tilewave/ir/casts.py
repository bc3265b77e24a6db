"""Casts of numbers and arrays to another dtype: rounded once, saturated, or wrapped."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewave.ir.types import BOOL, DType

Array = np.ndarray[Any, Any]
LOST_BITS = 11
"""Bits of an i64, without its sign, in excess of the precision of f64."""


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
    wide = np.trunc(given.astype(np.float64))
    end = 2.0 ** (dtype.bits - 1)
    inside = np.where((wide >= -end) & (wide < end), wide, 0).astype(np.int64)
    last = (1 << dtype.bits - 1) - 1
    return np.where(wide >= end, last, np.where(wide < -end, -last - 1, inside)).astype(dtype.numpy)


def _to_odd(given: Array) -> Array:
    """Return f32 rounded to odd, so that a second rounding to a narrower dtype gives the correctly rounded result."""
    wide = given if given.dtype == np.float64 else _exactly(given.astype(np.int64))
    near = wide.astype(np.float32)
    back = near.astype(np.float64)
    bits = np.asarray(near).view(np.uint32)
    below = bits - (np.abs(back) > np.abs(wide)).astype(np.uint32)
    kept = np.where((back == wide) | np.isnan(wide), bits, below | np.uint32(1))
    return kept.view(np.float32)


def _exactly(given: Array) -> Array:
    """Return f64; an i64 of higher precision is rounded to odd."""
    lost = (1 << LOST_BITS) - 1
    kept = (given & ~lost) | np.where(given & lost, 1 << LOST_BITS, 0)
    is_large = (given >= 1 << 53) | (given <= -(1 << 53))
    return np.where(is_large, kept, given).astype(np.float64)
