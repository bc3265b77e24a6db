"""Attention on arrays: axes in front of heads are batches, and none is needed."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tilewave.errors import CallError, here
from tilewave.ir.types import DType
from tilewave.kernels.attentions import attention_for
from tilewave.kernels.rows import arithmetic_of
from tilewave.lang.kernel import WaveKernel
from tilewave.ops.arrays import Array, ArrayLibrary, Shape, prepared
from tilewave.ops.plans import CallWork, KernelLaunch, Operated, given_only


class AttentionAsked(NamedTuple):
    """What is made of scores, and which keys a query sees."""

    causal: bool = False
    window: int | None = None
    scale: float | None = None
    soft_cap: float | None = None


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
    results = {"out": prepared("attention", lib, out, shape, held, q)}
    if keeps:
        results["lse"] = lib.empty(tuple(q.shape[:-1]), sums_dtype(held), q)
    if not prod(shape):
        return CallWork(results)
    added = None if bias is None else _stacked(lib.broadcast(bias, (*q.shape[:-1], k.shape[-2])))
    lse = results["lse"].reshape(_stacked_shape((*q.shape[:-1], 1))[:-1]) if keeps else None
    arrays = (_stacked(q), _stacked(k), _stacked(v), _stacked(results["out"]))
    kernel = attention_for(*arrays, *asked, added, lse)
    names = given_only(q=arrays[0], k=arrays[1], v=arrays[2], bias=added, out=arrays[3], lse=lse)
    return CallWork(results, KernelLaunch(kernel, names))


attention = Operated(("q", "k", "v", "bias", "out"), _attention)
"""softmax(q · kᵀ · scale + bias) · v; what is asked is said, and whether the logarithms of the sums of powers are given
back as well."""


def attention_kernel_of(q: Array, k: Array, v: Array, asked: AttentionAsked) -> WaveKernel:
    """The kernel of such a call, without a bias."""
    _check_axes(q, k, v)
    queries, keys, values = (_stacked(x) for x in (q, k, v))
    return attention_for(queries, keys, values, queries, *asked)


def sums_dtype(dtype: DType) -> DType:
    """Of the logarithms of sums of powers."""
    return arithmetic_of("attention", q=dtype)


def _check_axes(q: Array, k: Array, v: Array) -> None:
    for name, array in (("k", k), ("v", v)):
        if len(array.shape) != len(q.shape) or len(q.shape) < 2:
            what = f"attention: q is {_dims(q)}, and {name} is {_dims(array)}"
            raise CallError(what, loc=here(), remedy="all end with places and elements, and have as many axes")
    same = tuple(q.shape[:-3]) == tuple(k.shape[:-3]) == tuple(v.shape[:-3])
    if not same or q.shape[-1] != k.shape[-1] or tuple(k.shape[:-1]) != tuple(v.shape[:-1]):
        what = f"attention: q is {_dims(q)}, k is {_dims(k)}, v is {_dims(v)}"
        remedy = "batches are equal, q and k have keys of one size, and there is a value for each key"
        raise CallError(what, loc=here(), remedy=remedy)


def _dims(array: Array) -> str:
    return "x".join(map(str, array.shape)) or "one number"


def _stacked_shape(shape: Shape) -> Shape:
    """Batch, head, place and element."""
    shape = (1,) * (4 - len(shape)) + tuple(shape)
    return shape if len(shape) == 4 else (prod(shape[:-3]), *shape[-3:])


def _stacked(x: Array) -> Array:
    return x if len(x.shape) == 4 else x.reshape(_stacked_shape(x.shape))
