"""Skip the steps of a loop in which a mask hides everything.

    loop(%steps, …) do (%i, …) {                                 %end = min(%steps, (%m + 191) // 64)
      %k = mul(%i, %c64)                                         loop(%end, …) do (%i, …) {
      %seen = less_equal(keys from %k on, rows from %m on)    →    …
      %x = select(%seen, %scores, -inf)
      …

The begin of its tiles decides whether a step has elements for which a condition holds (`analysis/masked_iterations`),
and the ops of the loop decide whether a step without any changes nothing (`analysis/masked_steps`). Neither reads nor
products of skipped steps are left, on any target. Where a mask leaves no step at all, one is taken.
"""

from __future__ import annotations

from dataclasses import replace

from tilewave.analysis.affine import Sums
from tilewave.analysis.masked_iterations import MaskedIterations, Quotient, StepBounds
from tilewave.analysis.masked_steps import is_idle
from tilewave.analysis.ranges import ranges_of
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.match import source
from tilewave.ir.ops import Broadcast, FloorDiv, Launch, Loop, Min, Permute, Select
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import names, rewrite, walk
from tilewave.ir.types import Tile
from tilewave.transform.loop_schedule import Steps

NOT_IDLE = RemarkKind(
    "blocks that this select masks entirely are not skipped, because they change values that the loop carries",
    "mask addends with 0, and operands of a maximum with -inf, and let the maximum start from a finite number",
)


def skip_masked_blocks(kernel: Kernel) -> Kernel:
    if not any(_masks(op) for op in walk(kernel.body) if isinstance(op, Loop)):
        return kernel
    skipping = _Skipping(kernel)
    skipped = rewrite(kernel, lambda op: skipping.loop(op) if isinstance(op, Loop) else None)
    return skipped.with_remarks(*skipping.remarks)


def _masks(loop: Loop) -> list[Select]:
    return [op for op in loop.body.ops if isinstance(op, Select) and isinstance(op.condition.type, Tile)]


class _Skipping:
    def __init__(self, kernel: Kernel) -> None:
        self.defs = kernel.defs
        self.ranges, self.sums, self.taken = ranges_of(kernel), Sums(kernel), names(kernel)
        self.remarks: list[Remark] = []

    def loop(self, loop: Loop) -> list[Op]:
        """Return the loop over the steps in which every mask leaves something, after the ops that count them."""
        rounds = StepBounds()
        roots = {source(op.condition, self.defs, Broadcast, Permute): op for op in _masks(loop)}
        for condition, select in roots.items():
            left = self.left_by(condition, loop)
            if left == StepBounds():
                continue
            if is_idle(loop, condition, self.defs):
                rounds &= left
            else:
                self.remarks.append(NOT_IDLE.at(select.loc))
        return [loop] if rounds == StepBounds() else self.narrowed(loop, rounds)

    def left_by(self, condition: Value, loop: Loop) -> StepBounds:
        """Return the bounds of steps in which a condition holds somewhere, without those that the loop has anyway."""
        found, ends = MaskedIterations(loop, self.defs, self.ranges).somewhere(condition), self.ends(loop.trips)
        stops = (q for q in found.stops if q not in ends and not q.is_at_least(self.ranges.of(loop.trips)[1]))
        return StepBounds(tuple(q for q in found.starts if not q.is_at_most(0)), tuple(stops))

    def ends(self, trips: Value) -> list[Quotient]:
        """Return quotients that are upper bounds of a trip count, from its definition."""
        op = self.defs.get(trips)
        match op:
            case Launch():
                return self.ends(op.body.yielded[op.results.index(trips)])
            case Min(a, b):
                return [*self.ends(a), *self.ends(b)]
            case FloorDiv(a, b):
                low, high = self.ranges.of(b)
                return [Quotient(self.sums.of(a), low)] if low == high > 0 else []
            case _:
                return []

    def narrowed(self, loop: Loop, bounds: StepBounds) -> list[Op]:
        """Return the loop with fewer steps, but one at least, if there is any, so that its loads are always used."""
        builder = Builder(self.taken, locate=lambda: loop.loc)
        every = Number(builder, loop.trips)
        stop, first = every, None
        for q in bounds.stops:
            stop = stop.smaller(q.number(builder))
        for q in bounds.starts:
            start = q.number(builder)
            first = start if first is None else first.larger(start)
        if first is None:
            trips = stop.larger(1).smaller(every)
            return [*builder.ops, replace(loop, trips=trips.value)]
        first = first.smaller(every - 1).larger(0)
        trips = (stop.larger(first + 1).smaller(every) - first).larger(0)
        return [*builder.ops, replace(loop, trips=trips.value, body=Steps(loop.body, first=first).block(builder))]
