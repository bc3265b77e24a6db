"""Attention of a few queries: keys are split among workgroups, and a second kernel joins what they found, if need be:
where there are fewer heads than keep memory busy.

Heads of queries that share keys are rows of one tile, so that each key is read once. A part of the keys leaves the mean
of its values, and the logarithm of the sum of its powers, -inf where it has none; parts are joined in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import log
from typing import Any

import numpy as np

from tilewave.backend.targets import target_on
from tilewave.errors import CallError, here, in_built_in
from tilewave.ir.types import F64, I32, INDEX, DType
from tilewave.kernels.attentions import (
    H_KV,
    K1,
    K2,
    MOST_KEYS,
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
    attention_tile_for,
    looked_at_all,
    lowest,
    power,
    taking,
    walked,
)
from tilewave.kernels.rows import arithmetic_of
from tilewave.lang.constraints import TilingConstraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel, wave
from tilewave.lang.loops import iterate
from tilewave.lang.ops import cast, first_index, mma, read, scalar, self_index, write
from tilewave.lang.shapes import broadcast
from tilewave.lang.symbols import sym
from tilewave.lang.types import RegisterType
from tilewave.machine.chips import CHIPS
from tilewave.runtime.arrays import ArrayView

R, U = sym.R, sym.U
"""Rows, which are the queries of all heads that share keys, and parts of the keys."""
MOST_QUERIES = 16
WORKGROUPS = 16
"""As many are wanted where a target does not say how many processors it has."""
WORKGROUPS_A_PROCESSOR = 4
"""Where lanes load their tiles."""
LEAST_STEPS = 4
"""Of a part: one that is shorter costs more to join than it saves."""
STEPS_TO_BEGIN = 4
"""So many would be taken meanwhile: until a workgroup has its first keys, and when it writes what it found."""
MOST_ROUNDS = 4
"""More of them are no better filled."""
PARTS_A_STEP = 8
"""Joined at once: all of them are on their way together."""


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
    lse: Any = None,
) -> None:
    """What `attention` gives, for at most 16 queries of each head: the keys are split among workgroups."""
    views = looked_at_all("attention_decode", {"q": q, "k": k, "v": v, "y": y}, lse=lse)
    heads, (batch, of_q, queries, _) = Heads.of("attention_decode", views), views["q"].shape
    if queries > MOST_QUERIES:
        what = f"attention_decode: q has {queries} queries, but it takes up to {MOST_QUERIES}"
        raise CallError(what, loc=here(), remedy="call attention, which shares queries among workgroups")
    if not queries:  # no rows, of which a tile could be made
        attention(q, k, v, y, causal, window, scale, soft_cap, lse=lse)
        return
    dtypes = {name: found.dtype for name, found in views.items()}
    of = arithmetic_of("attention_decode", **dtypes)
    scores = Scores.of("attention_decode", heads, scale, causal, window, soft_cap).want_held("attention_decode", of)
    target, (of_k, keys) = target_on("attention_decode", views["q"].device).name, views["k"].shape[1:3]
    rows = heads.sharing * queries
    way = DecodeWay.of(target, heads, dtypes["k"], rows)
    alone = DecodeWay.alone(target, heads, scores, dtypes["k"], rows)
    length = part_length(way.at_once, batch * of_k, -(-keys // way.tile.keys)) * way.tile.keys
    parts = -(-keys // length)
    in_rows = q.reshape(batch, of_k, rows, heads.size)
    head_bytes = keys * (heads.size + heads.size_v) * dtypes["k"].bytes
    either = alone != way and parts > 1
    is_whole = is_sooner_whole(alone.at_once, way.at_once, batch * of_k, head_bytes, parts) if either else parts == 1
    if is_whole and all(lies_in_rows(views[x], views["q"], heads) for x in views if x in ("y", "lse")):
        whole = attention_rows_kernel(
            alone.tile, heads, scores, queries, of, *map(dtypes.get, ("q", "k", "v", "y", "lse"))
        )
        found = [y.reshape(batch, of_k, rows, heads.size_v), *([] if lse is None else [lse.reshape(batch, of_k, rows)])]
        alone.prepared(whole, target)(in_rows, k, v, *found)
        return
    means, sums = scratch(q, of, (parts, batch, of_k, rows, heads.size_v), (parts, batch, of_k, rows))

    find = attention_parts_kernel(way.tile, heads, scores, queries, of, dtypes["q"], dtypes["k"], dtypes["v"])
    way.prepared(find, target)(in_rows, k, v, means, sums, length)
    means, sums = means.reshape(parts, batch, of_q, queries, heads.size_v), sums.reshape(parts, batch, of_q, queries)
    join = join_parts_kernel(heads.size_v, of, dtypes["y"], dtypes.get("lse"))
    join(means, sums, *(array for array in (y, lse) if array is not None))


# how it is cut ------------------------------------------------------------------------------------------------------

SIGNAL_BYTES = 1 << 9
RESULT_BYTES = 16 << 10
"""Two chunks of 64 rows of 128 bytes, on their way out."""
QUERIES_HELD = 2
"""Tiles of queries for which a ring has room."""


@dataclass(frozen=True)
class DecodeWay:
    """How many rows and keys a workgroup takes, how many steps it brings ahead, and how many run at once.

    Of those that take a part of a head, two are to fit on a processor: one brings keys while the other begins or ends.
    One that takes a whole head has all of its shared memory.
    """

    tile: AttentionTile
    at_once: int
    steps_ahead: int | None = None
    """None: as the compiler likes."""

    @staticmethod
    @cache
    def of(target: str, heads: Heads, dtype: DType, rows: int) -> DecodeWay:
        tile = rows_tile_for(target, heads, dtype, rows)
        chip = CHIPS.get(target)
        if chip is None:
            return DecodeWay(tile, WORKGROUPS)
        if chip.copy_engine is None:
            return DecodeWay(tile, WORKGROUPS_A_PROCESSOR * chip.processors)
        for keys in (tile.keys, tile.keys // 2):
            shorter = replace(tile, keys=keys)
            ahead = _steps_in(chip.shared.for_each_of(2), heads, dtype, shorter, QUERIES_HELD)
            if ahead > 1:
                return DecodeWay(shorter, 2 * chip.processors, ahead)
        return DecodeWay(tile, chip.processors)

    @staticmethod
    @cache
    def alone(target: str, heads: Heads, scores: Scores, dtype: DType, rows: int) -> DecodeWay:
        """Of whole heads, one to a processor; as parts where nobody copies."""
        tile, chip = rows_tile_for(target, heads, dtype, rows), CHIPS.get(target)
        if chip is None or chip.copy_engine is None:
            return DecodeWay.of(target, heads, dtype, rows)
        for keys in (attention_tile_for(target, heads, scores, dtype).keys, tile.keys):
            longer = replace(tile, keys=keys)
            ahead = _steps_in(chip.shared.bytes, heads, dtype, longer, queries_held=1)
            if ahead > 1:
                return DecodeWay(longer, chip.processors, ahead)
        return DecodeWay(tile, chip.processors)

    def prepared(self, kernel: WaveKernel, target: str) -> Callable[..., None]:
        """What is called."""
        return kernel if self.steps_ahead is None else _compiled(kernel, target, self.steps_ahead)


def _steps_in(shared_bytes: int, heads: Heads, dtype: DType, tile: AttentionTile, queries_held: int) -> int:
    """How many steps of keys and values lie beside the queries in what a workgroup has of shared memory."""
    room = shared_bytes - SIGNAL_BYTES - RESULT_BYTES
    room -= queries_held * tile.queries * heads.size * dtype.bytes
    return room // (tile.keys * (heads.size + heads.size_v) * dtype.bytes)


@cache
def _compiled(kernel: WaveKernel, target: str, steps_ahead: int) -> Callable[..., None]:
    found: Callable[..., None] = kernel.compile(target=target, buffers=steps_ahead)
    return found


@lru_cache
def part_length(at_once: int, heads: int, steps: int) -> int:
    """How many steps a part has, so that workgroups that run at once are done soonest: each has a part of a head."""

    def cost(parts: int) -> int:
        length = -(-steps // parts)
        return -(-heads * -(-steps // length) // at_once) * (length + STEPS_TO_BEGIN)

    most = min(steps // LEAST_STEPS, MOST_ROUNDS * at_once // max(heads, 1))
    return max(-(-steps // min(range(1, max(most, 1) + 1), key=cost)), 1) if steps else 1


MOST_SHARES = 2
"""Of the machine's memory, one processor takes so much at most: half of them are enough to keep it busy. 64 heads of
4096 keys were read at 0.90 of a copy's speed on an H200, 128 heads at 0.98."""
JOINING_BYTES = 128 << 10
"""What a processor's share of memory would bring until parts are joined: some microseconds."""


