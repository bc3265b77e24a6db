"""Operations on rows at indices: embedding, index_select, index_add, bincount."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from tilewave.errors import CallError, DTypeError, here
from tilewave.ir.types import BOOL, I64, DType
from tilewave.kernels.counts import bincount_kernel
from tilewave.kernels.indexed import (
    B,
    RowTile,
    copy_kernel,
    embedding_kernel,
    fill_kernel,
    gather_tile_for,
    index_add_kernel,
    index_select_kernel,
    scatter_tile_for,
)
from tilewave.kernels.numbers import checked_axis
from tilewave.kernels.ragged import segment_sum_kernel, segment_tile_for
from tilewave.lang.reductions import SUMMED_IN
from tilewave.ops.arrays import Array, ArrayLibrary, Shape, evenly_strided, folded, spelled, target_of
from tilewave.ops.plans import CallWork, KernelLaunch, Operated, given_only
from tilewave.ops.results import WrittenResult, prepared, written


def _embedding(lib: ArrayLibrary, weight: Array, ids: Array, out: Array | None) -> CallWork:
    if len(weight.shape) != 2:
        what = f"embedding: weight is {spelled(weight.shape)}, but it takes rows and columns"
        raise CallError(what, loc=here(), remedy="pass an array with two axes")
    want_indices("embedding", lib, ids=ids)
    shape, dtype = (*ids.shape, weight.shape[1]), lib.dtype("embedding", "weight", weight)
    found = prepared("embedding", lib, out, shape, dtype, {"weight": weight, "ids": ids})
    if not prod(shape):
        return CallWork({"out": found})
    to, after = written(lib, found)
    tile = _tile(gather_tile_for, lib, weight, weight.shape[1], dtype)
    dtypes = [lib.dtype("embedding", name, array) for name, array in (("weight", weight), ("ids", ids), ("out", to))]
    arrays = {"weight": weight, "ids": folded(ids, 0), "out": to}
    return CallWork({"out": found}, KernelLaunch(embedding_kernel(tile, *dtypes), arrays), after=after)


embedding = Operated("embedding", ("weight", "ids", "out?"), _embedding)
"""weight[ids], with zeros for ids out of bounds."""


class _Axis(NamedTuple):
    """An array seen along one axis: the axes before it as one, and those after it."""

    before: int
    length: int
    after: int

    @property
    def batch(self) -> tuple[Any, ...]:
        """The dims of kernels before the rows."""
        return (B,) if self.before > 1 else ()

    def view(self, x: Array, length: int) -> Array:
        """Return an array of so many rows as kernels take it; a copy where strides allow no view."""
        shape = (self.before, length, self.after) if self.before > 1 else (length, self.after)
        return x if tuple(x.shape) == shape else x.reshape(shape)


def _along(shape: Shape, dim: int) -> _Axis:
    return _Axis(prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :]))


def _index_select(lib: ArrayLibrary, x: Array, index: Array, out: Array | None, dim: int) -> CallWork:
    want_list("index_select", index)
    want_indices("index_select", lib, index=index)
    dtype, count = lib.dtype("index_select", "x", x), index.shape[0]
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    found = prepared("index_select", lib, out, shape, dtype, {"x": x, "index": index})
    if not prod(shape):
        return CallWork({"out": found})
    axis = _along(tuple(x.shape), dim)
    to, after = _written_along(lib, found, axis, dim)
    tile = _tile(gather_tile_for, lib, x, axis.after, dtype, axis.batch)
    dtypes = [lib.dtype("index_select", name, array) for name, array in (("x", x), ("index", index), ("out", to))]
    arrays = {"x": axis.view(x, axis.length), "index": index, "out": to}
    return CallWork({"out": found}, KernelLaunch(index_select_kernel(tile, *dtypes), arrays), after=after)


index_select = Operated("index_select", ("x", "index", "out?"), _index_select)
"""x at indices along an axis, a further argument that is not negative; zeros for indices out of bounds."""


def _index_add(
    lib: ArrayLibrary, x: Array, index: Array, source: Array, out: Array | None, dim: int, alpha: float
) -> CallWork:
    want_list("index_add", index)
    want_indices("index_add", lib, index=index)
    dtype = lib.dtype("index_add", "x", x)
    want_source(lib, x, index, source, dim)
    found = prepared("index_add", lib, out, tuple(x.shape), dtype, {"x": x, "index": index, "source": source})
    if not prod(x.shape):
        return CallWork({"out": found})
    axis, sums = _along(tuple(x.shape), dim), SUMMED_IN.get(dtype, dtype)
    to, after = _written_along(lib, found, axis, dim)
    result = lib.dtype("index_add", "out", to)
    total = to if result == sums else lib.empty(tuple(to.shape), sums, x)
    name = "out" if total is to else "total"
    tile = _tile(scatter_tile_for, lib, x, axis.after, sums, axis.batch)
    add = index_add_kernel(
        tile,
        lib.dtype("index_add", "source", source),
        lib.dtype("index_add", "index", index),
        sums,
        None if alpha == 1 else sums,
    )
    numbers = () if alpha == 1 else (_factor(alpha, sums),)
    add.words(numbers)  # raises an error before the first launch writes
    launches = [_copied(lib, "x", axis.view(x, axis.length), name, total)]
    if prod(source.shape):
        arrays = {"source": axis.view(source, index.shape[0]), "index": index, name: total}
        launches.append(KernelLaunch(add, arrays, numbers))
    if total is not to:
        launches.append(_copied(lib, name, total, "out", to))
    scratch = {} if total is to else {name: total}
    return CallWork({"out": found}, launches[0], tuple(launches[1:]), scratch, after)


index_add = Operated("index_add", ("x", "index", "source", "out?"), _index_add)
"""x with alpha times the rows of source added at indices; further arguments are an axis and alpha."""


def _embedding_backward(lib: ArrayLibrary, grad: Array, ids: Array, rows: int, dtype: DType) -> CallWork:
    columns = grad.shape[-1]
    found, sums = lib.empty((rows, columns), dtype, grad), SUMMED_IN.get(dtype, dtype)
    if not prod(found.shape):
        return CallWork({"grad_weight": found})
    total = found if dtype == sums else lib.empty((rows, columns), sums, grad)
    name = "grad_weight" if total is found else "total"
    tile = _tile(scatter_tile_for, lib, grad, columns, sums)
    dtypes = [lib.dtype("embedding", name, array) for name, array in (("grad", grad), ("ids", ids))]
    launches = [KernelLaunch(fill_kernel(tile, sums), {name: total})]
    if prod(grad.shape):
        arrays = {"grad": folded(grad), "ids": folded(ids, 0), name: total}
        launches.append(KernelLaunch(index_add_kernel(tile, *dtypes, sums), arrays))
    if total is not found:
        launches.append(_copied(lib, name, total, "grad_weight", found))
    scratch = {} if total is found else {name: total}
    return CallWork({"grad_weight": found}, launches[0], tuple(launches[1:]), scratch)


embedding_backward = Operated("embedding_backward", ("grad", "ids"), _embedding_backward)
"""The gradient of embedding's weights, by atomics; further arguments are the number of rows and the dtype."""


