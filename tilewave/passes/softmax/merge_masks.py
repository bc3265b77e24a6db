"""Merge masks, and mark the steps that they leave whole: a mask then costs little, and nothing in most steps.

*Merged.* Every reduction and product masks elements past the end by a neutral value: -inf, or 0. The first mask
suffices for all of them:

    %seen = select(%inside, %x, -inf)                  %seen = select(%inside, %x, -inf)
    %larger = max(%largest, ‹largest of %seen›)        %larger = max(%largest, ‹largest of %seen›)
    %p = exp2(sub(%x, %larger))                    →   %p = exp2(sub(%seen, %larger))
    %kept = select(%inside, %p, 0)                     %sum = ‹sum of %p›
    %sum = ‹sum of %kept›

- No op observes %x at masked positions: all that is computed from it, elementwise, ends in selects by the same
  condition. So %seen, which has -inf there, can replace it.
- With -inf there, %p is 0 there (`analysis/masked_values`), which is what the select would insert. Where %larger is NaN
  it is NaN, and so are, both before and after, all sums of that row.

Two nested selects by the same value, as a causal mask and the end of the keys are, become one by both conditions.

*Marked.* One scalar says that a mask is true in the whole step, and selects test it first; `drop_true_masks` then skips
the select there. The begin of its tiles decides in which steps a condition on positions is true everywhere
(`analysis/masked_iterations`):

    %seen = less_equal(keys from %k on, rows from %m on)      %whole = less(%i, ‹(%m + 1) // 64›)
    %x = select(%seen, %scores, -inf)                     →   %seen = …
                                                              %x = select(or(%whole, %seen), %scores, -inf)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewave.analysis.masked_iterations import MaskedIterations, StepBounds
from tilewave.analysis.masked_values import HiddenNumber, HiddenPlaces
from tilewave.analysis.ranges import ranges_of
from tilewave.ir.build import Builder
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.dead_code import eliminate_dead_code
from tilewave.ir.match import constant
from tilewave.ir.ops import And, Broadcast, Elementwise, Less, LessEqual, Loop, Mma, Or, Select
from tilewave.ir.rewrite import names, rewrite, substitute, uses
from tilewave.ir.types import BOOL, Tile


def merge_masks(kernel: Kernel) -> Kernel:
    merged = _merged(kernel)
    marked = rewrite(merged, _Marking(merged).rule)
    return marked if marked != kernel else kernel


# -- merged ------------------------------------------------------------------------------------------------------------


def _merged(kernel: Kernel) -> Kernel:
    def mask(op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Loop) or any(inner.blocks for inner in op.body.ops):
            return None
        return [_Step(op, HiddenPlaces(op, kernel.defs, kernel.users)).masked()]

    changed = rewrite(kernel, mask)
    return eliminate_dead_code(changed) if changed != kernel else kernel


class _Step:
    """A loop whose selects by one condition are merged."""

    def __init__(self, loop: Loop, places: HiddenPlaces) -> None:
        self.loop, self.places = loop, places

    def masked(self) -> Loop:
        for op in self.loop.body.ops:
            if _masks(op) and isinstance(op, Select) and self.hides_scores(op):
                needless = self.needless(op)
                if needless and self.is_unseen(op.a, op.condition):
                    return self.without(needless, op)
        return self.loop

    def hides_scores(self, op: Select) -> bool:
        """Whether `op` masks by -inf, which changes no maximum."""
        hidden = self.places.constant(op.b)
        return hidden is not None and op.result.type.dtype.is_float and bool(np.isneginf(hidden.number))

    def is_unseen(self, v: Value, condition: Value) -> bool:
        """Whether nothing depends on `v` where the condition is false."""
        return all(self.is_unseen_by(op, v, condition) for op in self.places.users[v])

    def is_unseen_by(self, op: Op, v: Value, condition: Value) -> bool:
        if op not in self.loop.body.ops or not isinstance(op, Elementwise):
            return False
        hides = isinstance(op, Select) and op.condition == condition and op.b != v
        return hides or self.is_unseen(op.result, condition)

    def needless(self, first: Select) -> list[Op]:
        """Return the selects by the same condition that change nothing once `first.result` replaces `first.a`."""
        known = {first.a: HiddenNumber(first.a.type.dtype.numpy.type(-np.inf))}
        found: list[Op] = []
        for op in self.loop.body.ops:
            if isinstance(op, Select) and op.condition == first.condition:
                found += [op] if op != first and op.a in known and self.is_needless(op, known[op.a]) else []
            elif (held := self.places.held(op, known)) is not None:
                known[op.result] = held
        return found

    def is_needless(self, op: Select, held: HiddenNumber) -> bool:
        hidden = self.places.constant(op.b)
        if hidden is None or held.number != hidden.number or np.signbit(held.number) != np.signbit(hidden.number):
            return False
        return all(self.is_nan_anyhow(op, root) for root in held.unless)

    def is_nan_anyhow(self, op: Select, root: Value) -> bool:
        rows = self.places.rows(op.a, root)
        return rows is not None and self.places.is_nan_anyhow(op.result, rows, root)

    def without(self, needless: Sequence[Op], first: Select) -> Loop:
        """Return the loop without the `needless` selects, with `first.result` in place of `first.a` after `first`."""
        ops = self.loop.body.ops
        after = ops.index(first) + 1
        if any(first.a in op.operands for op in ops[: after - 1]):
            return self.loop
        rest = list(ops[:after])
        new = {first.a: first.result}
        for old in ops[after:]:
            op = substitute(old, new)
            if old in needless and isinstance(op, Select):
                new[op.result] = op.a
            else:
                rest.append(op)
        return replace(self.loop, body=replace(self.loop.body, ops=tuple(rest)))


# -- marked ------------------------------------------------------------------------------------------------------------


class _Marking:
    """Marks the steps of loops with products, where masks cost as much as what they mask."""

    def __init__(self, kernel: Kernel) -> None:
        self.defs, self.used = dict(kernel.defs), uses(kernel)
        self.ranges, self.builder = ranges_of(kernel), Builder(names(kernel))

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
