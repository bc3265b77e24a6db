"""How attention of few queries is computed: by split-KV, by whole heads of keys, or by tiles of queries.

A cost model chooses among these, in bytes that an SM's share of memory bandwidth loads meanwhile:

    tiles of queries    a workgroup for some queries of one head: heads that share keys read them once each, and a
                        partly filled tile costs as much as a full one
    whole heads         a workgroup for the queries of all heads that share keys, which are rows of one tile
    split-KV            as whole heads, with the keys split among workgroups: a second kernel combines their results

The sizes of each call decide: none of the kernels is compiled for a number of keys.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache

from tilewave.ir.types import DType
from tilewave.kernels.attentions import MOST_KEYS, AttentionTile, Heads, Scores, attention_tile_for
from tilewave.lang.kernel import WaveKernel
from tilewave.machine.chips import CHIPS
from tilewave.records import dataclass
from tilewave.runtime.arrays import ArrayView

MOST_QUERIES = 16
"""The most queries of heads that share keys, where a mask needs positions: each number of queries has its kernel."""
WORKGROUPS = 16
"""Workgroups that run at once, on a target without a known number of SMs or CUs."""
WORKGROUPS_A_PROCESSOR = 4
"""Workgroups that run at once on each SM or CU, on chips without TMA."""
LEAST_STEPS = 4
"""The fewest steps of a split: a shorter one costs more to combine than it saves."""
STEPS_TO_BEGIN = 4
"""The prologue and epilogue of a workgroup, in steps: until its first keys arrive, and while it writes results."""
MOST_ROUNDS = 4
"""The most waves of workgroups: more of them are no better filled."""
MBARRIER_BYTES = 1 << 9
"""Shared memory set aside for mbarriers."""
RESULT_BYTES = 16 << 10
"""Shared memory of results on their way out: two chunks of 64 rows of 128 bytes."""
QUERIES_HELD = 2
"""Tiles of queries that a software pipeline has in shared memory."""
MOST_SHARES = 1.85
"""The most that one SM gets of memory bandwidth, in equal shares: 64 heads of 4096 keys, which 64 of 132 SMs read,
reached 0.90 of a copy's speed on an H200, 128 heads 0.98."""
JOINING_BYTES = 128 << 10
"""The cost of combining splits: what an SM's share of memory bandwidth loads in some microseconds."""
FLOPS_A_BYTE = 160
"""The FLOPs of an SM while its share of memory bandwidth loads a byte: 0.78 of 990 TFLOP/s, and 4.8 TB/s."""


@dataclass(frozen=True)
class AttentionSizes:
    """The target and the sizes of an attention call that decide how it is computed."""

    target: str
    heads: Heads
    scores: Scores
    dtype: DType
    """The dtype of keys."""
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
        """The queries of all heads that share keys."""
        return self.heads.sharing * self.queries

    @property
    def places(self) -> int | None:
        """The period, in rows, of the queries' positions; None where no two rows have the same."""
        if not self.scores.masked:
            return 1  # without a mask no position is used: one kernel serves all
        return None if self.heads.sharing == 1 and self.queries > 1 else self.queries


@dataclass(frozen=True)
class DecodeWay:
    """The rows and keys of a workgroup, its pipeline stages, and how many workgroups run at once.

    Two workgroups with splits of a head fit on an SM: one loads keys while the other is in its prologue or epilogue.
    A workgroup with a whole head has all of the SM's shared memory.
    """

    tile: AttentionTile
    at_once: int
    steps_ahead: int | None = None
    """The pipeline's stages; None: the compiler chooses."""

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
        """Return the way for whole heads, one workgroup to an SM; on chips without TMA the way for splits."""
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
        """Return the kernel with the number of stages set."""
        return kernel if self.steps_ahead is None else _with_num_stages(kernel, self.steps_ahead)


@cache
def _with_num_stages(kernel: WaveKernel, steps_ahead: int) -> WaveKernel:
    return kernel.with_options(num_stages=steps_ahead)


def _steps_in(shared_bytes: int, heads: Heads, dtype: DType, tile: AttentionTile, queries_held: int) -> int:
    """Return how many stages of keys and values fit into a workgroup's shared memory besides queries and results."""
    room = shared_bytes - MBARRIER_BYTES - RESULT_BYTES
    room -= queries_held * tile.queries * heads.size * dtype.bytes
    return room // (tile.keys * (heads.size + heads.size_v) * dtype.bytes)


