"""What operations at indices, with labels and of groups should come to: `index_select`, `index_add`, `bincount`,
`cross_entropy`, `grouped_mm`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from . import call_references as ref
from .call_references import Result, arithmetic, written
from .call_rules import WIDE, Asked, Given, Unfit, _product_dtype, floats, same_shape
from .call_rules_rows import axis_of
from .program import FLOATS

REDUCTIONS = ("none", "mean", "sum")


def indices(name: str, a: Given) -> None:
    if a.dtype in (*FLOATS, "bool"):
        raise Unfit(f"{name} are no integers")


def want_kept_kind(dtype: str, out: str) -> None:
    """Floats do not become whole numbers on their way."""
    if dtype in FLOATS and out not in FLOATS:
        raise Unfit("floats do not become whole numbers")


def index_select(asked: Asked) -> dict[str, Result]:
    x, index = asked.array("x"), asked.array("index")
    axis = axis_of(asked, x)
    indices("index", index)
    if len(index.shape) != 1:
        raise Unfit("index is no list")
    asked.check_written("out", (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))
    dtype = asked.out_dtype("out", x.dtype)
    asked.may_refuse |= "bool" in (x.dtype, dtype) and x.dtype != dtype
    want_kept_kind(x.dtype, dtype)
    found = _taken(x.x, index.x, axis)
    return {"out": written(found, np.zeros(found.shape), dtype, x.dtype)}


def _taken(x: np.ndarray, index: np.ndarray, axis: int) -> np.ndarray:
    """x at indices along an axis, and 0 at those out of bounds."""
    there = (index >= 0) & (index < x.shape[axis])
    moved = np.moveaxis(x, axis, 0)
    rows = moved[np.where(there, index, 0)] if x.shape[axis] else np.zeros((len(index), *moved.shape[1:]), x.dtype)
    found = np.where(there.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0).astype(x.dtype)
    return np.moveaxis(found, 0, axis)


def index_add(asked: Asked) -> dict[str, Result]:
    x, index, source = asked.array("x"), asked.array("index"), asked.array("source")
    axis, alpha = axis_of(asked, x), asked.number("alpha", 1.0)
    indices("index", index)
    if len(index.shape) != 1:
        raise Unfit("index is no list")
    same_shape("source", source, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))
    if x.dtype != source.dtype or "bool" in (x.dtype, source.dtype):
        raise Unfit("x and source have two dtypes, or no sums")
    is_float = x.dtype in FLOATS
    if alpha is None or (not is_float and not (float(alpha).is_integer() and abs(alpha) < 2**63)):
        raise Unfit("alpha is no factor of such numbers")
    asked.check_written("out", x.shape)
    dtype = asked.out_dtype("out", x.dtype)
    want_kept_kind(x.dtype, dtype)
    of = arithmetic(x.dtype)
    found, magnitude, finite = (_added(*each, axis) for each in _addends(x.x, index.x, source.x, alpha))
    if not is_float:
        return {"out": _of_whole_sums(found, x.dtype, dtype)}
    err = ref.unsure(magnitude, ref.gamma(index.x.size + ref.MORE, of) * magnitude, of)
    return {"out": written(*ref.infinite_or_nan(found, err, finite, of), dtype, of)}


def _addends(x, index, source, alpha):
    """The numbers that are added, their magnitudes, and those of the finite ones."""
    factor = alpha if source.dtype.kind == "f" else np.int64(int(alpha))
    scaled = source * factor
    yield x, index, scaled
    yield np.abs(x), index, np.abs(scaled)
    yield ref.finite_part(x), index, ref.finite_part(scaled)


def _added(x: np.ndarray, index: np.ndarray, source: np.ndarray, axis: int) -> np.ndarray:
    found, there = np.moveaxis(x, axis, 0).copy(), (index >= 0) & (index < x.shape[axis])
    np.add.at(found, index[there], np.moveaxis(source, axis, 0)[there])
    return np.moveaxis(found, 0, axis)


def _of_whole_sums(found: np.ndarray, added: str, dtype: str) -> Result:
    """Sums of integers, which wrap around in the dtype that they are added in, as they are written."""
    of = WIDE.get(added, added)
    return written(written(found, np.zeros(found.shape), of).x, np.zeros(found.shape), dtype, of)


def bincount(asked: Asked) -> dict[str, Result]:
    x, weights, length = asked.array("x"), asked.maybe("weights"), asked.integer("length", None)
    indices("x", x)
    if length is None or length < 0:
        raise Unfit("length is no number of bins")
    if length > 2**20:
        raise Unfit("so many bins are not to be had")
    if weights is not None:
        same_shape("weights", weights, x.shape)
    asked.may_refuse |= weights is not None and weights.dtype == "bool"
    asked.check_written("out", (length,))
    default = "i64" if weights is None else weights.dtype
    dtype = asked.out_dtype("out", default)
    want_kept_kind(default, dtype)
    each = np.ones(x.shape, np.int64) if weights is None else weights.x
    there = (x.x >= 0) & (x.x < length)
    found, magnitude, finite = (
        _counted(x.x[there], v[there], length) for v in (each, abs(each), ref.finite_part(each))
    )
    if default not in FLOATS:
        return {"out": _of_whole_sums(found, default, dtype)}
    of = arithmetic(default)
    err = ref.unsure(magnitude, ref.gamma(x.x.size + ref.MORE, of) * magnitude, of)
    return {"out": written(*ref.infinite_or_nan(found, err, finite, of), dtype, of)}


def _counted(x: np.ndarray, weights: np.ndarray, length: int) -> np.ndarray:
    found = np.zeros(length, weights.dtype)
    np.add.at(found, x, weights)
    return found


def cross_entropy(asked: Asked) -> dict[str, Result]:
    logits, labels, reduction = asked.array("logits"), asked.array("labels"), asked.said("reduction", "mean")
    ignored = asked.integer("ignore_index", -100)
    if ignored is not None and not -(2**63) <= ignored < 2**63:
        raise Unfit("no label is ignore_index")
    floats("cross_entropy", logits)
    indices("labels", labels)
    if not (isinstance(reduction, str) and reduction in REDUCTIONS):
        raise Unfit("no such reduction")
    if len(logits.shape) not in (1, 2) or not logits.shape[-1]:
        raise Unfit("logits are no rows")
    same_shape("labels", labels, logits.shape[:-1])
    asked.check_written("out", labels.shape if reduction == "none" else ())
    dtype = asked.out_dtype("out", logits.dtype)
    floats("a loss", Given(labels.x, dtype))
    loss, off, is_asked = _losses(logits, labels, ignored, arithmetic(logits.dtype, dtype))
    return {"out": _reduced(loss, off, is_asked, reduction, dtype, arithmetic(logits.dtype, dtype))}


def _losses(logits: Given, labels: Given, ignored: int | None, of: str):
    """The loss of each row and its bound, and which rows have a label that is a column."""
    columns = logits.shape[-1]
    y, err = ref.log_softmax(logits.x, arithmetic(logits.dtype))
    is_asked = (labels.x >= 0) & (labels.x < columns) & (labels.x != ignored)
    at = np.where(is_asked, labels.x, 0)[..., None]
    loss, off = (np.take_along_axis(v, at, -1)[..., 0] if logits.x.size else np.zeros(labels.shape) for v in (-y, err))
    return np.where(is_asked, loss, 0.0), np.where(is_asked, off, 0.0), is_asked


def _reduced(loss, off, is_asked, reduction: str, dtype: str, of: str) -> Result:
    if reduction == "none":
        return written(loss, off, dtype, of)
    magnitude = np.abs(loss).sum()
    found = loss.sum()
    err = off.sum() + ref.gamma(loss.size + ref.MORE, of) * (magnitude if np.isfinite(magnitude) else 0.0)
    if reduction == "mean":
        count = is_asked.sum()
        found, err = (np.float64(found) / count, err / max(count, 1)) if count else (np.nan, 0.0)
    return written(np.asarray(found), np.asarray(err), dtype, of)


def grouped_mm(asked: Asked) -> dict[str, Result]:
    a, b, ends = asked.array("a"), asked.array("b"), asked.array("ends")
    indices("ends", ends)
    if len(ends.shape) != 1 or not ends.shape[0]:
        raise Unfit("ends has another shape than a list of groups")
    default = _product_dtype(a, b)
    of = asked.products_in(a.dtype)
    compute = {(2, 3): _rows, (3, 2): _columns, (2, 2): _sums}.get((len(a.shape), len(b.shape)))
    if compute is None:
        raise Unfit("a and b have other shapes than one of the forms")
    x, err = compute(a.x, b.x, ends.x, of)
    asked.check_written("out", x.shape)
    found = written(x, err, asked.out_dtype("out", default), "i32" if default == "i32" else of)
    return {"out": Result(found.x, np.where(np.isinf(err), np.inf, found.err), found.dtype)}


def _rows(a: np.ndarray, b: np.ndarray, ends: np.ndarray, of: str) -> tuple[np.ndarray, np.ndarray]:
    """Products of groups of rows; those of no group, and all where ends are none, are undefined."""
    if a.shape[1] != b.shape[1] or b.shape[0] != len(ends):
        raise Unfit("the shapes of a, b and ends do not go together")
    kind = np.int64 if a.dtype.kind == "i" else np.float64
    found, err = np.zeros((a.shape[0], b.shape[2]), kind), np.full((a.shape[0], b.shape[2]), np.inf)
    for group, (start, end) in enumerate(_bounds(ends, a.shape[0])):
        found[start:end], err[start:end] = ref.product(a[start:end], b[group], of)
    return found, err


def _columns(a: np.ndarray, b: np.ndarray, ends: np.ndarray, of: str) -> tuple[np.ndarray, np.ndarray]:
    found, err = _rows(b.T, a.swapaxes(1, 2), ends, of)
    return found.T, err.T


def _sums(a: np.ndarray, b: np.ndarray, ends: np.ndarray, of: str) -> tuple[np.ndarray, np.ndarray]:
    if a.shape[1] != b.shape[0]:
        raise Unfit("the shapes of a and b do not go together")
    kind, shape = np.int64 if a.dtype.kind == "i" else np.float64, (len(ends), a.shape[0], b.shape[1])
    found, err = np.zeros(shape, kind), np.full(shape, np.inf)
    for group, (start, end) in enumerate(_bounds(ends, b.shape[0])):
        found[group], err[group] = ref.product(a[:, start:end], b[start:end], of)
    return found, err


def _bounds(ends: np.ndarray, rows: int) -> list[tuple[int, int]]:
    """The groups, or none where ends fall or leave the rows: only what lies outside the result is said of those."""
    bounds = [0, *ends.tolist()]
    is_right = bounds == sorted(bounds) and bounds[-1] <= rows
    return list(pairwise(bounds)) if is_right else []


RULES = {
    "ops.index_select": index_select,
    "ops.index_add": index_add,
    "ops.bincount": bincount,
    "ops.cross_entropy": cross_entropy,
    "ops.grouped_mm": grouped_mm,
}
