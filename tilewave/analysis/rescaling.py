"""How values change when a running maximum has another value, and everything that is shifted by it changes along.

If the maximum is smaller by k, a value changes to itself · 2^(power · k) + shift · k, or in an unknown way. What a loop
carries was computed with the maximum `before` the step; what it yields, with the maximum `now`: powers and shifts are
pairs, for how much smaller either maximum is.

    the maximum                      shift -1
    exp2(c · (x - the maximum))      power c
    sums of those, products of them  power c
    one of them / another            nothing changes
    c · the maximum + log2(sum)      nothing changes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import e, log2
from typing import Any

from tilewave.ir.core import Block, Op, Value
from tilewave.ir.dispatch import find_row
from tilewave.ir.match import constant
from tilewave.ir.ops import (
    Add,
    Broadcast,
    Cast,
    Div,
    Equal,
    Exp,
    Exponential,
    ExtractSlice,
    Fma,
    Log,
    Log2,
    Loop,
    Max,
    Min,
    Mul,
    Neg,
    NotEqual,
    OpaqueCopy,
    Permute,
    ReduceLanes,
    ReduceRegisters,
    Select,
    Sub,
    WgmmaRegisters,
    Yield,
)
from tilewave.records import dataclass

Pair = tuple[float, float]
NOTHING: Pair = (0.0, 0.0)


@dataclass(frozen=True)
class Change:
    power: Pair = NOTHING
    shift: Pair = NOTHING


SAME = Change()


class Rescaling:
    """Follows changes from op to op; `changes` has those of the values that are known to change."""

    def __init__(self, defs: Mapping[Value, Op], changes: Mapping[Value, Change]) -> None:
        self.defs = defs
        self.changes: dict[Value, Change | None] = dict(changes)

    def of(self, v: Value) -> Change | None:
        return self.changes.get(v, SAME)

    def follow(self, ops: Iterable[Op]) -> bool:
        """Return whether the changes of all results are known, and ops with effects take nothing that changes."""
        known = [self.follows(op) for op in ops]  # a list, so that all ops are followed even after a False
        return all(known)

    def follows(self, op: Op) -> bool:
        if isinstance(op, Yield) or (op.results and op.results[0] in self.changes):
            return True
        found = self.change(op)
        self.changes.update(dict.fromkeys(op.results, found))
        return found is not None

    def change(self, op: Op) -> Change | None:
        taken = [self.of(v) for v in _taken(op)]
        if all(change == SAME for change in taken):
            return SAME
        rule = find_row(RULES, op)
        return None if rule is None or None in taken else rule(self, op)

    def number(self, v: Value) -> float | None:
        """Return the constant that all elements of v are; None if there is none."""
        found = constant(v, self.defs, Broadcast)
        return None if found is None else float(found)

    # -- one op each

    def passed_on(self, op: Any) -> Change | None:
        return self.of(op.x)

    def cast(self, op: Cast) -> Change | None:
        return self.of(op.x) if op.x.type.dtype.is_float and op.result.type.dtype.is_float else None

    def summed(self, op: ReduceRegisters | ReduceLanes) -> Change | None:
        found = self.of(op.x)
        return found if found is not None and (op.how in ("max", "min") or found.shift == NOTHING) else None

    def negated(self, op: Neg) -> Change | None:
        return _times(self.of(op.x), -1.0)

    def added(self, op: Add) -> Change | None:
        return _plus(self.of(op.a), self.of(op.b), 1.0)

    def subtracted(self, op: Sub) -> Change | None:
        return _plus(self.of(op.a), self.of(op.b), -1.0)

    def multiplied(self, op: Mul) -> Change | None:
        return self.product(op.a, op.b)

    def multiplied_and_added(self, op: Fma) -> Change | None:
        return _plus(self.product(op.a, op.b), self.of(op.c), 1.0)

    def product(self, a: Value, b: Value) -> Change | None:
        for x, factor in ((a, self.number(b)), (b, self.number(a))):
            if factor is not None:
                return _times(self.of(x), factor)
        return _both(self.of(a), self.of(b), 1.0)

    def divided(self, op: Div) -> Change | None:
        factor = self.number(op.b)
        return _both(self.of(op.a), self.of(op.b), -1.0) if factor is None else _times(self.of(op.a), 1 / factor)

    def raised(self, op: Exponential) -> Change | None:
        found = self.of(op.x)
        base = log2(e) if isinstance(op, Exp) else 1.0
        return Change(power=_scaled(found.shift, base)) if found is not None and found.power == NOTHING else None

    def logarithm(self, op: Log | Log2) -> Change | None:
        found = self.of(op.x)
        base = log2(e) if isinstance(op, Log) else 1.0
        return Change(shift=_scaled(found.power, 1 / base)) if found is not None and found.shift == NOTHING else None

    def larger(self, op: Max | Min) -> Change | None:
        return self.of(op.a) if self.of(op.a) == self.of(op.b) else None

    def chosen(self, op: Select) -> Change | None:
        """Return the change of a select whose sides change the same way; a constant 0 stays 0 under any power."""
        found = {self.of(v) for v in (op.a, op.b) if self.number(v) != 0.0}
        only = found.pop() if len(found) == 1 else None
        same = only is not None and (only.shift == NOTHING or 0.0 not in (self.number(op.a), self.number(op.b)))
        return only if same and self.of(op.condition) == SAME else None

    def compared(self, op: Equal | NotEqual) -> Change | None:
        """Return no change for a comparison with 0 of what changes by a power alone."""
        changes = [self.of(v) for v in (op.a, op.b) if self.number(v) != 0.0]
        zero = len(changes) == 1 and changes[0] is not None and changes[0].shift == NOTHING
        return SAME if zero else None

    def multiplied_as_matrices(self, op: WgmmaRegisters) -> Change | None:
        a, acc = self.of(op.a), self.of(op.acc)
        return acc if a == acc and a is not None and a.shift == NOTHING else None

    def looped(self, op: Loop) -> Change | None:
        """Return the change of a loop that yields values changed as its initial ones are."""
        before = dict(self.changes)
        begins = [self.of(v) for v in op.init]
        self.changes.update(zip(op.body.args[1:], begins, strict=True))
        *inside, end = op.body.ops
        known = self.follow(inside) and [self.of(v) for v in end.operands] == begins
        self.changes = before
        return begins[0] if known and len(set(begins)) == 1 else None


def _taken(op: Op) -> set[Value]:
    """Return the operands of an op and the values that its blocks use from outside."""
    found = set(op.operands)
    for block in op.blocks:
        found |= _free(block)
    return found


def _free(block: Block) -> set[Value]:
    found: set[Value] = set()
    own = set(block.args)
    for op in block.ops:
        found |= _taken(op) - own
        own.update(op.results)
    return found


def _scaled(pair: Pair, factor: float) -> Pair:
    return pair[0] * factor, pair[1] * factor


def _times(found: Change | None, factor: float) -> Change | None:
    """Return the change of a multiple of a value."""
    return None if found is None else Change(found.power, _scaled(found.shift, factor))


def _plus(a: Change | None, b: Change | None, sign: float) -> Change | None:
    if a is None or b is None or a.power != b.power:
        return None
    shift = a.shift[0] + sign * b.shift[0], a.shift[1] + sign * b.shift[1]
    return Change(a.power, shift) if a.power == NOTHING or shift == NOTHING else None


def _both(a: Change | None, b: Change | None, sign: float) -> Change | None:
    if a is None or b is None or a.shift != NOTHING or b.shift != NOTHING:
        return None
    return Change(power=(a.power[0] + sign * b.power[0], a.power[1] + sign * b.power[1]))


RULES: dict[type[Op], Callable[[Any, Any], Change | None]] = {
    **dict.fromkeys((Broadcast, ExtractSlice, Permute, OpaqueCopy), Rescaling.passed_on),
    **dict.fromkeys((ReduceRegisters, ReduceLanes), Rescaling.summed),
    Exponential: Rescaling.raised,
    **dict.fromkeys((Log, Log2), Rescaling.logarithm),
    **dict.fromkeys((Max, Min), Rescaling.larger),
    **dict.fromkeys((Equal, NotEqual), Rescaling.compared),
    Cast: Rescaling.cast,
    Neg: Rescaling.negated,
    Add: Rescaling.added,
    Sub: Rescaling.subtracted,
    Mul: Rescaling.multiplied,
    Fma: Rescaling.multiplied_and_added,
    Div: Rescaling.divided,
    Select: Rescaling.chosen,
    WgmmaRegisters: Rescaling.multiplied_as_matrices,
    Loop: Rescaling.looped,
}
