"""Operations that allocate their results and choose their tile sizes: `matmul(a, b)`.

They take numpy arrays, torch tensors, and anything with DLPack, in any layout; torch differentiates and compiles them.
Each returns the kernel that a call runs by `matmul.kernel(a, b)`, and has a backward pass.
"""

from __future__ import annotations

from typing import Any

from numpy import ndarray

from tilewave.kernels.activations import activation_named
from tilewave.kernels.attentions import AttentionAsked
from tilewave.kernels.numbers import (
    checked_alpha,
    checked_axis,
    checked_eps,
    checked_ignored,
    checked_k,
    checked_length,
    checked_probability,
    checked_seed,
)
from tilewave.ops import call_kernels, dropouts, gates, grouped, indexed, losses, preload, products, rows, selections
from tilewave.ops.arrays import Array, are_torchs, taken, torch_operators
from tilewave.ops.attending import attention as attend
from tilewave.ops.digits import Digits
from tilewave.ops.indexed import axis_of
from tilewave.ops.mixture import counting_sort as counting_sort
from tilewave.ops.mixture import moe as moe
from tilewave.ops.operation import Operation
from tilewave.ops.plans import NOT_MADE, Operated
from tilewave.ops.results import want_shape


def _matmul(a: Array, b: Array, *, out: Array | None = None) -> Array:
    """a · b, with batches and broadcasting as `torch.matmul` has them."""
    if type(a) is ndarray and (found := products.matmul.replayed((a, b, out), Digits.ALL)) is not NOT_MADE:
        return found
    if are_torchs(a, b):
        return torch_operators().matmul(a, b, out)
    lib, arrays = taken(products.matmul.arguments, a, b, out)
    return _given(products.matmul(lib, tuple(arrays), lib.digits()), out)


def _linear(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
    residual: Array | None = None,
    out: Array | None = None,
) -> Array:
    """activation(x · weightᵀ + bias) + residual; an activation is gelu, gelu_tanh, relu or silu."""
    if activation is not None:
        activation_named("linear", activation)
    if (
        type(x) is ndarray
        and (found := products.linear.replayed((x, weight, bias, residual, out), activation, False, Digits.ALL))
        is not NOT_MADE
    ):
        return found
    if are_torchs(x, weight):
        return torch_operators().linear(x, weight, bias, activation, residual, out)
    lib, arrays = taken(products.linear.arguments, x, weight, bias, residual, out)
    return _given(products.linear(lib, tuple(arrays), activation, False, lib.digits()), out)


def _grouped_mm(a: Array, b: Array, ends: Array, *, out: Array | None = None) -> Array:
    """a · b for groups of rows of a, of columns of b, or of both, which end at `ends`; rows of no group are undefined.

    a [T, K], b [G, K, N]: rows of group g times b[g]; a [G, M, K], b [K, T]: a[g] times columns of group g;
    a [M, T], b [T, N]: one product for each group, of its columns of a and its rows of b.
    """
    if are_torchs(a, b, ends):
        return torch_operators().grouped_mm(a, b, ends, out)
    lib, (x, y, groups, to) = taken(grouped.grouped_mm.arguments, a, b, ends, out)
    if grouped.is_transposed(x, y):
        found = grouped.grouped_mm(lib, grouped.transposed(x, y, groups, to))
        return _given(found.swapaxes(0, 1), out)
    return _given(grouped.grouped_mm(lib, (x, y, groups, to)), out)


def _softmax(x: Array, dim: int = -1, *, out: Array | None = None) -> Array:
    """exp(x) / the sum of exp(x) along an axis."""
    if are_torchs(x):
        return torch_operators().softmax(x, dim, out)
    return _along_axis(rows.softmax, x, dim, out)


def _cumsum(x: Array, dim: int = -1, *, out: Array | None = None) -> Array:
    """The sums of all elements up to each along an axis; those of integers are i64."""
    if are_torchs(x):
        return torch_operators().cumsum(x, dim, out)
    return _along_axis(rows.cumsum, x, dim, out)


