"""Stream-K: tiles of the last, partial wave are split along K, so that it keeps more workgroups busy.

    kernel {workgroups = 608}          kernel {workgroups = 132}, 80 tiles left, cut among 120 workgroups
      %sum = loop(%c65, …) {…}    →      loop(‹whole tiles, then one part or two›) do (%turn) {
      write(%sum, %c, …)                   %part = loop(‹its steps›, …) {… %k = add(%i, ‹its first step›) …}
                                           loop(‹1 where it ends too early›)  { hand_over(%part, %exchange, %own) }
                                           %sum = loop(‹parts before it›, [%part]) { take_over(…, %exchange, …) }
                                           loop(‹1 where it ends the tile›) { write(%sum, %c, …) }

Workgroup w has the steps from w · S // G to (w + 1) · S // G of the S steps that are left; G workgroups share these.
Such a range is shorter than a tile, so it is one part of a tile or the end of one and the begin of the next. The
workgroup of a begin stores its partial sum; the workgroup of an end adds all partial sums before its own, in order, so
results are deterministic. A begin comes before an end, so that no workgroup waits for one that waits itself.

Workgroups with multicast loads take the same number of steps in every turn. Where rows are such that they would
multicast, each of the T tiles that are left is split into equal parts, and workgroup w has part w // T of tile w % T:
most neighbours then still need the same operands. The last part may run past the end of its tile, where zeros are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from tilewave.analysis.scattered_split_k import ScatteredSplits, slices_of
from tilewave.analysis.shared_tiles import TileProgram, TileShares, Turn, hands_over
from tilewave.analysis.splits import EqualSplits, OpenSplit, Split, splits_that_pay, tiles_of
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import BATCH_INVARIANT, Kernel, Value
from tilewave.ir.ops import (
    Mma,
    StreamKNumber,
    StreamKSplits,
    StreamKWorkgroups,
)
from tilewave.ir.placements import is_line_aligned
from tilewave.ir.remarks import Left, RemarkKind, want
from tilewave.ir.rewrite import walk
from tilewave.ir.stream_k import LARGEST
from tilewave.ir.types import INDEX_SCALAR
from tilewave.machine.tuning import SplitTuning

AS_QUICK = RemarkKind(
    "the last wave has {left} of {at_once} tiles, and stream-K with splits of {steps} steps would take as long as "
    "whole tiles"
)
BEYOND = RemarkKind(
    "equal splits of {steps} steps extend past the end of a tile, where this loop adds more than zeros, so stream-K "
    "is not used for the last wave",
    "let the loop have an even number of steps",
)
ONE_SUM = RemarkKind("the kernel is batch-invariant, so stream-K is not used for the last wave")
UNALIGNED_LINES = RemarkKind(
    "loads of rows with dynamic sizes are multicast, so tiles of small grids are not split among workgroups",
    "give the loop's dimension a value in subs",
)
AnySplit = TypeVar("AnySplit", Split, EqualSplits)


@dataclass(frozen=True)
class StreamK:
    """`workgroups`: as many as run at once.

    Where rows do not begin on lines of `line_bytes`, neighbours multicast loads, and take equally many steps.
    """

    workgroups: int
    costs: SplitTuning
    line_bytes: int = 1
    open_on_lines: bool = True
    """Whether the code is for arrays of dynamic row length whose rows begin on cache lines."""
    only_few: bool = False
    """Whether tiles are split only where no wave is full; else each workgroup has one tile and ends."""

    def __repr__(self) -> str:
        return f"StreamK({self.workgroups})"

    def __call__(self, kernel: Kernel) -> Kernel:
        products = any(isinstance(op, Mma) for op in walk(kernel.body))
        if not self.workgroups or not products or hands_over(kernel):
            return kernel
        left = kernel.workgroups % self.workgroups if isinstance(kernel.workgroups, int) else None
        if left == 0 or (self.only_few and left != kernel.workgroups and left is not None):
            return kernel
        if kernel.sums == BATCH_INVARIANT:
            return kernel.with_remarks(ONE_SUM.at(next(op.loc for op in walk(kernel.body) if isinstance(op, Mma))))
        try:
            found = TileProgram.of(kernel)
            if left is None or not isinstance(found.steps, int):
                return self.open_rounds(kernel, found).kernel()
            return self.rounds(kernel, found, left).kernel()
        except Left as why:
            return kernel.with_remarks(why.remarks)

    def open_rounds(self, kernel: Kernel, found: TileProgram) -> TileShares:
        """Return the kernel for dynamic shapes: the launch computes how many workgroups share the last wave, if any."""
        on_lines = all(is_line_aligned(memory, self.line_bytes, self.open_on_lines) for memory in found.memories)
        if on_lines:
            kind = _OpenFew if self.only_few else _OpenRanges
            return kind(kernel, found, self.workgroups, self.costs)
        want(not self.only_few, UNALIGNED_LINES, found.loop.loc)
        want(found.ends_in_zeros, BEYOND, found.loop.loc, steps="equally many")
        return _OpenSplits(kernel, found.running_on, self.workgroups, self.costs)

    def scattered(self, kernel: Kernel, found: TileProgram) -> ScatteredSplits | None:
        """Return the small grid in splits whose slices several workgroups add up; None where that does not pay."""
        weighed = kernel.workgroup_count, found.steps, self.workgroups, found.step_bytes, found.sums_bytes
        parts = splits_that_pay(*weighed, self.costs)
        slices = slices_of(found, parts, self.costs)
        return ScatteredSplits(kernel, found, parts, slices, self.costs) if slices > 1 else None

    def rounds(self, kernel: Kernel, found: TileProgram, left: int) -> TileShares | ScatteredSplits:
        if all(is_line_aligned(memory, self.line_bytes, self.open_on_lines) for memory in found.memories):
            if left == kernel.workgroups and (scattered := self.scattered(kernel, found)):
                return scattered
            if (split := self.best(left, found.steps, found.step_bytes)) is not None:
                return _Ranges(kernel, found, split, self.workgroups, self.costs)
        elif (cut := self.best_cut(left, found.steps, found.step_bytes, found.ends_in_zeros)) is not None:
            return _Parts(kernel, found, cut, self.workgroups, self.costs)
        elif self.best_cut(left, found.steps, found.step_bytes, ends_in_zeros=True) is not None:
            raise Left(BEYOND.at(found.loop.loc, steps=found.steps))
        raise Left(AS_QUICK.at(found.loop.loc, left=left, at_once=self.workgroups, steps=found.steps))

    def best(self, tiles: int, steps: int, step_bytes: int) -> Split | None:
        return self.quickest(self.splits(tiles, steps), step_bytes)

    def best_cut(self, tiles: int, steps: int, step_bytes: int, ends_in_zeros: bool) -> EqualSplits | None:
        """Return the fastest equal split; `ends_in_zeros`: whether parts may run past the end of a tile."""
        return self.quickest((c for c in self.cuts(tiles, steps) if ends_in_zeros or c.is_exact), step_bytes)

    def quickest(self, splits: Iterable[AnySplit], step_bytes: int) -> AnySplit | None:
        """Return the fastest of `splits`; None where whole tiles are as fast."""

        def time(split: AnySplit) -> int:
            return split.longest * step_bytes + split.parts * self.costs.hand_over_bytes

        found = min(splits, key=time, default=None)
        return found if found and time(found) < found.steps * step_bytes else None

    def splits(self, tiles: int, steps: int) -> Iterator[Split]:
        """Yield several workgroups per tile, or three for two: ranges often end with a tile, which saves exchanges."""
        for workgroups in (tiles * 3 // 2, *range(2 * tiles, self.workgroups + 1, tiles)):
            if tiles < workgroups <= min(self.workgroups, tiles * steps):
                yield Split(tiles, steps, workgroups)

    def cuts(self, tiles: int, steps: int) -> Iterator[EqualSplits]:
        """Yield splits in which both workgroups of each pair have a part, or none of the two; and no part is empty."""
        for parts in range(2, min(self.workgroups // tiles, steps) + 1):
            cut = EqualSplits(tiles, steps, parts)
            if cut.workgroups % 2 == 0 and cut.first(cut.workgroups - 1) < steps:
                yield cut


class _Ranges(TileShares):
    """Splits what is left evenly: a workgroup has one part or two.

    Workgroups have ranges in their order; where no wave is full and each tile has as many ranges, neighbours have the
    same range of different tiles, and find the operands they share in the cache.
    """

    def __init__(self, kernel: Kernel, tile: TileProgram, split: Split, at_once: int, costs: SplitTuning) -> None:
        super().__init__(kernel, tile, split.workgroups, costs)
        self.split, self.at_once = split, at_once
        self.rounds, self.workgroups = _known_rounds(kernel, split, at_once)
        self.whole = self.rounds * self.workgroups

    def start(self) -> Any:
        split = self.split
        across = split.tiles if self.has_equal_splits else 1
        self.range = self.own % across * (split.workgroups // across) + self.own // across if across > 1 else self.own
        first, last = split.first(self.range), split.first(self.range + 1) - 1
        self.first_tile, self.first_step = first // split.steps, first % split.steps
        self.last_tile, self.last_step = last // split.steps, last % split.steps + 1
        has_two = self.first_tile.differs(self.last_tile)
        self.begin = has_two.choose(0, self.first_step)
        self.source = split.workgroup_of(self.first_tile * split.steps)
        return (self.own < split.workgroups).choose(has_two.choose(2, 1), 0)

    def turn(self, turn: Number, is_whole: Number) -> Turn:
        """Return a whole tile, or the first of two parts, which is the begin of a tile, or the last part."""
        is_first = turn.equals(self.rounds)
        tile = is_first.choose(self.last_tile, self.first_tile) + self.whole
        number = is_whole.choose(self.own + turn * self.stride, tile)
        first = is_whole.choose(0, is_first.choose(self.begin, self.first_step))
        return Turn(number.value, first, is_first.choose(self.last_step, self.split.steps))

    @property
    def stride(self) -> Any:
        """The distance from one whole tile of a workgroup to its next."""
        return self.workgroups

    @property
    def has_equal_splits(self) -> bool:
        """Whether no wave is full, and each tile has as many ranges, none of which crosses into another tile."""
        return not self.rounds and self.split.workgroups % self.split.tiles == 0

    def take_over(self, sums: Value, others: Number) -> Value:
        count = self.split.workgroups // self.split.tiles - 1 if self.has_equal_splits else 0
        if not self.takes_all(count):
            return super().take_over(sums, others)
        return self.take_all(sums, others.differs(0).choose(1, 0), self.source, 1, count)

    @property
    def own_slot(self) -> Number:
        return self.range

    def others(self) -> Any:
        return self.range - self.source

    def slot(self, other: Number) -> Any:
        return self.source + other


class _Parts(TileShares):
    """Splits what is left into equal parts; the steps of a turn do not depend on a workgroup's number."""

    def __init__(self, kernel: Kernel, tile: TileProgram, cut: EqualSplits, at_once: int, costs: SplitTuning) -> None:
        super().__init__(kernel, tile if cut.is_exact else tile.running_on, cut.workgroups, costs)
        self.cut = cut
        self.rounds, self.workgroups = _known_rounds(kernel, cut, at_once)
        self.whole = self.rounds * self.workgroups

    def start(self) -> Any:
        self.its_tile, self.begin = self.cut.tile(self.own), self.cut.first(self.own)
        return (self.own < self.cut.workgroups).choose(1, 0)

    def turn(self, turn: Number, is_whole: Number) -> Turn:
        number = is_whole.choose(self.own + turn * self.workgroups, self.its_tile + self.whole)
        first = is_whole.choose(0, self.begin)
        trips = is_whole.choose(self.cut.steps, self.cut.longest)
        return Turn(number.value, first, (first + trips).smaller(self.cut.steps), trips)

    def others(self) -> int:
        return self.cut.parts - 1

    def slot(self, other: Number) -> Any:
        return self.cut.workgroup_of(self.its_tile, other)


