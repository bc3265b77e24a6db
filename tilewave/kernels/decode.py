"""Attention of a few queries: split-KV where there are too few heads to saturate memory, with a second kernel that
combines the splits.

Query heads that share keys are rows of one tile, so that each key is read once. A split of the keys writes the weighted
mean of its values and the log-sum-exp of its scores, -inf where it has none; splits are combined in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import log
from typing import Any, NamedTuple

import numpy as np

from tilewave.backend.targets import target_on
from tilewave.errors import CallError, here, in_built_in
from tilewave.ir.types import F64, I32, INDEX, DType
from tilewave.kernels.attentions import (
    H_KV,
    K1,
    K2,
    LOG2_E,
    AttentionTile,
    B,
    H,
    Heads,
    M,
    N,
    Scores,
    Shapes,
    Weighted,
    attention,
    attention_for,
    looked_at_all,
    lowest,
    power,
    taking,
    walked,
)
from tilewave.kernels.rows import arithmetic_of
from tilewave.kernels.split_kv import MOST_QUERIES, AttentionSizes, KeySplit, is_row_major, split_for
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import TilingConstraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel, wave
from tilewave.lang.loops import iterate
from tilewave.lang.ops import cast, first_index, scalar, self_index
from tilewave.lang.products import mma
from tilewave.lang.shapes import broadcast
from tilewave.lang.symbols import sym
from tilewave.lang.types import RegisterType
from tilewave.runtime.arrays import ArrayView

R, U = sym.R, sym.U
"""Rows, which are the queries of all heads that share keys, and splits of the keys."""
PARTS_A_STEP = 8
"""Splits that are combined in one step, with all their loads in flight together."""


@in_built_in()
def attention_decode(
    q: Any,
    k: Any,
    v: Any,
    y: Any,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    bias: Any = None,
    lse: Any = None,
) -> None:
    """Compute `attention` for at most 16 queries of each head, with the keys split among workgroups."""
    arrays = {"q": q, "k": k, "v": v, "y": y}
    arrays |= {name: array for name, array in (("bias", bias), ("lse", lse)) if array is not None}
    views = looked_at_all("attention_decode", {"q": q, "k": k, "v": v, "y": y}, bias=bias, lse=lse)
    heads, queries = Heads.of("attention_decode", views), views["q"].shape[2]
    if queries > MOST_QUERIES:
        what = f"attention_decode: q has {queries} queries, but it takes up to {MOST_QUERIES}"
        raise CallError(what, loc=here(), remedy="call attention, which distributes queries over workgroups")
    if 0 in views["q"].shape[:3]:  # a tile needs at least one row
        attention(q, k, v, y, causal, window, scale, soft_cap, bias, lse)
        return
    of = arithmetic_of("attention_decode", **{name: view.dtype for name, view in views.items()})
    scores = Scores.of("attention_decode", heads, scale, causal, window, soft_cap).want_held("attention_decode", of)
    scores = scores.of_queries(queries)
    target = target_on("attention_decode", views["q"].device).name
    sizes = AttentionSizes.of(target, heads, scores, views)
    calls = row_calls(sizes, KeySplit.of(sizes), arrays, views, lambda _, of, shape: scratch(q, of, shape))
    for kernel, taken, numbers in calls:
        kernel(*taken.values(), *numbers)


Make = Callable[[str, DType, tuple[int, ...]], Any]
"""Allocates an array by name, dtype and shape, which one kernel writes and the next reads."""


class KernelCall(NamedTuple):
    """A kernel and its arguments: arrays by name in the kernel's order, then numbers."""

    kernel: WaveKernel
    arrays: Mapping[str, Any]
    numbers: tuple[int, ...] = ()


