"""The tiles that the last round leaves over are cut along their depth, so that it keeps more workgroups busy.

    kernel {workgroups = 608}          kernel {workgroups = 132}, 80 tiles left, cut among 120 workgroups
      %sum = loop(%c65, …) {…}    →      loop(‹whole tiles, then one part or two›) do (%turn) {
      write(%sum, %c, …)                   %part = loop(‹its steps›, …) {… %k = add(%i, ‹its first step›) …}
                                           loop(‹1 where it ends too early›)  { hand_over(%part, %exchange, %own) }
                                           %sum = loop(‹parts before it›, [%part]) { take_over(…, %exchange, …) }
                                           loop(‹1 where it ends the tile›) { write(%sum, %c, …) }

Workgroup w has the steps from w · S // G to (w + 1) · S // G of the S steps that are left; G of them share these. Such
a range is shorter than a tile, so it is one part of a tile or the end of one and the begin of the next. A begin is
handed over, an end taken up with all that workgroups in front of it handed over, in their order: sums are the same to
the last bit whoever is quick. A begin comes before an end, so that nobody waits for a workgroup that waits itself.

Neighbours that share copies take equally many steps in every turn. Where rows are such that they would share, each of
the T tiles that are left is cut into parts of equally many steps, and workgroup w has part w // T of tile w % T: most
neighbours then still want the same. The last part may run beyond the end of its tile, where zeros are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tilewave.analysis.depths import Depths
from tilewave.analysis.splits import EqualParts, OpenSplit, Split, tiles_of
from tilewave.analysis.tile_programs import computes_one_tile, only_adds_up
from tilewave.interp.tiles import touched
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import ONE_ORDER, Block, Kernel, Op, Value
from tilewave.ir.last_round import LARGEST
from tilewave.ir.launch import at_launch, known_at_launch, launch_and_rest
from tilewave.ir.ops import (
    Const,
    EqualShares,
    HandOver,
    LastRound,
    Loop,
    MakeExchange,
    Mma,
    RangeSharers,
    Read,
    TakeOver,
    While,
    Workgroup,
)
from tilewave.ir.placements import lies_on_lines
from tilewave.ir.reasons import Left, Reason, want
from tilewave.ir.rewrite import names, substitute, substitute_block, walk
from tilewave.ir.types import INDEX_SCALAR, Exchange, Tile

HAND_OVER_BYTES = 512
"""Of depth: about as long as products of these take, a tile of sums takes to go from one workgroup to another and be
added there. On an H200, 128x256 sums: 6,000 cycles to write and about 4,000 to add, where 128 bytes take 1,024."""
SUM_BITS = 32
NOT_ONE_LOOP = Reason(
    "a tile is not computed by one loop over its depth alone, so tiles of the last round are not shared"
)
DOES_MORE = Reason("this loop does more than add products up, so tiles of the last round are not shared")
UNKNOWN_STEPS = Reason(
    "how many steps this loop takes is known at the call only, so tiles of the last round are not shared",
    "give the depth a value in subs",
)
NOT_FROM_ZERO = Reason(
    "this loop does not begin with one tile of zeros, of {bits} bits each, so tiles of the last round are not shared",
    "add what it begins with behind the loop",
)
WRITES_BEFORE = Reason("this is written in front of the loop, so tiles of the last round are not shared")
READS_WRITTEN = Reason(
    "{memory} is read in front of the loop and written behind it, so tiles of the last round are not shared",
    "read it behind the loop",
)
AS_QUICK = Reason(
    "the last round has {left} of {at_once} tiles, and to hand parts of {steps} steps over would take as long as whole "
    "tiles do"
)
BEYOND = Reason(
    "equal parts of {steps} steps run beyond the end of a tile, where this loop adds more than zeros, so tiles of the "
    "last round are not shared",
    "let the depth have an even number of steps",
)
ONE_SUM = Reason("sums are to be added in one order, so tiles of the last round are not shared")
AnySplit = TypeVar("AnySplit", Split, EqualParts)


@dataclass(frozen=True)
class SplitLastRound:
    """`workgroups`: as many as run at once.

    Where rows do not begin on lines of `line_bytes`, neighbours share copies, and take equally many steps.
    """

    workgroups: int
    hand_over_bytes: int = HAND_OVER_BYTES
    line_bytes: int = 1
    open_on_lines: bool = True
    """Of memories whose rows are open, whether the code is for such as begin on lines."""

    def __repr__(self) -> str:
        return f"SplitLastRound({self.workgroups})"

    def __call__(self, kernel: Kernel) -> Kernel:
        if not self.workgroups or not any(isinstance(op, Mma) for op in walk(kernel.body)):
            return kernel
        left = kernel.workgroups % self.workgroups if isinstance(kernel.workgroups, int) else None
        if left == 0:
            return kernel
        if kernel.sums == ONE_ORDER:
            return kernel.declining(ONE_SUM.at(next(op.loc for op in walk(kernel.body) if isinstance(op, Mma))))
        try:
            found = _Tile.of(kernel)
            if left is None or not isinstance(found.steps, int):
                return self.open_rounds(kernel, found).kernel()
            return self.rounds(kernel, found, left).kernel()
        except Left as why:
            return kernel.declining(why.declined)

    def open_rounds(self, kernel: Kernel, found: _Tile) -> _Rounds:
        """The launch decides how many share the last round, and whether anybody does."""
        if all(lies_on_lines(memory, self.line_bytes, self.open_on_lines) for memory in found.memories):
            return _OpenRanges(kernel, found, self.workgroups, self.hand_over_bytes)
        want(found.ends_in_zeros, BEYOND, found.loop.loc, steps="equally many")
        return _OpenParts(kernel, found.running_on, self.workgroups, self.hand_over_bytes)

    def rounds(self, kernel: Kernel, found: _Tile, left: int) -> _Rounds:
        if all(lies_on_lines(memory, self.line_bytes, self.open_on_lines) for memory in found.memories):
            if (split := self.best(left, found.steps, found.step_bytes)) is not None:
                return _Ranges(kernel, found, split, self.workgroups)
        elif (cut := self.best_cut(left, found.steps, found.step_bytes, found.ends_in_zeros)) is not None:
            return _Parts(kernel, found, cut, self.workgroups)
        elif self.best_cut(left, found.steps, found.step_bytes, ends_in_zeros=True) is not None:
            raise Left(BEYOND.at(found.loop.loc, steps=found.steps))
        raise Left(AS_QUICK.at(found.loop.loc, left=left, at_once=self.workgroups, steps=found.steps))

    def best(self, tiles: int, steps: int, step_bytes: int) -> Split | None:
        return self.quickest(self.splits(tiles, steps), step_bytes)

    def best_cut(self, tiles: int, steps: int, step_bytes: int, ends_in_zeros: bool) -> EqualParts | None:
        """`ends_in_zeros`: whether parts may run beyond the end of a tile."""
        return self.quickest((c for c in self.cuts(tiles, steps) if ends_in_zeros or c.is_exact), step_bytes)

    def quickest(self, splits: Iterable[AnySplit], step_bytes: int) -> AnySplit | None:
        """Of those that workgroups can be found for; None where whole tiles are as quick."""

        def time(split: AnySplit) -> int:
            return split.longest * step_bytes + split.parts * self.hand_over_bytes

        found = min(splits, key=time, default=None)
        return found if found and time(found) < found.steps * step_bytes else None

    def splits(self, tiles: int, steps: int) -> Iterator[Split]:
        """Several workgroups for each tile, or three for two: ranges often end with a tile, and few are handed over."""
        for workgroups in (tiles * 3 // 2, *range(2 * tiles, self.workgroups + 1, tiles)):
            if tiles < workgroups <= min(self.workgroups, tiles * steps):
                yield Split(tiles, steps, workgroups)

    def cuts(self, tiles: int, steps: int) -> Iterator[EqualParts]:
        """Both workgroups of each pair have a part, or none of the two; and no part is empty."""
        for parts in range(2, min(self.workgroups // tiles, steps) + 1):
            cut = EqualParts(tiles, steps, parts)
            if cut.workgroups % 2 == 0 and cut.first(cut.workgroups - 1) < steps:
                yield cut


@dataclass(frozen=True)
class _Tile:
    """The program of a tile: a loop that adds up, from zero, and what is done with its sums."""

    before: tuple[Op, ...]
    loop: Loop
    after: tuple[Op, ...]
    steps: Any
    """An int, or a number of the launch."""
    step_bytes: int
    depths: Depths

    @property
    def memories(self) -> list[Value]:
        return [op.memory for op in self.loop.body.ops if isinstance(op, Read)]

    @property
    def ends_in_zeros(self) -> bool:
        return self.depths.end_in_zeros(self.loop)

    @property
    def running_on(self) -> _Tile:
        """The same, where steps behind the last one read zeros."""
        return replace(self, loop=replace(self.loop, body=self.depths.running_on(self.loop)))

    @staticmethod
    def of(kernel: Kernel) -> _Tile:
        """Raises `Left` where it is not sure that sums of parts make the sums."""
        ops = launch_and_rest(kernel.body)[1].ops
        loops = [op for op in walk(kernel.body) if isinstance(op, (Loop, While))]
        products = [op for op in walk(kernel.body) if isinstance(op, Mma)]
        want(computes_one_tile(kernel) and len(loops) == 1, NOT_ONE_LOOP, products[0].loc)
        (loop,) = loops
        want(only_adds_up(loop), DOES_MORE, loop.loc)
        assert isinstance(loop, Loop)
        made = {op.results[0]: op for op in ops if isinstance(op, Const)}
        want(loop.trips in made or loop.trips in known_at_launch(kernel), UNKNOWN_STEPS, loop.loc)
        want(_begins_with_zero(loop, made), NOT_FROM_ZERO, loop.loc, bits=SUM_BITS)
        steps = int(made[loop.trips].value) if loop.trips in made else loop.trips
        before = ops[: ops.index(loop)]
        _check_before(kernel, before)
        own = [op for op in loop.body.ops if isinstance(op, Mma)]
        step_bytes = sum(op.a.type.shape[-1] * op.a.type.dtype.bytes for op in own)
        return _Tile(before, loop, ops[len(before) + 1 :], steps, step_bytes, Depths(kernel))


def _check_before(kernel: Kernel, before: tuple[Op, ...]) -> None:
    """Whoever has a part of a tile does this too: it must write nothing, nor read what the one who ends it writes."""
    written, _ = touched(kernel)
    for op in before:
        want(not op.has_effect, WRITES_BEFORE, op.loc)
        for memory in op.read:
            want(memory not in written, READS_WRITTEN, op.loc, memory=memory.name)


def _begins_with_zero(loop: Loop, made: dict[Value, Const]) -> bool:
    zeros = [made[v].value == 0 for v in loop.init if v in made and isinstance(v.type, Tile)]
    return zeros == [True] == [loop.init[0].type.dtype.bits == SUM_BITS] and len(loop.init) == 1


@dataclass(frozen=True)
class _Turn:
    """What a workgroup computes in a turn: the steps of a tile from one to another."""

    number: Value
    first: Number
    end: Number
    trips: Number | None = None
    """How many steps it takes, where these may be more than there are."""


class _Rounds(ABC):
    """Whole tiles for all workgroups, round by round, and then parts for those that share what is left."""

    rounds: Any
    """As many turns have whole tiles."""
    whole: Any
    """As many tiles are computed whole."""
    workgroups: Any
    steps: Any
    """Of a whole tile."""

    def __init__(self, kernel: Kernel, tile: _Tile, slots: int) -> None:
        self.old, self.tile, self.slots, self.steps = kernel, tile, slots, tile.steps
        start = next(op for op in kernel.body.ops if isinstance(op, Workgroup))
        self.builder = Builder(names(kernel), locate=lambda: start.loc)

    @abstractmethod
    def start(self) -> Any:
        """What a workgroup knows of its parts; how many it has."""

    @abstractmethod
    def turn(self, turn: Number, is_whole: Number) -> _Turn: ...

    @abstractmethod
    def others(self) -> Any:
        """How many workgroups have parts in front of an end that is no whole tile."""

    @abstractmethod
    def slot(self, other: Number) -> Any:
        """Where one of these put what it handed over."""

    def kernel(self) -> Kernel:
        b = self.builder
        sums = self.tile.loop.init[0].type
        slots = Exchange((self.slots, *sums.shape), sums.dtype)
        self.exchange = b.emit(MakeExchange, type=slots, name="exchange")
        self.own = Number(b, b.emit(Workgroup, type=INDEX_SCALAR, name="own"))
        trips = (self.start() + self.rounds).value
        turn = b.fresh("turn", INDEX_SCALAR)
        with b.region():
            self.compute(Number(b, turn))
            body = b.block((turn,), ())
        b.effect(Loop, trips, (), body)
        launch, rest = launch_and_rest(self.old.body)
        new = replace(self.old, body=replace(rest, ops=(*launch, *b.ops)), workgroups=self.workgroups)
        return at_launch(new)

    def is_whole(self, turn: Number) -> Any:
        return turn < self.rounds

    def compute(self, count: Number) -> None:
        turn = self.turn(count, self.is_whole(count))
        sums = self.add_up(turn)
        ends = turn.end.equals(self.steps)
        self.when(ends.choose(0, 1), lambda: self.builder.effect(HandOver, sums, self.exchange, self.own.value))
        others = ends.choose(turn.first.equals(0).choose(0, self.others()), 0)
        whole = self.take_over(sums, others)
        (result,) = self.tile.loop.results
        new = {**self.numbers(turn.number), result: whole}
        self.when(ends.choose(1, 0), lambda: self.builder.ops.extend(substitute(op, new) for op in self.tile.after))

    def add_up(self, turn: _Turn) -> Value:
        """The loop, from one step to another."""
        new, loop = self.numbers(turn.number), self.tile.loop
        self.builder.ops += [substitute(op, new) for op in self.tile.before if not isinstance(op, Workgroup)]
        index, *sums = loop.body.args
        with self.builder.region():
            step = (Number(self.builder, index) + turn.first).value
            start = list(self.builder.ops)
        body = substitute_block(loop.body, {**new, index: step})
        trips = turn.trips
        if trips is None:
            trips = (turn.end - turn.first).larger(1)  # it never is less, and passes behind can now see that
        result = self.builder.fresh(f"{loop.results[0].name}_part", loop.results[0].type)
        block = Block((index, *sums), (*start, *body.ops))
        self.builder.ops.append(Loop(trips.value, loop.init, block, results=(result,), loc=loop.loc))
        return result

    def take_over(self, sums: Value, others: Number) -> Value:
        """What the workgroups in front handed over is added, the first one's first."""
        b = self.builder
        index, before = b.fresh("other", INDEX_SCALAR), b.fresh("sums", sums.type)
        with b.region():
            slot = self.slot(Number(b, index)).value
            after = b.emit(TakeOver, before, self.exchange, slot, type=sums.type, name="sums")
            body = b.block((index, before), (after,))
        whole = b.fresh("whole", sums.type)
        b.effect(Loop, others.value, (sums,), body, results=(whole,))
        return whole

    def when(self, times: Number, write: Any) -> None:
        """A loop that goes round once or not at all."""
        once = self.builder.fresh("once", INDEX_SCALAR)
        with self.builder.region():
            write()
            body = self.builder.block((once,), ())
        self.builder.effect(Loop, times.value, (), body)

    def numbers(self, number: Value) -> dict[Value, Value]:
        """The tile's own number in place of the workgroup's."""
        return {op.result: number for op in self.old.body.ops if isinstance(op, Workgroup)}


