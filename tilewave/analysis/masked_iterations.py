"""In which iterations of a loop a condition on positions holds somewhere, and in which it holds everywhere.

    keys 64 · i + 0 … 64 · i + 63,  rows 128 · m + 0 … 128 · m + 127

    key <= row   somewhere:    64 · i       <= 128 · m + 127        i <  (128 · m + 191) // 64
                 everywhere:   64 · i + 63  <= 128 · m              i <  (128 · m + 1) // 64
    row - key < 100   somewhere:   128 · m - 64 · i - 63 < 100      i >= (128 · m - 99) // 64

The minimum and maximum of a tile of positions are affine in scalars, so each comparison is one of an affine sum with 0
in which the loop index has some factor. A condition of another form bounds no iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewave.analysis.affine import Affine
from tilewave.analysis.ranges import Ranges, bounds
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Op, Value
from tilewave.ir.ops import (
    Add,
    And,
    Broadcast,
    Cast,
    Const,
    Convert,
    Equal,
    Iota,
    Less,
    LessEqual,
    Loop,
    Mul,
    Neg,
    Not,
    Permute,
    Sub,
)
from tilewave.ir.rewrite import walk
from tilewave.ir.types import INDEX, INDEX_SCALAR
from tilewave.records import dataclass


@dataclass(frozen=True)
class Extremes:
    """Affine bounds of a tile's elements; each bound is the exact minimum or maximum."""

    low: Affine
    high: Affine

    def times(self, factor: int) -> Extremes:
        ends = self.low.times(factor), self.high.times(factor)
        return Extremes(*ends) if factor >= 0 else Extremes(*reversed(ends))


@dataclass(frozen=True)
class Quotient:
    """An affine sum, divided and rounded down."""

    sum: Affine
    by: int

    def is_at_least(self, n: int) -> bool:
        return not self.sum.terms and self.sum.constant // self.by >= n

    def is_at_most(self, n: int) -> bool:
        return not self.sum.terms and self.sum.constant // self.by <= n

    def number(self, builder: Builder) -> Number:
        """Emit code for it, where its values are defined."""
        found = Number(builder, builder.const(self.sum.constant))
        for v, factor in self.sum.terms.items():
            term = Number(builder, builder.cast(v, INDEX))
            found = found + (term if factor == 1 else term * factor)
        return found if self.by == 1 else found // self.by


@dataclass(frozen=True)
class StepBounds:
    """Lower and upper bounds of the iterations."""

    starts: tuple[Quotient, ...] = ()
    stops: tuple[Quotient, ...] = ()

    def __and__(self, other: StepBounds) -> StepBounds:
        return StepBounds((*self.starts, *other.starts), (*self.stops, *other.stops))