def rows_tile_for(target: str, heads: Heads, dtype: DType, rows: int) -> AttentionTile:
    """Return a tile of as few rows as hold `rows`, at most 64: multiples of 64 on chips with TMA, else of 16."""
    tile = attention_tile_for(target, heads, Scores(1.0), dtype)
    least = 64 if target in CHIPS and CHIPS[target].tma else 16
    few = min(64, -(-rows // least) * least)
    return AttentionTile(few, min(tile.keys, MOST_KEYS), min(tile.waves, few // 16))


def is_row_major(v: ArrayView, q: ArrayView, heads: Heads) -> bool:
    """Return whether an array, which has one entry per query, can be viewed as rows of heads that share keys."""
    if v.shape[:3] != q.shape[:3]:  # the kernel that takes the arrays unchanged will refuse them
        return False
    (_, head, query, *_), queries = v.strides, v.shape[2]
    return heads.sharing == 1 or queries == 1 or head == queries * query


# how keys are split -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeySplit:
    """How rows of queries are computed: the tile of a workgroup, and the keys of each split."""

    way: DecodeWay
    length: int
    parts: int
    is_whole: bool
    """Whether a workgroup writes the results; otherwise a second kernel combines the splits, even a single one."""
    cost: float
    """The cost, in bytes that an SM's share of memory bandwidth loads meanwhile."""

    @staticmethod
    @lru_cache
    def of(sizes: AttentionSizes) -> KeySplit:
        """Return the faster of whole heads and split-KV, by cost."""
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
        """Return this split for results that cannot be viewed as rows: the combining kernel writes them."""
        way = DecodeWay.of(sizes.target, sizes.heads, sizes.dtype, sizes.rows)
        return replace(self, way=way, is_whole=False) if self.is_whole else self


@lru_cache
def split_for(sizes: AttentionSizes) -> KeySplit | None:
    """Return how a call computes rows of queries that share keys; None where tiles of queries are no slower.

    Calls with more queries than a tile always use tiles of queries.
    """
    tile = tiles_for(sizes)
    if sizes.queries > tile.queries or (sizes.places or 0) > MOST_QUERIES or not sizes.rows:
        return None
    split = KeySplit.of(sizes)
    workgroups = sizes.batch * sizes.heads_kv * sizes.heads.sharing
    cost = _cost(sizes, DecodeWay(tile, _processors(sizes.target)), workgroups, sizes.keys)
    # Among equal costs the one that computes less wins, which leaves more of the GPU to other kernels.
    groups = sizes.batch * sizes.heads_kv * -(-sizes.rows // split.way.tile.queries)
    computed, in_tiles = groups * split.way.tile.queries, workgroups * tile.queries
    return split if (split.cost, computed) < (cost, in_tiles) else None


def tiles_for(sizes: AttentionSizes) -> AttentionTile:
    """Return the tile of queries of one head, for a call that is not computed by rows."""
    return attention_tile_for(
        sizes.target, sizes.heads, sizes.scores, sizes.dtype, sizes.bias, sizes.queries, sizes.keys
    )


@lru_cache
def part_length(at_once: int, heads: int, steps: int) -> int:
    """Return the steps of a split with the least time, where `at_once` workgroups run, each on a split of a head."""

    def cost(parts: int) -> int:
        length = -(-steps // parts)
        return -(-heads * -(-steps // length) // at_once) * (length + STEPS_TO_BEGIN)

    most = min(steps // LEAST_STEPS, MOST_ROUNDS * at_once // max(heads, 1))
    return max(-(-steps // min(range(1, max(most, 1) + 1), key=cost)), 1) if steps else 1


def _processors(target: str) -> int:
    return CHIPS[target].processors if target in CHIPS else WORKGROUPS


def _cost(sizes: AttentionSizes, way: DecodeWay, workgroups: int, keys: int) -> float:
    """Return the cost of workgroups with `keys` each: the larger of memory and compute time, in bytes of an SM."""
    processors, elements = _processors(sizes.target), sizes.heads.size + sizes.heads.size_v
    flops = -(-workgroups // processors) * way.tile.queries * keys * 2 * elements
    loaded = _meanwhile(processors, way.at_once, workgroups, keys * elements * sizes.dtype.bytes)
    return max(loaded, flops / FLOPS_A_BYTE)


def _meanwhile(processors: int, at_once: int, workgroups: int, each_bytes: float) -> float:
    """Return the bytes that an SM's share of bandwidth loads until all workgroups are done, wave by wave."""
    rounds, rest = divmod(workgroups, at_once)
    last = max(rest * each_bytes / processors, each_bytes / MOST_SHARES) if rest else 0.0
    return rounds * at_once * each_bytes / processors + last
