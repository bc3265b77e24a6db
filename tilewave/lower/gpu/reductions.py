"""Reductions of registers within a lane, and across the lanes of a wave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from math import prod

import numpy as np

from tilewave.analysis.ranges import ANY
from tilewave.ir.core import Value
from tilewave.ir.ops import ReduceHalves, ReduceLanes, ReduceRegisters, Reduction
from tilewave.ir.ops.reduction import COMBINED_BY
from tilewave.ir.types import BOOL, F32, I32, I64, INDEX, Vector
from tilewave.lower.gpu.arithmetic import LaneArithmetic
from tilewave.lower.gpu.conversions import Conversions
from tilewave.lower.gpu.target import LaneTarget
from tilewave.lower.gpu.values import BITS, WORD_BITS, Held, cut, join, natural_width, packed, plain, regrouped
from tilewave.lower.llvm import LlvmFunction
from tilewave.lower.numbers import elementwise
from tilewave.records import dataclass

EXTREMES = {"max": "maximum", "min": "minimum"}
NAN = "0x7FF8000000000000"


@dataclass(frozen=True)
class Reductions:
    """Lowers reductions. Where instructions for `max` and `min` lose NaN, those of a lane's registers skip NaN, and one
    comparison for each two registers finds it: LLVM would compare and select for each maximum."""

    f: LlvmFunction
    target: LaneTarget
    arithmetic: LaneArithmetic
    nan: dict[str, str] = field(default_factory=dict)
    """For partial results that skip NaN: whether there was one."""

    def reduced(self, op: Reduction, x: Held) -> Held:
        match op:
            case ReduceRegisters():
                return self.registers(op, x)
            case ReduceLanes():
                return self.lanes(op, x)
            case ReduceHalves():
                return self.halves(op, x)
            case _:
                raise NotImplementedError(f"{op.loc}: cannot lower {op.name}")

    # -- within a lane

    def registers(self, op: ReduceRegisters, x: Held) -> Held:
        return self.along(op, self.singles(x), x.shape, op.axes, x.kind)

    def along(
        self, op: ReduceRegisters, parts: list[str], shape: tuple[int, ...], axes: tuple[int, ...], kind: str
    ) -> Held:
        """Reduce neighbours first along each axis, from the last axis to the first; `parts` are registers in order."""
        left = list(shape)
        for axis in sorted(axes, reverse=True):
            rows = np.moveaxis(np.arange(len(parts)).reshape(left), axis, -1).reshape(-1, left.pop(axis))
            parts = [self.tree(op, [parts[i] for i in row], kind) for row in rows]
        return self.joined(op, parts, kind)

    def joined(self, op: Reduction, singles: list[str], kind: str) -> Held:
        made = op.result.type.shape
        singles = [self.finished(one, kind) for one in singles]
        width = natural_width(made, kind)
        joined = [join(self.f, singles[i : i + width], kind, 1) for i in range(0, len(singles), width)]
        return Held(made, kind, width, tuple(joined))

    def row(self, op: ReduceRegisters, parts: Sequence[str], kind: str, width: int) -> str:
        """Reduce one row of registers; each part has `width` of them."""
        return self.tree(op, [one for part in parts for one in cut(self.f, part, kind, width, 1)], kind)

    def singles(self, x: Held) -> list[str]:
        return [one for part in x.parts for one in cut(self.f, part, x.kind, x.width, 1)] if x.width > 1 else [*x.parts]

    def tree(self, op: Reduction, row: Sequence[str], kind: str) -> str:
        apart = op.how in EXTREMES and op.result.type.dtype == F32 and not self.target.nan_extremes
        combine = self.extreme if apart else self.combined_single
        while len(row) > 1:
            pairs = [combine(op, a, b, kind) for a, b in zip(row[::2], row[1::2], strict=False)]
            row = [*pairs, *row[len(pairs) * 2 :]]
        return row[0]

    def combined_single(self, op: Reduction, a: str, b: str, kind: str) -> str:
        return self.combined(op, a, b, kind, 1)

    def extreme(self, op: Reduction, a: str, b: str, kind: str) -> str:
        """Return the maximum or minimum of the numbers among two operands, and note whether one of them is NaN."""
        name = f"llvm.{EXTREMES[op.how]}.f32"
        self.f.module.declare(f"{kind} @{name}({kind}, {kind})")
        found = self.f.value(f"call nnan {kind} @{name}({kind} {a}, {kind} {b})")
        known = [self.nan[x] for x in (a, b) if x in self.nan]
        new = [x for x in (a, b) if x not in self.nan]
        if new:
            known.append(self.f.value(f"fcmp uno {kind} {new[0]}, {new[-1]}"))
        self.nan[found] = known[0] if len(known) == 1 else self.f.value(f"or i1 {known[0]}, {known[1]}")
        return found

    def finished(self, x: str, kind: str) -> str:
        """Return a partial result with NaN where it skipped one."""
        if x not in self.nan:
            return x
        return self.f.value(f"select i1 {self.nan[x]}, {kind} {NAN}, {kind} {x}")

    # -- between lanes

    def lanes(self, op: ReduceLanes, x: Held) -> Held:
        return self.voted(op, x) or self.exchanged(op, x)

    def voted(self, op: ReduceLanes, x: Held) -> Held | None:
        """Reduce conditions across lanes by votes; None for other dtypes, or where the target has no such vote."""
        if op.x.type.dtype != BOOL:
            return None
        votes = [self.target.vote(self.f, op.how, one, 1 << len(op.bits)) for one in self.singles(x)]
        if None in votes:
            return None
        whole = Held(x.shape, x.kind, 1, tuple(vote for vote in votes if vote is not None))
        return regrouped(self.f, whole, x.width)

    def exchanged(self, op: ReduceLanes, x: Held) -> Held:
        conversions = Conversions(self.f, self.target)
        in_a_word = max(1, WORD_BITS // BITS[x.kind])  # elements of a 32-bit word, which moves between lanes
        x = regrouped(self.f, x, min(in_a_word, natural_width(op.result.type.shape, x.kind)))
        parts = list(x.parts)
        for i, bit in enumerate(op.bits):
            pairs = [conversions.both(x, part, bit, op.bits[:i]) for part in parts]
            parts = [
                packed(self.f, self.combined(op, *self.both(x, a, b), x.kind, x.width), x.kind, x.width)
                for a, b in pairs
            ]
        return Held(op.result.type.shape, x.kind, x.width, tuple(parts))

    def halves(self, op: ReduceHalves, x: Held) -> Held:
        """Reduce a pair of lanes: each gives away the half of its registers that it does not keep."""
        conversions, singles, one = Conversions(self.f, self.target), self.singles(x), Held((1,), x.kind, 1, ())
        places = np.arange(prod(x.shape)).reshape(x.shape)
        first, second = (half.reshape(-1) for half in np.split(places, 2, op.axis))
        has_bit, parts = conversions.has_bit(op.bit), []
        for a, b in zip(first, second, strict=True):
            choice = [f"{x.kind} {singles[a]}", f"{x.kind} {singles[b]}"]
            given, kept = (self.f.value(f"select i1 {has_bit}, {', '.join(two)}") for two in (choice, choice[::-1]))
            parts.append(self.combined(op, kept, conversions.across(one, given, op.bit), x.kind, 1))
        return self.joined(op, parts, x.kind)

    def both(self, x: Held, a: str, b: str) -> tuple[str, str]:
        return plain(self.f, a, x.kind, x.width), plain(self.f, b, x.kind, x.width)

    def combined(self, op: Reduction, a: str, b: str, kind: str, width: int) -> str:
        dtype = op.result.type.dtype
        two = Value("two", Vector((1,), dtype))
        one = COMBINED_BY[op.how](two, two, results=(two,), loc=op.loc)
        if dtype == INDEX:
            return elementwise(self.f, one, [a, b], I32 if kind == "i32" else I64, width, lambda _: ANY)
        return self.arithmetic.apply(one, [(kind, a), (kind, b)], width)
