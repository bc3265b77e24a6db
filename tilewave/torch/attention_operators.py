"""Attention as a torch operator, and in place of `scaled_dot_product_attention`.

The forward pass keeps the log-sum-exp of each row, from which the backward pass computes the weights again, block by
block. A gradient of a bias is computed for all queries and keys before it is summed to the bias's shape. Gradients of
queries may be added in any order, but not under `torch.use_deterministic_algorithms(True)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from tilewave.kernels.attention_gradients import WantedGradients
from tilewave.kernels.attentions import AttentionAsked
from tilewave.ops.attending import attention as attend
from tilewave.ops.attending import has_heads_inside
from tilewave.ops.attending_backward import attention_backward as attend_backward
from tilewave.torch.autocast import to_autocast_dtype
from tilewave.torch.registry import define
from tilewave.torch.results import given, noted, want_writable
from tilewave.torch.tensors import LIBRARY, free_layout, is_free, want_tensors


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    arrays = (q, k, v, bias, out)
    said = causal, window, scale, soft_cap
    if is_free():
        if (layout := free_layout(arrays)) is not None:
            return noted(attend.known(LIBRARY, layout, arrays, (AttentionAsked(*said), False)), out)
        if (recorded := _ATTENTION.recorded(arrays, (q, k, v, bias, *said))) is not None:
            return recorded[0]
    want_tensors(attend.arguments, arrays)
    want_writable(attend.arguments, arrays)
    found, _ = _ATTENTION(q, k, v, bias, *said)
    return given(attend.arguments, found, out)


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    causal: bool,
    window: int | None,
    scale: float | None,
    soft_cap: float | None,
) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = attend(
        LIBRARY, (q, k, v, bias, None), AttentionAsked(causal, window, scale, soft_cap), True
    )
    return found


def _sums_of(q: Tensor) -> Tensor:
    return q.new_empty(q.shape[:-1], dtype=_sums_dtype(q))


def _sums_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _fake(q: Tensor, k: Tensor, v: Tensor, *asked: Any) -> tuple[Tensor, Tensor]:
    if not has_heads_inside(q.shape, q.stride()):
        return q.new_empty((*q.shape[:-1], v.shape[-1])), _sums_of(q)
    *batch, heads, rows, _ = q.shape
    return q.new_empty((*batch, rows, heads, v.shape[-1])).transpose(-3, -2), _sums_of(q)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, bias, *ctx.asked = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, bias, *output)


def _backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    q, k, v, bias, y, lse = ctx.saved_tensors
    if grad is None and grad_lse is None:
        return (None,) * (4 + len(ctx.asked))
    grad = torch.zeros_like(y) if grad is None else grad
    wanted = list(ctx.needs_input_grad[:4])
    found = _ATTENTION_BACKWARD(q, k, v, bias, y, lse, grad, grad_lse, *ctx.asked, wanted)
    grads = [x if is_wanted else None for x, is_wanted in zip(found, wanted, strict=True)]
    if grads[3] is not None:
        grads[3] = grads[3].sum_to_size(bias.shape).to(bias.dtype)
    return (*grads, *(None for _ in ctx.asked))


def _run_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    y: Tensor,
    lse: Tensor,
    grad: Tensor,
    grad_lse: Tensor | None,
    causal: bool,
    window: int | None,
    scale: float | None,
    soft_cap: float | None,
    wanted: Sequence[bool],
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and v, and of the scores where the bias wants one; what is not wanted is empty."""
    if not (y.numel() and k.shape[-2]):  # no kernel: the gradients are empty, or zeros
        whole = _fake_backward(q, k, v, bias, y, lse, grad, grad_lse, causal, window, scale, soft_cap, wanted)
        return tuple(x.zero_() for x in whole)
    dtypes, of_scores = (q.dtype, k.dtype, v.dtype), _sums_dtype(q)
    # Masked blocks of the gradient of scores are not written.
    grad_bias = q.new_zeros((*q.shape[:-1], k.shape[-2]), dtype=of_scores) if wanted[3] else None
    q, k, v, grad = _of_one_dtype(q, k, v, grad)
    arrays = (q, k, v, bias, y, lse, grad.contiguous() if 0 in grad.stride() else grad, grad_lse, grad_bias)
    asked = AttentionAsked(causal, window, scale, soft_cap)
    in_any_order = not torch.are_deterministic_algorithms_enabled()
    found = attend_backward(LIBRARY, arrays, asked, WantedGradients(*wanted[:3]), None, in_any_order)
    each = iter(found if isinstance(found, tuple) else (found,))
    grads = [
        next(each).to(dtype) if is_wanted else q.new_empty((0,), dtype=dtype)
        for dtype, is_wanted in zip(dtypes, wanted[:3], strict=True)
    ]
    return (*grads, q.new_empty((0,), dtype=of_scores) if grad_bias is None else grad_bias)


def _of_one_dtype(*tensors: Tensor) -> Sequence[Tensor]:
    """Return tensors in the widest of their dtypes, which products of each with each need."""
    if len({x.dtype for x in tensors}) == 1:
        return tensors
    widest = reduce(torch.promote_types, [x.dtype for x in tensors])
    return [x.to(widest) for x in tensors]


def _fake_backward(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, ...]:
    *_, wanted = others
    scores = (*q.shape[:-1], k.shape[-2])
    shapes = q.shape, k.shape, v.shape, scores
    dtypes = q.dtype, k.dtype, v.dtype, _sums_dtype(q)
    each = zip(shapes, dtypes, wanted, strict=True)
    return tuple(q.new_empty(shape if is_wanted else (0,), dtype=dtype) for shape, dtype, is_wanted in each)


_ATTENTION = define(
    "attention",
    "(Tensor q, Tensor k, Tensor v, Tensor? bias, bool causal, int? window, float? scale, float? soft_cap)"
    " -> (Tensor, Tensor)",
    _run,
    _fake,
    save=_save,
    backward=_backward,
    cast=to_autocast_dtype,
)

_ATTENTION_BACKWARD = define(
    "attention_backward",
    "(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor y, Tensor lse, Tensor grad, Tensor? grad_lse, bool causal,"
    " int? window, float? scale, float? soft_cap, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor)",
    _run_backward,
    _fake_backward,
)
