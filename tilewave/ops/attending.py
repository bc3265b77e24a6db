"""Attention on arrays: axes before the heads are batches, and may be missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tilewave.errors import CallError, here
from tilewave.ir.types import DType
from tilewave.kernels.attentions import AttentionAsked
from tilewave.kernels.decode import attention_calls
from tilewave.kernels.rows import arithmetic_of
from tilewave.lang.kernel import WaveKernel
from tilewave.ops.arrays import Array, ArrayLibrary, Shape, broadcast, folded, spelled
from tilewave.ops.plans import CallWork, KernelLaunch, Operated, given_only
from tilewave.ops.results import prepared, written


def _attention(
    lib: ArrayLibrary,
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    out: Array | None,
    asked: AttentionAsked,
    keeps: bool,
) -> CallWork:
    _check_axes(q, k, v)
    shape, held = (*q.shape[:-1], v.shape[-1]), lib.dtype("attention", "q", q)
    if out is None and has_heads_inside(q.shape, lib.steps(q)):
        results = {"out": lib.empty((*shape[:-3], shape[-2], shape[-3], shape[-1]), held, q).swapaxes(-3, -2)}
    else:
        results = {"out": prepared("attention", lib, out, shape, held, {"q": q, "k": k, "v": v, "bias": bias})}
    if keeps:
        results["lse"] = lib.empty(tuple(q.shape[:-1]), sums_dtype(held), q)
    added = None if bias is None else broadcast("attention", lib, "bias", bias, (*q.shape[:-1], k.shape[-2]))
    if not prod(shape):
        return CallWork(results)
    to, after = written(lib, _with_heads(results["out"]), 3)
    lse = results["lse"].reshape(to.shape[:-1]) if keeps else None
    queries, keys, values, biases = (None if x is None else stacked(x) for x in (q, k, v, added))
    arrays = given_only(q=queries, k=keys, v=values, bias=biases, y=to, lse=lse)
    scratch: dict[str, Array] = {}

    def make(name: str, dtype: DType, shape: Shape) -> Array:
        scratch[name] = lib.empty(shape, dtype, q)
        return scratch[name]

    first, *more = [_launch(*call) for call in attention_calls(arrays, make, *asked)]
    return CallWork(results, first, tuple(more), scratch, after)


def has_heads_inside(shape: Sequence[Any], steps: Sequence[Any]) -> bool:
    """Return whether the heads of a position are beside each other in memory; a result for such queries is laid out
    likewise, so that to collapse heads and elements into one axis, for the layer after it, takes no copy."""
    return len(shape) > 2 and bool(shape[-3] != 1) and bool(shape[-2] != 1) and bool(steps[-2] > steps[-3])


def _launch(kernel: WaveKernel, arrays: Mapping[str, Array], numbers: tuple[int, ...]) -> KernelLaunch:
    return KernelLaunch(kernel, {"out" if name == "y" else name: array for name, array in arrays.items()}, numbers)


attention = Operated("attention", ("q", "k", "v", "bias?", "out?"), _attention)
"""softmax(q · kᵀ · scale + bias) · v; further arguments are the options of the call, and whether the log-sum-exp of
each row is returned as well."""


def attention_kernel_of(lib: ArrayLibrary, q: Array, k: Array, v: Array, asked: AttentionAsked) -> WaveKernel:
    """Return the kernel of a call without a bias; the first of two where a second one combines split keys."""
    _check_axes(q, k, v)
    arrays = {"q": stacked(q), "k": stacked(k), "v": stacked(v), "y": stacked(q)}
    return attention_calls(arrays, lambda _, dtype, shape: lib.empty(shape, dtype, q), *asked)[0].kernel


def sums_dtype(dtype: DType) -> DType:
    """Return the dtype of the log-sum-exp of each row."""
    return arithmetic_of("attention", q=dtype)


def _check_axes(q: Array, k: Array, v: Array) -> None:
    for name, array in (("k", k), ("v", v)):
        if len(array.shape) != len(q.shape) or len(q.shape) < 2:
            what = f"attention: q is {spelled(q.shape)}, and {name} is {spelled(array.shape)}"
            raise CallError(what, loc=here(), remedy="all end with positions and elements, and have as many axes")
    same = tuple(q.shape[:-3]) == tuple(k.shape[:-3]) == tuple(v.shape[:-3])
    if not same or q.shape[-1] != k.shape[-1] or tuple(k.shape[:-1]) != tuple(v.shape[:-1]):
        what = f"attention: q is {spelled(q.shape)}, k is {spelled(k.shape)}, v is {spelled(v.shape)}"
        remedy = "batches are equal, q and k have keys of one size, and there is a value for each key"
        raise CallError(what, loc=here(), remedy=remedy)


def _with_heads(x: Array) -> Array:
    """Return an array with an axis of heads, of length one where it has none."""
    return x[None] if len(x.shape) == 2 else x


def stacked(x: Array) -> Array:
    """Return an array with the four axes batch, head, position and element."""
    return folded(_with_heads(x), 3)