class _Ranges(_Rounds):
    """What is left is cut evenly: a workgroup has one part or two."""

    def __init__(self, kernel: Kernel, tile: _Tile, split: Split, at_once: int) -> None:
        super().__init__(kernel, tile, split.workgroups)
        self.split, self.at_once = split, at_once
        self.rounds, self.workgroups = _known_rounds(kernel, split, at_once)
        self.whole = self.rounds * self.workgroups

    def start(self) -> Any:
        split = self.split
        first, last = split.first(self.own), split.first(self.own + 1) - 1
        self.first_tile, self.first_step = first // split.steps, first % split.steps
        self.last_tile, self.last_step = last // split.steps, last % split.steps + 1
        has_two = self.first_tile.differs(self.last_tile)
        self.begin = has_two.choose(0, self.first_step)
        self.source = split.workgroup_of(self.first_tile * split.steps)
        return (self.own < split.workgroups).choose(has_two.choose(2, 1), 0)

    def turn(self, turn: Number, is_whole: Number) -> _Turn:
        """A whole tile, or the first of two parts, which is the begin of a tile, or the last part."""
        is_first = turn.equals(self.rounds)
        tile = is_first.choose(self.last_tile, self.first_tile) + self.whole
        number = is_whole.choose(self.own + turn * self.stride, tile)
        first = is_whole.choose(0, is_first.choose(self.begin, self.first_step))
        return _Turn(number.value, first, is_first.choose(self.last_step, self.split.steps))

    @property
    def stride(self) -> Any:
        """From one whole tile of a workgroup to its next."""
        return self.workgroups

    def others(self) -> Any:
        return self.own - self.source

    def slot(self, other: Number) -> Any:
        return self.source + other


