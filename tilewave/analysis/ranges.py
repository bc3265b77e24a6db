"""Integer ranges: the bounds of an integer, from the bounds of what it is computed from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewave.forks import cached_property
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.launch import launch_of, limits_of
from tilewave.ir.once import once
from tilewave.ir.ops import (
    Add,
    Binary,
    BitAnd,
    BitOr,
    Broadcast,
    Cast,
    Comparison,
    Const,
    Convert,
    DivideBy,
    FloorDiv,
    Iota,
    Launch,
    Loop,
    Max,
    Min,
    Misalignment,
    Mod,
    Mul,
    Permute,
    Reciprocal,
    ReciprocalShift,
    Select,
    ShiftLeft,
    ShiftRight,
    StreamKSplits,
    StreamKWorkgroups,
    Sub,
    Workgroup,
    Xor,
    Yield,
)
from tilewave.ir.ops.workgroup import MOST_WORKGROUPS
from tilewave.ir.types import INDEX, INDEX_SCALAR, DType, Scalar, Tile

Range = tuple[int, int]


def bounds(dtype: DType) -> Range:
    """Return the range of an integer dtype."""
    return dtype.bounds


ANY: Range = bounds(INDEX)


def range_of(op: Op, known: Callable[[Value], Range]) -> Range:
    """Return the range of an op's result, which is one integer."""
    dtype = op.results[0].type.dtype
    if isinstance(op, Const):
        return int(op.value), int(op.value)
    if isinstance(op, (Broadcast, Permute, Convert)):
        return known(op.x)
    if isinstance(op, Iota):
        return clamped((0, op.result.type.shape[0] - 1), dtype)
    if isinstance(op, Select):
        (a, b), (c, d) = known(op.a), known(op.b)
        return min(a, c), max(b, d)
    if isinstance(op, Launch):  # it has one result, whose range `at_launch` found
        return known(op.results[0])
    if isinstance(op, DivideBy):
        return range_of(FloorDiv(op.a, op.b, results=op.results), known)
    if isinstance(op, StreamKWorkgroups):
        return 0, op.workgroups
    if isinstance(op, StreamKSplits):
        return 0, min(op.workgroups, max(0, known(op.steps)[1]))
    if isinstance(op, Reciprocal):
        return 0, (1 << 32) - 1
    if isinstance(op, ReciprocalShift):
        return 0, 62
    if isinstance(op, Misalignment):
        return 0, op.chunk - 1
    if not isinstance(op, Binary) or isinstance(op, Comparison):
        return clamped(known(op.x), dtype) if isinstance(op, Cast) and op.x.type.dtype.is_int else bounds(dtype)
    (a, b), (c, d) = known(op.a), known(op.b)
    match op:
        case Add():
            return clamped((a + c, b + d), dtype)
        case Sub():
            return clamped((a - d, b - c), dtype)
        case Mul():
            corners = (a * c, a * d, b * c, b * d)
            return clamped((min(corners), max(corners)), dtype)
        case FloorDiv() if c > 0:
            return min(a // c, a // d), max(b // c, b // d)
        case FloorDiv() if a >= 0 and c == 0:  # by zero it is 0
            return 0, b
        case Mod() if c > 0:
            return 0, min(d - 1, b) if a >= 0 else d - 1
        case Mod() if a >= 0 and c == 0:
            return 0, min(max(d - 1, 0), b)
        case Xor() if a >= 0 and c >= 0:
            return 0, (1 << max(b, d).bit_length()) - 1
        case BitAnd() if max(a, c) >= 0:
            return 0, min(b if a >= 0 else d, d if c >= 0 else b)
        case BitOr() if a >= 0 and c >= 0:
            return max(a, c), (1 << max(b, d).bit_length()) - 1
        case ShiftLeft() if c >= 0 and d < dtype.bits:
            return clamped((min(a << c, a << d), max(b << c, b << d)), dtype)
        case ShiftRight() if c >= 0 and d < dtype.bits:
            return min(a >> c, a >> d), max(b >> c, b >> d)
        case Min():
            return min(a, c), min(b, d)
        case Max():
            return max(a, c), max(b, d)
        case _:
            return bounds(dtype)


def divisor_of(a: Value, b: Value, defs: Mapping[Value, Op]) -> Value | None:
    """Return c where b is a // c * c, so that a - b is a remainder."""
    product = defs.get(b)
    return product.b if isinstance(product, Mul) and _divides(product.a, a, product.b, defs) else None


def difference(op: Sub, defs: Mapping[Value, Op], of: Callable[[Value], Range]) -> Range:
    """Return the range of a - b, which is not negative where b is min(…, a), or a // c * c, or less because the
    quotient was bounded."""
    divisor, product = divisor_of(op.a, op.b, defs), defs.get(op.b)
    if divisor is not None:
        return range_of(Mod(op.a, divisor, results=op.results), of)
    if isinstance(product, Min) and op.a in product.operands and of(op.b)[0] >= 0:
        return within_both(range_of(op, of), (0, ANY[1]))
    bounded = defs.get(product.a) if isinstance(product, Mul) else None
    if not isinstance(product, Mul) or not isinstance(bounded, Min) or min(of(op.a)[0], of(product.b)[0]) < 0:
        return range_of(op, of)
    divides = any(_divides(quotient, op.a, product.b, defs) for quotient in (bounded.a, bounded.b))
    return (0, of(op.a)[1]) if divides else range_of(op, of)


def _divides(quotient: Value, x: Value, divisor: Value, defs: Mapping[Value, Op]) -> bool:
    """Return whether `quotient` is x // divisor, also where both are chosen by one condition."""
    match defs.get(quotient), defs.get(divisor):
        case ((FloorDiv(a, d) | DivideBy(a, d)), _) if a == x and d == divisor:
            return True
        case Select(one, p, q), Select(other, c, d) if one == other:
            return _divides(p, x, c, defs) and _divides(q, x, d, defs)
        case _:
            return False


def multiple_below(op: Mul, defs: Mapping[Value, Op], of: Callable[[Value], Range]) -> Range:
    """Return the range of x // d * d, which is at most x where neither is negative."""
    match defs.get(op.a):
        case FloorDiv(x, d) | DivideBy(x, d) if d == op.b and of(x)[0] >= 0 and of(d)[0] >= 0:
            return 0, of(x)[1]
        case _:
            return ANY


def last_turn(op: Add, defs: Mapping[Value, Op], trips: Mapping[Value, Value], of: Callable[[Value], Range]) -> Range:
    """Return the range of w + turn · c, where turn runs to (end - w) // c: it ends at end - c at most."""
    far = defs.get(op.b)
    quotient = defs.get(trips[far.a]) if isinstance(far, Mul) and far.a in trips else None
    left = defs.get(quotient.a) if isinstance(quotient, FloorDiv) else None
    match far, quotient, left:
        case Mul(_, c), FloorDiv(_, d), Sub(end, w) if w == op.a and of(c) == of(d) and of(c)[0] == of(c)[1] > 0:
            return of(w)[0], max(of(w)[1], of(end)[1] - of(c)[0])
        case _:
            return ANY


def counted_on(op: Add, defs: Mapping[Value, Op], trips: Mapping[Value, Value], of: Callable[[Value], Range]) -> Range:
    """Return the range of i + first, where i runs to end - first, if at all: it is below the end."""
    for i, first in ((op.a, op.b), (op.b, op.a)):
        rounds = defs.get(trips[i]) if i in trips else None
        left = defs.get(rounds.a) if isinstance(rounds, Max) and of(rounds.b) == (0, 0) else rounds
        if isinstance(left, Sub) and left.b == first:
            return of(first)[0], max(of(first)[0], of(left.a)[1] - 1)
    return ANY


def within_both(a: Range, b: Range) -> Range:
    return max(a[0], b[0]), min(a[1], b[1])


def clamped(r: Range, dtype: DType) -> Range:
    """Return `r`, or the dtype's range where `r` does not fit and integers wrap."""
    low, high = bounds(dtype)
    return r if low <= r[0] and r[1] <= high else (low, high)


def divides_safely(op: FloorDiv | Mod, known: Callable[[Value], Range]) -> bool:
    """Return whether there is no division by zero, nor of the smallest integer by -1."""
    (low, _), (c, d) = known(op.a), known(op.b)
    return c > 0 or d < -1 or (d < 0 and low > bounds(op.a.type.dtype)[0])


def at_launch(kernel: Kernel) -> dict[Value, Range]:
    """Return the ranges of what is known at the launch: the dynamic sizes, and what is computed from them."""
    limits = limits_of(kernel)
    known: dict[Value, Range] = {v: limits[v.name] for v in kernel.body.args if v.name in limits}
    launch = launch_of(kernel)

    def of(v: Value) -> Range:
        return known.get(v, ANY)

    for op in launch.body.ops if launch else ():
        if isinstance(op, Yield):
            assert launch is not None
            known.update((result, of(v)) for result, v in zip(launch.results, op.values, strict=True))
        elif op.result.type.dtype.is_int:
            known[op.result] = range_of(op, of)
    return known


def workgroup_range(kernel: Kernel) -> Range:
    """Return the range of the workgroup id."""
    if isinstance(kernel.workgroups, int):
        return 0, kernel.workgroups - 1
    most = max((high for v, (_, high) in at_launch(kernel).items() if v.name == kernel.workgroups), default=ANY[1])
    return 0, max(0, min(most, MOST_WORKGROUPS) - 1)


def last_workgroups(kernel: Kernel) -> set[Value]:
    """Return the values equal to the last workgroup's id: the count less one, where the launch computes it."""
    launch = launch_of(kernel)
    if launch is None or not isinstance(kernel.workgroups, str):
        return set()
    *ops, end = launch.body.ops
    inner = dict(zip(launch.results, end.operands, strict=True))
    defs = {op.result: op for op in (*ops, *kernel.body.ops) if len(op.results) == 1}

    def said(v: Value) -> object:
        """Return the formula of `v`, because the kernel may compute a number of the launch again after it."""
        op = defs.get(inner.get(v, v))
        return (type(op), tuple(inner.get(x, x) for x in op.operands)) if op else v

    count = next((said(v) for v in launch.results if v.name == kernel.workgroups), None)
    ones = {v for v, op in defs.items() if isinstance(op, Const) and op.value == 1}
    found = {v for v, op in defs.items() if isinstance(op, Sub) and op.b in ones and said(op.a) == count}
    return found | {result for result, v in inner.items() if v in found}


class Ranges:
    """The range of every integer of a kernel, computed when the first is asked for."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._defs = kernel, kernel.defs
        self._trips: dict[Value, Value] = {}

    @cached_property
    def _known(self) -> dict[Value, Range]:
        known = self.__dict__["_known"] = at_launch(self._kernel)  # filled in program order, and read meanwhile
        self._workgroup, self._last = workgroup_range(self._kernel), last_workgroups(self._kernel)
        self._learn(self._kernel.body)
        return known

    def of(self, v: Value) -> Range:
        dtype = v.type.dtype
        return self._known.get(v, bounds(dtype) if dtype.is_int else ANY)

    def _learn(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, Launch):  # known from the beginning
                continue
            if isinstance(op, Loop):
                self._known[op.body.args[0]] = (0, max(0, self.of(op.trips)[1] - 1))
                self._trips[op.body.args[0]] = op.trips
            for inner in op.blocks:
                self._learn(inner)
            if len(op.results) == 1 and isinstance(op.result.type, (Scalar, Tile)) and op.result.type.dtype.is_int:
                self._known[op.result] = self._range(op)

    def _range(self, op: Op) -> Range:
        match op:
            case Workgroup():
                return self._workgroup
            case Sub(a, b) if a in self._last and isinstance(self._defs.get(b), Workgroup):
                return self._workgroup  # from the last one to the first
            case Sub():
                return difference(op, self._defs, self.of)
            case Mul() if op.result.type == INDEX_SCALAR:
                return within_both(range_of(op, self.of), multiple_below(op, self._defs, self.of))
            case Add():
                far = within_both(*(find(op, self._defs, self._trips, self.of) for find in (last_turn, counted_on)))
                return within_both(range_of(op, self.of), far)
            case _:
                return range_of(op, self.of)


@once
def ranges_of(kernel: Kernel) -> Ranges:
    """Return the ranges of a kernel's integers, computed once for all passes that leave the kernel as it is."""
    return Ranges(kernel)