class MaskedIterations:
    """The iterations in which conditions of a loop hold, as bounds that are computed before the loop."""

    def __init__(self, loop: Loop, defs: Mapping[Value, Op], ranges: Ranges) -> None:
        self.counter, self.defs, self.ranges = loop.body.args[0], defs, ranges
        self.inside = {*loop.body.args, *(v for op in walk(loop.body) for v in op.results)}

    def somewhere(self, condition: Value) -> StepBounds:
        """Return bounds of the iterations outside of which the condition holds for no element."""
        op = self.defs.get(condition)
        match op:
            case And(a, b):
                return self.somewhere(a) & self.somewhere(b)
            case Broadcast() | Permute() | Convert():
                return self.somewhere(op.x)
            case Equal(a, b):
                return self.compared(a, b, 0) & self.compared(b, a, 0)
            case _:
                compared = self.comparison(op)
                return self.compared(*compared) if compared else StepBounds()

    def everywhere(self, condition: Value) -> StepBounds | None:
        """Return the iterations in which the condition holds for all elements; None where no bounds express them."""
        op = self.defs.get(condition)
        match op:
            case And(a, b):
                one, other = self.everywhere(a), self.everywhere(b)
                return one & other if one and other else None
            case Broadcast() | Permute() | Convert():
                return self.everywhere(op.x)
            case _:
                compared = self.comparison(op)
                spans = [self.span(v) for v in compared[:2]] if compared else []
                if not compared or None in spans:
                    return None
                left, right = spans
                assert left and right
                found = self.below(left.high + right.low.times(-1), compared[2])
                return found if found != StepBounds() else None

    def comparison(self, op: Op | None) -> tuple[Value, Value, int] | None:
        """Return (a, b, 1) for a < b, (a, b, 0) for a <= b; None for anything else."""
        match op:
            case Less(a, b):
                return a, b, 1
            case LessEqual(a, b):
                return a, b, 0
            case Not(x):
                opposite = self.comparison(self.defs.get(x))
                return (opposite[1], opposite[0], 1 - opposite[2]) if opposite else None
            case _:
                return None

    def compared(self, a: Value, b: Value, apart: int) -> StepBounds:
        """Return bounds of the iterations in which some a + apart <= some b."""
        left, right = self.span(a), self.span(b)
        return self.below(left.low + right.high.times(-1), apart) if left and right else StepBounds()

    def below(self, difference: Affine, apart: int) -> StepBounds:
        """Return bounds of the iterations in which `difference` is at most -apart."""
        each = difference.terms.get(self.counter, 0)
        rest = difference.where(lambda v: v != self.counter).plus(difference.constant + apart)
        if not self.inside.isdisjoint(rest.terms):
            return StepBounds()
        if each > 0:  # each · i <= -rest
            return StepBounds(stops=(Quotient(rest.times(-1).plus(each), each),))
        if each < 0:  # i >= rest / -each, rounded up
            return StepBounds(starts=(Quotient(rest.plus(-each - 1), -each),))
        return StepBounds()

    # positions ------------------------------------------------------------------------------------------------------

    def span(self, v: Value) -> Extremes | None:
        if not v.type.dtype.is_int:
            return None
        op, itself = self.defs.get(v), Affine(0, {v: 1})
        if v.type == INDEX_SCALAR and v not in self.inside and not isinstance(op, Const):
            return Extremes(itself, itself)
        found = self.computed(op) if op is not None and self.fits(v) else None
        if found is None and v.type == INDEX_SCALAR:
            return Extremes(itself, itself)
        return found or self.bounded(v)

    def computed(self, op: Op) -> Extremes | None:
        match op:
            case Const(value):
                return Extremes(Affine(int(value)), Affine(int(value)))
            case Iota():
                return Extremes(Affine(0), Affine(op.result.type.shape[0] - 1))
            case Broadcast() | Permute() | Convert():
                return self.span(op.x)
            case Cast(x) if x.type.dtype.is_int:
                return self.span(x) if self.holds(op.result, x) else None
            case Neg(x):
                return self.combined(x, x, lambda a, _: a.times(-1))
            case Add(a, b):
                return self.combined(a, b, lambda a, b: Extremes(a.low + b.low, a.high + b.high))
            case Sub(a, b):
                return self.combined(a, b, lambda a, b: Extremes(a.low + b.high.times(-1), a.high + b.low.times(-1)))
            case Mul(a, b):
                return self.multiplied(a, b) or self.multiplied(b, a)
            case _:
                return None

    def combined(self, a: Value, b: Value, how: Callable[[Extremes, Extremes], Extremes]) -> Extremes | None:
        one, other = self.span(a), self.span(b)
        return how(one, other) if one and other else None

    def multiplied(self, x: Value, by: Value) -> Extremes | None:
        factor, found = self.ranges.of(by), self.span(x)
        return found.times(factor[0]) if found and factor[0] == factor[1] else None

    def fits(self, v: Value) -> bool:
        """Return whether v does not wrap: an index never does, other integers if their range fits."""
        return v.type.dtype == INDEX or self.ranges.of(v) != bounds(v.type.dtype)

    def holds(self, result: Value, x: Value) -> bool:
        (low, high), (least, most) = self.ranges.of(x), bounds(result.type.dtype)
        return least <= low and high <= most

    def bounded(self, v: Value) -> Extremes | None:
        if not self.fits(v) or self.ranges.of(v) == bounds(INDEX):
            return None
        return Extremes(*map(Affine, self.ranges.of(v)))
