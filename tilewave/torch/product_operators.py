"""Products and linear layers as torch operators; their backward passes are products again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilewave.ir.types import DType
from tilewave.ops import column_sums, linear_gradients, products
from tilewave.torch.autocast import to_autocast_dtype
from tilewave.torch.registry import define
from tilewave.torch.results import given, noted, want_writable
from tilewave.torch.tensors import (
    DTYPES_OF,
    LIBRARY,
    TORCH_DTYPES,
    free_layout,
    is_autocast,
    is_free,
    is_grad_enabled,
    is_unwatched,
    want_tensors,
)

# matmul -------------------------------------------------------------------------------------------------------------


def matmul(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    arrays = (a, b, out)
    if is_free():
        said = (LIBRARY.digits(),)
        if (found := products.matmul.replay(arrays, said, is_grad_enabled())) is not None:
            return found
        if (layout := free_layout(arrays)) is not None:
            return noted(products.matmul.known(LIBRARY, layout, arrays, said), out)
    want_tensors(products.matmul.arguments, arrays)
    want_writable(products.matmul.arguments, arrays)
    return given(products.matmul.arguments, _MATMUL(a, b), out)


def _fake_matmul(a: Tensor, b: Tensor) -> Tensor:
    shape = torch.matmul(a.to(torch.float32), b.to(torch.float32)).shape
    return a.new_empty(shape, dtype=_result_dtype(a.dtype))


def _result_dtype(dtype: torch.dtype) -> torch.dtype:
    return TORCH_DTYPES[products.result_dtype(_ours(dtype))]


def _save_both(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _matmul_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    x = a[None] if a.dim() == 1 else a
    y = b[:, None] if b.dim() == 1 else b
    g = grad[..., None] if b.dim() == 1 else grad
    g = g[..., None, :] if a.dim() == 1 else g
    of_a, of_b = ctx.needs_input_grad
    grad_a = matmul(g, y.mT).sum_to_size(x.shape).reshape(a.shape) if of_a else None
    return grad_a, _of_second(x, y, g).reshape(b.shape) if of_b else None


def _of_second(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    """Return the gradient of the second operand; where the batch shares it, this is a single product."""
    if y.dim() == 2:
        return matmul(x.flatten(0, -2).mT, g.flatten(0, -2))
    return matmul(x.mT, g).sum_to_size(y.shape)


_MATMUL = define(
    "matmul",
    "(Tensor a, Tensor b) -> Tensor",
    lambda a, b: products.matmul(LIBRARY, (a, b, None), LIBRARY.digits()),
    _fake_matmul,
    save=_save_both,
    backward=_matmul_backward,
    cast=to_autocast_dtype,
)


# linear -------------------------------------------------------------------------------------------------------------


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    if is_unwatched() and (out is None or not is_autocast()):
        if is_autocast():
            x, weight, bias, _, residual, _ = _LINEAR.cast_here((x, weight, bias, activation, residual, False))
        arrays, said = (x, weight, bias, residual, out), (activation, False, LIBRARY.digits())
        if (found := products.linear.replay(arrays, said, is_grad_enabled())) is not None:
            return found
        if (layout := free_layout(arrays)) is not None:
            return noted(products.linear.known(LIBRARY, layout, arrays, said), out)
        args = (x, weight, bias, activation, residual, activation is not None)
        if (recorded := _LINEAR.recorded(arrays, args)) is not None:
            return recorded[0]
    arrays = (x, weight, bias, residual, out)
    want_tensors(products.linear.arguments, arrays)
    want_writable(products.linear.arguments, arrays)
    inputs = [t for t in (x, weight, bias, residual) if t is not None]
    keeps = activation is not None and torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    found, _ = _LINEAR(x, weight, bias, activation, residual, keeps)
    return given(products.linear.arguments, found, out)


def _run_linear(*args: Any) -> tuple[Tensor, Tensor]:
    found, sums = _linear_directly(*args)
    return found, found.new_empty((0,)) if sums is None else sums


def _linear_directly(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, residual: Tensor | None, keeps: bool
) -> tuple[Tensor, Tensor | None]:
    found = products.linear(LIBRARY, (x, weight, bias, residual, None), activation, keeps, LIBRARY.digits())
    return found if keeps else (found, None)


def _fake_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, residual: Tensor | None, keeps: bool
) -> tuple[Tensor, Tensor]:
    found = x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=_result_dtype(x.dtype))
    return found, torch.empty_like(found) if keeps else found.new_empty((0,))


def _cast_linear(device: str, args: Sequence[Any]) -> Sequence[Any]:
    """Return a layer's arguments under autocast: a bias in f32 is added to sums in f32."""
    x, weight, bias, activation, residual, keeps = args
    x, weight, residual = to_autocast_dtype(device, (x, weight, residual))
    return x, weight, bias, activation, residual, keeps


def _save_linear(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, ctx.activation, residual, ctx.keeps = inputs
    ctx.residual = None if residual is None else (residual.shape, residual.dtype)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, bias, output[1])


