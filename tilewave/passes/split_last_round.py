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
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import WITH_EFFECT, Const, HandOver, Loop, MakeExchange, Mma, Read, TakeOver, While, Workgroup
from tilewave.ir.placements import lies_on_lines
from tilewave.ir.rewrite import names, substitute, substitute_block, walk
from tilewave.ir.tile_programs import computes_one_tile, only_adds_up
from tilewave.ir.types import INDEX_SCALAR, Exchange, Tile

HAND_OVER_BYTES = 512
"""Of depth: about as long as products of these take, a tile of sums takes to go from one workgroup to another and be
added there. On an H200, 128x256 sums: 6,000 cycles to write and about 4,000 to add, where 128 bytes take 1,024."""
SUM_BITS = 32


@dataclass(frozen=True)
class SplitLastRound:
    """`workgroups`: as many as run at once.

    Where rows do not begin on lines of `line_bytes`, neighbours share copies: they take the same steps of whole tiles.
    """

    workgroups: int
    hand_over_bytes: int = HAND_OVER_BYTES
    line_bytes: int = 1

    def __repr__(self) -> str:
        return f"SplitLastRound({self.workgroups})"

    def __call__(self, kernel: Kernel) -> Kernel:
        found = _Tile.of(kernel)
        if found is None or not all(lies_on_lines(memory, self.line_bytes) for memory in found.memories):
            return kernel
        left = kernel.workgroups % self.workgroups
        split = self.best(left, found.steps, found.step_bytes) if left else None
        if split is None:
            return kernel
        return _Rounds(kernel, found, split, kernel.workgroups // self.workgroups, self.workgroups).kernel()

    def best(self, tiles: int, steps: int, step_bytes: int) -> Split | None:
        """The quickest of the splits that workgroups can be found for; None where whole tiles are as quick."""

        def time(split: Split) -> int:
            return split.longest * step_bytes + split.parts * self.hand_over_bytes

        quickest = min(self.splits(tiles, steps), key=time, default=None)
        return quickest if quickest and time(quickest) < steps * step_bytes else None

    def splits(self, tiles: int, steps: int) -> Iterator[Split]:
        """Several workgroups for each tile, or three for two: ranges often end with a tile, and few are handed over."""
        for workgroups in (tiles * 3 // 2, *range(2 * tiles, self.workgroups + 1, tiles)):
            if tiles < workgroups <= min(self.workgroups, tiles * steps):
                yield Split(tiles, steps, workgroups)


@dataclass(frozen=True)
class Split:
    """`steps` of each of `tiles`, cut evenly among `workgroups`; its formulas take numbers of any kind."""

    tiles: int
    steps: int
    workgroups: int

    @property
    def parts(self) -> int:
        """Of a tile, at most."""
        begins = range(0, self.all_steps, self.steps)
        return max(int(self.workgroup_of(b + self.steps - 1) - self.workgroup_of(b)) + 1 for b in begins)

    @property
    def all_steps(self) -> int:
        return self.tiles * self.steps

    @property
    def longest(self) -> int:
        """Steps that a workgroup has at most."""
        return -(-self.all_steps // self.workgroups)

    def first(self, workgroup: Any) -> Any:
        """The step with which a workgroup's range begins; that of the next one ends it."""
        return workgroup * self.all_steps // self.workgroups

    def workgroup_of(self, step: Any) -> Any:
        """Whose range a step is in."""
        return ((step + 1) * self.workgroups - 1) // self.all_steps


@dataclass(frozen=True)
class _Tile:
    """The program of a tile: a loop that adds up, from zero, and what is done with its sums."""

    before: tuple[Op, ...]
    loop: Loop
    after: tuple[Op, ...]
    steps: int
    step_bytes: int

    @property
    def memories(self) -> list[Value]:
        return [op.memory for op in self.loop.body.ops if isinstance(op, Read)]

    @staticmethod
    def of(kernel: Kernel) -> _Tile | None:
        """None where it is not sure that sums of parts make the sums."""
        ops = kernel.body.ops
        loops = [op for op in walk(kernel.body) if isinstance(op, (Loop, While))]
        if not computes_one_tile(kernel) or len(loops) != 1 or not only_adds_up(loops[0]):
            return None
        (loop,) = loops
        assert isinstance(loop, Loop)
        place = ops.index(loop)
        made = {op.results[0]: op for op in ops if isinstance(op, Const)}
        trips, products = made.get(loop.trips), [op for op in loop.body.ops if isinstance(op, Mma)]
        if trips is None or not _begins_with_zero(loop, made):
            return None
        if any(isinstance(op, WITH_EFFECT) for op in ops[:place]):
            return None
        step_bytes = sum(op.a.type.shape[-1] * op.a.type.dtype.bytes for op in products)
        return _Tile(ops[:place], loop, ops[place + 1 :], int(trips.value), step_bytes)


def _begins_with_zero(loop: Loop, made: dict[Value, Const]) -> bool:
    zeros = [made[v].value == 0 for v in loop.init if v in made and isinstance(v.type, Tile)]
    return zeros == [True] == [loop.init[0].type.dtype.bits == SUM_BITS] and len(loop.init) == 1


class _Rounds:
    """Whole tiles for all workgroups, round by round, and then parts for those that share what is left."""

    def __init__(self, kernel: Kernel, tile: _Tile, split: Split, rounds: int, workgroups: int) -> None:
        self.old, self.tile, self.split, self.rounds = kernel, tile, split, rounds
        self.workgroups = workgroups if rounds else split.workgroups
        start = next(op for op in kernel.body.ops if isinstance(op, Workgroup))
        self.builder = Builder(names(kernel), locate=lambda: start.loc)

    def kernel(self) -> Kernel:
        b, split = self.builder, self.split
        sums = self.tile.loop.init[0].type
        slots = Exchange((split.workgroups, *sums.shape), sums.dtype)
        self.exchange = b.emit(MakeExchange, type=slots, name="exchange")
        self.own = Number(b, b.emit(Workgroup, type=INDEX_SCALAR, name="own"))
        first, last = split.first(self.own), split.first(self.own + 1) - 1
        self.first_tile, self.first_step = first // split.steps, first % split.steps
        self.last_tile, self.last_step = last // split.steps, last % split.steps + 1
        has_two = self.first_tile.differs(self.last_tile)
        self.begin = has_two.choose(0, self.first_step)
        self.source = split.workgroup_of(self.first_tile * split.steps)
        parts = (self.own < split.workgroups).choose(has_two.choose(2, 1), 0)
        trips = (parts + self.rounds).value
        turn = b.fresh("turn", INDEX_SCALAR)
        with b.region():
            self.turn(Number(b, turn))
            body = b.block((turn,), ())
        b.effect(Loop, trips, (), body)
        return replace(self.old, body=replace(self.old.body, ops=tuple(b.ops)), workgroups=self.workgroups)

    def turn(self, turn: Number) -> None:
        """A whole tile, or the first of two parts, which is the begin of a tile, or the last part."""
        steps, far = self.split.steps, self.rounds * self.workgroups
        is_whole, is_first = turn < self.rounds, turn.equals(self.rounds)
        tile = is_first.choose(self.last_tile, self.first_tile) + far
        number = is_whole.choose(self.own + turn * self.workgroups, tile)
        first = is_whole.choose(0, is_first.choose(self.begin, self.first_step))
        end = is_first.choose(self.last_step, steps)
        sums = self.add_up(number.value, first, end)
        ends = end.equals(steps)
        self.when(ends.choose(0, 1), lambda: self.builder.effect(HandOver, sums, self.exchange, self.own.value))
        others = ends.choose(first.equals(0).choose(0, self.own - self.source), 0)
        whole = self.take_over(sums, others)
        (result,) = self.tile.loop.results
        new = {**self.numbers(number.value), result: whole}
        self.when(ends.choose(1, 0), lambda: self.builder.ops.extend(substitute(op, new) for op in self.tile.after))

    def add_up(self, number: Value, first: Number, end: Number) -> Value:
        """The loop, from one step to another."""
        new, loop = self.numbers(number), self.tile.loop
        self.builder.ops += [substitute(op, new) for op in self.tile.before if not isinstance(op, Workgroup)]
        index, *sums = loop.body.args
        with self.builder.region():
            step = (Number(self.builder, index) + first).value
            start = list(self.builder.ops)
        body = substitute_block(loop.body, {**new, index: step})
        trips = (end - first).larger(1).value  # it never is less, and passes behind can now see that
        result = self.builder.fresh(f"{loop.results[0].name}_part", loop.results[0].type)
        block = Block((index, *sums), (*start, *body.ops))
        self.builder.ops.append(Loop(trips, loop.init, block, results=(result,), loc=loop.loc))
        return result

    def take_over(self, sums: Value, others: Number) -> Value:
        """What the workgroups in front handed over is added, the first one's first."""
        b = self.builder
        index, before = b.fresh("other", INDEX_SCALAR), b.fresh("sums", sums.type)
        with b.region():
            slot = (self.source + Number(b, index)).value
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
