"""Tiles whose K loop several workgroups share (stream-K, split-K): the tile's program, and the loop over its parts.

loop(‹turns›) do (%turn) {
  %part = loop(‹its steps›, …) {… %k = add(%i, ‹its first step›) …}
  loop(‹1 where it ends too early›)  { hand_over(%part, %exchange, %own) }
  %sum = loop(‹parts before it›, [%part]) { take_over(…, %exchange, …) }
  loop(‹1 where it ends the tile›) { write(%sum, %c, …) }
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tilewave.analysis.k_loops import Depths
from tilewave.analysis.tile_programs import computes_one_tile, only_adds_up
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.effects import touched
from tilewave.ir.launch import at_launch, known_at_launch, launch_and_rest
from tilewave.ir.ops import Const, HandOver, Loop, MakeExchange, Mma, Read, TakeOver, TakeOverAll, While, Workgroup
from tilewave.ir.remarks import RemarkKind, want
from tilewave.ir.rewrite import names, substitute, substitute_block, walk
from tilewave.ir.types import INDEX_SCALAR, Exchange, Tile
from tilewave.machine.tuning import SplitTuning

SUM_BITS = 32
"""The accumulator width of loops that workgroups may share; other tiles are computed whole."""
NOT_ONE_LOOP = RemarkKind("the tile is not computed by a single K loop, so it is not split among workgroups")
DOES_MORE = RemarkKind("this loop does more than accumulate products, so it is not split among workgroups")
UNKNOWN_STEPS = RemarkKind(
    "the trip count of this loop is dynamic, so it is not split among workgroups",
    "give the loop's dimension a value in subs",
)
NOT_FROM_ZERO = RemarkKind(
    "this loop does not start from one tile of zeros of {bits} bits each, so it is not split among workgroups",
    "start from zeros, and add the initial value after the loop",
)
WRITES_BEFORE = RemarkKind("this is written before the loop, so the loop is not split among workgroups")
READS_WRITTEN = RemarkKind(
    "{memory} is read before the loop and written after it, so the loop is not split among workgroups",
    "read it after the loop",
)


@dataclass(frozen=True)
class TileProgram:
    """The program of a tile: its K loop, which accumulates from zero, and the epilogue."""

    before: tuple[Op, ...]
    loop: Loop
    after: tuple[Op, ...]
    steps: Any
    """An int, or a scalar of the launch."""
    step_bytes: int
    depths: Depths

    @property
    def memories(self) -> list[Value]:
        return [op.memory for op in self.loop.body.ops if isinstance(op, Read)]

    @property
    def sums_bytes(self) -> int:
        sums = self.loop.init[0].type
        return prod(sums.shape) * int(sums.dtype.bytes)

    @property
    def ends_in_zeros(self) -> bool:
        return self.depths.end_in_zeros(self.loop)

    @property
    def running_on(self) -> TileProgram:
        """The tile program with predicated reads, so that steps after the last one read zeros."""
        return replace(self, loop=replace(self.loop, body=self.depths.running_on(self.loop)))

    def steps_at(self, builder: Builder) -> Number:
        return Number(builder, self.steps if isinstance(self.steps, Value) else builder.const(self.steps))

    @staticmethod
    def of(kernel: Kernel) -> TileProgram:
        """Return the program of a kernel's tile; raise `Left` where partial sums may not add up to the sums."""
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
        return TileProgram(before, loop, ops[len(before) + 1 :], steps, step_bytes, Depths(kernel))


def _check_before(kernel: Kernel, before: tuple[Op, ...]) -> None:
    """Refuse ops before the loop that write or read what is written: every workgroup of the tile runs them."""
    written, _ = touched(kernel)
    for op in before:
        want(not op.has_effect, WRITES_BEFORE, op.loc)
        for memory in op.read:
            want(memory not in written, READS_WRITTEN, op.loc, memory=memory.name)


