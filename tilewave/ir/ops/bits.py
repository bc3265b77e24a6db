"""The bits of numbers: elementwise, as two's complement where a number is negative"""

from __future__ import annotations

from tilewave.ir.core import Op, Want
from tilewave.ir.ops.arith import Binary, Unary
from tilewave.ir.types import BOOL, INDEX, elementwise

__all__ = [
    "BitAnd",
    "BitNot",
    "BitOr",
    "Bitcast",
    "Bitwise",
    "ShiftLeft",
    "ShiftRight",
]


class Bitwise(Binary):
    """Takes the bits of two integers of one dtype."""

    def takes(self, want: Want) -> None:
        super().takes(want)
        want(self.a.type.dtype.is_int, f"takes the bits of integers, not {self.a.type}")


class BitAnd(Bitwise):
    pass


class BitOr(Bitwise):
    pass


class ShiftLeft(Bitwise):
    """a · 2^b, wrapped; 0 where b is the dtype's width or more, or negative."""


class ShiftRight(Bitwise):
    """a // 2^b; where b is the dtype's width or more, or negative, 0, and -1 for a negative a."""


class BitNot(Unary):
    """An integer with each of its bits inverted."""

    def takes(self, want: Want) -> None:
        super().takes(want)
        want(self.x.type.dtype.is_int, f"inverts the bits of integers, not {self.x.type}")


class Bitcast(Unary):
    """The number of the result's dtype that has the bits of x."""

    def check(self, want: Want) -> None:
        self.takes(want)
        x, out = self.x.type, self.result.type
        fits = out == elementwise(x, out.dtype) and INDEX not in (x.dtype, out.dtype) and out.dtype != BOOL
        want(fits and x.dtype.bits == out.dtype.bits, f"{out} does not have the bits of {x}")


OPS: tuple[type[Op], ...] = (BitAnd, BitOr, ShiftLeft, ShiftRight, BitNot, Bitcast)
