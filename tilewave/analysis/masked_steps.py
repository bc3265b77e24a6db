"""What a step of a loop leaves unchanged when one of its conditions is false everywhere, so that it can be skipped.

A mask is a select: masked elements become the neutral value. Where it masks a whole step,

    x = select(seen, q · kᵀ, -inf)          is -inf                                 because nothing is seen
    larger = max(largest, max of x)            largest
    shrink = exp(largest - larger)             exp(0) = 1
    p = exp(x - larger)                        exp(-inf) = 0
    total · shrink + sum of p                  total
    values · shrink + p · v                    values

and the step can be skipped. Values are followed through its ops as long as they are one constant everywhere, or a value
that the loop carries. Two assumptions are made; docs/decisions/0020 gives the reasons:

- a value that is subtracted from itself, as `largest` is, is finite. This holds where it begins finite and only grows;
  where it begins with -inf, the step is followed for that too: from the loop's initial values it must yield the same
  values. (While the largest is -inf, every x was -inf, and each step was a masked step.) If it has become inf or NaN,
  `shrink` would be NaN, and so would every product with it; skipping leaves these values unchanged instead.
- 0 times anything is 0, and a product with an operand of zeros adds nothing, whatever the other operand is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewave.interp.arithmetic import elementwise
from tilewave.ir.core import Op, Value
from tilewave.ir.ops import (
    Add,
    And,
    Broadcast,
    Const,
    Div,
    Elementwise,
    Equal,
    Fma,
    Loop,
    Max,
    Min,
    Mma,
    Mul,
    Neg,
    Or,
    Permute,
    Reduce,
    Select,
    Sub,
    Yield,
)
from tilewave.ir.ops.reduction import identity
from tilewave.ir.rewrite import walk
from tilewave.records import dataclass

COMMUTATIVE = (Add, Mul, Max, Min, Equal)


@dataclass(frozen=True)
class Carried:
    """A carried value, broadcast along other axes: axis i of the value is axis `axes[i]`."""

    value: Value
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Finite:
    """Some finite number, as long as this carried value is finite."""

    value: Value


Known = Any
"""A numpy number, the same for all elements; `Carried`; `Finite`; or None for anything else."""


def is_idle(loop: Loop, condition: Value, defs: Mapping[Value, Op]) -> bool:
    """Return whether a step in which the condition is false everywhere leaves all carried values unchanged."""
    _, *carried = loop.body.args
    if any(op.has_effect for op in walk(loop.body) if not isinstance(op, Yield)):
        return False
    step = _Step(loop, condition, defs, [Carried(v, tuple(range(len(v.type.shape)))) for v in carried])
    if not step.is_idle:
        return False
    begins = [_constant(defs.get(v)) for v in loop.init]
    numbers = [(v, begin) for v, begin in zip(carried, begins, strict=True) if v in step.numbers]
    if not all(begin is not None and _grows(v, loop, defs) for v, begin in numbers):
        return False
    if all(np.isfinite(begin) for _, begin in numbers):
        return True
    first = _Step(loop, condition, defs, begins)
    return first.is_idle and all(_is_largest_of(condition, v, loop, defs) for v, _ in numbers)


class _Step:
    """What is known of the values of a step in which a condition is false everywhere."""

    def __init__(self, loop: Loop, condition: Value, defs: Mapping[Value, Op], carried: list[Known]) -> None:
        self.known: dict[Value, Known] = dict(zip(loop.body.args[1:], carried, strict=True))
        self.numbers: set[Value] = set()
        """The carried values that are assumed to be finite."""
        self.condition, self.defs = condition, defs
        for op in loop.body.ops:
            if len(op.results) == 1:
                self.known[op.result] = self.result(op)
        found = [self.of(v) for v in loop.body.yielded]
        self.is_idle = all(x is not None and _same(x, y) for x, y in zip(found, carried, strict=True))

    def of(self, v: Value) -> Known:
        return self.known[v] if v in self.known else _constant(self.defs.get(v))

    def result(self, op: Op) -> Known:
        if op.result == self.condition:
            return np.False_
        operands = [self.of(v) for v in op.operands]
        match op, operands:
            case Const(), _:
                return _constant(op)
            case ((Broadcast() | Permute()), [x]):
                return _moved(op, x)
            case Select(), [c, a, b]:
                return self.selected(c, a, b)
            case Reduce(), [x]:
                return self.reduced(op, x)
            case Mma(), [a, b, acc]:
                return acc if _is(a, 0) or _is(b, 0) else None
            case And(), [a, b] if _is(a, False) or _is(b, False):
                return np.False_
            case Or(), [a, b] if _is(a, True) or _is(b, True):
                return np.True_
            case Elementwise(), _ if operands and all(_is_constant(x) for x in operands):
                return elementwise(op, operands)
            case Mul(), [a, b] if _is(a, 0) or _is(b, 0):
                return a if _is(a, 0) else b
            case Neg(), [Carried() | Finite() as x]:
                return Finite(x.value)
            case Mul(), ([Carried() | Finite() as x, by] | [by, Carried() | Finite() as x]) if _shrinks(by):
                return Finite(x.value)
            case Fma(), [a, b, c] if _is_constant(a) and _is_constant(b):
                return self.combined(op, c, elementwise(Mul(op.a, op.b, results=op.results), [a, b]))
            case _, [a, b]:
                return self.combined(op, a, b)
            case _:
                return None

    def selected(self, condition: Known, a: Known, b: Known) -> Known:
        if _is_constant(condition):
            return a if condition else b
        return a if a is not None and _same(a, b) else None

    def reduced(self, op: Reduce, x: Known) -> Known:
        """Return the reduction of a constant: itself for max and min, or for the identity of a sum or product."""
        kept = _is_constant(x) and (op.how not in ("sum", "prod") or x == identity(op.how, op.x.type.dtype))
        return x if kept else None

    def combined(self, op: Op, a: Known, b: Known) -> Known:
        """Return the result of two operands of which at least one is carried; for `fma`, of the sum and the product."""
        if isinstance(b, Carried | Finite) and isinstance(op, COMMUTATIVE) and not isinstance(a, Carried):
            a, b = b, a
        match op:
            case Add() | Fma() if isinstance(a, Carried | Finite) and _is_infinite(b):
                return self.as_number(a, b)
            case Fma() if _is(b, 0):
                return a
            case Max() | Min() if _same(a, b):
                return a
            case Max() if _is(b, -np.inf):
                return a
            case Min() if _is(b, np.inf):
                return a
            case Add() | Sub() if _is(b, 0):
                return a
            case Mul() | Div() if _is(b, 1):
                return a
            case Sub() if isinstance(a, Carried) and _same(a, b):
                return self.as_number(a, 0.0)
            case Sub() if _is_infinite(a) and isinstance(b, Carried | Finite):
                return self.as_number(b, a)
            case Equal() if isinstance(a, Carried) and _is_infinite(b):
                return self.as_number(a, np.False_)
            case _:
                return None

    def as_number(self, carried: Carried | Finite, found: Known) -> Known:
        """Return `found`, under the assumption that the carried value is finite."""
        if not carried.value.type.dtype.is_float:
            return None
        self.numbers.add(carried.value)
        return carried.value.type.dtype.numpy.type(found) if isinstance(found, float) else found


def _constant(op: Op | None) -> Known:
    if not isinstance(op, Const):
        return None
    return np.asarray(op.value).astype(op.result.type.dtype.numpy)[()]


def _moved(op: Broadcast | Permute, x: Known) -> Known:
    if not isinstance(x, Carried):  # anything else is the same for all elements
        return x
    if isinstance(op, Broadcast):
        return Carried(x.value, tuple(op.axes[axis] for axis in x.axes))
    return Carried(x.value, tuple(op.axes.index(axis) for axis in x.axes))


def _is_constant(x: Known) -> bool:
    return x is not None and not isinstance(x, Carried | Finite)


def _is(x: Known, number: float) -> bool:
    return _is_constant(x) and bool(x == number)


def _shrinks(x: Known) -> bool:
    """Return whether a finite number times this one is finite, because it cannot overflow."""
    return _is_constant(x) and 0 < abs(x) < 1


def _is_infinite(x: Known) -> bool:
    return _is_constant(x) and bool(np.isinf(x))


def _same(a: Known, b: Known) -> bool:
    if isinstance(a, Carried | Finite) or isinstance(b, Carried | Finite):
        return isinstance(a, Carried) and bool(a == b)
    return a is not None and b is not None and bool(a == b)


def _next(v: Value, loop: Loop, defs: Mapping[Value, Op]) -> Op | None:
    """Return the op that makes the next value of a carried value."""
    return defs.get(loop.body.yielded[loop.body.args.index(v) - 1])


def _grows(v: Value, loop: Loop, defs: Mapping[Value, Op]) -> bool:
    """Return whether the next value is the maximum of this one and another."""
    op = _next(v, loop, defs)
    return isinstance(op, Max) and v in op.operands


def _is_largest_of(condition: Value, v: Value, loop: Loop, defs: Mapping[Value, Op]) -> bool:
    """Return whether that other is the maximum of masked values, so that it is -inf only where all of them are."""
    op = _next(v, loop, defs)
    assert isinstance(op, Max)
    other = defs.get(op.b if op.a == v else op.a)
    masked = defs.get(other.x) if isinstance(other, Reduce) and other.how == "max" else None
    while isinstance(masked, Select) and not _derives_from(masked.condition, condition, defs):
        hidden = _constant(defs.get(masked.b))
        masked = defs.get(masked.a) if _is(hidden, -np.inf) else None
    return isinstance(masked, Select)


def _derives_from(v: Value, condition: Value, defs: Mapping[Value, Op]) -> bool:
    """Return whether a value is the condition, broadcast or permuted."""
    op = defs.get(v)
    return v == condition or (isinstance(op, (Broadcast, Permute)) and _derives_from(op.x, condition, defs))