class _Parts(_Rounds):
    """Tiles that are left are cut into equal parts; how many steps a turn has, no workgroup's number decides."""

    def __init__(self, kernel: Kernel, tile: _Tile, cut: EqualParts, at_once: int) -> None:
        super().__init__(kernel, tile if cut.is_exact else tile.running_on, cut.workgroups)
        self.cut = cut
        self.rounds, self.workgroups = _known_rounds(kernel, cut, at_once)
        self.whole = self.rounds * self.workgroups

    def start(self) -> Any:
        self.its_tile, self.begin = self.cut.tile(self.own), self.cut.first(self.own)
        return (self.own < self.cut.workgroups).choose(1, 0)

    def turn(self, turn: Number, is_whole: Number) -> _Turn:
        number = is_whole.choose(self.own + turn * self.workgroups, self.its_tile + self.whole)
        first = is_whole.choose(0, self.begin)
        trips = is_whole.choose(self.cut.steps, self.cut.longest)
        return _Turn(number.value, first, (first + trips).smaller(self.cut.steps), trips)

    def others(self) -> int:
        return self.cut.parts - 1

    def slot(self, other: Number) -> Any:
        return self.cut.workgroup_of(self.its_tile, other)


def _known_rounds(kernel: Kernel, split: Split | EqualParts, at_once: int) -> tuple[int, int]:
    """Rounds of whole tiles, and workgroups."""
    rounds = kernel.workgroup_count // at_once
    return rounds, at_once if rounds else split.workgroups