def attention_calls(
    arrays: Mapping[str, Any],
    make: Make,
    causal: bool,
    window: int | None,
    scale: float | None,
    soft_cap: float | None,
) -> list[KernelCall]:
    """Return the fastest kernels for attention, in order; `arrays` are q, k, v and y, and optionally bias and lse."""
    q, k, v, y = (arrays[x] for x in ("q", "k", "v", "y"))
    bias, lse = arrays.get("bias"), arrays.get("lse")
    views = looked_at_all("attention", {"q": q, "k": k, "v": v, "y": y}, bias=bias, lse=lse)
    heads = Heads.of("attention", views)
    of = arithmetic_of("attention", **{name: view.dtype for name, view in views.items()})
    scores = Scores.of("attention", heads, scale, causal, window, soft_cap).want_held("attention", of)
    scores = scores.of_queries(views["q"].shape[2])
    sizes = AttentionSizes.of(target_on("attention", views["q"].device).name, heads, scores, views)
    is_copied = "bias" in views and not is_row_major(views["bias"], views["q"], heads)  # as large as all scores
    split = None if is_copied else split_for(sizes)
    if split is not None:
        return row_calls(sizes, split, arrays, views, make)
    kernel = attention_for(q, k, v, y, causal, window, scale, soft_cap, bias, lse)
    return [KernelCall(kernel, {x: arrays[x] for x in ("q", "k", "v", "bias", "y", "lse") if x in arrays})]


def row_calls(
    sizes: AttentionSizes,
    split: KeySplit,
    arrays: Mapping[str, Any],
    views: dict[str, ArrayView],
    make: Make,
) -> list[KernelCall]:
    """Return the kernels of a call whose queries are rows, in order; arguments are those of `attention_calls`."""
    _want_shapes(sizes, views)
    heads, scores = sizes.heads, sizes.scores
    dtypes = {name: found.dtype for name, found in views.items()}
    of = arithmetic_of("attention", **dtypes)
    rows = sizes.batch, sizes.heads_kv, sizes.rows
    results = {x: arrays[x] for x in ("y", "lse") if x in arrays}
    inputs, calls = _row_inputs(sizes, arrays, views, make)
    fits = all(views[x].shape[3:] in ((), (heads.size_v,)) for x in results)  # the combining kernel refuses others
    if not fits or not all(is_row_major(views[x], views["q"], heads) for x in results):
        split = split.to_be_joined(sizes)
    facts = split.way.tile, heads, scores, sizes.places, of
    if split.is_whole:
        kernel = attention_rows_kernel(*facts, *map(dtypes.get, ("q", "k", "v", "y", "bias", "lse")))
        shapes = {"y": (*rows, heads.size_v), "lse": rows}
        written = {x: results[x].reshape(shapes[x]) for x in results}
        return [*calls, KernelCall(split.way.prepared(kernel), {**inputs, **written})]
    means, sums = make("means", of, (split.parts, *rows, heads.size_v)), make("sums", of, (split.parts, *rows))
    find = attention_splits_kernel(*facts, *map(dtypes.get, ("q", "k", "v", "bias")))
    found = {**inputs, "means": means, "sums": sums}
    calls.append(KernelCall(split.way.prepared(find), found, (split.length,)))
    by_head = split.parts, sizes.batch, sizes.heads_kv * heads.sharing, sizes.queries
    parts = {"means": means.reshape(*by_head, heads.size_v), "sums": sums.reshape(by_head)}
    join = join_splits_kernel(heads.size_v, of, dtypes["y"], dtypes.get("lse"))
    return [*calls, KernelCall(join, {**parts, **results})]


def _want_shapes(sizes: AttentionSizes, views: Mapping[str, ArrayView]) -> None:
    """Raise an error where an array that `row_calls` reshapes does not have the shape that follows from q, k and v."""
    queries = views["q"].shape[:3]
    wanted = {"y": (*queries, sizes.heads.size_v), "lse": queries, "bias": (*queries, sizes.keys)}
    for name, shape in wanted.items():
        if name in views and views[name].shape != shape:
            has, needs = ("x".join(map(str, x)) for x in (views[name].shape, shape))
            what = f"attention: {name} is {has}, but q, k and v need {needs}"
            raise CallError(what, loc=here(), remedy=f"pass an array of shape {shape} as {name}")


