"""softmax and the norms as torch operators."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from tilewave.kernels.numbers import checked_axis
from tilewave.ops import norm_gradients, rows
from tilewave.ops.plans import Operated
from tilewave.ops.results import want_shape
from tilewave.torch.autocast import rows_to_float32
from tilewave.torch.registry import Operator, define
from tilewave.torch.results import given, noted, want_writable
from tilewave.torch.tensors import LIBRARY, free_layout, is_free, want_tensors

# softmax ------------------------------------------------------------------------------------------------------------


def softmax(x: Tensor, dim: int = -1, out: Tensor | None = None) -> Tensor:
    return _along_axis(rows.softmax, _SOFTMAX, x, dim, out)


def _along_axis(of: Operated, operator: Operator, x: Tensor, dim: int, out: Tensor | None) -> Tensor:
    """Return the result of an operation along the last axis, for any axis."""
    if type(dim) is int and dim == -1 and is_free() and (layout := free_layout((x, out))) is not None:
        return noted(of.known(LIBRARY, layout, (x, out), ()), out)
    want_tensors(of.arguments, (x, out))
    rows.want_rows(of.arguments.caller, x)
    axis = checked_axis(of.arguments.caller, dim, x.dim())
    if axis in (-1, x.dim() - 1):
        if axis != -1:
            return _along_axis(of, operator, x, -1, out)
        want_writable(of.arguments, (x, out))
        return given(of.arguments, operator(x), out)
    if out is None:
        return _along_axis(of, operator, x.movedim(axis, -1), -1, None).movedim(-1, axis)
    want_shape(of.arguments.caller, out, x.shape)
    _along_axis(of, operator, x.movedim(axis, -1), -1, out.movedim(axis, -1))
    return out


def _softmax_backward(ctx: Any, grad: Tensor) -> Tensor:
    (y,) = ctx.saved_tensors
    found: Tensor = _SOFTMAX_BACKWARD(y, grad)
    return found


_SOFTMAX = define(
    "softmax",
    "(Tensor x) -> Tensor",
    lambda x: rows.softmax(LIBRARY, (x, None)),
    lambda x: x.new_empty(x.shape),
    save=lambda ctx, inputs, output: ctx.save_for_backward(output),
    backward=_softmax_backward,
    cast=rows_to_float32,
)

_SOFTMAX_BACKWARD = define(
    "softmax_backward",
    "(Tensor y, Tensor grad) -> Tensor",
    lambda y, grad: rows.softmax_backward(LIBRARY, (y, grad)),
    lambda y, grad: y.new_empty(y.shape),
)


# cumsum -------------------------------------------------------------------------------------------------------------


def cumsum(x: Tensor, dim: int = -1, out: Tensor | None = None) -> Tensor:
    return _along_axis(rows.cumsum, _CUMSUM, x, dim, out)


def _cumsum_backward(ctx: Any, grad: Tensor) -> Tensor:
    found: Tensor = _CUMSUM(grad.flip(-1))
    return found.flip(-1)


_CUMSUM = define(
    "cumsum",
    "(Tensor x) -> Tensor",
    lambda x: rows.cumsum(LIBRARY, (x, None)),
    lambda x: x.new_empty(x.shape, dtype=x.dtype if x.is_floating_point() else torch.int64),
    save=lambda ctx, inputs, output: None,
    backward=_cumsum_backward,
    cast=rows_to_float32,
)


# norms --------------------------------------------------------------------------------------------------------------


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Any:
    if residual is not None:
        return _add_rms_norm(x, residual, weight, eps, out)
    arrays = (x, weight, out)
    if is_free():
        if (layout := free_layout(arrays)) is not None:
            return noted(rows.rms_norm.known(LIBRARY, layout, arrays, (eps,)), out)
        if (found := _RMS_NORM.recorded(arrays, (x, weight, eps))) is not None:
            return found[0]
    want_tensors(rows.rms_norm.arguments, arrays)
    want_writable(rows.rms_norm.arguments, arrays)
    return given(rows.rms_norm.arguments, _RMS_NORM(x, weight, eps)[0], out)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, out: Tensor | None) -> Any:
    """Return the norm of x + residual, and that sum."""
    arrays = (x, residual, weight, out)
    if is_free() and (layout := free_layout(arrays)) is not None:
        found, total = rows.add_rms_norm.known(LIBRARY, layout, arrays, (eps,))
        return noted(found, out), total
    want_tensors(rows.add_rms_norm.arguments, arrays)
    want_writable(rows.add_rms_norm.arguments, arrays)
    found, total, _ = _ADD_RMS_NORM(x, residual, weight, eps)
    return given(rows.add_rms_norm.arguments, found, out), total


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    out: Tensor | None = None,
) -> Tensor:
    arrays = (x, weight, bias, out)
    if is_free():
        if (layout := free_layout(arrays)) is not None:
            return noted(rows.layer_norm.known(LIBRARY, layout, arrays, (eps,)), out)
        if (found := _LAYER_NORM.recorded(arrays, (x, weight, bias, eps))) is not None:
            return found[0]
    want_tensors(rows.layer_norm.arguments, arrays)
    want_writable(rows.layer_norm.arguments, arrays)
    return given(rows.layer_norm.arguments, _LAYER_NORM(x, weight, bias, eps)[0], out)


def _save_rms_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _ = inputs
    _keep(ctx, x, weight, output[1])


def _keep(ctx: Any, *tensors: Tensor | None) -> None:
    """Save tensors for a backward pass, the last of which is the scale of each row: it has no gradient."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def _rms_norm_backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return None, None, None
    x, weight, scale = ctx.saved_tensors
    return (*_rms_norm_grads(x, weight, scale, grad, ctx.needs_input_grad[1]), None)