class _OpenRanges(_Ranges):
    """The same where the launch counts tiles and steps: it says how many share, and 0 where nobody does."""

    def __init__(self, kernel: Kernel, tile: _Tile, at_once: int, hand_over_bytes: int) -> None:
        _Rounds.__init__(self, kernel, tile, at_once)
        self.at_once, self.hand_over_bytes = at_once, hand_over_bytes

    @property
    def stride(self) -> int:
        return self.at_once

    def start(self) -> Any:
        plan = _Plan.of(self, RangeSharers)
        most = LARGEST // self.at_once - 1
        every = (plan.left * plan.steps).smaller(most)
        split = self.split = OpenSplit(plan.left, plan.steps, plan.shares, every=every, most=most)
        self.rounds, self.whole, self.workgroups = plan.rounds(self.own), plan.whole, plan.grid(plan.shares)
        self.steps = plan.steps
        first, last = split.first(self.own), (split.first(self.own + 1) - 1).larger(0)
        self.first_tile, self.first_step = first // split.steps, first % split.steps
        self.last_tile, self.last_step = last // split.steps, last % split.steps + 1
        has_two = self.first_tile.differs(self.last_tile)
        self.begin = has_two.choose(0, self.first_step)
        self.source = split.workgroup_of((first - self.first_step).larger(0))
        return (self.own < split.workgroups).choose(has_two.choose(2, 1), 0)


