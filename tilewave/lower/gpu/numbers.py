"""Positions in shared memory as numbers with a separate constant, so that addresses share the variable part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from typing import Any

from tilewave.analysis.affine import Affine
from tilewave.ir.core import Value
from tilewave.lower.gpu.memory import bounds
from tilewave.lower.gpu.registers import Registers
from tilewave.lower.llvm import LlvmFunction
from tilewave.records import dataclass


@dataclass(frozen=True)
class OffsetNumber:
    """value + constant, neither negative; `value` is an LLVM i32, or "" for none.

    `high` bounds the value and `multiple` divides it: where two values have no bit in common their sum is emitted as
    `or`, which LLVM, unlike an addition, keeps outside the loop.
    """

    f: LlvmFunction
    value: str
    constant: int = 0
    high: int = 0
    multiple: int = 1

    def whole(self) -> str:
        if not self.value:
            return str(self.constant)
        return self.f.value(f"add i32 {self.value}, {self.constant}") if self.constant else self.value

    def made(self, text: str, constant: int, high: int, multiple: int) -> OffsetNumber:
        return OffsetNumber(self.f, self.f.value(text), constant, high, multiple)

    def __add__(self, other: OffsetNumber | int) -> OffsetNumber:
        if isinstance(other, int):
            return replace(self, constant=self.constant + other)
        if not self.value or not other.value:
            one = self if self.value else other
            return replace(one, constant=self.constant + other.constant)
        apart = self.high < _power_of_two(other.multiple) or other.high < _power_of_two(self.multiple)
        word = "or disjoint" if apart else "add"
        text = f"{word} i32 {self.value}, {other.value}"
        both = self.constant + other.constant
        return self.made(text, both, self.high + other.high, gcd(self.multiple, other.multiple))

    __radd__ = __add__

    def __mul__(self, factor: int) -> OffsetNumber:
        if not self.value or factor == 1:
            return replace(self, constant=self.constant * factor)
        text = f"mul i32 {self.value}, {factor}"
        return self.made(text, self.constant * factor, self.high * factor, self.multiple * factor)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> OffsetNumber:
        if divisor == 1:
            return self
        if not self.value:
            return OffsetNumber(self.f, "", self.constant // divisor)
        if self.constant % divisor:
            return self.made(f"udiv i32 {self.whole()}, {divisor}", 0, (self.high + self.constant) // divisor, 1)
        multiple = self.multiple // divisor if self.multiple % divisor == 0 else 1
        text = f"udiv i32 {self.value}, {divisor}"
        return self.made(text, self.constant // divisor, self.high // divisor, multiple)

    def __mod__(self, divisor: int) -> OffsetNumber:
        if not self.value:
            return OffsetNumber(self.f, "", self.constant % divisor)
        if self.multiple % divisor == 0:
            return OffsetNumber(self.f, "", self.constant % divisor)
        value = self.value if self.constant % divisor == 0 else self.whole()
        return self.made(f"urem i32 {value}, {divisor}", 0, divisor - 1, 1)

    def __xor__(self, other: OffsetNumber) -> OffsetNumber:
        if not self.value and not other.value:
            return OffsetNumber(self.f, "", self.constant ^ other.constant)
        bits = max(self.high + self.constant, other.high + other.constant).bit_length()
        return self.made(f"xor i32 {self.whole()}, {other.whole()}", 0, (1 << bits) - 1, 1)


def _power_of_two(n: int) -> int:
    """Return the largest power of two that divides n."""
    return n & -n


def number_of(registers: Registers, s: Affine) -> OffsetNumber:
    """Return a position in 32 bits."""
    varying = s.plus(-s.constant)
    value = registers.sum(varying, 32) if s.terms else ""
    high = bounds(varying, registers.positions)[1]
    return OffsetNumber(registers.f, value, s.constant, high, varying.divisor() or 1)


def numbers_of(registers: Registers, at: Sequence[Value], steps: Sequence[int]) -> list[Any]:
    """Return positions, each moved by its steps."""
    return [number_of(registers, registers.positions.of(v).plus(step)) for v, step in zip(at, steps, strict=True)]
