"""What reductions give: a tree over the elements, neighbours first, the last axis first; each step rounds once."""

from __future__ import annotations

import numpy as np

from . import exact
from .exact import Value
from .ownership import WrongProgram
from .program import FLOATS, SUMMED_IN

COMBINED = {"sum": "+", "prod": "*", "max": "maximum", "min": "minimum", "any": "|", "all": "&"}
UNIT = {"f32": 2.0**-24, "f64": 2.0**-53}
SIGN_OF_ZERO = 2.0**-1074
"""A sum of zeros may have either sign: elements past the end of a dim count as 0."""


def reduced(v: Value, dims: tuple[str, ...], how: str, begin: int, free: bool) -> Value:
    """v without some dims, of which the first begins there; `free` where a machine may add in another order."""
    with np.errstate(all="ignore"):
        if how.startswith("arg"):
            return place_of(v, dims[0], how, begin)
        dtype = SUMMED_IN.get(v.dtype, v.dtype) if how in ("sum", "prod") else v.dtype
        v = exact.cast(v, "bool" if how in ("any", "all") else dtype)
        sizes, magnitude = _terms(v, dims), np.abs(v.x.astype(np.float64)) + v.err
        found = v
        for axis in sorted((v.dims.index(d) for d in dims), reverse=True):
            found = folded(found, axis, COMBINED[how])
        if how not in ("sum", "prod") or v.dtype not in FLOATS:
            return found
        axes = tuple(v.dims.index(d) for d in dims)
        size = magnitude.sum(axis=axes) if how == "sum" else np.abs(found.x) + found.err
        slack = np.where(found.x == 0, SIGN_OF_ZERO, 0.0)
        if free or (found.err > 0).any():
            slack = np.maximum(slack, 2 * sizes * UNIT[found.dtype] * size)
        err = np.where(np.isnan(found.err + slack), np.inf, found.err + slack)
        return Value(found.x, err, found.dims, found.dtype)


def _terms(v: Value, dims: tuple[str, ...]) -> int:
    return int(np.prod([v.x.shape[v.dims.index(d)] for d in dims]))


def folded(v: Value, axis: int, op: str) -> Value:
    dims = (*v.dims[:axis], *v.dims[axis + 1 :])
    x, err = np.moveaxis(v.x, axis, 0), np.moveaxis(np.broadcast_to(v.err, v.x.shape), axis, 0)
    parts = [Value(a, e, dims, v.dtype) for a, e in zip(x, err, strict=True)]
    while len(parts) > 1:
        pairs = list(zip(parts[::2], parts[1::2], strict=False))
        if any(exact.overflows(op, list(pair)) for pair in pairs):
            raise WrongProgram("an index overflows")
        parts = [exact.compute(op, list(pair)) for pair in pairs] + parts[2 * len(pairs) :]
    return parts[0]


def place_of(v: Value, dim: str, how: str, begin: int) -> Value:
    """The first of the largest or smallest, or of NaN; nothing is known where another one may be it."""
    axis = v.dims.index(dim)
    first = np.argmax(v.x, axis=axis) if how == "argmax" else np.argmin(v.x, axis=axis)
    sure = (np.broadcast_to(v.err, v.x.shape) == 0).all(axis=axis)
    return exact.whole(np.asarray(first, np.int64) + begin, sure, tuple(d for d in v.dims if d != dim), "i32")
