"""Attention on arrays: axes in front of heads are batches, and none is needed."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewave.errors import CallError, here
from tilewave.ir.types import DType
from tilewave.kernels import attention as attention_into
from tilewave.kernels.attentions import Heads, Scores, attention_kernel, attention_tile_for, looked_at_all
from tilewave.kernels.rows import arithmetic_of
from tilewave.lang.kernel import WaveKernel
from tilewave.ops.arrays import Array, ArrayLibrary, Shape, prepared, target_of


@dataclass(frozen=True)
class AttentionAsked:
    """What is made of scores, and which keys a query sees."""

    causal: bool = False
    window: int | None = None
    scale: float | None = None
    soft_cap: float | None = None


def attention(
    lib: ArrayLibrary,
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    asked: AttentionAsked,
    out: Array | None = None,
    lse: Array | None = None,
) -> Array:
    """softmax(q · kᵀ · scale + bias) · v; the logarithms of the sums of powers go to `lse`, if there is one."""
    _check_axes(q, k, v)
    shape = (*q.shape[:-1], v.shape[-1])
    found = prepared("attention", lib, out, shape, lib.dtype("attention", "q", q), q)
    if prod(shape):
        added = None if bias is None else _stacked(lib.broadcast(bias, (*q.shape[:-1], k.shape[-2])))
        sums = None if lse is None else lse.reshape(_stacked_shape((*q.shape[:-1], 1))[:-1])
        arrays = (_stacked(q), _stacked(k), _stacked(v), _stacked(found))
        attention_into(*arrays, asked.causal, asked.window, asked.scale, asked.soft_cap, added, sums)
    return found


def attention_kernel_of(lib: ArrayLibrary, q: Array, k: Array, v: Array, asked: AttentionAsked) -> WaveKernel:
    """The kernel of such a call, without a bias."""
    _check_axes(q, k, v)
    views = looked_at_all("attention", q=_stacked(q), k=_stacked(k), v=_stacked(v))
    heads, target = Heads.of("attention", views), target_of("attention", lib.device(q))
    scores = Scores.of("attention", heads, asked.scale, asked.causal, asked.window, asked.soft_cap)
    tile = attention_tile_for(target, heads, scores, views["k"].dtype)
    return attention_kernel(tile, heads, scores, *(views[name].dtype for name in ("q", "k", "v", "q")))


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