def _rms_norm_grads(x: Tensor, weight: Tensor | None, scale: Tensor, grad: Tensor, of_weight: bool) -> Any:
    if of_weight:
        return _RMS_NORM_GRADIENTS(x, grad, weight, scale)
    return _RMS_NORM_BACKWARD(x, grad, weight, scale), None


def _save_add_rms_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, residual, weight, _ = inputs
    ctx.residual = residual.dtype
    _keep(ctx, output[1], weight, output[2])


def _add_rms_norm_backward(
    ctx: Any, grad: Tensor | None, grad_total: Tensor | None, _: Tensor | None
) -> tuple[Any, ...]:
    total, weight, scale = ctx.saved_tensors
    of_sum, of_weight = grad_total, None
    if grad is not None:
        of_norm, of_weight = _rms_norm_grads(total, weight, scale, grad, ctx.needs_input_grad[2])
        of_sum = of_norm if grad_total is None else of_norm + grad_total
    return of_sum, None if of_sum is None else of_sum.to(ctx.residual), of_weight, None


def _save_layer_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias, _ = inputs
    _keep(ctx, x, weight, bias, *output[1:])


def _layer_norm_backward(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return None, None, None, None
    x, weight, bias, mean, scale = ctx.saved_tensors
    if weight is None or not any(ctx.needs_input_grad[1:3]):
        return _LAYER_NORM_BACKWARD(x, grad, weight, mean, scale), None, None, None
    grad_x, of_weight, of_bias = _LAYER_NORM_GRADIENTS(x, grad, weight, mean, scale)
    return grad_x, of_weight, None if bias is None else of_bias.to(bias.dtype), None


def _row_numbers(x: Tensor, *others: Tensor | None) -> Tensor:
    """Return an empty tensor of one number for each row, in the dtype that norms are computed in."""
    is_double = any(t is not None and t.dtype == torch.float64 for t in (x, *others))
    return x.new_empty((prod(x.shape[:-1]),), dtype=torch.float64 if is_double else torch.float32)


_RMS_NORM = define(
    "rms_norm",
    "(Tensor x, Tensor? weight, float eps) -> (Tensor, Tensor)",
    lambda x, weight, eps: rows.rms_norm(LIBRARY, (x, weight, None), eps, True),
    lambda x, weight, eps: (x.new_empty(x.shape), _row_numbers(x, weight)),
    save=_save_rms_norm,
    backward=_rms_norm_backward,
    cast=rows_to_float32,
)

_ADD_RMS_NORM = define(
    "add_rms_norm",
    "(Tensor x, Tensor residual, Tensor? weight, float eps) -> (Tensor, Tensor, Tensor)",
    lambda x, residual, weight, eps: rows.add_rms_norm(LIBRARY, (x, residual, weight, None), eps, True),
    lambda x, residual, weight, eps: (x.new_empty(x.shape), x.new_empty(x.shape), _row_numbers(x, residual, weight)),
    save=_save_add_rms_norm,
    backward=_add_rms_norm_backward,
    cast=rows_to_float32,
)

_RMS_NORM_BACKWARD = define(
    "rms_norm_backward",
    "(Tensor x, Tensor grad, Tensor? weight, Tensor scale) -> Tensor",
    lambda x, grad, weight, scale: rows.rms_norm_backward(LIBRARY, (x, grad, weight, scale)),
    lambda x, grad, weight, scale: x.new_empty(x.shape),
)

_RMS_NORM_GRADIENTS = define(
    "rms_norm_gradients",
    "(Tensor x, Tensor grad, Tensor weight, Tensor scale) -> (Tensor, Tensor)",
    lambda x, grad, weight, scale: norm_gradients.rms_norm_gradients(LIBRARY, (x, grad, weight, scale)),
    lambda x, grad, weight, scale: (x.new_empty(x.shape), weight.new_empty(weight.shape)),
)

_LAYER_NORM = define(
    "layer_norm",
    "(Tensor x, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
    lambda x, weight, bias, eps: rows.layer_norm(LIBRARY, (x, weight, bias, None), eps, True),
    lambda x, weight, bias, eps: (
        x.new_empty(x.shape),
        _row_numbers(x, weight, bias),
        _row_numbers(x, weight, bias),
    ),
    save=_save_layer_norm,
    backward=_layer_norm_backward,
    cast=rows_to_float32,
)

_LAYER_NORM_BACKWARD = define(
    "layer_norm_backward",
    "(Tensor x, Tensor grad, Tensor? weight, Tensor mean, Tensor scale) -> Tensor",
    lambda x, grad, weight, mean, scale: rows.layer_norm_backward(LIBRARY, (x, grad, weight, mean, scale)),
    lambda x, grad, weight, mean, scale: x.new_empty(x.shape),
)

_LAYER_NORM_GRADIENTS = define(
    "layer_norm_gradients",
    "(Tensor x, Tensor grad, Tensor weight, Tensor mean, Tensor scale) -> (Tensor, Tensor, Tensor)",
    lambda x, grad, weight, mean, scale: norm_gradients.layer_norm_gradients(LIBRARY, (x, grad, weight, mean, scale)),
    lambda x, grad, weight, mean, scale: (
        x.new_empty(x.shape),
        weight.new_empty(weight.shape),
        weight.new_empty(weight.shape),
    ),
)
