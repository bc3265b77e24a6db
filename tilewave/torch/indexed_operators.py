"""embedding, index_select, index_add and cross_entropy as torch operators.

Sums at indices are added by atomics, in any order. Under `torch.use_deterministic_algorithms(True)` the indices are
sorted first, and each row of a result is the sum of a segment of them, in the order of the indices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewave.ir.types import DType
from tilewave.lang.reductions import SUMMED_IN
from tilewave.ops import indexed, losses
from tilewave.ops.indexed import axis_of
from tilewave.torch.autocast import to_float32
from tilewave.torch.registry import define
from tilewave.torch.results import given, noted, want_writable
from tilewave.torch.tensors import LIBRARY, TORCH_DTYPES, free_layout, is_free, want_tensors

# embedding ----------------------------------------------------------------------------------------------------------


def embedding(weight: Tensor, ids: Tensor, out: Tensor | None = None) -> Tensor:
    arrays, of = (weight, ids, out), indexed.embedding.arguments
    if is_free() and (layout := free_layout(arrays)) is not None:
        return noted(indexed.embedding.known(LIBRARY, layout, arrays, ()), out)
    want_tensors(of, arrays)
    want_writable(of, arrays)
    return given(of, _EMBEDDING(weight, ids), out)


def _save_embedding(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    weight, ids = inputs
    ctx.rows, ctx.dtype = weight.shape[0], weight.dtype
    ctx.save_for_backward(ids)


def _embedding_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (ids,) = ctx.saved_tensors
    return _EMBEDDING_BACKWARD(grad, ids, ctx.rows), None


def _run_embedding_backward(grad: Tensor, ids: Tensor, rows: int) -> Tensor:
    dtype = LIBRARY.dtype("embedding", "grad", grad)
    if not torch.are_deterministic_algorithms_enabled():
        found: Tensor = indexed.embedding_backward(LIBRARY, (grad, ids), rows, dtype)
        return found
    return _segments(grad.reshape(ids.numel(), grad.shape[-1]), ids.reshape(-1), rows, dtype)


def _segments(x: Tensor, index: Tensor, rows: int, dtype: DType) -> Tensor:
    """Return, for each of so many rows, the sum of the rows of x that have its number as their index, in order."""
    ordered, order = torch.sort(index, stable=True)
    offsets = torch.searchsorted(ordered, torch.arange(rows + 1, device=index.device, dtype=index.dtype))
    found: Tensor = indexed.segments(LIBRARY, (x, offsets, order), dtype)
    return found


_EMBEDDING = define(
    "embedding",
    "(Tensor weight, Tensor ids) -> Tensor",
    lambda weight, ids: indexed.embedding(LIBRARY, (weight, ids, None)),
    lambda weight, ids: weight.new_empty((*ids.shape, weight.shape[1])),
    save=_save_embedding,
    backward=_embedding_backward,
)

_EMBEDDING_BACKWARD = define(
    "embedding_backward",
    "(Tensor grad, Tensor ids, SymInt rows) -> Tensor",
    _run_embedding_backward,
    lambda grad, ids, rows: grad.new_empty((rows, grad.shape[-1])),
)


# index_select, index_add --------------------------------------------------------------------------------------------


def index_select(x: Tensor, dim: int, index: Tensor, out: Tensor | None = None) -> Tensor:
    arrays, of = (x, index, out), indexed.index_select.arguments
    want_tensors(of, arrays)
    axis = axis_of("index_select", dim, x)
    if is_free() and (layout := free_layout(arrays)) is not None:
        return noted(indexed.index_select.known(LIBRARY, layout, arrays, (axis,)), out)
    want_writable(of, arrays)
    return given(of, _INDEX_SELECT(x, axis, index), out)


def index_add(
    x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1, out: Tensor | None = None
) -> Tensor:
    arrays, of = (x, index, source, out), indexed.index_add.arguments
    want_tensors(of, arrays)
    axis = axis_of("index_add", dim, x)
    is_ordered = torch.are_deterministic_algorithms_enabled()
    if not is_ordered and is_free() and (layout := free_layout(arrays)) is not None:
        return noted(indexed.index_add.known(LIBRARY, layout, arrays, (axis, alpha)), out)
    want_writable(of, arrays)
    return given(of, _INDEX_ADD(x, axis, index, source, float(alpha)), out)


def _save_index_select(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.dim, index = inputs
    ctx.length = x.shape[ctx.dim]
    ctx.save_for_backward(index)


def _index_select_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (index,) = ctx.saved_tensors
    shape = list(grad.shape)
    shape[ctx.dim] = ctx.length
    return _INDEX_ADD(grad.new_zeros(shape), ctx.dim, index, grad, 1.0), None, None


def _run_index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float) -> Tensor:
    exact = int(alpha) if alpha == int(alpha) else alpha
    if not torch.are_deterministic_algorithms_enabled():
        found: Tensor = indexed.index_add(LIBRARY, (x, index, source, None), dim, exact)
        return found
    return _ordered_index_add(x, dim, index, source, exact)


def _ordered_index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float) -> Tensor:
    """Return index_add with sums in the order of the indices, in the dtype that sums have."""
    indexed.want_source(LIBRARY, x, index, source, dim)
    indexed.want_indices("index_add", LIBRARY, index=index)
    rows, moved = x.movedim(dim, 0), source.movedim(dim, 0)
    dtype = LIBRARY.dtype("index_add", "x", x)
    sums = SUMMED_IN.get(dtype, dtype)
    total = _segments(moved.reshape(index.numel(), -1), index, rows.shape[0], sums).reshape(rows.shape)
    return (rows.to(TORCH_DTYPES[sums]) + alpha * total).to(x.dtype).movedim(0, dim).contiguous()


def _save_index_add(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.dim, index, _, ctx.alpha = inputs
    ctx.save_for_backward(index)


def _index_add_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (index,) = ctx.saved_tensors
    of_source = _INDEX_SELECT(grad, ctx.dim, index) * ctx.alpha if ctx.needs_input_grad[3] else None
    return grad, None, None, of_source, None


def _like_index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :]))


_INDEX_SELECT = define(
    "index_select",
    "(Tensor x, int dim, Tensor index) -> Tensor",
    lambda x, dim, index: indexed.index_select(LIBRARY, (x, index, None), dim),
    _like_index_select,
    save=_save_index_select,
    backward=_index_select_backward,
)

_INDEX_ADD = define(
    "index_add",
    "(Tensor x, int dim, Tensor index, Tensor source, float alpha) -> Tensor",
    _run_index_add,
    lambda x, dim, index, source, alpha: x.new_empty(x.shape),
    save=_save_index_add,
    backward=_index_add_backward,
)


# bincount -----------------------------------------------------------------------------------------------------------


def bincount(x: Tensor, length: int, weights: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    arrays, of = (x, weights, out), indexed.bincount.arguments
    if is_free() and (layout := free_layout(arrays)) is not None:
        return noted(indexed.bincount.known(LIBRARY, layout, arrays, (length,)), out)
    want_tensors(of, arrays)
    want_writable(of, arrays)
    return given(of, _BINCOUNT(x, weights, length), out)


_BINCOUNT = define(
    "bincount",
    "(Tensor x, Tensor? weights, int length) -> Tensor",
    lambda x, weights, length: indexed.bincount(LIBRARY, (x, weights, None), length),
    lambda x, weights, length: x.new_empty((length,), dtype=torch.int64 if weights is None else weights.dtype),
)


# cross_entropy ------------------------------------------------------------------------------------------------------


def cross_entropy(
    logits: Tensor, labels: Tensor, ignored: int = -100, reduction: str = "mean", out: Tensor | None = None
) -> Tensor:
    arrays, of = (logits, labels, out), losses.cross_entropy.arguments
    if is_free() and (layout := free_layout(arrays)) is not None:
        return noted(losses.cross_entropy.known(LIBRARY, layout, arrays, (ignored, reduction))[0], out)
    want_tensors(of, arrays)
    want_writable(of, arrays)
    found, _ = _CROSS_ENTROPY(logits, labels, ignored, reduction)
    return given(of, found, out)


def _save_cross_entropy(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, labels, ctx.ignored, ctx.reduction = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(logits, labels, output[1])


def _cross_entropy_backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    logits, labels, lse = ctx.saved_tensors
    if grad is None:
        return None, None, None, None
    if ctx.reduction == "mean":
        asked = (labels >= 0) & (labels < logits.shape[-1]) & (labels != ctx.ignored)
        grad = grad.to(lse.dtype) / asked.sum()
    each = grad.expand(labels.shape).contiguous()
    return _CROSS_ENTROPY_BACKWARD(logits, labels, lse, each, ctx.ignored), None, None, None


def _like_cross_entropy(logits: Tensor, labels: Tensor, ignored: int, reduction: str) -> tuple[Tensor, Tensor]:
    of = torch.float64 if logits.dtype == torch.float64 else torch.float32
    loss = logits.new_empty(labels.shape if reduction == "none" else ())
    return loss, logits.new_empty((labels.numel(),), dtype=of)


_CROSS_ENTROPY = define(
    "cross_entropy",
    "(Tensor logits, Tensor labels, int ignored, str reduction) -> (Tensor, Tensor)",
    lambda logits, labels, ignored, reduction: losses.cross_entropy(
        LIBRARY, (logits, labels, None), ignored, reduction
    ),
    _like_cross_entropy,
    save=_save_cross_entropy,
    backward=_cross_entropy_backward,
    cast=to_float32,
)

_CROSS_ENTROPY_BACKWARD = define(
    "cross_entropy_backward",
    "(Tensor logits, Tensor labels, Tensor lse, Tensor grad, int ignored) -> Tensor",
    lambda logits, labels, lse, grad, ignored: losses.cross_entropy_backward(
        LIBRARY, (logits, labels, lse, grad), ignored
    ),
    lambda logits, labels, lse, grad, ignored: logits.new_empty(logits.shape),
)
