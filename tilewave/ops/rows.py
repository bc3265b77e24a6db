"""Operations along the last axis: softmax and the norms, and their backward passes."""

from __future__ import annotations

from math import prod

from tilewave.errors import CallError, here
from tilewave.ir.types import DType
from tilewave.kernels import layer_norm as layer_norm_into
from tilewave.kernels import rms_norm as rms_norm_into
from tilewave.kernels import softmax as softmax_into
from tilewave.kernels.gradients import (
    layer_norm_backward_kernel,
    layer_norm_weights_kernel,
    rms_norm_backward_kernel,
    rms_norm_weights_kernel,
    softmax_backward_kernel,
)
from tilewave.kernels.rows import Rows, arithmetic_of, rows_for
from tilewave.ops.arrays import Array, ArrayLibrary, prepared, target_of
from tilewave.ops.products import folded, folds


def softmax(lib: ArrayLibrary, x: Array, out: Array | None = None) -> Array:
    """exp(x) / the sum of exp(x) along the last axis."""
    found = _like("softmax", lib, x, out)
    if prod(x.shape):
        softmax_into(folded(x), _written(lib, found))
    return found


def rms_norm(lib: ArrayLibrary, x: Array, weight: Array | None, eps: float, out: Array | None = None) -> Array:
    """x / sqrt(mean of x² + eps) · weight along the last axis."""
    found = _like("rms_norm", lib, x, out)
    _check_columns("rms_norm", x, weight=weight)
    if prod(x.shape):
        rms_norm_into(folded(x), _written(lib, found), weight, eps)
    return found


def add_rms_norm(lib: ArrayLibrary, x: Array, residual: Array, weight: Array | None, eps: float) -> tuple[Array, Array]:
    """The norm of x + residual, and that sum."""
    _check_columns("rms_norm", x, weight=weight)
    if tuple(residual.shape) != tuple(x.shape):
        what = f"rms_norm: residual is {tuple(residual.shape)}, but x is {tuple(x.shape)}"
        raise CallError(what, loc=here(), remedy="they have one shape")
    found, total = (_like("rms_norm", lib, x, None) for _ in range(2))
    if prod(x.shape):
        rms_norm_into(folded(x), folded(found), weight, eps, folded(residual), folded(total))
    return found, total


def layer_norm(
    lib: ArrayLibrary, x: Array, weight: Array | None, bias: Array | None, eps: float, out: Array | None = None
) -> Array:
    """(x - mean) / sqrt(variance + eps) · weight + bias along the last axis."""
    found = _like("layer_norm", lib, x, out)
    _check_columns("layer_norm", x, weight=weight, bias=bias)
    if prod(x.shape):
        layer_norm_into(folded(x), _written(lib, found), weight, bias, eps)
    return found


def _like(caller: str, lib: ArrayLibrary, x: Array, out: Array | None) -> Array:
    if not len(x.shape):
        raise CallError(f"{caller}: x is a single number", loc=here(), remedy="pass an array with one axis at least")
    return prepared(caller, lib, out, tuple(x.shape), lib.dtype(caller, "x", x), x)


def _check_columns(caller: str, x: Array, **given: Array | None) -> None:
    for name, array in given.items():
        if array is not None and tuple(array.shape) != tuple(x.shape[-1:]):
            what = f"{caller}: {name} is {tuple(array.shape)}, but x has {x.shape[-1]} columns"
            raise CallError(what, loc=here(), remedy=f"{name} has a number for each of them")


def _written(lib: ArrayLibrary, out: Array) -> Array:
    """The rows of a result, which must be a view of it."""
    if not folds(lib, out):
        what = "the rows of out do not lie evenly behind each other"
        raise CallError(what, loc=here(), remedy="pass an out that lies row after row, or none: it is allocated then")
    return folded(out)


# backward -----------------------------------------------------------------------------------------------------------


def softmax_backward(lib: ArrayLibrary, y: Array, grad: Array) -> Array:
    """The gradient of what softmax got, of what it gave and the gradient of that."""
    found = _like("softmax", lib, y, None)
    if prod(y.shape):
        dtypes = _dtypes("softmax", lib, y, grad, found)
        softmax_backward_kernel(_rows("softmax", lib, y), *dtypes)(*map(folded, (y, grad, found)))
    return found


def rms_norm_backward(
    lib: ArrayLibrary, x: Array, grad: Array, weight: Array | None, eps: float
) -> tuple[Array, Array]:
    """The gradient of x, and the scale of each row."""
    found, of = _like("rms_norm", lib, x, None), norm_dtype(lib, x, grad, weight)
    scale = lib.empty((prod(x.shape[:-1]),), of, x)
    if prod(x.shape):
        weights = [] if weight is None else [weight]
        dtypes = _dtypes("rms_norm", lib, x, grad, found, *weights)
        kernel = rms_norm_backward_kernel(_rows("rms_norm", lib, x), *dtypes)
        kernel(folded(x), folded(grad), *weights, folded(found), scale, eps)
    return found, scale


def rms_norm_weights(lib: ArrayLibrary, x: Array, grad: Array, scale: Array, weight: Array) -> Array:
    """The gradient of the weights, of the scales that the backward pass left."""
    found = lib.empty(tuple(weight.shape), lib.dtype("rms_norm", "weight", weight), x)
    if prod(found.shape):
        dtypes = _dtypes("rms_norm", lib, x, grad, scale, weight)
        rms_norm_weights_kernel(*dtypes)(folded(x), folded(grad), scale, found)
    return found


def layer_norm_backward(
    lib: ArrayLibrary, x: Array, grad: Array, weight: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """The gradient of x, and the mean and scale of each row."""
    found, of = _like("layer_norm", lib, x, None), norm_dtype(lib, x, grad, weight)
    mean, scale = (lib.empty((prod(x.shape[:-1]),), of, x) for _ in range(2))
    if prod(x.shape):
        weights = [] if weight is None else [weight]
        dtypes = _dtypes("layer_norm", lib, x, grad, found, *weights)
        kernel = layer_norm_backward_kernel(_rows("layer_norm", lib, x), *dtypes)
        kernel(folded(x), folded(grad), *weights, folded(found), mean, scale, eps)
    return found, mean, scale


def layer_norm_weights(
    lib: ArrayLibrary, x: Array, grad: Array, mean: Array, scale: Array, weight: Array
) -> tuple[Array, Array]:
    """The gradients of the weights, and of a bias of their dtype."""
    dtype = lib.dtype("layer_norm", "weight", weight)
    of_weight, of_bias = (lib.empty(tuple(weight.shape), dtype, x) for _ in range(2))
    if prod(weight.shape):
        dtypes = _dtypes("layer_norm", lib, x, grad, scale, weight, weight)
        layer_norm_weights_kernel(*dtypes)(folded(x), folded(grad), mean, scale, of_weight, of_bias)
    return of_weight, of_bias


def norm_dtype(lib: ArrayLibrary, *arrays: Array | None) -> DType:
    """What a norm is computed in."""
    given = [array for array in arrays if array is not None]
    return arithmetic_of("norm", **{f"array {i}": lib.dtype("norm", "x", a) for i, a in enumerate(given)})


def _dtypes(caller: str, lib: ArrayLibrary, *arrays: Array) -> list[DType]:
    return [lib.dtype(caller, "x", array) for array in arrays]


def _rows(caller: str, lib: ArrayLibrary, x: Array) -> Rows:
    """How the rows of a backward pass are taken, which has two arrays of them."""
    return rows_for(target_of(caller, lib.device(x)), 2 * x.shape[-1], lib.dtype(caller, "x", x))
