"""Numbers and tiles of numbers: elementwise, all operands of one shape"""

from __future__ import annotations

from math import isfinite

import numpy as np

from tilewave.ir.core import Axis, Op, Value, Want
from tilewave.ir.ops.kinds import Pure
from tilewave.ir.rules import ON_BOTH, same_axes, want_results
from tilewave.ir.types import BOOL, F32, INDEX_SCALAR, DType, Scalar, Type, elementwise, is_held
from tilewave.records import dataclass

__all__ = [
    "Abs",
    "Add",
    "And",
    "Arithmetic",
    "Binary",
    "Cast",
    "Ceil",
    "Comparison",
    "Const",
    "Cos",
    "Div",
    "DivideBy",
    "Division",
    "Elementwise",
    "Equal",
    "Erf",
    "Exp",
    "Exp2",
    "Exp2Flushed",
    "Exponential",
    "Floor",
    "FloorDiv",
    "Fma",
    "Function",
    "Less",
    "LessEqual",
    "Log",
    "Log1p",
    "Log2",
    "Log10",
    "Logic",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "NotEqual",
    "Or",
    "ReciprocalFlushed",
    "RoundAway",
    "RoundEven",
    "Rounding",
    "Rsqrt",
    "Select",
    "Sin",
    "Sqrt",
    "Sub",
    "Tanh",
    "Unary",
    "Xor",
]

LARGEST_FLOAT = 1 << 1023
"""The largest magnitude of integers that are written where floats are meant."""


@dataclass(frozen=True)
class Const(Pure):
    """A number, or a tile that holds it everywhere."""

    levels = ON_BOTH

    value: int | float | bool

    def check(self, want: Want) -> None:
        """Check that the dtype holds the number."""
        kind, value = self.result.type, self.value
        dtype = kind.dtype
        want(is_held(kind), f"makes a number or a tile, not {kind}")
        if dtype == BOOL:
            want(isinstance(value, bool), f"a truth value is true or false, not {value}")
        elif dtype.is_int:
            least, greatest = dtype.bounds
            fits = type(value) is int and least <= value <= greatest
            want(fits, f"{dtype} holds whole numbers from {least} to {greatest}, not {value}")
        else:
            fits = type(value) is float or (type(value) is int and abs(value) <= LARGEST_FLOAT)
            reached = fits and _is_in_reach(float(value), dtype)
            want(reached, f"{dtype} holds no {value}; where infinity is meant, write inf")

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return ()


def _is_in_reach(value: float, dtype: DType) -> bool:
    """Return whether a number does not become infinity or NaN in a dtype."""
    with np.errstate(over="ignore"):
        return not isfinite(value) or isfinite(float(np.float64(value).astype(dtype.numpy)))


@dataclass(frozen=True)
class Elementwise(Pure):
    """Each element of the result depends only on the operands' elements at the same position.

    Every pass and analysis handles subclasses without naming them. Unless a subclass says otherwise, its operands are
    numbers of one type, and so is its result.
    """

    levels = ON_BOTH

    @classmethod
    def result_type(cls, *operands: Type) -> Type:
        """Return the type of the result, given those of the operands."""
        return operands[-1]

    def takes(self, want: Want) -> None:
        """Check the operands."""
        first, *others = (v.type for v in self.operands)
        for other in others:
            want(first == other, f"{first} and {other} do not go together")
        want(is_held(first), f"takes a number or a tile, not {first}")
        want(first.dtype != BOOL, f"takes numbers, not {first}")

    def check(self, want: Want) -> None:
        self.takes(want)
        want_results(self, want, self.result_type(*(v.type for v in self.operands)))

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return same_axes(self.result, *self.operands)


@dataclass(frozen=True)
class Unary(Elementwise):
    x: Value


@dataclass(frozen=True)
class Binary(Elementwise):
    a: Value
    b: Value

    def takes(self, want: Want) -> None:
        a, b = self.a.type, self.b.type
        want(a == b and is_held(a), f"{a} and {b} do not go together")


class Arithmetic(Binary):
    """Takes two numbers of one dtype and gives a number of that dtype."""

    def takes(self, want: Want) -> None:
        super().takes(want)
        want(self.a.type.dtype != BOOL, f"computes with numbers, not {self.a.type}")


class Add(Arithmetic):
    pass


class Sub(Arithmetic):
    pass


class Mul(Arithmetic):
    pass


class Div(Arithmetic):
    """The quotient of floats."""

    def takes(self, want: Want) -> None:
        super().takes(want)
        want(self.a.type.dtype.is_float, f"divides floats, not {self.a.type}; floor_div divides integers")


class Division(Arithmetic):
    """Integer division."""

    def takes(self, want: Want) -> None:
        super().takes(want)
        want(self.a.type.dtype.is_int, f"divides integers, not {self.a.type}")


class FloorDiv(Division):
    """The quotient of integers, rounded down, as in Python; 0 for a divisor of 0; overflow wraps."""