def _begins_with_zero(loop: Loop, made: dict[Value, Const]) -> bool:
    zeros = [made[v].value == 0 for v in loop.init if v in made and isinstance(v.type, Tile)]
    return zeros == [True] == [loop.init[0].type.dtype.bits == SUM_BITS] and len(loop.init) == 1


@dataclass(frozen=True)
class Turn:
    """What a workgroup computes in an iteration: the steps of a tile from `first` to `end`."""

    number: Value
    first: Number
    end: Number
    trips: Number | None = None
    """How many steps it runs, where these may be more than the tile has."""


class Sharing(ABC):
    """Writes a kernel whose workgroups compute parts of tiles, and pass partial sums through an exchange."""

    def __init__(self, kernel: Kernel, tile: TileProgram, slots: int, costs: SplitTuning) -> None:
        self.old, self.tile, self.slots, self.costs = kernel, tile, slots, costs
        start = next((op for op in kernel.body.ops if isinstance(op, Workgroup)), tile.loop)
        self.builder = Builder(names(kernel), locate=lambda: start.loc)

    @abstractmethod
    def slot(self, other: Number) -> Any:
        """Return the exchange slot of an earlier workgroup's partial sums."""

    def prepare(self) -> None:
        """Emit the exchange and the workgroup id."""
        b = self.builder
        self.exchange = b.emit(MakeExchange, type=self.slot_type, name="exchange")
        self.own = Number(b, b.emit(Workgroup, type=INDEX_SCALAR, name="own"))

    @property
    def slot_type(self) -> Exchange:
        sums = self.tile.loop.init[0].type
        return Exchange((self.slots, *sums.shape), sums.dtype)

    def finished(self, workgroups: int | str) -> Kernel:
        launch, rest = launch_and_rest(self.old.body)
        new = replace(self.old, body=replace(rest, ops=(*launch, *self.builder.ops)), workgroups=workgroups)
        return at_launch(new)

    def in_turns(self, trips: Value) -> None:
        """Emit `compute` in a loop of `trips` iterations."""
        b = self.builder
        turn = b.fresh("turn", INDEX_SCALAR)
        with b.region():
            self.compute(Number(b, turn))
            body = b.block((turn,), ())
        b.effect(Loop, trips, (), body)

    @abstractmethod
    def compute(self, count: Number) -> None:
        """Emit what a workgroup does in an iteration."""

    def add_up(self, turn: Turn) -> Value:
        """Emit the K loop over the steps of a part, and return its partial sums."""
        new, loop = self.numbers(turn.number), self.tile.loop
        self.builder.ops += [substitute(op, new) for op in self.tile.before if not isinstance(op, Workgroup)]
        index, *sums = loop.body.args
        with self.builder.region():
            step = (Number(self.builder, index) + turn.first).value
            start = list(self.builder.ops)
        body = substitute_block(loop.body, {**new, index: step})
        trips = turn.trips
        if trips is None:
            trips = (turn.end - turn.first).larger(1)  # never less than 1; stated for range analysis
        result = self.builder.fresh(f"{loop.results[0].name}_part", loop.results[0].type)
        block = Block((index, *sums), (*start, *body.ops))
        self.builder.ops.append(Loop(trips.value, loop.init, block, results=(result,), loc=loop.loc))
        return result

    def take_over(self, sums: Value, others: Number) -> Value:
        """Emit a loop that adds the partial sums of the earlier workgroups, in order, and return the total."""
        b = self.builder
        index, before = b.fresh("other", INDEX_SCALAR), b.fresh("sums", sums.type)
        with b.region():
            slot = self.slot(Number(b, index)).value
            after = b.emit(TakeOver, before, self.exchange, slot, type=sums.type, name="sums")
            body = b.block((index, before), (after,))
        whole = b.fresh("whole", sums.type)
        b.effect(Loop, others.value, (sums,), body, results=(whole,))
        return whole

    def take_all(self, sums: Value, times: Number, slot: Number, apart: int, count: int) -> Value:
        """Emit `take_over_all` for a known number of partial sums, in a loop of `times` (0 or 1) iterations.

        It waits for all of them together.
        """
        b = self.builder
        once, before = b.fresh("once", INDEX_SCALAR), b.fresh("sums", sums.type)
        with b.region():
            far = b.const(apart)
            after = b.emit(TakeOverAll, before, self.exchange, slot.value, far, count, type=sums.type, name="sums")
            body = b.block((once, before), (after,))
        whole = b.fresh("whole", sums.type)
        b.effect(Loop, times.value, (sums,), body, results=(whole,))
        return whole

    def takes_all(self, others: int) -> bool:
        """Return whether so many partial sums are few enough to be loaded at once."""
        return self.costs.come_together(others, self.tile.sums_bytes)

    def when(self, times: Number, write: Any) -> None:
        """Emit what `write` emits in a loop of `times` (0 or 1) iterations."""
        once = self.builder.fresh("once", INDEX_SCALAR)
        with self.builder.region():
            write()
            body = self.builder.block((once,), ())
        self.builder.effect(Loop, times.value, (), body)

    def numbers(self, number: Value) -> dict[Value, Value]:
        """Return the mapping from the workgroup id to the tile's number."""
        return {op.result: number for op in self.old.body.ops if isinstance(op, Workgroup)}

    @property
    def own_slot(self) -> Number:
        """The exchange slot into which this workgroup stores its partial sums."""
        return self.own

    @property
    def wide(self) -> int:
        """The number of slots that a tile fills."""
        return 1

    def hand_over(self, sums: Value, times: Number) -> None:
        self.when(times, lambda: self.builder.effect(HandOver, sums, self.exchange, self.own_slot.value, self.wide))

    def end(self, number: Value, whole: Value, times: Number) -> None:
        """Emit the epilogue of a tile."""
        (result,) = self.tile.loop.results
        new = {**self.numbers(number), result: whole}
        self.when(times, lambda: self.builder.ops.extend(substitute(op, new) for op in self.tile.after))


