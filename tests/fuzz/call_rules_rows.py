"""What operations along an axis and elementwise ones should come to: `cumsum`, `topk`, `argmax`, `gated`, `dropout`."""

from __future__ import annotations

import numpy as np
import philox

from . import call_references as ref
from .call_references import Result, arithmetic, written
from .call_rules import ACTIVATIONS, Asked, Given, Unfit, floats, running_sums, same_shape
from .program import FLOATS

MOST_TAKEN = 128
"""The largest k of `topk`."""


def axis_of(asked: Asked, x: Given) -> int:
    """An axis of x, counted from the first."""
    dim = asked.integer("dim", -1)
    if dim is None or not -len(x.shape) <= dim < len(x.shape):
        raise Unfit("there is no such axis")
    return dim % len(x.shape)


def cumsum(asked: Asked) -> dict[str, Result]:
    x = asked.array("x")
    axis = axis_of(asked, x)
    dtype = asked.out_dtype("out", x.dtype if x.dtype in FLOATS else "i64")
    asked.may_refuse |= axis != len(x.shape) - 1 and asked.maybe("out") is not None
    asked.check_written("out", x.shape)
    found = running_sums(np.swapaxes(x.x, axis, -1), x.dtype, dtype, running=True)
    return {"out": Result(np.swapaxes(found.x, axis, -1), np.swapaxes(found.err, axis, -1), dtype)}


def topk(asked: Asked) -> dict[str, Result]:
    x, k = asked.array("x"), asked.integer("k", None)
    axis = axis_of(asked, x)
    if k is None or not 0 < k <= min(x.shape[axis], MOST_TAKEN):
        raise Unfit("so many are not taken")
    moved = np.swapaxes(x.x, axis, -1)
    order = _descending(moved)[..., :k]
    values = np.take_along_axis(moved, order, -1)
    exact = np.zeros(values.shape)
    return {
        "values": Result(*(np.swapaxes(v, axis, -1) for v in (values, exact)), x.dtype),
        "indices": Result(*(np.swapaxes(v, axis, -1) for v in (order, exact)), "i64"),
    }


def _descending(x: np.ndarray) -> np.ndarray:
    """The order from the largest to the smallest of each row: NaNs first, and of equal numbers the first first."""
    if x.dtype.kind != "f":
        return np.argsort(~x, axis=-1, kind="stable")
    is_nan = np.isnan(x)
    places = np.broadcast_to(np.arange(x.shape[-1]), x.shape)
    return np.lexsort((places, -np.where(is_nan, 0.0, x), ~is_nan), axis=-1)


def argmax(asked: Asked) -> dict[str, Result]:
    x = asked.array("x")
    axis = axis_of(asked, x)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    if not x.shape[axis]:
        raise Unfit("there is no largest number of none")
    asked.check_written("out", shape)
    dtype = asked.out_dtype("out", "i64")
    asked.may_refuse |= dtype not in ("i32", "i64")
    found = ref.argmax(np.moveaxis(x.x, axis, -1)).astype(np.int64)
    return {"out": written(found, np.zeros(found.shape), dtype, "i64")}


def gated(asked: Asked) -> dict[str, Result]:
    gate, up, activation = asked.array("gate"), asked.array("up"), asked.said("activation", "silu")
    floats("gated", gate, up)
    if not (isinstance(activation, str) and activation in ACTIVATIONS):
        raise Unfit("no such activation")
    if not gate.shape:
        raise Unfit("gate is a single number")
    same_shape("up", up, gate.shape)
    asked.check_written("out", gate.shape)
    dtype = asked.out_dtype("out", gate.dtype)
    of = arithmetic(gate.dtype, up.dtype, dtype)
    s, err = ref.activated(activation, gate.x, np.zeros(gate.shape), of, dtype not in ("f32", "f64"))
    finite = np.isfinite(gate.x) & np.isfinite(up.x)  # what inf · 0 gives depends on how an activation is computed
    y = np.where(finite, s * up.x, 0.0)
    err = np.where(finite, err * np.abs(up.x) + 4 * ref.UNITS[of] * np.abs(y) + 2.0**-120, np.inf)
    return {"out": written(y, ref.unsure(np.abs(gate.x) * np.maximum(np.abs(up.x), 1), err, of), dtype, of)}


def dropout(asked: Asked) -> dict[str, Result]:
    x, p, seed = asked.array("x"), asked.number("p", 0.5), asked.integer("seed", None)
    floats("dropout", x)
    if seed is None:
        raise Unfit("seed is missing")
    if p is None or not 0 <= p <= 1:
        raise Unfit("p is no share")
    asked.check_written("out", x.shape)
    dtype = asked.out_dtype("out", x.dtype)
    of = arithmetic(x.dtype, dtype)
    drawn = philox.uniform(seed, np.arange(x.x.size)).reshape(x.shape)
    is_kept = drawn >= np.float32(p)
    scaled = x.x / (1 - p) if p < 1 else np.zeros(x.shape)
    y = np.where(is_kept, scaled, 0.0)
    err = np.where(is_kept, 4 * ref.UNITS[of] * np.nan_to_num(np.abs(y), posinf=0.0), 0.0)
    return {"out": written(y, ref.unsure(np.abs(y), err, of), dtype, of)}


RULES = {
    "ops.cumsum": cumsum,
    "ops.topk": topk,
    "ops.argmax": argmax,
    "ops.gated": gated,
    "ops.dropout": dropout,
}