class Mod(Division):
    """The remainder of FloorDiv; it has the sign of b, as in Python; 0 for a divisor of 0."""


@dataclass(frozen=True)
class DivideBy(Elementwise):
    """FloorDiv of indices by a reciprocal: a * factor >> shift, which the launch computes for b; a is below 2**31."""

    a: Value
    b: Value
    factor: Value
    shift: Value

    def takes(self, want: Want) -> None:
        super().takes(want)
        want(self.a.type == INDEX_SCALAR, f"divides an index, not {self.a.type}")


class Xor(Arithmetic):
    """The bitwise XOR of two integers."""

    def takes(self, want: Want) -> None:
        super().takes(want)
        want(self.a.type.dtype.is_int, f"takes the bits of integers, not {self.a.type}")


class Min(Arithmetic):
    pass


class Max(Arithmetic):
    pass


class Logic(Binary):
    """Takes two booleans and gives a boolean."""

    def takes(self, want: Want) -> None:
        super().takes(want)
        want(self.a.type.dtype == BOOL, f"joins truth values, not {self.a.type}")


class And(Logic):
    pass


class Or(Logic):
    pass


class Comparison(Binary):
    """Takes two numbers, or two booleans, and gives a boolean."""

    @classmethod
    def result_type(cls, *operands: Type) -> Type:
        return elementwise(operands[0], BOOL)


class Less(Comparison):
    pass


class LessEqual(Comparison):
    pass


class Equal(Comparison):
    pass


class NotEqual(Comparison):
    pass


class Neg(Unary):
    pass


class Not(Unary):
    def takes(self, want: Want) -> None:
        x = self.x.type
        want(is_held(x), f"takes a number or a tile, not {x}")
        want(x.dtype == BOOL, f"needs truth values, not {x}")


class Abs(Unary):
    pass


class Function(Unary):
    """A function of floats, computed in f32 at least."""

    def takes(self, want: Want) -> None:
        super().takes(want)
        want(self.x.type.dtype.is_float, f"needs floats, not {self.x.type}")


class Exponential(Function):
    """A function that is never negative, and 1 for 0."""


class Exp(Exponential):
    pass


class Exp2(Exponential):
    pass


class Exp2Flushed(Exponential):
    """2 to the power of x; 0 where x < -126, so that no result is denormal in f32."""


class ReciprocalFlushed(Function):
    """1 / x to a unit in the last place; 0 where it is below 2**-126, so that no result is denormal in f32."""


class Log(Function):
    pass


class Log1p(Function):
    """The logarithm of 1 + x, with every digit of a small x."""


class Log2(Function):
    pass


class Log10(Function):
    pass


class Sqrt(Function):
    pass


class Rsqrt(Function):
    pass


class Tanh(Function):
    pass


class Erf(Function):
    pass


class Sin(Function):
    pass


class Cos(Function):
    pass


class Rounding(Function):
    """Rounds each float to an integer, exactly; infinities, NaN and the sign of 0 are kept."""


class Floor(Rounding):
    """The greatest integer that is not above x."""


class Ceil(Rounding):
    """The least integer that is not below x."""


class RoundAway(Rounding):
    """The nearest integer; halves are rounded away from 0."""


class RoundEven(Rounding):
    """The nearest integer; halves are rounded to even."""


class Cast(Unary):
    """The number in the result's dtype: rounded to the nearest float; floats to integers towards zero, saturating."""

    def check(self, want: Want) -> None:
        x, out = self.x.type, self.result.type
        want(is_held(x) and out == elementwise(x, out.dtype), f"{x} cannot become {out}")


@dataclass(frozen=True)
class Select(Elementwise):
    """a where the condition is true, else b."""

    condition: Value
    a: Value
    b: Value

    def takes(self, want: Want) -> None:
        condition, a, b = (v.type for v in self.operands)
        want(a == b and is_held(a), f"chooses between {a} and {b}")
        want(condition in (elementwise(a, BOOL), Scalar(BOOL)), f"chooses by {condition}")


@dataclass(frozen=True)
class Fma(Elementwise):
    """a · b + c of f32, rounded once."""

    a: Value
    b: Value
    c: Value

    def takes(self, want: Want) -> None:
        a, b, c = (v.type for v in self.operands)
        want(
            a == b == c and is_held(a) and a.dtype == F32, f"takes three f32 operands of one type, not {a}, {b} and {c}"
        )


OPS: tuple[type[Op], ...] = (
    Const,
    Fma,
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    DivideBy,
    Xor,
    Min,
    Max,
    And,
    Or,
    Less,
    LessEqual,
    Equal,
    NotEqual,
    Neg,
    Not,
    Abs,
    Exp,
    Exp2,
    Exp2Flushed,
    ReciprocalFlushed,
    Log,
    Log1p,
    Log2,
    Log10,
    Sqrt,
    Rsqrt,
    Tanh,
    Erf,
    Sin,
    Cos,
    Floor,
    Ceil,
    RoundAway,
    RoundEven,
    Cast,
    Select,
)