def _linear_backward(ctx: Any, grad: Tensor | None, grad_sums: Tensor | None) -> tuple[Any, ...]:
    x, weight, bias, sums = ctx.saved_tensors
    of_x, of_weight, of_bias, _, of_residual, _ = ctx.needs_input_grad
    inner = grad = x.new_zeros((*x.shape[:-1], weight.shape[0]), dtype=_result_dtype(x.dtype)) if grad is None else grad
    bias_grad = None
    if ctx.activation is not None:
        sums = sums if ctx.keeps else linear(x, weight, bias)
        if of_bias and (grad_sums is None or not ctx.keeps):
            inner, bias_grad = _ACTIVATION_GRADIENTS(sums, grad, ctx.activation, bias.dtype)
        else:
            inner = _ACTIVATION_BACKWARD(sums, grad, ctx.activation)
    inner = inner if grad_sums is None or not ctx.keeps else inner + grad_sums
    sums_dtype = bias.dtype if of_bias and bias_grad is None else None
    x_grad, weight_grad, sums_grad = _gradients(x, weight, inner, of_x, of_weight, sums_dtype)
    residual_grad = grad.sum_to_size(ctx.residual[0]).to(ctx.residual[1]) if of_residual else None
    return x_grad, weight_grad, sums_grad if bias_grad is None else bias_grad, None, residual_grad, None


def _gradients(
    x: Tensor, weight: Tensor, grad: Tensor, of_x: bool, of_weight: bool, of_bias: torch.dtype | None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a layer's input, weight and bias, each None where it is not wanted.

    On the CPU they are one call. On a GPU each product is: it is replayed for any sizes by machine code. Products also
    have gradients of their own, where those are recorded.
    """
    if x.is_cpu and not is_grad_enabled():
        found = _LINEAR_GRADIENTS(x, weight, grad, of_x, of_weight, of_bias)
        wanted = of_x, of_weight, of_bias is not None
        return tuple([one if is_wanted else None for one, is_wanted in zip(found, wanted, strict=True)])
    return (
        matmul(grad, weight) if of_x else None,
        matmul(_as_matrix(grad).mT, _as_matrix(x)) if of_weight else None,
        None if of_bias is None else _COLUMN_SUMS(grad, of_bias),
    )


def _run_gradients(x: Tensor, weight: Tensor, grad: Tensor, *wanted: Any) -> tuple[Tensor, ...]:
    found = _gradients_directly(x, weight, grad, *wanted)
    return tuple([grad.new_empty((0,)) if one is None else one for one in found])


def _gradients_directly(
    x: Tensor, weight: Tensor, grad: Tensor, of_x: bool, of_weight: bool, of_bias: torch.dtype | None
) -> tuple[Tensor | None, ...]:
    ours = None if of_bias is None else _ours(of_bias)
    arrays = (x, weight, grad)
    found = linear_gradients.linear_gradients(LIBRARY, arrays, of_x, of_weight, ours, LIBRARY.digits())
    each = iter(found if isinstance(found, tuple) else (found,))
    return tuple([next(each) if is_wanted else None for is_wanted in (of_x, of_weight, of_bias is not None)])


def _fake_gradients(
    x: Tensor, weight: Tensor, grad: Tensor, of_x: bool, of_weight: bool, of_bias: torch.dtype | None
) -> tuple[Tensor, ...]:
    dtype, none = _result_dtype(grad.dtype), (0,)
    return (
        grad.new_empty(x.shape if of_x else none, dtype=dtype if of_x else grad.dtype),
        grad.new_empty(weight.shape if of_weight else none, dtype=dtype if of_weight else grad.dtype),
        grad.new_empty(none, dtype=grad.dtype) if of_bias is None else grad.new_empty(grad.shape[-1:], dtype=of_bias),
    )


def _as_matrix(x: Tensor) -> Tensor:
    return x[None] if x.dim() == 1 else x.flatten(0, -2)


_LINEAR = define(
    "linear",
    "(Tensor x, Tensor weight, Tensor? bias, str? activation, Tensor? residual, bool keeps) -> (Tensor, Tensor)",
    _run_linear,
    _fake_linear,
    save=_save_linear,
    backward=_linear_backward,
    cast=_cast_linear,
    directly=_linear_directly,
)

_LINEAR_GRADIENTS = define(
    "linear_gradients",
    "(Tensor x, Tensor weight, Tensor grad, bool of_x, bool of_weight, ScalarType? of_bias)"
    " -> (Tensor, Tensor, Tensor)",
    _run_gradients,
    _fake_gradients,
    directly=_gradients_directly,
)

_ACTIVATION_BACKWARD = define(
    "activation_backward",
    "(Tensor sums, Tensor grad, str activation) -> Tensor",
    lambda sums, grad, activation: products.activation_backward(LIBRARY, (sums, grad), activation),
    lambda sums, grad, activation: sums.new_empty(sums.shape),
)


_ACTIVATION_GRADIENTS = define(
    "activation_gradients",
    "(Tensor sums, Tensor grad, str activation, ScalarType dtype) -> (Tensor, Tensor)",
    lambda sums, grad, activation, dtype: column_sums.activation_gradients(
        LIBRARY, (sums, grad), activation, _ours(dtype)
    ),
    lambda sums, grad, activation, dtype: (
        sums.new_empty(sums.shape),
        sums.new_empty((sums.shape[-1],), dtype=dtype),
    ),
)


def _ours(dtype: torch.dtype) -> DType:
    return DTYPES_OF[dtype]


_COLUMN_SUMS = define(
    "column_sums",
    "(Tensor x, ScalarType dtype) -> Tensor",
    lambda x, dtype: column_sums.column_sums(LIBRARY, (x,), _ours(dtype)),
    lambda x, dtype: x.new_empty((x.shape[-1],), dtype=dtype),
)
