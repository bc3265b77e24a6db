"""Merge masks: scores past an end are masked once, and values computed from them are not masked again.

    %seen = select(%inside, %x, -inf)                  %seen = select(%inside, %x, -inf)
    %larger = max(%largest, ‹largest of %seen›)        %larger = max(%largest, ‹largest of %seen›)
    %p = exp2(sub(%x, %larger))                    →   %p = exp2(sub(%seen, %larger))
    %kept = select(%inside, %p, 0)                     %sum = ‹sum of %p›
    %sum = ‹sum of %kept›

Every reduction and product masks elements past the end by a neutral value: -inf, or 0. The first mask suffices for all
of them, for two reasons:

- No op observes %x at masked positions: all that is computed from it, elementwise, ends in selects by the same
  condition. So %seen, which has -inf there, can replace it.
- With -inf there, %p is 0 there (`analysis/masked_values`), which is what the select would insert. Where %larger is NaN
  it is NaN, and so are, both before and after, all sums of that row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewave.analysis.masked_values import HiddenNumber, HiddenPlaces
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.dead_code import eliminate_dead_code
from tilewave.ir.ops import Elementwise, Loop, Select
from tilewave.ir.rewrite import rewrite, substitute
from tilewave.ir.types import Tile


def merge_masks(kernel: Kernel) -> Kernel:
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
            if isinstance(op, Select) and isinstance(op.condition.type, Tile) and self.hides_scores(op):
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
