"""Stream-K: whole tiles for all workgroups in full waves, then parts of the tiles that are left.

Tiles, steps and workgroups are numbers, or scalars of the launch: one formula serves both, and what is known folds.
Bounds are stated that range analysis cannot derive for scalars.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from tilewave.analysis.shared_tiles import TileProgram
from tilewave.analysis.splits import EqualSplits, Split, tiles_of
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Value
from tilewave.ir.ops import StreamKNumber, StreamKSplits, StreamKWorkgroups
from tilewave.ir.stream_k import LARGEST
from tilewave.ir.types import INDEX_SCALAR
from tilewave.machine.tuning import SplitTuning
from tilewave.mapping import choose, larger, smaller
from tilewave.records import dataclass
from tilewave.transform.shared_tiles import SharedTiles, Turn


@dataclass(frozen=True)
class TileWaves:
    """The tiles that are computed whole, `at_once` in a wave, and those after the last full wave, which are shared."""

    whole: Any
    """The number of tiles that are computed whole."""
    left: Any
    """Tiles after the last full wave."""
    steps: Any
    all_steps: Any
    """Steps of the tiles that are left."""
    shares: Any
    """The workgroups that share what is left, or the parts of each tile; 0 where these are computed whole, too."""
    at_once: int

    @classmethod
    def at_launch(cls, builder: StreamKBuilder) -> TileWaves:
        """Emit the decision of the launch."""
        b, at_once = builder.builder, builder.at_once
        count, steps = tiles_of(builder.old, b), builder.tile.steps_at(b)
        tiles, left = _scalar(b, count), _scalar(b, cls.left_of(count, at_once))
        facts = left.value, steps.value, at_once, builder.tile.step_bytes, builder.costs.hand_over_bytes
        shares = Number(b, b.fresh("shares", INDEX_SCALAR))
        b.ops.append(builder.decision(*facts, results=(shares.value,)))
        whole = shares.equals(0).choose(tiles, _scalar(b, count // at_once * at_once))
        all_steps = (left * steps).smaller(_most_steps(at_once))
        return cls(whole, left, steps, all_steps, shares, at_once)

    @staticmethod
    def left_of(count: Any, at_once: int) -> Any:
        return count % at_once

    @property
    def stride(self) -> int:
        """The distance from one whole tile of a workgroup to its next."""
        return self.at_once

    @property
    def parts_of_each(self) -> int:
        """The ranges of each tile, where no wave is full and all are known to have as many; else 1."""
        known = isinstance(self.whole, int) and not self.whole and self.shares % self.left == 0
        return self.shares // self.left if known else 1

    def range_of(self, own: Number) -> Any:
        """Return the number of a workgroup's range: neighbours have the same range of different tiles where no wave is
        full and all tiles have as many, so that they find the operands they share in the cache."""
        same = choose(_is_zero(self.shares % self.left), self.left, 1)
        across = larger(choose(_is_zero(self.whole), same, 1), 1)
        return smaller(own % across * (self.shares // across) + own // across, self.at_once - 1)

    @property
    def full(self) -> Any:
        """The waves that whole tiles fill, or take in part."""
        return (self.whole + (self.at_once - 1)) // self.at_once

    def turns(self, own: Number) -> Any:
        """Return how many whole tiles a workgroup computes."""
        known = isinstance(self.whole, int)  # then all waves are full
        return self.whole // self.at_once if known else (self.whole + (self.at_once - 1) - own) // self.at_once

    def grid(self, peers: Any) -> Any:
        """Return the number of workgroups: a wave of whole tiles, or the workgroups that share tiles if more."""
        return larger(smaller(self.whole, self.at_once), peers)


class SingleTiles(TileWaves):
    """The waves of a kernel whose workgroups have one tile each, or share those of a small grid."""

    @staticmethod
    def left_of(count: Any, at_once: int) -> Any:
        return choose(count < at_once, count, 0)

    @property
    def stride(self) -> int:
        return 0

    def turns(self, own: Number) -> Any:
        return (own < self.whole).choose(1, 0)

    def grid(self, peers: Any) -> Any:
        return larger(self.whole, peers)


class StreamKBuilder(SharedTiles):
    """Builds a kernel for waves that are known (`waves` returns them), or that the launch computes (`at_launch`)."""

    decision: ClassVar[type[StreamKNumber]]

    def __init__(
        self,
        kernel: Kernel,
        tile: TileProgram,
        costs: SplitTuning,
        slots: int,
        at_once: int,
        waves: Callable[[StreamKBuilder], TileWaves],
    ) -> None:
        super().__init__(kernel, tile, slots, costs)
        self.at_once, self.decided = at_once, waves

    @property
    @abstractmethod
    def peers(self) -> Any:
        """The workgroups that share tiles."""

    @abstractmethod
    def start(self) -> Any:
        """Emit what a workgroup needs to know of its parts, and return how many it has."""

    @abstractmethod
    def is_whole(self, turn: Number) -> Any: ...

    @abstractmethod
    def turn(self, turn: Number, is_whole: Number) -> Turn: ...

    @abstractmethod
    def others(self) -> Any:
        """Return how many workgroups have earlier parts of the tile that this workgroup finishes."""

    def kernel(self) -> Kernel:
        self.prepare()
        waves = self.waves = self.decided(self)
        peers, self.full = self.peers, waves.full
        self.turns, grid = waves.turns(self.own), waves.grid(peers)
        self.in_turns(self.start() + self.turns)
        return self.finished(grid)

    def compute(self, count: Number) -> None:
        turn = self.turn(count, self.is_whole(count))
        sums = self.add_up(turn)
        ends = turn.end.equals(self.waves.steps)
        self.hand_over(sums, ends.choose(0, 1))
        others = ends.choose(turn.first.equals(0).choose(0, self.others()), 0)
        whole = self.take_over(sums, others)
        self.end(turn.number, whole, ends.choose(1, 0))


class StepRanges(StreamKBuilder):
    """Splits what is left evenly: a workgroup has one part or two."""

    decision = StreamKWorkgroups

    @property
    def peers(self) -> Any:
        return self.waves.shares

    def start(self) -> Any:
        waves = self.waves
        split, steps = Split(waves.all_steps, waves.shares, _most_steps(self.at_once)), waves.steps
        self.range: Number = waves.range_of(self.own)
        first, last = split.first(self.range), (split.first(self.range + 1) - 1).larger(0)
        self.first_tile, self.first_step = first // steps, first % steps
        self.last_tile, self.last_step = last // steps, last % steps + 1
        has_two = self.first_tile.differs(self.last_tile)
        self.begin = has_two.choose(0, self.first_step)
        # A product of scalars may not fit 32 bits, as far as later passes can tell.
        begin = self.first_tile * steps if isinstance(steps, int) else first - self.first_step
        self.source = split.workgroup_of(begin.larger(0))
        return (self.own < waves.shares).choose(has_two.choose(2, 1), 0)

    def is_whole(self, turn: Number) -> Any:
        return turn < self.turns

    def turn(self, turn: Number, is_whole: Number) -> Turn:
        """Return a whole tile, or the first of two parts, which is the begin of a tile, or the last part."""
        is_first = turn.equals(self.turns)
        tile = is_first.choose(self.last_tile, self.first_tile) + self.waves.whole
        number = is_whole.choose(self.own + turn * self.waves.stride, tile)
        first = is_whole.choose(0, is_first.choose(self.begin, self.first_step))
        return Turn(number.value, first, is_first.choose(self.last_step, self.waves.steps))

    def take_over(self, sums: Value, others: Number) -> Value:
        count = self.waves.parts_of_each - 1
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


class EqualParts(StreamKBuilder):
    """Splits what is left into equal parts; the steps of a turn do not depend on a workgroup's number.

    What depends on it is computed in every turn, so that one of two neighbours can take a turn for the other.
    """

    decision = StreamKSplits

    @property
    def peers(self) -> Any:
        return self.waves.left * self.waves.shares

    def start(self) -> Any:
        waves = self.waves
        self.cut = EqualSplits(waves.left, waves.steps, waves.shares)
        return (self.own < self.peers).choose(1, 0)

    def is_whole(self, turn: Number) -> Any:
        """Return whether a turn has a whole tile: before shared tiles, whole ones fill all waves for every
        workgroup."""
        return turn < self.full

    def turn(self, turn: Number, is_whole: Number) -> Turn:
        self.its_tile = self.cut.tile(self.own)
        begin, steps = self.cut.first(self.own), self.cut.steps
        number = is_whole.choose(self.own + turn * self.at_once, self.its_tile + self.waves.whole)
        first = is_whole.choose(0, begin)
        trips = is_whole.choose(steps, self.cut.longest).larger(1)
        return Turn(number.value, first, (first + trips).smaller(steps), trips)

    def others(self) -> Any:
        return self.cut.parts - 1

    def slot(self, other: Number) -> Any:
        return self.cut.workgroup_of(self.its_tile, other)


def _most_steps(at_once: int) -> int:
    """Return the most steps that are shared: the launch shares none where their products would overflow 32 bits."""
    return LARGEST // at_once - 1


def _is_zero(n: Any) -> Any:
    return n == 0 if isinstance(n, int) else n.equals(0)


def _scalar(builder: Builder, n: int | Number) -> Number:
    """Return a number as a scalar of the launch; one that is fixed is folded, so that it can be at the launch."""
    return n if isinstance(n, Number) else Number(builder, builder.const(n))