def _known_rounds(kernel: Kernel, split: Split | EqualSplits, at_once: int) -> tuple[int, int]:
    """Return the number of waves of whole tiles, and the number of workgroups."""
    rounds = kernel.workgroup_count // at_once
    return rounds, at_once if rounds else split.workgroups


class _OpenRanges(_Ranges):
    """Ranges for dynamic shapes: the launch computes how many workgroups share the last wave, 0 where none do."""

    def __init__(self, kernel: Kernel, tile: TileProgram, at_once: int, costs: SplitTuning) -> None:
        TileShares.__init__(self, kernel, tile, at_once, costs)
        self.at_once = at_once

    @property
    def stride(self) -> int:
        return self.at_once

    @property
    def has_equal_splits(self) -> bool:
        return False  # or it is not known before the launch

    def start(self) -> Any:
        plan = _Plan.of(self, StreamKWorkgroups)
        most = LARGEST // self.at_once - 1
        every = (plan.left * plan.steps).smaller(most)
        split = self.split = OpenSplit(plan.left, plan.steps, plan.shares, every=every, most=most)
        self.rounds, self.whole, self.workgroups = plan.rounds(self.own), plan.whole, plan.grid(plan.shares)
        self.steps = plan.steps
        across = plan.across()
        self.range = (self.own % across * (plan.shares // across) + self.own // across).smaller(self.at_once - 1)
        first, last = split.first(self.range), (split.first(self.range + 1) - 1).larger(0)
        self.first_tile, self.first_step = first // split.steps, first % split.steps
        self.last_tile, self.last_step = last // split.steps, last % split.steps + 1
        has_two = self.first_tile.differs(self.last_tile)
        self.begin = has_two.choose(0, self.first_step)
        self.source = split.workgroup_of((first - self.first_step).larger(0))
        return (self.own < split.workgroups).choose(has_two.choose(2, 1), 0)


class _OpenFew(_OpenRanges):
    """Ranges for dynamic shapes where workgroups have one tile each, or share those of a small grid."""

    @property
    def stride(self) -> int:
        return 0


class _OpenSplits(_Parts):
    """Equal parts for dynamic shapes. All that depends on a workgroup's number is computed in every turn, so that one
    of two neighbours can take a turn for the other."""

    def __init__(self, kernel: Kernel, tile: TileProgram, at_once: int, costs: SplitTuning) -> None:
        TileShares.__init__(self, kernel, tile, at_once, costs)
        self.at_once = at_once

    def start(self) -> Any:
        plan = _Plan.of(self, StreamKSplits)
        peers = plan.left * plan.shares
        self.most_rounds = (plan.whole + (self.at_once - 1)) // self.at_once
        self.cut = EqualSplits(plan.left, plan.steps, plan.shares)
        self.rounds, self.whole, self.workgroups = plan.rounds(self.own), plan.whole, plan.grid(peers)
        self.steps = plan.steps
        return (self.own < peers).choose(1, 0)

    def is_whole(self, turn: Number) -> Any:
        """Whether a turn has a whole tile: before shared tiles, whole ones fill all waves, for every workgroup."""
        return turn < self.most_rounds

    def turn(self, turn: Number, is_whole: Number) -> Turn:
        self.its_tile = self.cut.tile(self.own)
        longest = (self.cut.steps + self.cut.parts - 1) // self.cut.parts
        begin = self.own // self.cut.tiles * longest
        number = is_whole.choose(self.own + turn * self.at_once, self.its_tile + self.whole)
        first = is_whole.choose(0, begin)
        trips = is_whole.choose(self.cut.steps, longest).larger(1)
        return Turn(number.value, first, (first + trips).smaller(self.cut.steps), trips)


@dataclass(frozen=True)
class _Plan:
    """What the launch computes for the waves of a kernel."""

    tiles: Any
    steps: Any
    left: Any
    """Tiles after the last whole wave."""
    shares: Any
    whole: Any
    at_once: int

    @staticmethod
    def of(rounds: _OpenRanges | _OpenSplits, decision: type[StreamKNumber]) -> _Plan:
        b, at_once, step_bytes = rounds.builder, rounds.at_once, rounds.tile.step_bytes
        count = tiles_of(rounds.old, b)
        steps = rounds.tile.steps_at(b)
        few = isinstance(rounds, _OpenFew)
        tiles = _number(b, count)
        left = _number(b, _small_grid(count, at_once) if few else count % at_once)
        weighed = decision(
            left.value,
            steps.value,
            at_once,
            step_bytes,
            rounds.costs.hand_over_bytes,
            results=(b.fresh("shares", INDEX_SCALAR),),
        )
        b.ops.append(weighed)
        shares = Number(b, weighed.result)
        whole = shares.equals(0).choose(tiles, _number(b, count // at_once * at_once))
        return (_FewPlan if few else _Plan)(tiles, steps, left, shares, whole, at_once)

    def across(self) -> Any:
        """Return of how many tiles neighbours have the same range: all, where no wave is full and all have as many."""
        same = (self.shares % self.left).equals(0).choose(self.left, 1)
        return self.whole.equals(0).choose(same, 1).larger(1)

    def rounds(self, own: Number) -> Any:
        return (self.whole + (self.at_once - 1) - own) // self.at_once

    def grid(self, peers: Number) -> str:
        """Return the name of the grid size: a wave of whole tiles, or the workgroups that share tiles if more."""
        most: Number = self.whole.smaller(self.at_once).larger(peers)
        return most.value.name


def _small_grid(count: int | Number, at_once: int) -> int | Number:
    """Return the number of tiles where they are fewer than run at once, else 0."""
    if isinstance(count, int):
        return count if count < at_once else 0
    small: Number = (count < at_once).choose(count, 0)
    return small


def _number(builder: Builder, n: int | Number) -> Number:
    """Return a count as a number of the launch; one that is fixed is folded, so that it can be at the launch."""
    return n if isinstance(n, Number) else Number(builder, builder.const(n))


@dataclass(frozen=True)
class _FewPlan(_Plan):
    """The plan where each workgroup has one tile, unless the grid is small."""

    def rounds(self, own: Number) -> Any:
        return (own < self.whole).choose(1, 0)

    def grid(self, peers: Number) -> str:
        most: Number = self.whole.larger(peers)
        return most.value.name
