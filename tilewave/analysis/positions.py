"""What is known about scalars at compile time: their divisors, and which are computed by the same formula.

%m = mul(%row, %c128)       is a multiple of 128, whatever %row is
%m_1 = mul(%row, %c128)     is the same number as %m, though it has another name
"""

from __future__ import annotations

from collections.abc import Hashable
from math import gcd

from tilewave.ir.core import Block, Op, Value
from tilewave.ir.once import once
from tilewave.ir.ops import Add, Cast, Const, FloorDiv, Launch, Max, Min, Mod, Mul, Neg, Select, Sub
from tilewave.ir.rewrite import walk
from tilewave.ir.types import INDEX_SCALAR, DType, Scalar


@once
def scalars_of(body: Block) -> BlockScalars:
    """Return what is known of the scalars of a block; askers share it, since a block never changes."""
    return BlockScalars(body)


class BlockScalars:
    """What is known of the scalars of a block and of the blocks inside it."""

    def __init__(self, body: Block) -> None:
        self._defs = body.defs
        self._divisors: dict[Value, int] = {}
        self._formulas: dict[Value, int] = {}
        self._known: dict[Hashable, int] = {}
        self._launched: dict[Value, Value] = {}
        for op in walk(body):
            if isinstance(op, Launch):
                self._launched.update(zip(op.results, op.body.yielded, strict=True))
            if len(op.results) == 1 and isinstance(op.result.type, Scalar) and op.is_pure:
                self._divisors[op.result] = self._divisor(op)
                self._formulas[op.result] = self._number(self._key(op))

    def divisor(self, v: Value) -> int:
        """Return a number that divides v for all values; 0, which every number divides, where v is 0."""
        return self._divisors.get(self._inside(v), 1)

    def formula(self, v: Value) -> int:
        """Return a number that is equal for values computed by the same formula, which are therefore equal."""
        v = self._inside(v)
        return self._formulas[v] if v in self._formulas else self._number(v.name)

    def constant(self, v: Value) -> int | None:
        """Return the constant that v is; None if it is not one."""
        maker = self._defs.get(self._inside(v))
        return int(maker.value) if isinstance(maker, Const) and v.type.dtype.is_int else None

    def multiple(self, v: Value, of: Value) -> int | None:
        """Return n where v is n times `of`; None where that is not known."""
        match self._defs.get(v):
            case Mul(a, b) if of in (a, b):
                return self.constant(b if a == of else a)
            case _:
                return 1 if v == of else None

    def rounded_up(self, v: Value) -> tuple[Value, int]:
        """Return x and n where v is x / n, rounded up."""
        quotient = self._defs.get(self._inside(v))
        total = self._defs.get(self._inside(quotient.a)) if isinstance(quotient, FloorDiv) else None
        match quotient, total:
            case FloorDiv(_, by), Add(x, more) if (n := self.constant(by)) and self.constant(more) == n - 1:
                return x, n
            case _:
                return v, 1

    def _inside(self, v: Value) -> Value:
        """Return the value inside the launch's block for one of its results."""
        return self._launched.get(v, v)

    def _number(self, key: Hashable) -> int:
        return self._known.setdefault(key, len(self._known))

    def _divisor(self, op: Op) -> int:
        if not op.result.type.dtype.is_int:
            return 1
        dtype = op.result.type.dtype
        match op:
            case Const(value):
                return abs(int(value))
            case Mul(a, b):
                return _where_it_fits(self._as(a, dtype) * self._as(b, dtype), dtype)
            case Add(a, b) | Sub(a, b):
                return _where_it_fits(gcd(self._as(a, dtype), self._as(b, dtype)), dtype)
            case Mod(a, b) | Min(a, b) | Max(a, b) | Select(_, a, b):
                return gcd(self._as(a, dtype), self._as(b, dtype))
            case Neg(x):
                return self._as(x, dtype)
            case Cast(x) if x.type.dtype.is_int:
                return self._as(x, dtype)
            case _:
                return 1

    def _as(self, v: Value, dtype: DType) -> int:
        """Return a divisor of v after conversion to a dtype."""
        known = self.divisor(v)
        return known if v.type.dtype.bits <= dtype.bits else _power_of_two(known)

    def _key(self, op: Op) -> Hashable:
        """Return a key that is equal for ops that compute the same number."""
        parts = (x if isinstance(x, tuple) else (x,) for x in op.operand_parts())
        operands = tuple([tuple(map(self.formula, part)) for part in parts])
        return type(op), op.attributes(), op.result.type, operands


def _where_it_fits(divisor: int, dtype: DType) -> int:
    """Return the divisor that remains in a dtype: indices never wrap, other integers may."""
    return divisor if dtype == INDEX_SCALAR.dtype else _power_of_two(divisor)


def _power_of_two(divisor: int) -> int:
    """Return the power of two in a divisor: wrapping subtracts multiples of a power of two, which keeps only these."""
    return divisor & -divisor
