"""Attention as a torch operator, and in place of `scaled_dot_product_attention`.

The backward pass is made of matrix products and stores the weights of all queries and keys at once: it needs memory
proportional to their number, which the forward pass does not.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from tilewave.kernels.attentions import AttentionAsked
from tilewave.ops.attending import attention as attend
from tilewave.torch.product_operators import matmul
from tilewave.torch.registry import define, to_autocast_dtype
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
    if is_free() and (layout := free_layout(arrays)) is not None:
        asked = AttentionAsked(causal, window, scale, soft_cap)
        return noted(attend.known(LIBRARY, layout, arrays, (asked, False)), out)
    want_tensors(attend.arguments, arrays)
    want_writable(attend.arguments, arrays)
    found, _ = _ATTENTION(q, k, v, bias, causal, window, scale, soft_cap)
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
    return q.new_empty(q.shape[:-1], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


def _fake(q: Tensor, k: Tensor, v: Tensor, *asked: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty((*q.shape[:-1], v.shape[-1])), _sums_of(q)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, bias, *ctx.asked = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, bias, *output)


def _backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    q, k, v, bias, y, lse = ctx.saved_tensors
    causal, window, scale, soft_cap = ctx.asked
    scale = 1 / sqrt(max(q.shape[-1], 1)) if scale is None else scale
    grad = torch.zeros_like(y) if grad is None else grad
    keys, values = (_repeated(x, q) for x in (k, v))
    scores = matmul(q, keys.mT).to(lse.dtype) * scale
    capped = scores if soft_cap is None else soft_cap * torch.tanh(scores / soft_cap)
    shown = _seen_only(capped if bias is None else capped + bias.to(lse.dtype), causal, window)
    # A query that sees no key has a log-sum-exp of -inf, and -inf - -inf would be NaN.
    weights = torch.exp(shown - lse.clamp_min(torch.finfo(lse.dtype).min)[..., None])
    mean = (grad.to(lse.dtype) * y.to(lse.dtype)).sum(-1)
    mean = mean if grad_lse is None else mean - grad_lse
    inner = weights * (matmul(grad, values.mT).to(lse.dtype) - mean[..., None])
    outer = inner if soft_cap is None else inner * (1 - (capped / soft_cap).square())
    outer = (outer * scale).to(q.dtype)
    return (
        matmul(outer, keys),
        _gathered(matmul(outer.mT, q), k),
        _gathered(matmul(weights.to(q.dtype).mT, grad), v),
        None if bias is None else inner.sum_to_size(bias.shape).to(bias.dtype),
        *(None for _ in ctx.asked),
    )


def _repeated(x: Tensor, q: Tensor) -> Tensor:
    """Return heads of keys or values, repeated to the number of query heads."""
    return x if x.dim() < 3 or x.shape[-3] == q.shape[-3] else x.repeat_interleave(q.shape[-3] // x.shape[-3], -3)


def _gathered(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of heads that several query heads share: the sum over these."""
    if grad.shape == x.shape:
        return grad
    return grad.unflatten(-3, (x.shape[-3], grad.shape[-3] // x.shape[-3])).sum(-3)


def _seen_only(scores: Tensor, causal: bool, window: int | None) -> Tensor:
    """Return scores with -inf where a query does not see a key; the last query is aligned with the last key."""
    ahead = 1 if causal else window  # the first invisible key, relative to the query's position
    if ahead is None:
        return scores
    queries, keys = scores.shape[-2:]
    every, own = torch.ones((queries, keys), dtype=torch.bool, device=scores.device), keys - queries
    hidden = every.triu(own + ahead)
    if window is not None:
        hidden = hidden | every.tril(own - window)
    return scores.masked_fill(hidden, -inf)


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