def _along_axis(of: Operated, x: Array, dim: int, out: Array | None) -> Array:
    """Return the result of an operation along the last axis, for any axis."""
    caller = of.arguments.caller
    lib, (given, to) = taken(of.arguments, x, out)
    rows.want_rows(caller, given)
    axis = checked_axis(caller, dim, len(given.shape))
    if axis in (-1, len(given.shape) - 1):
        return _given(of(lib, (given, to)), out)
    if to is None:
        return of(lib, (given.swapaxes(axis, -1), None)).swapaxes(axis, -1)
    want_shape(caller, to, given.shape)
    of(lib, (given.swapaxes(axis, -1), to.swapaxes(axis, -1)))
    return out


def _topk(x: Array, k: int, dim: int = -1) -> Any:
    """The k largest numbers along an axis, the largest first, and their indices; of equal numbers the first first."""
    k = checked_k("topk", k)
    if are_torchs(x):
        return torch_operators().topk(x, k, dim)
    lib, (given,) = taken(selections.topk.arguments, x)
    rows.want_rows("topk", given)
    axis = checked_axis("topk", dim, len(given.shape))
    values, indices = selections.topk(lib, (given.swapaxes(axis, -1),), k)
    return values.swapaxes(axis, -1), indices.swapaxes(axis, -1)


def _argmax(x: Array, dim: int = -1, *, out: Array | None = None) -> Array:
    """The index of the largest number along an axis, the first of several, or of NaNs."""
    if are_torchs(x):
        return torch_operators().argmax(x, dim, out)
    lib, (given, to) = taken(selections.argmax.arguments, x, out)
    rows.want_rows("argmax", given)
    axis = checked_axis("argmax", dim, len(given.shape)) % len(given.shape)
    order = [i for i in range(len(given.shape)) if i != axis]
    return _given(selections.argmax(lib, (given.transpose(*order, axis), to)), out)


def _rms_norm(
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-5,
    *,
    residual: Array | None = None,
    out: Array | None = None,
) -> Any:
    """x / sqrt(mean of x² + eps) · weight along the last axis.

    With a residual: the norm of x + residual, which goes to `out`, and that sum, which is always a new array.
    """
    eps = checked_eps("rms_norm", eps)
    if are_torchs(x):
        return torch_operators().rms_norm(x, weight, eps, residual, out)
    if residual is None:
        lib, arrays = taken(rows.rms_norm.arguments, x, weight, out)
        return _given(rows.rms_norm(lib, tuple(arrays), eps), out)
    lib, arrays = taken(rows.add_rms_norm.arguments, x, residual, weight, out)
    found, total = rows.add_rms_norm(lib, tuple(arrays), eps)
    return _given(found, out), total


def _layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5, *, out: Array | None = None
) -> Array:
    """(x - mean) / sqrt(variance + eps) · weight + bias along the last axis."""
    eps = checked_eps("layer_norm", eps)
    if are_torchs(x):
        return torch_operators().layer_norm(x, weight, bias, eps, out)
    lib, arrays = taken(rows.layer_norm.arguments, x, weight, bias, out)
    return _given(rows.layer_norm(lib, tuple(arrays), eps), out)


def _attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    bias: Array | None = None,
    out: Array | None = None,
) -> Array:
    """softmax(q · kᵀ · scale + bias) · v for every query of every head; the last query is aligned with the last key."""
    asked = AttentionAsked.of("attention", causal, window, scale, soft_cap)
    if are_torchs(q):
        return torch_operators().attention(q, k, v, bias, *asked, out)
    lib, arrays = taken(attend.arguments, q, k, v, bias, out)
    return _given(attend(lib, tuple(arrays), asked, False), out)


def _gated(gate: Array, up: Array, activation: str = "silu", *, out: Array | None = None) -> Array:
    """activation(gate) · up: SwiGLU with silu, GeGLU with gelu; gelu_tanh and relu are the others."""
    activation_named("gated", activation)
    if are_torchs(gate, up):
        return torch_operators().gated(gate, up, activation, out)
    lib, arrays = taken(gates.gated.arguments, gate, up, out)
    return _given(gates.gated(lib, tuple(arrays), activation), out)


def _dropout(x: Array, p: float = 0.5, *, seed: int, out: Array | None = None) -> Array:
    """x / (1 - p), with elements zeroed at random with probability p: which ones depends on the seed alone."""
    p, seed = checked_probability("dropout", p), checked_seed("dropout", seed)
    if are_torchs(x):
        return torch_operators().dropout(x, p, seed, out)
    lib, arrays = taken(dropouts.dropout.arguments, x, out)
    return _given(dropouts.dropout(lib, tuple(arrays), p, seed), out)


