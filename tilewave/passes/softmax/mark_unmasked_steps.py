"""Mark steps without masked elements: one scalar says that a mask is true in the whole step, and selects test it first.

    %seen = less_equal(keys from %k on, rows from %m on)      %whole = less(%i, ‹(%m + 1) // 64›)
    %x = select(%seen, %scores, -inf)                     →   %seen = …
                                                              %x = select(or(%whole, %seen), %scores, -inf)

The begin of its tiles decides in which steps a condition on positions is true everywhere
(`analysis/masked_iterations`). `drop_true_masks` then skips the select there. Two nested selects by the same value, as
a causal mask and the end of the keys are, are first merged into one by both conditions, which needs one test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tilewave.analysis.masked_iterations import MaskedIterations, StepBounds
from tilewave.analysis.ranges import Ranges
from tilewave.ir.build import Builder
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.match import constant
from tilewave.ir.ops import And, Broadcast, Less, LessEqual, Loop, Mma, Or, Select
from tilewave.ir.rewrite import names, rewrite, uses
from tilewave.ir.types import BOOL, Tile


def mark_unmasked_steps(kernel: Kernel) -> Kernel:
    """Mark the steps of loops with products, where masks cost as much as what they mask."""
    telling = _Telling(dict(kernel.defs), uses(kernel), Ranges(kernel), Builder(names(kernel)))
    marked = rewrite(kernel, telling.rule)
    return marked if marked != kernel else kernel


class _Telling:
    def __init__(self, defs: dict[Value, Op], used: Counter[Value], ranges: Ranges, builder: Builder) -> None:
        self.defs, self.used, self.ranges, self.builder = defs, used, ranges, builder

    def rule(self, op: Op) -> list[Op] | None:
        multiplies = isinstance(op, Loop) and any(isinstance(inner, Mma) for inner in op.body.ops)
        return self.loop(op) if multiplies and isinstance(op, Loop) else None

    def loop(self, loop: Loop) -> list[Op]:
        """Return the loop whose selects test the scalar first, after the ops that compute the bounds."""
        rounds = MaskedIterations(loop, self.defs, self.ranges)
        front: list[Op] = []
        whole: dict[Value, tuple[list[Op], Value]] = {}
        body: list[Op] = []
        for op in self.joined(loop.body.ops, rounds):
            bounds = rounds.everywhere(op.condition) if _masks(op) and isinstance(op, Select) else None
            if bounds is None or not isinstance(op, Select):
                body.append(op)
                continue
            if op.condition not in whole:
                before, inside, is_whole = self.marked(loop, bounds, op)
                front += before
                body += inside
                whole[op.condition] = inside, is_whole
            body += self.asking(op, whole[op.condition][1])
        return [*front, replace(loop, body=replace(loop.body, ops=tuple(body)))] if whole else [loop]

    def joined(self, ops: Sequence[Op], rounds: MaskedIterations) -> list[Op]:
        """Return the ops with one select for two nested ones by the same value."""
        found: list[Op] = []
        for op in ops:
            inner = self.defs.get(op.a) if isinstance(op, Select) else None
            if (
                isinstance(op, Select)
                and isinstance(inner, Select)
                and inner in found
                and self.are_one(inner, op, rounds)
            ):
                with self.builder.region():
                    self.builder.locate = lambda loc=op.loc: loc  # type: ignore[misc]
                    both = self.builder.binary(And, inner.condition, op.condition)
                    joint = replace(op, condition=both, a=inner.a)
                    found = [*(other for other in found if other != inner), *self.builder.ops, joint]
                self.defs.update({both: found[-2], op.result: joint})
            else:
                found.append(op)
        return found

    def are_one(self, inner: Select, outer: Select, rounds: MaskedIterations) -> bool:
        """Whether no other op uses the inner result, and the unmasked steps of both conditions are known."""
        hidden = {constant(op.b, self.defs, Broadcast) for op in (inner, outer)}
        same = len(hidden) == 1 and None not in hidden
        marked = all(_masks(op) and rounds.everywhere(op.condition) for op in (inner, outer))
        return same and marked and self.used[inner.result] == 1

    def marked(self, loop: Loop, bounds: StepBounds, op: Op) -> tuple[list[Op], list[Op], Value]:
        """Return the ops that compute the bounds of unmasked steps, the ops that test them, and the result."""
        builder, counter = self.builder, loop.body.args[0]
        with builder.region():
            builder.locate = lambda: op.loc
            starts = [q.number(builder).value for q in bounds.starts]
            stops = [q.number(builder).value for q in bounds.stops]
            before = list(builder.ops)
        with builder.region():
            asked = [builder.binary(LessEqual, start, counter) for start in starts]
            asked += [builder.binary(Less, counter, stop) for stop in stops]
            found = asked[0]
            for other in asked[1:]:
                found = builder.binary(And, found, other)
            return before, list(builder.ops), found

    def asking(self, op: Select, is_whole: Value) -> list[Op]:
        kind = Tile(op.result.type.shape, BOOL)
        with self.builder.region():
            self.builder.locate = lambda: op.loc
            wide = self.builder.emit(Broadcast, is_whole, (), type=kind, name=is_whole.name)
            either = self.builder.binary(Or, wide, op.condition)
            return [*self.builder.ops, replace(op, condition=either)]


def _masks(op: Op) -> bool:
    return isinstance(op, Select) and isinstance(op.condition.type, Tile)
