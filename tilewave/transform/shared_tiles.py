"""Kernels whose workgroups compute parts of tiles, and pass partial sums on through an exchange (stream-K, split-K).

loop(‹turns›) do (%turn) {
  %part = loop(‹its steps›, …) {… %k = add(%i, ‹its first step›) …}
  loop(‹1 where it ends too early›)  { hand_over(%part, %exchange, %own) }
  %sum = loop(‹parts before it›, [%part]) { take_over(…, %exchange, …) }
  loop(‹1 where it ends the tile›) { write(%sum, %c, …) }
}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tilewave.analysis.shared_tiles import TileProgram
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Value
from tilewave.ir.launch import at_launch, launch_and_rest
from tilewave.ir.ops import HandOver, Loop, MakeExchange, TakeOver, TakeOverAll, Workgroup
from tilewave.ir.rewrite import names, substitute, substitute_block
from tilewave.ir.types import INDEX_SCALAR, Exchange
from tilewave.machine.tuning import SplitTuning
from tilewave.records import dataclass
from tilewave.transform.loop_schedule import Steps


@dataclass(frozen=True)
class Turn:
    """What a workgroup computes in an iteration: the steps of a tile from `first` to `end`."""

    number: Value
    first: Number
    end: Number
    trips: Number | None = None
    """How many steps it runs, where these may be more than the tile has."""


class SharedTiles(ABC):
    """Builds such a kernel; tiles, steps and workgroups are numbers, or scalars of the launch."""

    def __init__(self, kernel: Kernel, tile: TileProgram, slots: int, costs: SplitTuning) -> None:
        self.old, self.tile, self.slots, self.costs = kernel, tile, slots, costs
        start = next((op for op in kernel.body.ops if isinstance(op, Workgroup)), tile.loop)
        self.builder = Builder(names(kernel), locate=lambda: start.loc)

    @abstractmethod
    def kernel(self) -> Kernel: ...

    @abstractmethod
    def compute(self, count: Number) -> None:
        """Emit what a workgroup does in an iteration."""

    @abstractmethod
    def slot(self, other: Number) -> Any:
        """Return the exchange slot of an earlier workgroup's partial sums."""

    @property
    def own_slot(self) -> Number:
        """The exchange slot into which this workgroup stores its partial sums."""
        return self.own

    @property
    def wide(self) -> int:
        """The number of slots that a tile fills."""
        return 1

    @property
    def slot_type(self) -> Exchange:
        sums = self.tile.loop.init[0].type
        return Exchange((self.slots, *sums.shape), sums.dtype)

    def prepare(self) -> None:
        """Emit the exchange and the workgroup id."""
        b = self.builder
        self.exchange = b.emit(MakeExchange, type=self.slot_type, name="exchange")
        self.own = Number(b, b.emit(Workgroup, type=INDEX_SCALAR, name="own"))

    def finished(self, workgroups: Any) -> Kernel:
        """Return the kernel of all that was emitted, for a number of workgroups that may be a scalar of the launch."""
        launch, rest = launch_and_rest(self.old.body)
        grid = workgroups.value.name if isinstance(workgroups, Number) else workgroups
        body = replace(rest, ops=(*launch, *self.builder.ops))
        return at_launch(replace(self.old, body=body, workgroups=grid))

    def numbers(self, number: Value) -> dict[Value, Value]:
        """Return the mapping from the workgroup id to the tile's number."""
        return {op.result: number for op in self.old.body.ops if isinstance(op, Workgroup)}

    # -- the parts of a turn

    def in_turns(self, trips: Number) -> None:
        """Emit `compute` in a loop of `trips` iterations."""
        self.repeat(trips, "turn", self.compute)

    def add_up(self, turn: Turn) -> Value:
        """Emit the K loop over the steps of a part, and return its partial sums."""
        new, loop = self.numbers(turn.number), self.tile.loop
        self.builder.ops += [substitute(op, new) for op in self.tile.before if not isinstance(op, Workgroup)]
        body = Steps(substitute_block(loop.body, new), first=turn.first).block(self.builder)
        trips = turn.trips
        if trips is None:
            trips = (turn.end - turn.first).larger(1)  # never less than 1; stated for range analysis
        result = self.builder.fresh(f"{loop.results[0].name}_part", loop.results[0].type)
        self.builder.ops.append(Loop(trips.value, loop.init, body, results=(result,), loc=loop.loc))
        return result

    def take_over(self, sums: Value, others: Number) -> Value:
        """Emit a loop that adds the partial sums of the earlier workgroups, in order, and return the total."""

        def add(index: Number, before: Value) -> list[Value]:
            return [self.emit_sums(TakeOver, before, self.exchange, self.slot(index).value)]

        (whole,) = self.repeat(others, "other", add, sums)
        return whole

    def take_all(self, sums: Value, times: Number, slot: Number, apart: int, count: int) -> Value:
        """Emit `take_over_all` for a known number of partial sums, in a loop of `times` (0 or 1) iterations.

        It waits for all of them together.
        """

        def add(_: Number, before: Value) -> list[Value]:
            far = self.builder.const(apart)
            return [self.emit_sums(TakeOverAll, before, self.exchange, slot.value, far, count)]

        (whole,) = self.repeat(times, "once", add, sums)
        return whole

    def emit_sums(self, cls: type[TakeOver] | type[TakeOverAll], sums: Value, *parts: Any) -> Value:
        return self.builder.emit(cls, sums, *parts, type=sums.type, name="sums")

    def takes_all(self, others: int) -> bool:
        """Return whether so many partial sums are few enough to be loaded at once."""
        return self.costs.come_together(others, self.tile.sums_bytes)

    def hand_over(self, sums: Value, times: Number) -> None:
        self.when(times, lambda: self.builder.effect(HandOver, sums, self.exchange, self.own_slot.value, self.wide))

    def end(self, number: Value, whole: Value, times: Number) -> None:
        """Emit the epilogue of a tile."""
        (result,) = self.tile.loop.results
        new = {**self.numbers(number), result: whole}
        self.when(times, lambda: self.builder.ops.extend(substitute(op, new) for op in self.tile.after))

    def when(self, times: Number, write: Callable[[], None]) -> None:
        """Emit what `write` emits in a loop of `times` (0 or 1) iterations."""
        self.repeat(times, "once", lambda _: write())

    def repeat(
        self, trips: Number, counter: str, emit: Callable[..., Sequence[Value] | None], *sums: Value
    ) -> tuple[Value, ...]:
        """Emit a loop that carries sums; `emit` emits a step for its number and its sums, and returns the new ones."""
        b = self.builder
        index, before = b.fresh(counter, INDEX_SCALAR), tuple(b.fresh("sums", v.type) for v in sums)
        with b.region():
            after = emit(Number(b, index), *before)
            body = b.block((index, *before), after or ())
        results = tuple(b.fresh("whole", v.type) for v in sums)
        b.effect(Loop, trips.value, sums, body, results=results)
        return results
