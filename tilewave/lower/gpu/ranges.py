"""Bounds of the integers of a lane-level kernel, so that most of its arithmetic takes 32 bits."""

from __future__ import annotations

from math import prod

from tilewave.analysis.ranges import (
    ANY,
    Range,
    at_launch,
    bounds,
    difference,
    last_turn,
    multiple_below,
    range_of,
    within_both,
    workgroup_range,
)
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.match import made
from tilewave.ir.ops import (
    Add,
    AllOf,
    And,
    Broadcast,
    Cast,
    Const,
    Equal,
    Lane,
    Launch,
    Less,
    LessEqual,
    Loop,
    Mul,
    OpaqueCopy,
    Permute,
    Ramp,
    Rearrange,
    ReduceHalves,
    ReduceLanes,
    ReduceRegisters,
    Select,
    Shuffle,
    Sub,
    Wave,
    While,
    Workgroup,
    Yield,
)
from tilewave.ir.types import INDEX, INDEX_SCALAR, Scalar, Vector

COUNTED_ROUND = made(Select, made(Equal, "i", "last"), "zero", made(Add, "i", "one"))
INT32: Range = (-(1 << 31), (1 << 31) - 1)


def within(inner: Range, outer: Range) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def union(a: Range, b: Range) -> Range:
    return min(a[0], b[0]), max(a[1], b[1])


def _is_constant(op: Op) -> bool:
    """Return whether an op makes a constant integer; of non-index integers only these have bounds (for divisors)."""
    return isinstance(op, (Const, Broadcast, Permute)) and op.results[0].type.dtype.is_int


class LaneRanges:
    """The bounds of every integer, scalar or vector."""

    def __init__(self, kernel: Kernel) -> None:
        self._known: dict[Value, Range] = at_launch(kernel)
        self._defs = kernel.defs
        self._trips: dict[Value, Value] = {}
        self._whole = {
            Lane: (0, kernel.lanes - 1),
            Wave: (0, prod(kernel.waves) - 1),
            Workgroup: workgroup_range(kernel),
        }
        self._learn(kernel.body)

    def of(self, v: Value) -> Range:
        if v in self._known:
            return self._known[v]
        return bounds(v.type.dtype) if v.type.dtype.is_int else ANY

    def bits(self, v: Value) -> int:
        """Return the bits of the integer that holds an index."""
        return 32 if within(self.of(v), INT32) else 64

    def _learn(self, block: Block) -> None:
        for op in block.ops:
            match op:
                case Loop():
                    self._loop(op)
                case While():
                    self._while(op)
                case Launch():
                    pass  # known from the beginning
                case _:
                    for inner in op.blocks:
                        self._learn(inner)
                    is_number = len(op.results) == 1 and isinstance(op.result.type, (Scalar, Vector))
                    if is_number and (op.result.type.dtype == INDEX or _is_constant(op)):
                        self._known[op.result] = self._range(op)

    def _range(self, op: Op) -> Range:
        match op:
            case Lane() | Wave() | Workgroup():
                return self._whole[type(op)]
            case Ramp(steps):
                ends = [step * (n - 1) for step, n in zip(steps, op.result.type.shape, strict=True)]
                return sum(min(0, e) for e in ends), sum(max(0, e) for e in ends)
            case Broadcast(x) | Permute(x) | Rearrange(x) | Shuffle(x) | OpaqueCopy(x):
                return self.of(x)
            case ReduceRegisters(x, how=how) | ReduceLanes(x, how=how) | ReduceHalves(x, how=how):
                return self.of(x) if how in ("max", "min") else ANY
            case AllOf(x):
                return self.of(x)
            case Sub():
                return difference(op, self._defs, self.of)
            case Mul() if op.result.type == INDEX_SCALAR:
                return within_both(range_of(op, self.of), multiple_below(op, self._defs, self.of))
            case Add() if isinstance(op.result.type, Scalar):
                return within_both(range_of(op, self.of), last_turn(op, self._defs, self._trips, self.of))
            case Select(_, a, b):
                return union(self.of(a), self.of(b))
            case Cast(x) if x.type.dtype.kind == "bool":
                return 0, 1
            case Const() | Cast():
                return range_of(op, self.of)
            case _:
                return range_of(op, self.of)

    def _loop(self, op: Loop) -> None:
        self._known[op.body.args[0]] = (0, max(0, self.of(op.trips)[1] - 1))
        self._trips[op.body.args[0]] = op.trips
        args = op.body.args[1:]
        self._carry(op.init, args, op.body)
        for arg, result in zip(args, op.results, strict=True):
            self._known[result] = self.of(arg)

    def _carry(self, init: tuple[Value, ...], args: tuple[Value, ...], body: Block) -> None:
        """Bound carried values: unknown at first, then by what the body yields."""
        self._learn(body)
        ends = body.ops[-1]
        assert isinstance(ends, Yield)
        for first, arg, later in zip(init, args, ends.values, strict=True):
            if arg.type.dtype == INDEX:
                self._known[arg] = union(self.of(first), self._round(arg, later) or self.of(later))
        self._learn(body)

    def _round(self, arg: Value, later: Value) -> Range | None:
        """Return the bounds of a number that counts from 0 to a last one and wraps to 0."""
        found = COUNTED_ROUND.match(later, self._defs, {"i": arg})
        if found is None or self.of(found["zero"]) != (0, 0) or self.of(found["one"]) != (1, 1):
            return None
        return 0, self.of(found["last"])[1]

    def _while(self, op: While) -> None:
        """Bound an increasing number of a while loop by its initial value and the bound that ends the loop."""
        self._learn(op.condition)
        self._learn(op.body)
        ends = op.body.ops[-1]
        assert isinstance(ends, Yield)
        for i, (first, arg, later) in enumerate(zip(op.init, op.body.args, ends.values, strict=True)):
            step = self._step(arg, later)
            bound = self._bound(op.condition, i)
            if arg.type.dtype != INDEX or step is None or bound is None or step[0] < 0:
                continue
            low = self.of(first)[0]
            self._known[arg] = (low, max(low, bound - 1))
            after = (low, max(self.of(first)[1], bound - 1 + step[1]))
            self._known[op.condition.args[i]] = self._known[op.results[i]] = after
        self._learn(op.condition)
        self._learn(op.body)

    def _step(self, arg: Value, later: Value) -> Range | None:
        if later == arg:
            return (0, 0)
        match self._defs.get(later):
            case Add(a, b) if a == arg:
                return self.of(b)
            case Add(a, b) if b == arg:
                return self.of(a)
            case _:
                return None

    def _bound(self, condition: Block, i: int) -> int | None:
        """Return a number that argument i is below wherever the condition holds."""
        ends = condition.ops[-1]
        assert isinstance(ends, Yield)
        return self._below(ends.values[0], condition.args[i])

    def _below(self, holds: Value, arg: Value) -> int | None:
        match self._defs.get(holds):
            case Less(a, b) if a == arg:
                return self.of(b)[1]
            case LessEqual(a, b) if a == arg:
                return self.of(b)[1] + 1
            case And(a, b):
                found = [x for x in (self._below(a, arg), self._below(b, arg)) if x is not None]
                return min(found, default=None)
            case _:
                return None