class _OpenParts(_Parts):
    """The same in equal parts. All that depends on a workgroup's number is computed turn by turn, so that one of two
    neighbours can take a turn for the other."""

    def __init__(self, kernel: Kernel, tile: _Tile, at_once: int, hand_over_bytes: int) -> None:
        _Rounds.__init__(self, kernel, tile, at_once)
        self.at_once, self.hand_over_bytes = at_once, hand_over_bytes

    def start(self) -> Any:
        plan = _Plan.of(self, EqualShares)
        sharers = plan.left * plan.shares
        self.most_rounds = (plan.whole + (self.at_once - 1)) // self.at_once
        self.cut = EqualParts(plan.left, plan.steps, plan.shares)
        self.rounds, self.whole, self.workgroups = plan.rounds(self.own), plan.whole, plan.grid(sharers)
        self.steps = plan.steps
        return (self.own < sharers).choose(1, 0)

    def is_whole(self, turn: Number) -> Any:
        """Where tiles are shared, whole ones fill all rounds before; so no workgroup's number decides it."""
        return turn < self.most_rounds

    def turn(self, turn: Number, is_whole: Number) -> _Turn:
        self.its_tile = self.cut.tile(self.own)
        longest = (self.cut.steps + self.cut.parts - 1) // self.cut.parts
        begin = self.own // self.cut.tiles * longest
        number = is_whole.choose(self.own + turn * self.at_once, self.its_tile + self.whole)
        first = is_whole.choose(0, begin)
        trips = is_whole.choose(self.cut.steps, longest).larger(1)
        return _Turn(number.value, first, (first + trips).smaller(self.cut.steps), trips)