@lru_cache
def is_sooner_whole(processors: int, at_once: int, heads: int, head_bytes: int, parts: int) -> bool:
    """Whether whole heads, one to a processor, are done before parts of them are, and joined."""
    in_parts = _meanwhile(processors, at_once, heads * parts, head_bytes / parts)
    return _meanwhile(processors, processors, heads, head_bytes) <= in_parts + JOINING_BYTES


def _meanwhile(processors: int, at_once: int, workgroups: int, each_bytes: float) -> float:
    """The bytes that a processor's share of memory brings until all workgroups have theirs, round by round."""
    rounds, rest = divmod(workgroups, at_once)
    last = max(rest * each_bytes / processors, each_bytes / MOST_SHARES) if rest else 0.0
    return rounds * at_once * each_bytes / processors + last


def lies_in_rows(v: ArrayView, q: ArrayView, heads: Heads) -> bool:
    """Whether the results of heads that share keys can be looked at as rows, without copying them."""
    if v.shape[:3] != q.shape[:3] or v.shape[3:] not in (
        (),
        (heads.size_v,),
    ):  # which whoever takes them as they are will refuse
        return False
    (_, head, query, *_), queries = v.strides, v.shape[2]
    return heads.sharing == 1 or queries == 1 or head == queries * query


def rows_tile_for(target: str, heads: Heads, dtype: DType, rows: int) -> AttentionTile:
    """As few rows as a product has at least, or some times as many; a copy engine brings no less than these."""
    tile = attention_tile_for(target, heads, Scores(1.0), dtype)
    least = 64 if target in CHIPS and CHIPS[target].copy_engine else 16
    few = min(64, -(-rows // least) * least)
    return AttentionTile(few, min(tile.keys, MOST_KEYS), min(tile.waves, few // 16))


def scratch(like: Any, of: DType, *shapes: tuple[int, ...]) -> list[Any]:
    """Arrays for what is found on the way, of the library and on the device of another."""
    if isinstance(like, np.ndarray):
        return [np.empty(shape, of.numpy) for shape in shapes]
    if hasattr(like, "new_empty"):
        one = like.new_empty(1)
        one = one.double() if of == F64 else one.float()
        return [one.new_empty(shape) for shape in shapes]
    what = f"attention_decode: q is a {type(like).__name__}, and it cannot make another for what it finds on its way"
    raise CallError(what, loc=here(), remedy="pass numpy arrays or torch tensors")


# the kernels --------------------------------------------------------------------------------------------------------


@cache
def attention_parts_kernel(
    tile: AttentionTile,
    heads: Heads,
    scores: Scores,
    queries: int,
    of: DType,
    q_dtype: DType,
    k_dtype: DType,
    v_dtype: DType,
) -> WaveKernel:
    """means[U, B, H_KV, R, N] and sums[U, B, H_KV, R] of q[B, H_KV, R, K1], k, v and how many keys a part has."""

    def find(q: Any, k: Any, v: Any, means: Any, sums: Any, length: Any) -> None:
        start = first_index(U) * length
        found = walked_rows(q, k, v, scores, queries, of, v_dtype, start=start, stop=start + length)
        write(broadcast(found.mean, (U, B, H_KV, R, N)), means)
        write(broadcast(found.log2_sum, (U, B, H_KV, R)), sums)

    shapes: Shapes = {"q": (B, H_KV, R, K1), "k": (B, H_KV, K2, K1), "v": (B, H_KV, K2, N)}
    shapes |= {"means": (U, B, H_KV, R, N), "sums": (U, B, H_KV, R)}
    dtypes = {"q": q_dtype, "k": k_dtype, "v": v_dtype, "means": of, "sums": of, "length": INDEX}
    each = [WorkgroupConstraint(H_KV, 1, 2), WorkgroupConstraint(B, 1, 3), WorkgroupConstraint(U, 1, 4)]
    function = taking("attention_parts", find, shapes, dtypes)
    return wave([*tile.constraints(R), *each], subs={K1: heads.size, N: heads.size_v})(function)


def walked_rows(
    q: Any, k: Any, v: Any, scores: Scores, queries: int, of: DType, v_dtype: DType, **part: Any
) -> Weighted:
    """What each row finds along the keys, or a part of them."""
    place = self_index(R, I32) % queries + scalar(K2 - queries, I32)
    unit = scores.late_unit(of)

    def score() -> Any:
        products = mma(read(q), read(k), RegisterType((B, H_KV, R, K2), of)(0.0))
        return scores.seen_only(scores.powers(products) if unit == 1 else products, place)

    return walked((B, H_KV, R), of, score, lambda: read(v), v_dtype, unit, **part)


@cache
def attention_rows_kernel(
    tile: AttentionTile,
    heads: Heads,
    scores: Scores,
    queries: int,
    of: DType,
    q_dtype: DType,
    k_dtype: DType,
    v_dtype: DType,
    y_dtype: DType,
    lse_dtype: DType | None = None,
) -> WaveKernel:
    """y[B, H_KV, R, N], and lse[B, H_KV, R] where it has a dtype, of q[B, H_KV, R, K1], k and v: all keys at once."""

    def attend(q: Any, k: Any, v: Any, y: Any, lse: Any) -> None:
        found = walked_rows(q, k, v, scores, queries, of, v_dtype)
        write(cast(found.mean, y_dtype), y)
        if lse is not None:
            write(cast(found.log2_sum * log(2), lse_dtype or of), lse)

    shapes: Shapes = {"q": (B, H_KV, R, K1), "k": (B, H_KV, K2, K1), "v": (B, H_KV, K2, N)}
    shapes |= {"y": (B, H_KV, R, N), "lse": (B, H_KV, R)}
    dtypes = {"q": q_dtype, "k": k_dtype, "v": v_dtype, "y": y_dtype, "lse": lse_dtype}
    each = [WorkgroupConstraint(H_KV, 1, 2), WorkgroupConstraint(B, 1, 3)]
    function = taking("attention_rows", attend, shapes, dtypes)
    return wave([*tile.constraints(R), *each], subs={K1: heads.size, N: heads.size_v})(function)


@cache
def join_parts_kernel(size_v: int, of: DType, y_dtype: DType, lse_dtype: DType | None = None) -> WaveKernel:
    """y[B, H, M, N], and lse[B, H, M] where it has a dtype, of means[U, B, H, M, N] and sums[U, B, H, M]."""

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
