"""The backward pass of attention in one kernel of five products: gradients of queries are added by many workgroups.

    s = q · kᵀ      g · vᵀ      dv += pᵀ · g      dk += dsᵀ · q      dq += ds · k

A workgroup has a tile of keys and loops over the queries that see it. The sums of queries are in an array of f32 in
memory, to which the workgroups of a head add in turns, block of keys by block of keys, or atomically, in any order.
Where the chip's L2 is known, turns follow `TurnOrder`; else heads and batches are the first axes of the grid, and
workgroups that run at once add to different heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from types import SimpleNamespace
from typing import Any

from tilewave.backend.targets import target_on
from tilewave.errors import CallError, here
from tilewave.ir.types import F32, I32, DType
from tilewave.kernels.attention_gradients import G, GradientBlocks, KeySums, attention_deltas_kernel, by_group, call_of
from tilewave.kernels.attentions import (
    H_KV,
    K1,
    K2,
    AttentionAsked,
    AttentionTile,
    B,
    H,
    Heads,
    M,
    N,
    Scores,
    Shapes,
    looked_at_all,
    power_between,
    taking,
)
from tilewave.kernels.decode import KernelCall, Make
from tilewave.lang.accesses import atomic_add, read, write
from tilewave.lang.constraints import (
    Assumption,
    Constraint,
    TilingConstraint,
    WaveConstraint,
    WorkgroupConstraint,
    WorkgroupMapping,
)
from tilewave.lang.kernel import WaveKernel, wave
from tilewave.lang.ops import cast, first_index, maximum, minimum, scalar, self_index
from tilewave.lang.ordered import ordered_add
from tilewave.lang.products import mma
from tilewave.lang.symbols import Eq, Symbol, sym
from tilewave.machine.cards import STANDING_FOR
from tilewave.machine.chips import CHIPS
from tilewave.records import dataclass

SUM_ROWS = 16
"""Rows of a workgroup of `attention_query_gradients`."""
ORDER = (H_KV, B, K2)
"""The axes of the grid, the fastest first: few of the workgroups that run at once have the same head."""
ORDER_OF_HEADS = (K2, H_KV, B)
"""The same for sums in any order: L2 keeps the queries and the sums of the heads that workgroups have at once."""
T, F = sym.T, sym.F
"""Tiles of queries, and the sums of a tile, where `SumBlocks` orders them."""
HALF_BITS = 16
HEAD_SIZES = (64, 128)
"""The heads whose sums fit into the registers of Hopper's consumer warpgroups."""


class Adding(Enum):
    """How workgroups add to the gradients of queries."""

    IN_TURNS = "in turns"
    ATOMICALLY = "atomically"
    """The last bits of a result then differ from run to run."""