def _embedding(weight: Array, ids: Array, *, out: Array | None = None) -> Array:
    """weight[ids]: a row of weights for each id, zeros for an id out of bounds."""
    if are_torchs(weight, ids):
        return torch_operators().embedding(weight, ids, out)
    lib, arrays = taken(indexed.embedding.arguments, weight, ids, out)
    return _given(indexed.embedding(lib, tuple(arrays)), out)


def _index_select(x: Array, dim: int, index: Array, *, out: Array | None = None) -> Array:
    """x at the indices along an axis, zeros for an index out of bounds."""
    if are_torchs(x, index):
        return torch_operators().index_select(x, dim, index, out)
    lib, arrays = taken(indexed.index_select.arguments, x, index, out)
    return _given(indexed.index_select(lib, tuple(arrays), axis_of("index_select", dim, arrays[0])), out)


def _index_add(x: Array, dim: int, index: Array, source: Array, *, alpha: float = 1, out: Array | None = None) -> Array:
    """x with alpha · source added at the indices along an axis, in any order; indices out of bounds add nothing."""
    alpha = checked_alpha("index_add", alpha)
    if are_torchs(x, index, source):
        return torch_operators().index_add(x, dim, index, source, alpha, out)
    lib, arrays = taken(indexed.index_add.arguments, x, index, source, out)
    return _given(indexed.index_add(lib, tuple(arrays), axis_of("index_add", dim, arrays[0]), alpha), out)


def _bincount(x: Array, length: int, weights: Array | None = None, *, out: Array | None = None) -> Array:
    """How often each number from 0 up to a length is in x, or the sum of its weights; other numbers are left out."""
    length = checked_length("bincount", length)
    if are_torchs(x):
        return torch_operators().bincount(x, length, weights, out)
    lib, arrays = taken(indexed.bincount.arguments, x, weights, out)
    return _given(indexed.bincount(lib, tuple(arrays), length), out)


def _cross_entropy(
    logits: Array, labels: Array, *, ignore_index: int = -100, reduction: str = "mean", out: Array | None = None
) -> Array:
    """-log_softmax(logits)[label] of each row, their sum, or their mean over labels that are columns."""
    losses.want_reduction(reduction)
    ignore_index = checked_ignored("cross_entropy", ignore_index)
    if are_torchs(logits, labels):
        return torch_operators().cross_entropy(logits, labels, ignore_index, reduction, out)
    lib, arrays = taken(losses.cross_entropy.arguments, logits, labels, out)
    found, _ = losses.cross_entropy(lib, tuple(arrays), ignore_index, reduction)
    return _given(found, out)


def _given(found: Array, out: Array | None) -> Array:
    """Return `out`, of which an operation writes a view, where the caller gave one; else the result."""
    return found if out is None else out


attention = Operation("attention", _attention, call_kernels.of_attention)
matmul = Operation("matmul", _matmul, call_kernels.of_matmul)
linear = Operation("linear", _linear, call_kernels.of_linear)
grouped_mm = Operation("grouped_mm", _grouped_mm, call_kernels.of_grouped_mm)
softmax = Operation("softmax", _softmax, call_kernels.of_softmax)
cumsum = Operation("cumsum", _cumsum, call_kernels.of_cumsum)
topk = Operation("topk", _topk, call_kernels.of_topk)
argmax = Operation("argmax", _argmax, call_kernels.of_argmax)
rms_norm = Operation("rms_norm", _rms_norm, call_kernels.of_rms_norm)
layer_norm = Operation("layer_norm", _layer_norm, call_kernels.of_layer_norm)
gated = Operation("gated", _gated, call_kernels.of_gated)
dropout = Operation("dropout", _dropout, call_kernels.of_dropout)
embedding = Operation("embedding", _embedding, call_kernels.of_embedding)
index_select = Operation("index_select", _index_select, call_kernels.of_index_select)
index_add = Operation("index_add", _index_add, call_kernels.of_index_add)
cross_entropy = Operation("cross_entropy", _cross_entropy, call_kernels.of_cross_entropy)
bincount = Operation("bincount", _bincount, call_kernels.of_bincount)

preload.start()
