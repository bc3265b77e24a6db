"""Scalars as affine sums: what a position gains with every step of a loop, and what is loop-invariant.

%k = mul(add(%step, %c1), %c64)      64 · %step + 64
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from math import gcd

from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Add, Const, Mul, Neg, Sub
from tilewave.ir.rewrite import walk
from tilewave.ir.types import INDEX_SCALAR
from tilewave.records import dataclass


@dataclass(frozen=True)
class Affine:
    """constant + Σ factor · value."""

    constant: int = 0
    terms: dict[Value, int] = field(default_factory=dict)

    def __add__(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for v, factor in other.terms.items():
            terms[v] = terms.get(v, 0) + factor
        return Affine(self.constant + other.constant, {v: factor for v, factor in terms.items() if factor})

    def times(self, factor: int) -> Affine:
        return Affine(self.constant * factor, {v: f * factor for v, f in self.terms.items() if factor})

    def plus(self, constant: int) -> Affine:
        return Affine(self.constant + constant, self.terms)

    def where(self, holds: Callable[[Value], bool]) -> Affine:
        """Return the terms whose value satisfies `holds`, without the constant."""
        return Affine(0, {v: factor for v, factor in self.terms.items() if holds(v)})

    def divisor(self) -> int:
        """Return a number that divides the sum for all values; 0 where the sum is 0."""
        return gcd(self.constant, *self.terms.values())


def sum_of(op: Op, of: Callable[[Value], Affine]) -> Affine | None:
    """Return an op's result as an affine sum, from those of its operands; None where it is not affine in them."""
    match op:
        case Const(value):
            return Affine(int(value))
        case Add(a, b):
            return of(a) + of(b)
        case Sub(a, b):
            return of(a) + of(b).times(-1)
        case Neg(x):
            return of(x).times(-1)
        case Mul(a, b):
            by = next(((x, y) for x, y in ((a, b), (b, a)) if not of(y).terms), None)
            return of(by[0]).times(of(by[1]).constant) if by else None
        case _:
            return None


class Sums:
    """The affine sum of every index of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._known: dict[Value, Affine] = {}
        for op in walk(kernel.body):
            found = sum_of(op, self.of) if len(op.results) == 1 and op.result.type == INDEX_SCALAR else None
            if found is not None:
                self._known[op.result] = found

    def of(self, v: Value) -> Affine:
        return self._known.get(v) or Affine(0, {v: 1})