@cache
def attention_fused_backward_kernel(
    tile: AttentionTile,
    heads: Heads,
    scores: Scores,
    of: DType,
    dtype: DType,
    adding: Adding,
    bias_dtype: DType | None = None,
    blocks: SumBlocks | None = None,
    whole: bool = False,
    turns: TurnOrder | None = None,
) -> WaveKernel:
    """Return the kernel to grad_k[B, H_KV, K2, K1], grad_v[B, H_KV, K2, N] and sums_q[B, H_KV, G, M, K1].

    It takes what `attention_keys_backward_kernel` takes. sums_q are the gradients of queries, not scaled yet, and
    turns[B, H_KV, G, M] count the turns; both are 0 before the launch. There is no G where no heads share keys, and
    there are no turns where the workgroups add atomically. With `blocks`, they are sums_q[B, H_KV, G, T, F] and
    turns[B, H_KV, G, T]. Where no tile is a boundary tile, the kernel may be `whole`: it has no masks of boundary
    tiles. `turns` is the order of workgroups that add in turns; without one, heads and batches are its first axes.
    """
    facts = GradientBlocks(tile, heads, scores, of, dtype, bias_dtype)
    sums = FusedSums(facts, ("grad_k", "grad_v"), adding, blocks, turns is not None and scores.masked)

    def walk(**arrays: Any) -> None:
        to = SimpleNamespace(**arrays)
        totals = sums.totals(to)
        write(cast(totals["grad_k"] * scores.scale, dtype), to.grad_k)
        write(cast(totals["grad_v"], dtype), to.grad_v)

    grouped = heads.sharing > 1
    rows = (B, H_KV, G, M) if grouped else (B, H_KV, M)
    shapes, dtypes = sums.blocks.inputs(rows)
    sums_of = (*rows, K1) if blocks is None else (*rows[:-1], T, F)
    counted = rows if blocks is None else (*rows[:-1], T)
    shapes |= {"grad_k": (B, H_KV, K2, K1), "grad_v": (B, H_KV, K2, N), "sums_q": sums_of, "turns": counted}
    dtypes |= {"grad_k": dtype, "grad_v": dtype, "sums_q": of, "turns": I32 if adding is Adding.IN_TURNS else None}
    tiles = {H_KV: 1, B: 1, K2: tile.keys}
    order = turns.dims if turns else ORDER if adding is Adding.IN_TURNS else ORDER_OF_HEADS
    each: list[Constraint] = [TilingConstraint(M, tile.queries)]
    each += [WorkgroupConstraint(dim, tiles[dim], place) for place, dim in enumerate(order)]
    each += turns.mapping(sums.descends) if turns else []
    each += [TilingConstraint(G, 1)] if grouped else []
    each += [WaveConstraint(K2, tile.keys // tile.waves)] if tile.waves > 1 else []
    each += [Assumption(Eq(M % tile.queries, 0)), Assumption(Eq(K2 % tile.keys, 0))] if whole else []
    function = taking("attention_fused_backward", walk, shapes, dtypes, shared=("base2", "delta"))
    return wave(each, subs=sums.subs)(function)


@dataclass(frozen=True)
class TurnOrder:
    """Some heads at a time, tile of keys after tile of keys: L2 keeps what their workgroups load, and what they add to.

        tile of keys     0 1 2 3               0 1 2 3
        heads 0 and 1    0 2 4 6      masked:  7 5 3 1     the number of each workgroup
                         1 3 5 7               6 4 2 0
        heads 2 and 3    8 …

    The workgroups of a head add to its blocks of queries in the same order, and wait at the first one until they are a
    hand-over apart. Where masks hide the queries before a tile of keys, the workgroup of the tile after it begins some
    blocks further on. If both start at once it is ahead, by about a hand-over, so its turn is before.
    """

    dims: tuple[Symbol, Symbol, Symbol]
    """The axes of the grid: the one of which so many are taken at a time, keys, and the other one."""
    at_once: int | None
    """None: all."""

    @staticmethod
    def of(target: str, heads: Heads, batch: int, count: int, queries: int, dtype: DType) -> TurnOrder | None:
        """Return the order for `count` heads of keys of a chip with TMA; None for others.

        Half of L2 is enough for as many heads as are taken at a time, less one: the next ones begin while these end.
        """
        if target not in CHIPS or CHIPS[target].tma is None:
            return None
        elements = queries * heads.sharing * (heads.size + heads.size_v)
        head_bytes = elements * dtype.bytes + queries * heads.sharing * heads.size * F32.bytes
        most = -(-STANDING_FOR[target].l2.bytes // (2 * head_bytes))
        first, other, extent = (H_KV, B, count) if count >= batch else (B, H_KV, batch)
        groups = max(1, extent // most)
        return TurnOrder((first, K2, other), -(-extent // groups) if groups > 1 else None)

    def mapping(self, descends: bool) -> list[Constraint]:
        steps = ["last_first()"] * descends + [f"grouped({self.at_once})"] * (self.at_once is not None)
        return [WorkgroupMapping(" >> ".join(steps))] if steps else []


@dataclass(frozen=True)
class SumBlocks:
    """Sums of queries in blocks of 16 elements and 8 queries: a lane's four sums of a block are neighbours in memory.

    That is how Hopper's products leave them in registers, and it adds four at once. A row of F has so many `queries`.
    """

    queries: int

    def at_step(self) -> dict[Any, Any]:
        """Return the positions in sums_q[…, T, F] of a step's block, which has the axes K1 and M."""
        return {T: first_index(M) // self.queries, F: self._elements() + self._rows(self_index(M) - first_index(M))}

    def at_rows(self) -> dict[Any, Any]:
        """Return the positions of some rows of a block, with the axes M and K1."""
        return {T: first_index(M) // self.queries, F: self._rows(self_index(M) % self.queries) + self._elements()}

    def _elements(self) -> Any:
        element = self_index(K1)
        return element // 16 * (16 * self.queries) + element % 8 * 16 + element // 8 % 2 * 2

    def _rows(self, query: Any) -> Any:
        return query // 8 * 128 + query // 2 % 4 * 4 + query % 2


@dataclass(frozen=True)
class FusedSums(KeySums):
    """The sums of a tile of keys, and its addends to the sums of the queries that see it."""

    adding: Adding
    sum_blocks: SumBlocks | None = None
    descends: bool = False
    """Whether the last tile of keys that a block of queries sees has its first turn."""

    @property
    def subs(self) -> dict[Symbol, int]:
        found = self.blocks.subs
        return found if self.sum_blocks is None else {**found, F: self.sum_blocks.queries * found[K1]}

    def of_block(self, to: Any, keys: Any, outer: Any) -> None:
        """Add a block's part of the gradients of its queries."""
        blocks = self.blocks
        part = mma(keys, cast(outer, blocks.dtype), blocks.zeros(B, H_KV, K1, M))
        at = {G: first_index(G)} if blocks.heads.sharing > 1 else {}
        at |= {} if self.sum_blocks is None else self.sum_blocks.at_step()
        if self.adding is Adding.ATOMICALLY:
            atomic_add(part, to.sums_q, at=at)
        else:
            ordered_add(part, to.sums_q, turns=to.turns, turn=self.turn(), at=at)

    def bounds(self) -> tuple[Any, Any]:
        """Return the first query that sees a key of the tile, and the end of those that do; None: no bound."""
        scores, tile = self.blocks.scores, self.blocks.tile
        first = first_index(K2) - scalar(K2) + scalar(M)
        near = scores.window
        start = first if scores.causal else None if near is None else first - (near - 1)
        return start, None if near is None else first + (tile.keys - 1 + near)

    def turn(self) -> Any:
        """Return how many tiles of keys before this one, or after it, are seen by a query of the block."""
        scores, tile = self.blocks.scores, self.blocks.tile
        near, keys = scores.window, tile.keys
        own = first_index(K2) // keys
        if self.descends:
            beyond = 0 if scores.causal or near is None else near - 1
            last = first_index(M) + scalar(K2) - scalar(M) + (tile.queries - 1 + beyond)
            return minimum(last, scalar(K2) - 1) // keys - own
        if near is None:
            return own
        first = first_index(M) + scalar(K2) - scalar(M) - (near - 1)
        return own - maximum(first, scalar(0)) // keys


@cache
def attention_query_gradients_kernel(
    size: int, scale: float, of: DType, dtype: DType, blocks: SumBlocks | None = None
) -> WaveKernel:
    """grad_q[B, H, M, K1] = scale · sums_q."""

    def scaled(sums_q: Any, grad_q: Any) -> None:
        found = read(sums_q) if blocks is None else read(sums_q, at=blocks.at_rows())
        write(cast(found * scale, dtype), grad_q)

    row = (B, H, M, K1)
    each = [WorkgroupConstraint(M, SUM_ROWS, 0), WorkgroupConstraint(H, 1, 2), WorkgroupConstraint(B, 1, 3)]
    shapes: Shapes = {"sums_q": row if blocks is None else (B, H, T, F), "grad_q": row}
    function = taking("attention_query_gradients", scaled, shapes, {"sums_q": of, "grad_q": dtype})
    return wave(each, subs={K1: size} if blocks is None else {K1: size, F: size * blocks.queries})(function)


# which kernels a call launches --------------------------------------------------------------------------------------


def fused_backward_tile(target: str, heads: Heads, queries: int, keys: int) -> AttentionTile | None:
    """Return the tile for a target; None where there is none.

    On Hopper two warpgroups share the rows of each product; with heads of 64, the columns of the gradients of queries.
    """
    if target not in CHIPS:
        return AttentionTile(power_between(16, queries, 64), power_between(16, keys, 64))
    if CHIPS[target].tma is None:
        return AttentionTile(32, 64, 4)
    return AttentionTile(64, 128, 4) if heads.size == heads.size_v in HEAD_SIZES else None


def adding_for(arrays: Mapping[str, Any], in_any_order: bool) -> Adding | None:
    """Return how the workgroups of a call add in five products; None where a kernel for each sum is quicker."""
    if not has_quick_tiles(arrays):
        return None
    return Adding.ATOMICALLY if in_any_order else Adding.IN_TURNS


def has_quick_tiles(arrays: Mapping[str, Any]) -> bool:
    """Whether five products have a tile for a call that pays: on Hopper, where no tile is a boundary tile."""
    views = looked_at_all("attention", {name: arrays[name] for name in ("q", "k", "v")})
    target, heads = target_on("attention", views["q"].device).name, Heads.of("attention", views)
    if target not in CHIPS or CHIPS[target].tma is None or views["q"].dtype.bits != HALF_BITS:
        return False
    queries, keys = views["q"].shape[2], views["k"].shape[2]
    tile = fused_backward_tile(target, heads, queries, keys)
    return tile is not None and is_whole(tile, queries, keys)


def is_whole(tile: AttentionTile, queries: int, keys: int) -> bool:
    return not queries % tile.queries and not keys % tile.keys


def attention_fused_backward_calls(
    arrays: Mapping[str, Any], make: Make, asked: AttentionAsked, adding: Adding
) -> list[KernelCall]:
    """Return the kernels of a backward pass in five products, in order; an error where the target has no tile.

    `arrays` are those of `attention_backward_calls`, with all three gradients, and none of a bias.
    """
    names = [name for name in ("q", "k", "v", "y", "lse", "grad", "bias", "grad_lse") if name in arrays]
    views = looked_at_all("attention", {name: arrays[name] for name in names})
    heads, (*row, _) = Heads.of("attention", views), views["q"].shape
    of, dtypes = views["lse"].dtype, {name: view.dtype for name, view in views.items()}
    target = target_on("attention", views["q"].device).name
    tile = fused_backward_tile(target, heads, views["q"].shape[2], views["k"].shape[2])
    if tile is None:
        what = f"attention: {target} has no tile for heads of {heads.size} and {heads.size_v} in five products"
        raise CallError(what, loc=here(), remedy="call attention_backward, which has a kernel for each sum")
    scores = Scores.of("attention", heads, asked.scale, asked.causal, asked.window, asked.soft_cap).of_queries(row[-1])
    scratch = {name: make(name, of, tuple(row)) for name in ("delta", "base2")}
    cleared = (("sums_q", of), *((("turns", I32),) if adding is Adding.IN_TURNS else ()))
    whole = is_whole(tile, row[-1], views["k"].shape[2])
    blocks = sum_blocks(target, tile) if whole else None  # a boundary tile's block would have rows beyond the queries
    shapes = {"sums_q": (*row, heads.size), "turns": tuple(row)}
    scratch |= {name: make(name, dtype, shapes[name]) for name, dtype in cleared}
    every = {**arrays, **scratch}
    facts = heads.size_v, of, dtypes["y"], dtypes["grad"], dtypes.get("grad_lse"), heads.size, cleared
    batch, count = views["k"].shape[:2]
    turns = TurnOrder.of(target, heads, batch, count, row[-1], dtypes["q"]) if adding is Adding.IN_TURNS else None
    fused = attention_fused_backward_kernel(
        tile, heads, scores, of, dtypes["q"], adding, dtypes.get("bias"), blocks, whole, turns
    )
    ordered = every if blocks is None else {**every, **in_blocks(scratch, blocks)}
    of_keys = ("k", "v", "grad_k", "grad_v")
    grouped = {name: x if name in of_keys else by_group(x, heads) for name, x in ordered.items()}
    last = attention_query_gradients_kernel(heads.size, scores.scale, of, dtypes["q"], blocks)
    calls = (attention_deltas_kernel(*facts), every), (fused, grouped), (last, ordered)
    return [call_of(kernel, given) for kernel, given in calls]


def sum_blocks(target: str, tile: AttentionTile) -> SumBlocks | None:
    """Return the order of the sums of queries for a target; None: row by row."""
    is_hopper = target in CHIPS and CHIPS[target].tma is not None
    return SumBlocks(tile.queries) if is_hopper else None


def in_blocks(cleared: Mapping[str, Any], blocks: SumBlocks) -> dict[str, Any]:
    """Return sums_q[B, H, M, K1] as sums_q[B, H, T, F], and the first T counters of turns[B, H, M], if there are any.

    Both views begin where the arrays do, so that replayed calls know their addresses.
    """
    batch, heads, rows, size = cleared["sums_q"].shape
    tiles = rows // blocks.queries
    sums = cleared["sums_q"].reshape(batch, heads, tiles, blocks.queries * size)
    counted = {"turns": cleared["turns"][..., :tiles]} if "turns" in cleared else {}
    return {"sums_q": sums, **counted}
