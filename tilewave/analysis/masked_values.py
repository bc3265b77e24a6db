"""What the values of a loop's step hold at masked elements, where a condition is false and -inf is selected.

    x = -inf                                because the mask selects it
    larger = max(largest, …)                not -inf, for `largest` begins with a number and only grows
    x - larger                              -inf minus a number, or minus inf
    p = exp2(x - larger)                    0

All of this holds unless `larger` is NaN. In a row where it is, p is NaN at masked elements too; that is correct where
everything computed from them is NaN in that row anyway: sums that are multiplied by exp2(largest - larger).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewave.interp.arithmetic import elementwise
from tilewave.ir.core import Op, Value
from tilewave.ir.match import constant
from tilewave.ir.ops import (
    Abs,
    Add,
    Broadcast,
    Cast,
    Const,
    Div,
    Elementwise,
    Fma,
    Function,
    Loop,
    Max,
    Mma,
    Mul,
    Neg,
    Permute,
    Reduce,
    Sub,
)
from tilewave.records import dataclass

NAN_OF_NAN = (Add, Sub, Mul, Div, Fma, Neg, Abs, Function)
"""Ops whose result is NaN where one operand is NaN."""
Axes = tuple[int, ...]


@dataclass(frozen=True)
class HiddenNumber:
    """A number, unless one of the values `unless` is NaN in its row."""

    number: Any
    unless: frozenset[Value] = frozenset()


class HiddenPlaces:
    """Values at masked elements of a loop's step; `defs` and `users` map each value to its ops."""

    def __init__(self, loop: Loop, defs: Mapping[Value, Op], users: Mapping[Value, Sequence[Op]]) -> None:
        self.loop, self.defs, self.users = loop, defs, users

    def held(self, op: Op, known: Mapping[Value, HiddenNumber]) -> HiddenNumber | None:
        """Return what an op gives at masked elements, from what is known of its operands; None where it is unknown."""
        if not isinstance(op, Elementwise) or not any(v in known for v in op.operands):
            return None
        found = [known.get(v) or self.constant(v) for v in op.operands]
        unless = frozenset[Value]().union(*(x.unless for x in found if x))
        if all(found):
            return HiddenNumber(elementwise(op, [x.number for x in found if x]), unless)
        rest = self.left_infinite(op, [x.number if x else None for x in found])
        return rest and HiddenNumber(rest.number, unless | rest.unless)

    def left_infinite(self, op: Op, numbers: Sequence[Any]) -> HiddenNumber | None:
        """Return -inf for -inf plus what is never inf, or minus what is never -inf; None for anything else."""
        match op, numbers:
            case Sub(), [a, None] if _is_lowest(a):
                return self.unless_nan(a, self.without_lowest(op.b))
            case Add(), [a, None] if _is_lowest(a):
                return self.unless_nan(a, self.without_highest(op.b))
            case Add(), [None, b] if _is_lowest(b):
                return self.unless_nan(b, self.without_highest(op.a))
            case Fma(), [a, b, None] if a is not None and b is not None and _is_lowest(a * b):
                return self.unless_nan(a * b, self.without_highest(op.c))
            case _:
                return None

    def unless_nan(self, number: Any, root: Value | None) -> HiddenNumber | None:
        return None if root is None else HiddenNumber(number, frozenset({root}))

    def constant(self, v: Value) -> HiddenNumber | None:
        found = constant(v, self.defs, Broadcast, Permute)
        return None if found is None else HiddenNumber(np.asarray(found).astype(v.type.dtype.numpy)[()])

    # -- what is not infinite ------------------------------------------------------------------------------------------

    def without_lowest(self, v: Value) -> Value | None:
        """Return the value whose NaN makes v NaN, where v is never -inf; None where it may be."""
        op = self.defs.get(v)
        match op:
            case Broadcast() | Permute():
                return self.without_lowest(op.x)
            case Neg(x):
                return self.without_highest(x)
            case Mul(a, b):
                return self.scaled(a, b) or self.scaled(b, a)
            case _:
                return v if self.is_bounded(v) else None

    def without_highest(self, v: Value) -> Value | None:
        """Return the value whose NaN makes v NaN, where v is never inf; None where it may be."""
        op = self.defs.get(v)
        match op:
            case Broadcast() | Permute():
                return self.without_highest(op.x)
            case Neg(x):
                return self.without_lowest(x)
            case Mul(a, b):
                return self.scaled(a, b, -1) or self.scaled(b, a, -1)
            case _:
                return None

    def scaled(self, x: Value, by: Value, sign: int = 1) -> Value | None:
        """Return `without_lowest` of `x · by` (`without_highest` for sign -1) where `by` is constant and |by| <= 1."""
        factor = self.constant(by)
        if factor is None or not 0 < abs(factor.number) <= 1:
            return None
        return self.without_lowest(x) if factor.number * sign > 0 else self.without_highest(x)

    def is_bounded(self, v: Value) -> bool:
        """Return whether v is never below its dtype's lowest number, except NaN."""
        op = self.defs.get(v)
        match op:
            case Const(value):
                return bool(value > -np.inf)
            case Max(a, b):
                return self.is_bounded(a) or self.is_bounded(b)
            case Broadcast() | Permute():
                return self.is_bounded(op.x)
            case _:
                return v in self.loop.body.args[1:] and self.grows(v)

    def grows(self, v: Value) -> bool:
        """Return whether a carried value begins finite, and each next one is its maximum with another value."""
        number = self.loop.body.args.index(v) - 1
        after = self.defs.get(self.loop.body.yielded[number])
        return isinstance(after, Max) and v in after.operands and self.is_bounded(self.loop.init[number])

    # -- rows of NaN -------------------------------------------------------------------------------------------------

    def rows(self, v: Value, root: Value) -> Axes | None:
        """Return the axes of v that are the root's, where v is NaN in all rows in which the root is."""
        if v == root:
            return tuple(range(len(v.type.shape)))
        op = self.defs.get(v)
        match op:
            case Broadcast(x):
                found = self.rows(x, root)
                return found and tuple(op.axes[axis] for axis in found)
            case Permute(x):
                found = self.rows(x, root)
                return found and tuple(op.axes.index(axis) for axis in found)
            case _ if _hands_on_nan(op):
                assert op is not None
                return next((found for x in op.operands if (found := self.rows(x, root)) is not None), None)
            case _:
                return None

    def is_nan_anyhow(self, v: Value, axes: Axes, root: Value) -> bool:
        """Return whether everything computed from v is NaN in the rows in which the root is, whatever v is there."""
        return all(self.covers(op, v, axes, root) for op in self.users.get(v, ()))

    def covers(self, op: Op, v: Value, axes: Axes, root: Value) -> bool:
        match op:
            case Mma(a, b, acc) if acc != v:
                last = len(acc.type.shape) - 1
                place = {axis: axis for axis in range(last - 1)} | {last - 1: last - 1 if a == v else last}
                kept = a != b and last not in axes
                return kept and self.rows(acc, root) == tuple(place[axis] for axis in axes)
            case Reduce() if not op.run and not set(op.axes) & set(axes):
                return self.is_nan_anyhow(op.result, tuple(op.kept.index(axis) for axis in axes), root)
            case Elementwise():
                others = (self.rows(x, root) for x in op.operands if x != v)
                return (_hands_on_nan(op) and axes in others) or self.is_nan_anyhow(op.result, axes, root)
            case _:
                return False


def _is_lowest(number: Any) -> bool:
    return number is not None and bool(number == -np.inf)


def _hands_on_nan(op: Op | None) -> bool:
    return isinstance(op, NAN_OF_NAN) or (isinstance(op, Cast) and op.result.type.dtype.is_float)
