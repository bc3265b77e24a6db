"""How few queries are computed: keys split among workgroups, whole heads of keys, or tiles of queries.

Each way is given a cost, in bytes that a processor's share of memory would bring meanwhile, and the least is taken:

    tiles of queries    a workgroup for some queries of one head: heads that share keys read them once each, and a
                        tile that is part-filled costs as much as a full one
    whole heads         a workgroup for the queries of all heads that share keys, which are rows of one tile
    split keys          the same, and workgroups share the keys: a second kernel joins their results

Sizes of the call decide, when it comes: none of the kernels is compiled for a number of keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache

from tilewave.ir.types import DType
from tilewave.kernels.attentions import MOST_KEYS, AttentionTile, Heads, Scores, attention_tile_for
from tilewave.lang.kernel import WaveKernel
from tilewave.machine.chips import CHIPS
from tilewave.runtime.arrays import ArrayView

MOST_QUERIES = 16
"""Of heads that share keys, where masks depend on a query's place: a kernel is made for each number of queries."""
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
MBARRIER_BYTES = 1 << 9
RESULT_BYTES = 16 << 10
"""Two chunks of 64 rows of 128 bytes, on their way out."""
QUERIES_HELD = 2
"""Tiles of queries for which a ring has room."""
MOST_SHARES = 1.85
"""Of the machine's memory, one processor takes so much at most: 64 heads of 4096 keys, which 64 of 132 processors read,
came at 0.90 of a copy's speed on an H200, 128 heads at 0.98."""
JOINING_BYTES = 128 << 10
"""What a processor's share of memory would bring until parts are joined: some microseconds."""
FLOPS_A_BYTE = 160
"""What a processor multiplies and adds while its share of memory brings a byte: 0.78 of 990 TFLOP/s, and 4.8 TB/s."""


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes and the target of a call of attention, as far as they decide how it is computed."""

    target: str
    heads: Heads
    scores: Scores
    dtype: DType
    """Of keys."""
    batch: int
    heads_kv: int
    queries: int
    keys: int
    bias: DType | None = None

    @staticmethod
    def of(target: str, heads: Heads, scores: Scores, views: dict[str, ArrayView]) -> AttentionSizes:
        (batch, _, queries, _), (heads_kv, keys) = views["q"].shape, views["k"].shape[1:3]
        bias = views["bias"].dtype if "bias" in views else None
        return AttentionSizes(target, heads, scores, views["k"].dtype, batch, heads_kv, queries, keys, bias)

    @property
    def rows(self) -> int:
        """Queries of all heads that share keys."""
        return self.heads.sharing * self.queries

    @property
    def places(self) -> int | None:
        """After how many rows the places of queries repeat; None where no two rows have the same."""
        if not self.scores.masked:
            return 1  # nobody asks for places: one kernel serves all
        return None if self.heads.sharing == 1 and self.queries > 1 else self.queries


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
        if chip.tma is None:
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
        if chip is None or chip.tma is None:
            return DecodeWay.of(target, heads, dtype, rows)
        for keys in (attention_tile_for(target, heads, scores, dtype).keys, tile.keys):
            longer = replace(tile, keys=keys)
            ahead = _steps_in(chip.shared.bytes, heads, dtype, longer, queries_held=1)
            if ahead > 1:
                return DecodeWay(longer, chip.processors, ahead)
        return DecodeWay(tile, chip.processors)

    def prepared(self, kernel: WaveKernel) -> WaveKernel:
        """The kernel as it is called."""
        return kernel if self.steps_ahead is None else _with_num_stages(kernel, self.steps_ahead)


@cache
def _with_num_stages(kernel: WaveKernel, steps_ahead: int) -> WaveKernel:
    return kernel.with_options(num_stages=steps_ahead)


def _steps_in(shared_bytes: int, heads: Heads, dtype: DType, tile: AttentionTile, queries_held: int) -> int:
    """How many steps of keys and values lie beside the queries in what a workgroup has of shared memory."""
    room = shared_bytes - MBARRIER_BYTES - RESULT_BYTES
    room -= queries_held * tile.queries * heads.size * dtype.bytes
    return room // (tile.keys * (heads.size + heads.size_v) * dtype.bytes)


def rows_tile_for(target: str, heads: Heads, dtype: DType, rows: int) -> AttentionTile:
    """As few rows as a product has at least, or some times as many; a copy engine brings no less than these."""
    tile = attention_tile_for(target, heads, Scores(1.0), dtype)
    least = 64 if target in CHIPS and CHIPS[target].tma else 16
    few = min(64, -(-rows // least) * least)
    return AttentionTile(few, min(tile.keys, MOST_KEYS), min(tile.waves, few // 16))


def is_row_major(v: ArrayView, q: ArrayView, heads: Heads) -> bool:
    """Whether what an array has for each query can be looked at as rows of heads that share keys, without a copy."""
    if v.shape[:3] != q.shape[:3]:  # which whoever takes them as they are will refuse
        return False
    (_, head, query, *_), queries = v.strides, v.shape[2]
    return heads.sharing == 1 or queries == 1 or head == queries * query


# how keys are split -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeySplit:
    """How rows of queries are computed: how a workgroup takes them, and how many keys each part has."""

    way: DecodeWay
    length: int
    parts: int
    is_whole: bool
    """Whether a workgroup writes results itself; otherwise a second kernel joins the parts, or the only one."""
    cost: float
    """In bytes that a processor's share of memory brings meanwhile."""

    @staticmethod
    @lru_cache
    def of(sizes: AttentionSizes) -> KeySplit:
        """The quicker of whole heads and parts of them."""
        heads, dtype, rows = sizes.heads, sizes.dtype, sizes.rows
        way = DecodeWay.of(sizes.target, heads, dtype, rows)
        alone = DecodeWay.alone(sizes.target, heads, sizes.scores, dtype, rows)
        groups = sizes.batch * sizes.heads_kv * -(-rows // way.tile.queries)
        length = part_length(way.at_once, groups, -(-sizes.keys // way.tile.keys)) * way.tile.keys
        parts = max(1, -(-sizes.keys // length))
        cost = _cost(sizes, way, groups * parts, min(length, sizes.keys))
        in_parts = KeySplit(way, length, parts, is_whole=False, cost=cost + JOINING_BYTES)
        cost = _cost(sizes, alone, groups, sizes.keys)
        whole = KeySplit(alone, max(sizes.keys, 1), 1, is_whole=True, cost=cost)
        return whole if parts == 1 else min(whole, in_parts, key=lambda split: split.cost)

    def to_be_joined(self, sizes: AttentionSizes) -> KeySplit:
        """The same for results that cannot be looked at as rows: who joins parts writes them."""
        way = DecodeWay.of(sizes.target, sizes.heads, sizes.dtype, sizes.rows)
        return replace(self, way=way, is_whole=False) if self.is_whole else self


@lru_cache
def split_for(sizes: AttentionSizes) -> KeySplit | None:
    """How a call computes rows of queries that share keys; None where it takes tiles of queries, which are no slower.

    More queries than a tile has share the keys among them as it is.
    """
    tile = tiles_for(sizes)
    if sizes.queries > tile.queries or (sizes.places or 0) > MOST_QUERIES or not sizes.rows:
        return None
    split = KeySplit.of(sizes)
    workgroups = sizes.batch * sizes.heads_kv * sizes.heads.sharing
    cost = _cost(sizes, DecodeWay(tile, _processors(sizes.target)), workgroups, sizes.keys)
    # Of two ways that are done at the same time, the one that computes less leaves more to others.
    groups = sizes.batch * sizes.heads_kv * -(-sizes.rows // split.way.tile.queries)
    computed, in_tiles = groups * split.way.tile.queries, workgroups * tile.queries
    return split if (split.cost, computed) < (cost, in_tiles) else None


def tiles_for(sizes: AttentionSizes) -> AttentionTile:
    """The tile of queries of one head that a call takes where it has no rows."""
    return attention_tile_for(
        sizes.target, sizes.heads, sizes.scores, sizes.dtype, sizes.bias, sizes.queries, sizes.keys
    )


@lru_cache
def part_length(at_once: int, heads: int, steps: int) -> int:
    """How many steps a part has, so that workgroups that run at once are done soonest: each has a part of a head."""

    def cost(parts: int) -> int:
        length = -(-steps // parts)
        return -(-heads * -(-steps // length) // at_once) * (length + STEPS_TO_BEGIN)

    most = min(steps // LEAST_STEPS, MOST_ROUNDS * at_once // max(heads, 1))
    return max(-(-steps // min(range(1, max(most, 1) + 1), key=cost)), 1) if steps else 1


def _processors(target: str) -> int:
    return CHIPS[target].processors if target in CHIPS else WORKGROUPS


def _cost(sizes: AttentionSizes, way: DecodeWay, workgroups: int, keys: int) -> float:
    """The bytes that a processor's share of memory brings until all workgroups are done, each with so many keys."""
    processors, elements = _processors(sizes.target), sizes.heads.size + sizes.heads.size_v
    flops = -(-workgroups // processors) * way.tile.queries * keys * 2 * elements
    loaded = _meanwhile(processors, way.at_once, workgroups, keys * elements * sizes.dtype.bytes)
    return max(loaded, flops / FLOPS_A_BYTE)


def _meanwhile(processors: int, at_once: int, workgroups: int, each_bytes: float) -> float:
    """The bytes that a processor's share of memory brings until all workgroups have theirs, round by round."""
    rounds, rest = divmod(workgroups, at_once)
    last = max(rest * each_bytes / processors, each_bytes / MOST_SHARES) if rest else 0.0
    return rounds * at_once * each_bytes / processors + last
