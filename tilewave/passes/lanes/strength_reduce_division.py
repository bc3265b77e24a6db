"""Strength-reduce a division by one of a few known numbers to a product: GPUs have no integer divide instruction.

    %height = min(%left, %c12)                  %height = min(%left, %c12)
    %q = floor_div(%x, %height)             →   %is = equal(%height, %c12)
                                                %factor = select(%is, %c342, %c512)
                                                %wide = mul(%x, %factor)
                                                %q = floor_div(%wide, %c4096)

Tile positions need such divisions where the last group of a mapping is smaller than the others, and the waves that
multiply wait meanwhile. With 2^s ≥ X · d, x · ceil(2^s / d) // 2^s is x // d for all 0 ≤ x < X: the factor is
(2^s + e) / d with e < d, which makes the quotient too large by x · e / 2^s / d < 1 / d, less than it lacks to the next
integer.

With dynamic shapes a divisor may be a scalar of the launch; then factor and shift are, too:

    %q = floor_div(%x, %across)             →   %q = divide_by(%x, %across, %factor, %shift)

and where it is one of two, select(%is_last, %left, %height), both quotients are computed, and one is selected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from tilewave.analysis.ranges import ranges_of
from tilewave.errors import InterpreterError
from tilewave.interp.arithmetic import elementwise
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.launch import at_launch, is_open, known_at_launch, launch_and_rest
from tilewave.ir.ops import (
    Arithmetic,
    Binary,
    Const,
    Div,
    DivideBy,
    Division,
    Equal,
    FloorDiv,
    Mod,
    Mul,
    Reciprocal,
    ReciprocalShift,
    Select,
)
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import names, rewrite_block
from tilewave.ir.types import BOOL, INDEX, INDEX_SCALAR, Scalar
from tilewave.records import dataclass

UNKNOWN_DIVISOR = RemarkKind(
    "the order of tiles divides by a number that is not one of a few known ones, and the division stalls all waves",
    "give it a value in subs, or use a named mapping instead of the formula: WorkgroupMapping(grouped(8))",
)
LARGE_NUMBERS = RemarkKind(
    "the order of tiles divides numbers up to {high:,}, too large for a multiplication instead, and the division "
    "stalls all waves"
)
MOST_VALUES = 64
"""The largest set of possible values that is tracked."""
LARGEST = (1 << 31) - 1
"""The largest product: 32 bits, signed."""


@dataclass(frozen=True)
class StrengthReduceDivision:
    """`most_divisors`: with more, selecting the factor takes as long as the division."""

    most_divisors: int = 4

    def __call__(self, kernel: Kernel) -> Kernel:
        open_ = _OpenDivisors(kernel)
        return self.by_few(open_.kernel() if is_open(kernel) else kernel)

    def by_few(self, kernel: Kernel) -> Kernel:
        values, ranges, builder = _Values(kernel), ranges_of(kernel), Builder(names(kernel))
        remarks: list[Remark] = []

        def divide(op: Op) -> Sequence[Op] | None:
            if not isinstance(op, FloorDiv) or op.result.type != INDEX_SCALAR:
                return None
            divisors = sorted(values.of(op.b) or ())
            if len(divisors) == 1:
                return None  # the target's compiler strength-reduces a constant divisor itself
            if not 1 < len(divisors) <= self.most_divisors or divisors[0] < 1:
                remarks.append(UNKNOWN_DIVISOR.at(op.loc))
                return None
            low, high = ranges.of(op.a)
            power = (max(0, high) + 1) * divisors[-1] - 1
            unit = 1 << power.bit_length()
            factors = [-(-unit // d) for d in divisors]
            if low < 0 or high * max(factors) > LARGEST:
                remarks.append(LARGE_NUMBERS.at(op.loc, high=high))
                return None
            return _product(op, divisors, factors, unit, builder)

        launch, rest = launch_and_rest(kernel.body)  # divisions at launch stay
        body = rewrite_block(rest, divide)
        return replace(kernel, body=replace(body, ops=(*launch, *body.ops))).with_remarks(*remarks)


def _product(op: FloorDiv, divisors: Sequence[int], factors: Sequence[int], unit: int, out: Builder) -> list[Op]:
    with out.region():
        out.locate = lambda: op.loc
        factor = out.const(factors[-1])
        for divisor, other in zip(divisors[:-1], factors[:-1], strict=True):
            this = out.emit(Equal, op.b, out.const(divisor), type=Scalar(BOOL))
            factor = out.emit(Select, this, out.const(other), factor, type=INDEX_SCALAR)
        wide = out.emit(Mul, op.a, factor, type=INDEX_SCALAR)
        power = out.const(unit)
        return [*out.ops, FloorDiv(wide, power, results=op.results, loc=op.loc)]


class _Values:
    """The values that an index can have, where these are few."""

    def __init__(self, kernel: Kernel) -> None:
        self.ranges = ranges_of(kernel)
        self.defs = kernel.defs
        self.known: dict[Value, frozenset[int] | None] = {}

    def of(self, v: Value) -> frozenset[int] | None:
        if v not in self.known:
            self.known[v] = self._found(v)
        return self.known[v]

    def _found(self, v: Value) -> frozenset[int] | None:
        op = self.defs.get(v)
        low, high = self.ranges.of(v)
        between = frozenset(range(low, high + 1)) if high - low < MOST_VALUES else None
        match op:
            case Const(value):
                return frozenset({int(value)})
            case Binary(a, b) if isinstance(op, Arithmetic) and not isinstance(op, Div) and a.type.dtype == INDEX:
                xs, ys = self.of(a), self.of(b)
                if xs is None or ys is None:
                    return between
                try:
                    found = frozenset(int(elementwise(op, [x, y])) for x, y in product(xs, ys))
                except InterpreterError:  # a division by 0, or more than an index holds
                    return between
                return min(
                    (s for s in (found, between) if s is not None and len(s) <= MOST_VALUES), key=len, default=None
                )
            case _:
                return between


class _OpenDivisors:
    """Divisions by scalars of the launch, and by group heights that derive from these."""

    def __init__(self, kernel: Kernel) -> None:
        self.old, self.known, self.ranges = kernel, known_at_launch(kernel), ranges_of(kernel)
        self.defs = kernel.defs
        self.builder = Builder(names(kernel))
        self.front = Builder(self.builder.taken)
        """Ops computed once per launch."""
        self.reciprocals: dict[Value, tuple[Value, Value]] = {}

    def kernel(self) -> Kernel:
        launch, rest = launch_and_rest(self.old.body)
        body = rewrite_block(rest, self.divide)
        ops = (*launch, *self.front.ops, *body.ops)
        return at_launch(replace(self.old, body=replace(body, ops=ops)))

    def divide(self, op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Division) or op.result.type != INDEX_SCALAR:
            return None
        low, high = self.ranges.of(op.a)
        if low < 0 or high > LARGEST:
            return None
        with self.builder.region():
            self.builder.locate = self.front.locate = lambda: op.loc
            quotient = self.quotient(Number(self.builder, op.a), op.b)
            if quotient is None:
                return None
            if isinstance(op, Mod):
                Number(self.builder, op.a) - quotient * Number(self.builder, op.b)
            *before, last = self.builder.ops
            return [*before, replace(last, results=(op.result, *last.results[1:]))]

    def quotient(self, x: Number, divisor: Value) -> Number | None:
        if divisor in self.known:
            return self.product(x, divisor)
        match self.defs.get(divisor):
            case Const(value) if value > 0:
                quotient: Number = x // int(value)
                return quotient
            case Select(condition, a, b):
                first, second = self.quotient(x, a), self.quotient(x, b)
                if first is None or second is None:
                    return None
                kind = INDEX_SCALAR
                return x.make(self.builder.emit(Select, condition, first.value, second.value, type=kind))
            case _:
                return None

    def product(self, x: Number, divisor: Value) -> Number:
        if divisor not in self.reciprocals:
            parts = [self.front.emit(op, divisor, type=INDEX_SCALAR) for op in (Reciprocal, ReciprocalShift)]
            self.reciprocals[divisor] = parts[0], parts[1]
        return x.make(self.builder.emit(DivideBy, x.value, divisor, *self.reciprocals[divisor], type=INDEX_SCALAR))