def _segments(lib: ArrayLibrary, x: Array, offsets: Array, rows: Array, dtype: DType) -> CallWork:
    found = lib.empty((offsets.shape[0] - 1, x.shape[-1]), dtype, x)
    if not prod(found.shape):
        return CallWork({"sums": found})
    x_dtype, index = lib.dtype("segment_sum", "x", x), lib.dtype("segment_sum", "rows", rows)
    tile = segment_tile_for(target_of("segment_sum", lib.device(x)), x.shape[-1], x_dtype)
    kernel = segment_sum_kernel(tile, x_dtype, lib.dtype("segment_sum", "offsets", offsets), dtype, index)
    return CallWork({"sums": found}, KernelLaunch(kernel, {"x": x, "offsets": offsets, "sums": found, "rows": rows}))


segments = Operated("segment_sum", ("x", "offsets", "rows"), _segments)
"""The sums of x[rows] in segments; a further argument is their dtype."""


def _bincount(lib: ArrayLibrary, x: Array, weights: Array | None, out: Array | None, length: int) -> CallWork:
    want_indices("bincount", lib, x=x)
    dtype = I64 if weights is None else lib.dtype("bincount", "weights", weights)
    if weights is not None and tuple(weights.shape) != tuple(x.shape):
        what = f"bincount: weights is {spelled(weights.shape)}, but x is {spelled(x.shape)}"
        raise CallError(what, loc=here(), remedy="pass a weight for each number")
    found = prepared("bincount", lib, out, (length,), dtype, {"x": x, "weights": weights})
    if not length:
        return CallWork({"out": found})
    sums, result = SUMMED_IN.get(dtype, dtype), lib.dtype("bincount", "out", found)
    total = found if result == sums else lib.empty((length,), sums, x)
    name = "out" if total is found else "total"
    fill = fill_kernel(_tile(scatter_tile_for, lib, x, length, sums), sums)
    launches = [KernelLaunch(fill, {name: total.reshape(1, length)})]
    if prod(x.shape):
        arrays = given_only(x=folded(x, 0), total=total, weights=None if weights is None else folded(weights, 0))
        named = {name if of == "total" else of: array for of, array in arrays.items()}
        weight = None if weights is None else dtype
        launches.append(KernelLaunch(bincount_kernel(lib.dtype("bincount", "x", x), sums, weight), named))
    if total is not found:
        launches.append(_copied(lib, name, total.reshape(1, length), "out", found.reshape(1, length)))
    return CallWork({"out": found}, launches[0], tuple(launches[1:]), {} if total is found else {name: total})


