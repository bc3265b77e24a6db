"""Operations along the last axis: softmax and the norms, and their backward passes."""

from __future__ import annotations

from math import prod

from tilewave.errors import CallError, here
from tilewave.ir.types import I64, DType
from tilewave.kernels.gradients import (
    layer_norm_backward_kernel,
    rms_norm_backward_kernel,
    softmax_backward_kernel,
)
from tilewave.kernels.norms import layer_norm_for, rms_norm_kernel
from tilewave.kernels.rows import Rows, arithmetic_of, kernel_for, rows_for
from tilewave.kernels.softmaxes import softmax_kernel
from tilewave.kernels.sums import cumsum_kernel, running_rows
from tilewave.ops.arrays import Array, ArrayLibrary, folded, target_of
from tilewave.ops.plans import CallWork, KernelLaunch, Operated, given_only
from tilewave.ops.results import prepared, written


def _softmax(lib: ArrayLibrary, x: Array, out: Array | None) -> CallWork:
    found = _like("softmax", lib, out, x=x)
    if not prod(x.shape):
        return CallWork({"out": found})
    rows, (to, after) = folded(x), written(lib, found)
    kernel = kernel_for(softmax_kernel, x=rows, y=to)
    return CallWork({"out": found}, KernelLaunch(kernel, {"x": rows, "out": to}), after=after)


softmax = Operated("softmax", ("x", "out?"), _softmax)
"""exp(x) / the sum of exp(x) along the last axis."""


def _cumsum(lib: ArrayLibrary, x: Array, out: Array | None) -> CallWork:
    want_rows("cumsum", x)
    dtype = lib.dtype("cumsum", "x", x)
    of = dtype if dtype.is_float else I64
    found = prepared("cumsum", lib, out, tuple(x.shape), of, {"x": x})
    if not prod(x.shape):
        return CallWork({"out": found})
    rows, (to, after) = folded(x), written(lib, found)
    kernel = kernel_for(cumsum_kernel, running_rows, x=rows, y=to)
    return CallWork({"out": found}, KernelLaunch(kernel, {"x": rows, "out": to}), after=after)


cumsum = Operated("cumsum", ("x", "out?"), _cumsum)
"""The sums of all elements up to each along the last axis, of integers in i64."""


def _rms_norm(lib: ArrayLibrary, x: Array, weight: Array | None, out: Array | None, eps: float) -> CallWork:
    found = _like("rms_norm", lib, out, x=x, weight=weight)
    _check_columns("rms_norm", x, weight=weight)
    if not prod(x.shape):
        return CallWork({"out": found})
    rows, (to, after) = folded(x), written(lib, found)
    kernel = kernel_for(rms_norm_kernel, x=rows, y=to, weight=weight, residual=None, total=None)
    arrays = given_only(x=rows, weight=weight, out=to)
    return CallWork({"out": found}, KernelLaunch(kernel, arrays, (eps,)), after=after)


rms_norm = Operated("rms_norm", ("x", "weight?", "out?"), _rms_norm)
"""x / sqrt(mean of x² + eps) · weight along the last axis; a further argument is eps."""


def _add_rms_norm(
    lib: ArrayLibrary, x: Array, residual: Array, weight: Array | None, out: Array | None, eps: float
) -> CallWork:
    found = _like("rms_norm", lib, out, x=x, residual=residual, weight=weight)
    _check_columns("rms_norm", x, weight=weight)
    if tuple(residual.shape) != tuple(x.shape):
        what = f"rms_norm: residual is {tuple(residual.shape)}, but x is {tuple(x.shape)}"
        raise CallError(what, loc=here(), remedy="they have one shape")
    total = lib.empty(tuple(x.shape), lib.dtype("rms_norm", "x", x), x)
    results = {"out": found, "total": total}
    if not prod(x.shape):
        return CallWork(results)
    to, after = written(lib, found)
    rows, added, sums = (folded(array) for array in (x, residual, total))
    kernel = kernel_for(rms_norm_kernel, x=rows, y=to, weight=weight, residual=added, total=sums)
    arrays = given_only(x=rows, residual=added, weight=weight, total=sums, out=to)
    return CallWork(results, KernelLaunch(kernel, arrays, (eps,)), after=after)


add_rms_norm = Operated("rms_norm", ("x", "residual", "weight?", "out?"), _add_rms_norm)
"""The norm of x + residual, in `out` or in a new array, and that sum, which is always new; an argument is eps."""


def _layer_norm(
    lib: ArrayLibrary, x: Array, weight: Array | None, bias: Array | None, out: Array | None, eps: float
) -> CallWork:
    found = _like("layer_norm", lib, out, x=x, weight=weight, bias=bias)
    _check_columns("layer_norm", x, weight=weight, bias=bias)
    if not prod(x.shape):
        return CallWork({"out": found})
    rows, (to, after) = folded(x), written(lib, found)
    kernel = layer_norm_for(rows, to, weight, bias)
    arrays = given_only(x=rows, weight=weight, bias=bias, out=to)
    return CallWork({"out": found}, KernelLaunch(kernel, arrays, (eps,)), after=after)