@dataclass(frozen=True)
class _Plan:
    """What the launch computes for the rounds of a kernel."""

    tiles: Any
    steps: Any
    left: Any
    """Tiles behind the last whole round."""
    shares: Any
    whole: Any
    at_once: int

    @staticmethod
    def of(rounds: _OpenRanges | _OpenParts, decision: type[LastRound]) -> _Plan:
        b, at_once, step_bytes = rounds.builder, rounds.at_once, rounds.tile.step_bytes
        tiles, steps = tiles_of(rounds.old, b), rounds.tile.steps
        tiles = tiles if isinstance(tiles, Number) else Number(b, b.const(tiles))
        steps = Number(b, steps if isinstance(steps, Value) else b.const(steps))
        left = tiles % at_once
        weighed = decision(
            left.value,
            steps.value,
            at_once,
            step_bytes,
            rounds.hand_over_bytes,
            results=(b.fresh("shares", INDEX_SCALAR),),
        )
        b.ops.append(weighed)
        shares = Number(b, weighed.result)
        whole = shares.equals(0).choose(tiles, tiles // at_once * at_once)
        return _Plan(tiles, steps, left, shares, whole, at_once)

    def rounds(self, own: Number) -> Any:
        return (self.whole + (self.at_once - 1) - own) // self.at_once

    def grid(self, sharers: Number) -> str:
        """The name of the number of workgroups: with a round of whole tiles, or nothing shared, as many as it has."""
        most: Number = self.whole.smaller(self.at_once).larger(sharers)
        return most.value.name
