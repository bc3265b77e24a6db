"""Unroll a loop by its number of pipeline stages, so that every step has a constant stage index.

    loop(15) {                                     loop(7) {
      copy_async_chunks(…, sa[(i + 1) % 2])    →     copy_async_chunks(…, sa[1]);  acc = matrix(load(sa[0]), …, acc)
      acc = matrix(load(sa[i % 2]), …, acc)          copy_async_chunks(…, sa[0]);  acc = matrix(load(sa[1]), …, acc)
    }                                              }
                                                   copy_async_chunks(…, sa[1]);    acc = matrix(load(sa[0]), …, acc)

The offset of a stage is then an immediate of the instruction, and no address arithmetic is left in the loop. Where the
trip count is known at the launch only, each step after the unrolled loop is predicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewave.analysis.ranges import Ranges, ranges_of
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Add, Const, CopyAsyncChunks, Loop, Mod
from tilewave.ir.remarks import Left, Remark, RemarkKind, want
from tilewave.ir.rewrite import names, replace_values, rewrite
from tilewave.ir.types import INDEX_SCALAR
from tilewave.records import dataclass
from tilewave.transform.loop_schedule import LoopSchedule, Steps

MANY_SLOTS = RemarkKind(
    "the loop has {slots} stages, and is unrolled by at most {most}",
    "reduce num_stages",
)
SLOTS_DIFFER = RemarkKind("tiles of this loop have {counts} stages, so it is not unrolled by its stages")
MANY_SUMS = RemarkKind(
    "the loop carries {words} registers of sums per lane, and is unrolled only up to {most}",
    "split the tile among more waves",
)


@dataclass(frozen=True)
class UnrollStages:
    """`most_slots`: with more stages the unrolled loop would be too long.

    `most_carried_words`: where a lane carries more registers from step to step, LLVM copies sums between ordinary and
    accumulation registers (VGPRs and AGPRs). A loop that would copy carried operands in each step is unrolled anyway.
    """

    most_slots: int = 4
    most_carried_words: int = 192

    def __call__(self, kernel: Kernel) -> Kernel:
        ranges, taken = ranges_of(kernel), names(kernel)
        results: dict[Value, Value] = {}
        remarks: list[Remark] = []

        def unroll(op: Op) -> Sequence[Op] | None:
            if not isinstance(op, Loop) or not any(isinstance(o, CopyAsyncChunks) for o in op.body.ops):
                return None
            slots, (least, most) = _slots(op, ranges), ranges.of(op.trips)
            counts = {count for _, count in slots.values()}
            if counts <= {1}:
                return None  # there is one stage only
            try:
                self.check(op, counts)
            except Left as left:
                remarks.append(left.remarks)
                return None
            writer = _Writer(op, slots, taken)
            sums = writer.steps(most, min(counts)) if least == most else writer.any_steps(most, min(counts))
            results.update(zip(op.results, sums, strict=True))
            return writer.builder.ops

        return replace_values(rewrite(kernel, unroll), results).with_remarks(*remarks)

    def check(self, op: Loop, counts: set[int]) -> None:
        words = -(-_carried_bits(op) // 32)
        want(len(counts) == 1, SLOTS_DIFFER, op.loc, counts=" and ".join(map(str, sorted(counts))))
        want(max(counts) <= self.most_slots, MANY_SLOTS, op.loc, slots=max(counts), most=self.most_slots)
        fits = words <= self.most_carried_words or _copies_vectors(op)
        want(fits, MANY_SUMS, op.loc, words=words, most=self.most_carried_words)


def _slots(loop: Loop, ranges: Ranges) -> dict[Value, tuple[int, int]]:
    """Return the stage indices in a loop's body: their offset from the step's number, and the number of stages."""
    ahead, found = {loop.body.args[0]: 0}, {}
    for op in loop.body.ops:
        if isinstance(op, (Add, Mod)) and op.a in ahead:
            least, most = ranges.of(op.b)
            if least == most and isinstance(op, Add):
                ahead[op.result] = ahead[op.a] + least
            elif least == most:
                found[op.result] = ahead[op.a], least
    return found


def _copies_vectors(loop: Loop) -> bool:
    """Whether a carried vector is still used when the one of the next step is defined, so that each step copies it."""
    ops, carried = loop.body.ops, loop.body.args[1:]
    defined = {v: position for position, op in enumerate(ops) for v in op.results}
    used = {v: position for position, op in enumerate(ops) for v in op.operands}
    loaded = zip(carried, ops[-1].operands, strict=True)
    return any(defined.get(after, -1) < used.get(v, -1) for v, after in loaded if after in defined)


def _carried_bits(loop: Loop) -> int:
    return sum(prod(v.type.shape) * v.type.dtype.bits for v in loop.init)


class _Writer:
    def __init__(self, loop: Loop, slots: dict[Value, tuple[int, int]], taken: set[str]) -> None:
        self.loop, self.slots = loop, slots
        self.builder = Builder(taken, locate=lambda: loop.loc)

    def steps(self, trips: int, slots: int) -> tuple[Value, ...]:
        """Emit all steps of a known trip count, and return the values that the last one yields."""
        turns = trips // slots if trips // slots > 1 else 0
        parts = [self.turns(self.builder.const(turns, name="turns"), slots)] if turns else []
        parts += [self.step(self.number(step), step) for step in range(turns * slots, trips)]
        return LoopSchedule(self.loop, tuple(parts)).expand(self.builder)

    def any_steps(self, most: int, slots: int) -> tuple[Value, ...]:
        """Emit the steps of a dynamic trip count: each step after the unrolled loop is in a loop of one or no trip."""
        trips, first, parts = Number(self.builder, self.loop.trips).larger(0), self.number(0), []
        if most >= slots:
            turns = trips // slots
            first = turns * slots
            parts.append(self.turns(turns.value, slots))
        for step in range(min(most, slots - 1)):
            once = (trips - first - step).larger(0).smaller(1)
            parts.append(replace(self.step(first + step, step), trips=once.value, yields="rest"))
        return LoopSchedule(self.loop, tuple(parts)).expand(self.builder)

    def number(self, value: int) -> Number:
        return Number(self.builder, self.builder.const(value))

    def turns(self, trips: Value, slots: int) -> Steps:
        """Return the unrolled loop, whose body has a step for every stage."""
        builder = self.builder
        turn = builder.fresh("turn", INDEX_SCALAR)
        args = tuple(builder.fresh(v.name, v.type) for v in self.loop.body.args[1:])
        with builder.region():
            first = Number(builder, turn) * slots
            steps = tuple(self.step(first + step if step else first, step) for step in range(slots))
            body = builder.block((turn, *args), LoopSchedule(replace(self.loop, init=args), steps).expand(builder))
        return Steps(body, trips, yields="turns")

    def step(self, index: Number, number: int) -> Steps:
        """Return one step, in which the stage indices are constants."""

        def fixed(op: Op) -> Op:
            if not op.results or op.results[0] not in self.slots:
                return op
            ahead, slots = self.slots[op.results[0]]
            return Const((number + ahead) % slots, results=op.results, loc=op.loc)

        body = replace(self.loop.body, ops=tuple(map(fixed, self.loop.body.ops)))
        return Steps(body, first=index, suffix="")