class TileShares(Sharing):
    """Stream-K: whole tiles for all workgroups in full waves, then parts of the tiles that are left."""

    rounds: Any
    """The number of iterations that compute whole tiles."""
    whole: Any
    """The number of tiles that are computed whole."""
    workgroups: Any
    steps: Any
    """Steps of a whole tile."""

    def __init__(self, kernel: Kernel, tile: TileProgram, slots: int, costs: SplitTuning) -> None:
        super().__init__(kernel, tile, slots, costs)
        self.steps = tile.steps

    @abstractmethod
    def start(self) -> Any:
        """Emit what a workgroup needs to know of its parts, and return how many it has."""

    @abstractmethod
    def turn(self, turn: Number, is_whole: Number) -> Turn: ...

    @abstractmethod
    def others(self) -> Any:
        """Return how many workgroups have earlier parts of the tile that this workgroup finishes."""

    def kernel(self) -> Kernel:
        self.prepare()
        self.in_turns((self.start() + self.rounds).value)
        return self.finished(self.workgroups)

    def is_whole(self, turn: Number) -> Any:
        return turn < self.rounds

    def compute(self, count: Number) -> None:
        turn = self.turn(count, self.is_whole(count))
        sums = self.add_up(turn)
        ends = turn.end.equals(self.steps)
        self.hand_over(sums, ends.choose(0, 1))
        others = ends.choose(turn.first.equals(0).choose(0, self.others()), 0)
        whole = self.take_over(sums, others)
        self.end(turn.number, whole, ends.choose(1, 0))


def hands_over(kernel: Kernel) -> bool:
    """Return whether workgroups wait for each other: in launch order, which then must not be changed."""
    return any(isinstance(op, MakeExchange) for op in walk(kernel.body))
