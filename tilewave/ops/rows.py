"""Operations along the last axis: softmax and the norms, and their backward passes."""

from __future__ import annotations

from collections.abc import Callable
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
from tilewave.lang.kernel import WaveKernel
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


def _rms_norm(
    lib: ArrayLibrary, x: Array, weight: Array | None, out: Array | None, eps: float, keeps: bool = False
) -> CallWork:
    found = _like("rms_norm", lib, out, x=x, weight=weight)
    _check_columns("rms_norm", x, weight=weight)
    kept = _numbers_of_rows(lib, x, keeps, "scale", weight=weight)
    results = {"out": found, **kept}
    if not prod(x.shape):
        return CallWork(results)
    rows, (to, after) = folded(x), written(lib, found)
    missing = {"residual": None, "total": None, "scale": None}
    kernel = kernel_for(rms_norm_kernel, **{"x": rows, "y": to, "weight": weight, **missing, **kept})
    arrays = given_only(x=rows, weight=weight, out=to, **kept)
    return CallWork(results, KernelLaunch(kernel, arrays, (eps,)), after=after)


rms_norm = Operated("rms_norm", ("x", "weight?", "out?"), _rms_norm)
"""x / sqrt(mean of x² + eps) · weight along the last axis; a further argument is eps, and one more whether the scale of
each row is returned, too."""


def _add_rms_norm(
    lib: ArrayLibrary,
    x: Array,
    residual: Array,
    weight: Array | None,
    out: Array | None,
    eps: float,
    keeps: bool = False,
) -> CallWork:
    found = _like("rms_norm", lib, out, x=x, residual=residual, weight=weight)
    _check_columns("rms_norm", x, weight=weight)
    if tuple(residual.shape) != tuple(x.shape):
        what = f"rms_norm: residual is {tuple(residual.shape)}, but x is {tuple(x.shape)}"
        raise CallError(what, loc=here(), remedy="they have one shape")
    total = lib.empty(tuple(x.shape), lib.dtype("rms_norm", "x", x), x)
    kept = _numbers_of_rows(lib, x, keeps, "scale", weight=weight, residual=residual)
    results = {"out": found, "total": total, **kept}
    if not prod(x.shape):
        return CallWork(results)
    to, after = written(lib, found)
    rows, added, sums = (folded(array) for array in (x, residual, total))
    of_rows = {"scale": None, **kept}
    kernel = kernel_for(rms_norm_kernel, x=rows, y=to, weight=weight, residual=added, total=sums, **of_rows)
    arrays = given_only(x=rows, residual=added, weight=weight, total=sums, out=to, **kept)
    return CallWork(results, KernelLaunch(kernel, arrays, (eps,)), after=after)


add_rms_norm = Operated("rms_norm", ("x", "residual", "weight?", "out?"), _add_rms_norm)
"""The norm of x + residual, in `out` or in a new array, and that sum, which is always new; further arguments are as for
`rms_norm`."""


def _layer_norm(
    lib: ArrayLibrary,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    out: Array | None,
    eps: float,
    keeps: bool = False,
) -> CallWork:
    found = _like("layer_norm", lib, out, x=x, weight=weight, bias=bias)
    _check_columns("layer_norm", x, weight=weight, bias=bias)
    kept = _numbers_of_rows(lib, x, keeps, "mean", "scale", weight=weight, bias=bias)
    results = {"out": found, **kept}
    if not prod(x.shape):
        return CallWork(results)
    rows, (to, after) = folded(x), written(lib, found)
    kernel = layer_norm_for(rows, to, weight, bias, **kept)
    arrays = given_only(x=rows, weight=weight, bias=bias, out=to, **kept)
    return CallWork(results, KernelLaunch(kernel, arrays, (eps,)), after=after)


layer_norm = Operated("layer_norm", ("x", "weight?", "bias?", "out?"), _layer_norm)
"""(x - mean) / sqrt(variance + eps) · weight + bias along the last axis; a further argument is eps, one more whether
the mean and the scale of each row are returned, too."""


def _numbers_of_rows(
    lib: ArrayLibrary, x: Array, are_kept: bool, *names: str, **beside: Array | None
) -> dict[str, Array]:
    """Return arrays for the numbers of each row that a norm's backward pass reads, where they are kept."""
    if not are_kept:
        return {}
    of = norm_dtype(lib, x, *beside.values())
    return {name: lib.empty((prod(x.shape[:-1]),), of, x) for name in names}


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


def _rms_norm_backward(lib: ArrayLibrary, x: Array, grad: Array, weight: Array | None, scale: Array) -> CallWork:
    return _norm_backward("rms_norm", rms_norm_backward_kernel, lib, x, grad, weight, scale=scale)


rms_norm_backward = Operated("rms_norm_backward", ("x", "grad", "weight?", "scale"), _rms_norm_backward)
"""The gradient of x, from the scale of each row."""


def _layer_norm_backward(
    lib: ArrayLibrary, x: Array, grad: Array, weight: Array | None, mean: Array, scale: Array
) -> CallWork:
    return _norm_backward("layer_norm", layer_norm_backward_kernel, lib, x, grad, weight, mean=mean, scale=scale)


layer_norm_backward = Operated("layer_norm_backward", ("x", "grad", "weight?", "mean", "scale"), _layer_norm_backward)
"""The gradient of x, from the mean and the scale of each row."""


def _norm_backward(
    name: str,
    make: Callable[..., WaveKernel],
    lib: ArrayLibrary,
    x: Array,
    grad: Array,
    weight: Array | None,
    **kept: Array,
) -> CallWork:
    found = _like(name, lib, None, x=x)
    if not prod(x.shape):
        return CallWork({"grad_x": found})
    weights = () if weight is None else (weight,)
    kernel = make(backward_rows(name, lib, x), *dtypes_of(name, lib, x, grad, found, kept["scale"], *weights))
    rows = given_only(x=folded(x), grad=folded(grad), weight=weight, **kept, grad_x=folded(found))
    return CallWork({"grad_x": found}, KernelLaunch(kernel, rows))


def norm_dtype(lib: ArrayLibrary, *arrays: Array | None) -> DType:
    """Return the dtype that a norm is computed in."""
    given = [array for array in arrays if array is not None]
    return arithmetic_of("norm", **{f"array {i}": lib.dtype("norm", "x", a) for i, a in enumerate(given)})


def dtypes_of(caller: str, lib: ArrayLibrary, *arrays: Array) -> list[DType]:
    return [lib.dtype(caller, "x", array) for array in arrays]


def backward_rows(caller: str, lib: ArrayLibrary, x: Array) -> Rows:
    """Return the tiling of rows for a backward pass, which reads two arrays of them."""
    return rows_for(target_of(caller, lib.device(x)), 2 * x.shape[-1], lib.dtype(caller, "x", x))