layer_norm = Operated("layer_norm", ("x", "weight?", "bias?", "out?"), _layer_norm)
"""(x - mean) / sqrt(variance + eps) · weight + bias along the last axis; a further argument is eps."""


def _like(caller: str, lib: ArrayLibrary, out: Array | None, x: Array, **beside: Array | None) -> Array:
    """Return the array for a result that has x's shape and dtype."""
    want_rows(caller, x)
    return prepared(caller, lib, out, tuple(x.shape), lib.dtype(caller, "x", x), {"x": x, **beside})


def want_rows(caller: str, x: Array) -> None:
    """Raise an error where an array has no axis."""
    if not len(x.shape):
        raise CallError(f"{caller}: x is a single number", loc=here(), remedy="pass an array with one axis at least")


def _check_columns(caller: str, x: Array, **given: Array | None) -> None:
    for name, array in given.items():
        if array is not None and tuple(array.shape) != tuple(x.shape[-1:]):
            what = f"{caller}: {name} is {tuple(array.shape)}, but x has {x.shape[-1]} columns"
            raise CallError(what, loc=here(), remedy=f"{name} has a number for each of them")


# backward -----------------------------------------------------------------------------------------------------------


def _softmax_backward(lib: ArrayLibrary, y: Array, grad: Array) -> CallWork:
    found = _like("softmax", lib, None, x=y)
    if not prod(y.shape):
        return CallWork({"grad_x": found})
    kernel = softmax_backward_kernel(backward_rows("softmax", lib, y), *dtypes_of("softmax", lib, y, grad, found))
    return CallWork(
        {"grad_x": found}, KernelLaunch(kernel, {"y": folded(y), "grad": folded(grad), "grad_x": folded(found)})
    )


softmax_backward = Operated("softmax_backward", ("y", "grad"), _softmax_backward)
"""The gradient of softmax's input, from its output and the gradient of that."""


def _rms_norm_backward(lib: ArrayLibrary, x: Array, grad: Array, weight: Array | None, eps: float) -> CallWork:
    found, of = _like("rms_norm", lib, None, x=x), norm_dtype(lib, x, grad, weight)
    results = {"grad_x": found, "scale": lib.empty((prod(x.shape[:-1]),), of, x)}
    if not prod(x.shape):
        return CallWork(results)
    dtypes = dtypes_of("rms_norm", lib, x, grad, found, *(() if weight is None else (weight,)))
    kernel = rms_norm_backward_kernel(backward_rows("rms_norm", lib, x), *dtypes)
    rows = given_only(x=folded(x), grad=folded(grad), weight=weight, grad_x=folded(found), scale=results["scale"])
    return CallWork(results, KernelLaunch(kernel, rows, (eps,)))


rms_norm_backward = Operated("rms_norm_backward", ("x", "grad", "weight?"), _rms_norm_backward)
"""The gradient of x, and the scale of each row; a further argument is eps."""


def _layer_norm_backward(lib: ArrayLibrary, x: Array, grad: Array, weight: Array | None, eps: float) -> CallWork:
    found, of = _like("layer_norm", lib, None, x=x), norm_dtype(lib, x, grad, weight)
    mean, scale = (lib.empty((prod(x.shape[:-1]),), of, x) for _ in range(2))
    results = {"grad_x": found, "mean": mean, "scale": scale}
    if not prod(x.shape):
        return CallWork(results)
    dtypes = dtypes_of("layer_norm", lib, x, grad, found, *(() if weight is None else (weight,)))
    kernel = layer_norm_backward_kernel(backward_rows("layer_norm", lib, x), *dtypes)
    rows = given_only(x=folded(x), grad=folded(grad), weight=weight, grad_x=folded(found), mean=mean, scale=scale)
    return CallWork(results, KernelLaunch(kernel, rows, (eps,)))


layer_norm_backward = Operated("layer_norm_backward", ("x", "grad", "weight?"), _layer_norm_backward)
"""The gradient of x, and the mean and scale of each row; a further argument is eps."""


def norm_dtype(lib: ArrayLibrary, *arrays: Array | None) -> DType:
    """Return the dtype that a norm is computed in."""
    given = [array for array in arrays if array is not None]
    return arithmetic_of("norm", **{f"array {i}": lib.dtype("norm", "x", a) for i, a in enumerate(given)})


def dtypes_of(caller: str, lib: ArrayLibrary, *arrays: Array) -> list[DType]:
    return [lib.dtype(caller, "x", array) for array in arrays]


def backward_rows(caller: str, lib: ArrayLibrary, x: Array) -> Rows:
    """Return the tiling of rows for a backward pass, which reads two arrays of them."""
    return rows_for(target_of(caller, lib.device(x)), 2 * x.shape[-1], lib.dtype(caller, "x", x))