bincount = Operated("bincount", ("x", "weights?", "out?"), _bincount)
"""How often each number below a length, a further argument, is in x, or the sums of their weights."""


# arguments ------------------------------------------------------------------------------------------------------------


def axis_of(caller: str, dim: int, x: Array) -> int:
    """Return an axis of x, counted from the first."""
    axes = len(x.shape)
    return checked_axis(caller, dim, axes) % max(axes, 1)


def want_indices(caller: str, lib: ArrayLibrary, **arrays: Array) -> None:
    """Raise an error where an array of indices does not hold integers."""
    for name, array in arrays.items():
        dtype = lib.dtype(caller, name, array)
        if not dtype.is_int:
            what = f"{caller}: {name} is {dtype}, but indices are integers"
            raise DTypeError(what, loc=here(), remedy=f"cast {name} to i64 first")


def want_list(caller: str, index: Array) -> None:
    """Raise an error where indices have several axes."""
    if len(index.shape) != 1:
        what = f"{caller}: index has {len(index.shape)} axes, but it takes a list of indices"
        raise CallError(what, loc=here(), remedy="pass index.reshape(-1)")


def want_source(lib: ArrayLibrary, x: Array, index: Array, source: Array, dim: int) -> None:
    """Raise an error where index_add's source does not fit."""
    shape = (*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :])
    if tuple(source.shape) != shape:
        what = f"index_add: source is {spelled(source.shape)}, but what is added is {spelled(shape)}"
        raise CallError(what, loc=here(), remedy=f"pass a source of shape {shape}")
    dtypes = [lib.dtype("index_add", name, array) for name, array in (("x", x), ("source", source))]
    if BOOL in dtypes:
        raise DTypeError("index_add: bool has no sums", loc=here(), remedy="cast both to i32 first")
    if dtypes[0] != dtypes[1]:
        what = f"index_add: source is {dtypes[1]}, but x is {dtypes[0]}"
        raise DTypeError(what, loc=here(), remedy="cast one of them: both have one dtype")


def _factor(alpha: float, sums: DType) -> float:
    """Return alpha as a number of the dtype that sums are in."""
    if sums.is_float:
        return float(alpha)
    if alpha != int(alpha):
        what = f"index_add: alpha is {alpha}, but what it multiplies is {sums}"
        raise CallError(what, loc=here(), remedy="pass a whole number as alpha")
    return int(alpha)


def _tile(choose: Any, lib: ArrayLibrary, like: Array, columns: int, dtype: DType, batch: Any = ()) -> RowTile:
    found: RowTile = choose(target_of("indexed", lib.device(like)), columns, dtype)
    return replace(found, batch=batch) if batch else found


def _copied(lib: ArrayLibrary, of: str, x: Array, to: str, y: Array) -> KernelLaunch:
    """Return the launch that copies rows, in the dtype of their new place."""
    dtypes = [lib.dtype("copy", name, array) for name, array in ((of, x), (to, y))]
    batch = (B,) if len(x.shape) == 3 else ()
    kernel = copy_kernel(_tile(gather_tile_for, lib, x, x.shape[-1], dtypes[1], batch), *dtypes)
    return KernelLaunch(kernel, {of: x, to: y})


def _written_along(lib: ArrayLibrary, found: Array, axis: _Axis, dim: int) -> WrittenResult:
    """Return a result as kernels take it: a view, or a temporary array that is copied back."""
    steps, shape = lib.steps(found), tuple(found.shape)
    parts = [(shape[:dim], steps[:dim]), (shape[dim + 1 :], steps[dim + 1 :])]
    if all(evenly_strided(*part) for part in parts):
        return WrittenResult(axis.view(found, shape[dim]))
    temporary = lib.empty(shape, lib.dtype("out", "out", found), found)

    def copy_back() -> None:
        found[...] = temporary

    return WrittenResult(axis.view(temporary, shape[dim]), copy_back)