def _row_inputs(
    sizes: AttentionSizes, arrays: Mapping[str, Any], views: dict[str, ArrayView], make: Make
) -> tuple[dict[str, Any], list[KernelCall]]:
    """Return the inputs of row kernels by name, and the call that copies queries where a view as rows is impossible."""
    heads, (q, k, v) = sizes.heads, (arrays[x] for x in ("q", "k", "v"))
    rows, name, calls = (sizes.batch, sizes.heads_kv, sizes.rows), "q", []
    if not is_row_major(views["q"], views["q"], heads):
        name, dtype, shape = "rows", views["q"].dtype, views["q"].shape
        copied = make(name, dtype, shape)
        calls, q = [KernelCall(copy_queries_kernel(heads.size, dtype), {"q": q, name: copied})], copied
    inputs = {name: q.reshape(*rows, heads.size), "k": k, "v": v}
    if "bias" in arrays:
        inputs["bias"] = arrays["bias"].reshape(*rows, sizes.keys)
    return inputs, calls


def scratch(like: Any, of: DType, shape: tuple[int, ...]) -> Any:
    """Return a new array for intermediate results, of the library and device of `like`."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, of.numpy)
    if hasattr(like, "new_empty"):
        one = like.new_empty(1)
        return (one.double() if of == F64 else one.float()).new_empty(shape)
    what = f"attention_decode: q is a {type(like).__name__}, which cannot be allocated for intermediate results"
    raise CallError(what, loc=here(), remedy="pass numpy arrays or torch tensors")


# the kernels --------------------------------------------------------------------------------------------------------


@cache
def copy_queries_kernel(size: int, dtype: DType) -> WaveKernel:
    """Return the kernel that copies q[B, H, M, K1], of any strides, to rows[B, H, M, K1]."""

    def copy(q: Any, rows: Any) -> None:
        write(read(q), rows)

    shapes: Shapes = {"q": (B, H, M, K1), "rows": (B, H, M, K1)}
    each = [WorkgroupConstraint(M, 1, 0), WorkgroupConstraint(H, 1, 2), WorkgroupConstraint(B, 1, 3)]
    return wave(each, subs={K1: size})(taking("copy_queries", copy, shapes, {"q": dtype, "rows": dtype}))


@cache
def attention_splits_kernel(
    tile: AttentionTile,
    heads: Heads,
    scores: Scores,
    places: int | None,
    of: DType,
    q_dtype: DType,
    k_dtype: DType,
    v_dtype: DType,
    bias_dtype: DType | None = None,
) -> WaveKernel:
    """Return the kernel from q[B, H_KV, R, K1], k, v and the keys of a split to means[U, B, H_KV, R, N] and
    sums[U, B, H_KV, R].

    `places` is the period, in rows, of the queries' positions; None where they do not repeat. Where it has a dtype,
    bias[B, H_KV, R, K2] is added to the scores.
    """

    def find(q: Any, k: Any, v: Any, bias: Any, means: Any, sums: Any, length: Any) -> None:
        start = first_index(U) * length
        found = walked_rows(q, k, v, bias, scores, places, of, v_dtype, start=start, stop=start + length)
        write(broadcast(found.mean, (U, B, H_KV, R, N)), means)
        write(broadcast(found.log2_sum, (U, B, H_KV, R)), sums)

    shapes: Shapes = {"q": (B, H_KV, R, K1), "k": (B, H_KV, K2, K1), "v": (B, H_KV, K2, N)}
    shapes |= {"bias": (B, H_KV, R, K2), "means": (U, B, H_KV, R, N), "sums": (U, B, H_KV, R)}
    inputs = {"q": q_dtype, "k": k_dtype, "v": v_dtype, "bias": bias_dtype}
    dtypes = {**inputs, "means": of, "sums": of, "length": INDEX}
    each = [WorkgroupConstraint(H_KV, 1, 2), WorkgroupConstraint(B, 1, 3), WorkgroupConstraint(U, 1, 4)]
    function = taking("attention_parts", find, shapes, dtypes)
    return wave([*tile.constraints(R), *each], subs={K1: heads.size, N: heads.size_v})(function)


def walked_rows(
    q: Any, k: Any, v: Any, bias: Any, scores: Scores, places: int | None, of: DType, v_dtype: DType, **part: Any
) -> Weighted:
    """Return the softmax state of each row after all keys, or a split of them."""
    row = self_index(R, I32)
    place = row + scalar(K2 - R, I32) if places is None else row % places + scalar(K2 - places, I32)
    unit = scores.late_unit(of, bias)

    def score() -> Any:
        products = mma(read(q), read(k), RegisterType((B, H_KV, R, K2), of)(0.0))
        powers = scores.powers(products) if unit == 1 else products
        powers = powers if bias is None else powers + cast(read(bias), of) * LOG2_E
        return scores.seen_only(powers, place)

    return walked((B, H_KV, R), of, score, lambda: read(v), v_dtype, unit, **part)


@cache
def attention_rows_kernel(
    tile: AttentionTile,
    heads: Heads,
    scores: Scores,
    places: int | None,
    of: DType,
    q_dtype: DType,
    k_dtype: DType,
    v_dtype: DType,
    y_dtype: DType,
    bias_dtype: DType | None = None,
    lse_dtype: DType | None = None,
) -> WaveKernel:
    """Return the kernel from q[B, H_KV, R, K1], k and v to y[B, H_KV, R, N], and to lse[B, H_KV, R] where it has a
    dtype; a workgroup reads all keys of a head.

    `places` and the bias are those of `attention_splits_kernel`.
    """

    def attend(q: Any, k: Any, v: Any, bias: Any, y: Any, lse: Any) -> None:
        found = walked_rows(q, k, v, bias, scores, places, of, v_dtype)
        write(cast(found.mean, y_dtype), y)
        if lse is not None:
            write(cast(found.log2_sum * log(2), lse_dtype or of), lse)

    shapes: Shapes = {"q": (B, H_KV, R, K1), "k": (B, H_KV, K2, K1), "v": (B, H_KV, K2, N)}
    shapes |= {"bias": (B, H_KV, R, K2), "y": (B, H_KV, R, N), "lse": (B, H_KV, R)}
    dtypes = {"q": q_dtype, "k": k_dtype, "v": v_dtype, "bias": bias_dtype, "y": y_dtype, "lse": lse_dtype}
    each = [WorkgroupConstraint(H_KV, 1, 2), WorkgroupConstraint(B, 1, 3)]
    function = taking("attention_rows", attend, shapes, dtypes)
    return wave([*tile.constraints(R), *each], subs={K1: heads.size, N: heads.size_v})(function)


@cache
def join_splits_kernel(size_v: int, of: DType, y_dtype: DType, lse_dtype: DType | None = None) -> WaveKernel:
    """Return the kernel from means[U, B, H, M, N] and sums[U, B, H, M] to y[B, H, M, N], and maybe to lse[B, H, M]."""

    def join(means: Any, sums: Any, y: Any, lse: Any) -> None:
        none = RegisterType((B, H, M), of)

        @iterate(U, init_args=[none(lowest(of)), none(0.0), RegisterType((B, H, M, N), of)(0.0)])
        def found(largest: Any, total: Any, weighted: Any) -> Any:
            x = read(sums)
            larger = x.max(dim=U, acc=largest)
            shrink, weight = power(largest - larger), power(x - larger)
            total = total * shrink + weight.sum(dim=U)
            return larger, total, weighted * shrink + (read(means) * weight).sum(dim=U)

        joined = Weighted(*found)
        write(cast(joined.mean, y_dtype), y)
        if lse is not None:
            write(cast(joined.log2_sum * log(2), lse_dtype or of), lse)

    shapes: Shapes = {"means": (U, B, H, M, N), "sums": (U, B, H, M), "y": (B, H, M, N), "lse": (B, H, M)}
    dtypes = {"means": of, "sums": of, "y": y_dtype, "lse": lse_dtype}
    each = [WorkgroupConstraint(M, 1, 0), WorkgroupConstraint(H, 1, 2), WorkgroupConstraint(B, 1, 3)]
    return wave([*each, TilingConstraint(U, PARTS_A_STEP)], subs={N: size_v})(
        taking("join_parts", join, shapes, dtypes)
    )
