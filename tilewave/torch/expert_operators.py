"""moe and counting_sort as torch operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilewave.kernels.selections import Routing
from tilewave.ops import expert_gradients, experts, sorts
from tilewave.torch.autocast import to_autocast_dtype
from tilewave.torch.grouped_operators import grouped_mm
from tilewave.torch.registry import define
from tilewave.torch.results import given, noted, want_writable
from tilewave.torch.tensors import LIBRARY, free_layout, is_free, want_tensors


def counting_sort(x: Tensor, length: int) -> tuple[Tensor, Tensor]:
    want_tensors(sorts.counting_sort.arguments, (x,))
    places, ends = _COUNTING_SORT(x, length)
    return places, ends


_COUNTING_SORT = define(
    "counting_sort",
    "(Tensor x, int length) -> (Tensor, Tensor)",
    lambda x, length: sorts.counting_sort(LIBRARY, (x,), length),
    lambda x, length: (x.new_empty(x.shape, dtype=torch.int32), x.new_empty((length,), dtype=torch.int32)),
)


def moe(
    x: Tensor,
    logits: Tensor,
    w1: Tensor,
    w2: Tensor,
    top_k: int,
    routing: Routing,
    activation: str,
    out: Tensor | None = None,
) -> Tensor:
    arrays, of = (x, logits, w1, w2, out), experts.moe.arguments
    if is_free() and (layout := free_layout(arrays)) is not None:
        return noted(experts.moe.known(LIBRARY, layout, arrays, (top_k, routing, activation))[0], out)
    want_tensors(of, arrays)
    want_writable(of, arrays)
    experts.want_experts(x, logits, w1, w2)
    found, *_ = _MOE(x, logits, w1, w2, top_k, routing.scoring, routing.renormalize, activation)
    return given(of, found, out)


def _run(
    x: Tensor, logits: Tensor, w1: Tensor, w2: Tensor, top_k: int, scoring: str, renormalize: bool, activation: str
) -> Any:
    return experts.moe(LIBRARY, (x, logits, w1, w2, None), top_k, Routing(scoring, renormalize), activation)


def _like(x: Tensor, logits: Tensor, w1: Tensor, w2: Tensor, top_k: int, *_: Any) -> tuple[Tensor, ...]:
    shape = logits.shape[0], top_k
    weights = logits.new_empty(shape, dtype=torch.float64 if logits.dtype == torch.float64 else torch.float32)
    chosen, slots = (logits.new_empty(shape, dtype=torch.int32) for _ in range(2))
    return x.new_empty(x.shape), weights, chosen, slots, logits.new_empty((logits.shape[1],), dtype=torch.int32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *arrays, _, ctx.scoring, ctx.renormalize, ctx.activation = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*arrays, *output[1:])


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    x, logits, w1, w2, weights, chosen, slots, ends = ctx.saved_tensors
    if grad is None:
        return (None,) * 8
    if not len(x):
        return *(torch.zeros_like(t) for t in (x, logits, w1, w2)), None, None, None, None
    rows, grad_rows, hidden, grad_both, grad_weights = _MOE_BACKWARD(
        grad.contiguous(), x, w1, w2, weights, slots, ends, ctx.activation
    )
    of_x, of_logits, of_w1, of_w2, *_ = ctx.needs_input_grad
    return (
        _UNPERMUTE(grouped_mm(grad_both, w1, ends), slots) if of_x else None,
        _of_logits(logits, weights, chosen, grad_weights, ctx.scoring, ctx.renormalize) if of_logits else None,
        grouped_mm(grad_both.mT, rows, ends) if of_w1 else None,
        grouped_mm(grad_rows.mT, hidden, ends) if of_w2 else None,
        *(None,) * 4,
    )


def _of_logits(
    logits: Tensor, weights: Tensor, chosen: Tensor, grad: Tensor, scoring: str, renormalize: bool
) -> Tensor:
    """Return the gradient of the logits from that of the weights of the chosen experts."""
    at, wide = chosen.long(), logits.to(weights.dtype)
    shared = (grad * weights).sum(-1, keepdim=True)
    if scoring == "sigmoid":
        scores = wide.gather(1, at).sigmoid()
        of_scores = (grad - shared) / scores.sum(-1, keepdim=True) if renormalize else grad
        return torch.zeros_like(wide).scatter(1, at, of_scores * scores * (1 - scores)).to(logits.dtype)
    if renormalize:
        return torch.zeros_like(wide).scatter(1, at, weights * (grad - shared)).to(logits.dtype)
    own = torch.zeros_like(wide).scatter(1, at, weights * grad)
    return (own - wide.softmax(-1) * shared).to(logits.dtype)


def _cast(device: str, args: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments under autocast: the logits keep their precision, which decides who is chosen."""
    x, logits, w1, w2, *said = args
    x, w1, w2 = to_autocast_dtype(device, (x, w1, w2))
    return x, logits, w1, w2, *said


_MOE = define(
    "moe",
    "(Tensor x, Tensor router_logits, Tensor w1, Tensor w2, int top_k, str scoring, bool renormalize, str activation)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run,
    _like,
    save=_save,
    backward=_backward,
    cast=_cast,
)


def _like_rows(grad: Tensor, x: Tensor, w1: Tensor, w2: Tensor, weights: Tensor, slots: Tensor, *_: Any) -> Any:
    wide = (x.shape[1], x.shape[1], w2.shape[2], w1.shape[1])
    return *(x.new_empty((slots.numel(), columns)) for columns in wide), torch.empty_like(weights)


_MOE_BACKWARD = define(
    "moe_backward",
    "(Tensor grad, Tensor x, Tensor w1, Tensor w2, Tensor weights, Tensor slots, Tensor ends, str activation)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    lambda *args: expert_gradients.backward(LIBRARY, args[:-1], args[-1]),
    _like_rows,
)

_UNPERMUTE = define(
    "unpermute",
    "(Tensor rows, Tensor slots) -> Tensor",
    lambda rows, slots: expert_gradients.unpermute(LIBRARY, (rows, slots)),
    lambda rows, slots: rows.new_empty((slots.shape[0], rows.shape[1])),
)
