"""The semantics of ops where floats are elements of a ring (`interp/exact.py`); integers and booleans are unchanged.

Every float dtype holds all elements, so a cast between two of them changes nothing: how often and where a pass rounds
is not seen, anything else it does is. Functions without an identity that passes use are hashes, each with a key.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import e, inf, log2, log10
from typing import Any
from zlib import crc32

import numpy as np

from tilewave.interp import exact
from tilewave.interp.arithmetic import Array
from tilewave.interp.exact import ELEMENT, NAN, elements
from tilewave.interp.numbers import DTypeNumbers
from tilewave.ir.core import Op
from tilewave.ir.dispatch import find_row, row_of
from tilewave.ir.ops import (
    Abs,
    Add,
    Bitcast,
    Cast,
    Div,
    Equal,
    Exp,
    Exp2,
    Exp2Flushed,
    Fma,
    Function,
    Less,
    LessEqual,
    Log,
    Log2,
    Log10,
    Max,
    Min,
    Mul,
    Neg,
    NotEqual,
    ReciprocalFlushed,
    Rsqrt,
    Select,
    Sqrt,
    Sub,
)
from tilewave.ir.ops.reduction import COMBINED_BY
from tilewave.ir.types import BOOL, DType, Scalar

LOG2_E = elements(np.float32(log2(e)))
LN_2 = exact.reciprocal(LOG2_E)
LOG10_2 = elements(np.float32(log10(2)))
SYMBOLIC = {float(np.float32(log2(e))): LOG2_E, float(np.float32(1 / log2(e))): LN_2}
"""Literals for irrational numbers, by their f32: one is the exact reciprocal of the other, which no two floats are."""


def _larger(a: Array, b: Array) -> Array:
    found = np.where(exact.rank(a) >= exact.rank(b), a, b)
    return np.where(exact.has(a | b, NAN), NAN, found)


def _smaller(a: Array, b: Array) -> Array:
    return exact.negate(_larger(exact.negate(a), exact.negate(b)))


def _size(x: Array) -> Array:
    return np.where(exact.rank(x) < 0, exact.negate(x), x)


def _compared(how: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    return how(exact.rank(a), exact.rank(b)) & ~exact.has(a | b, NAN)


def _is_equal(a: Array, b: Array) -> Array:
    found: Array = (a == b) & ~exact.has(a | b, NAN)
    return found


def _square_root(x: Array) -> Array:
    return exact.hashed(x, 1)


MEANING: dict[type[Op], Callable[..., Any]] = {
    Add: exact.add,
    Sub: exact.subtract,
    Mul: exact.multiply,
    Div: lambda a, b: exact.multiply(a, exact.reciprocal(b)),
    Fma: lambda a, b, c: exact.add(exact.multiply(a, b), c),
    Neg: exact.negate,
    Abs: _size,
    Max: _larger,
    Min: _smaller,
    Less: partial(_compared, np.less),
    LessEqual: partial(_compared, np.less_equal),
    Equal: _is_equal,
    NotEqual: lambda a, b: ~_is_equal(a, b),
    Exp2: exact.power_of_two,
    Exp2Flushed: exact.power_of_two,
    ReciprocalFlushed: exact.reciprocal,
    Exp: lambda x: exact.power_of_two(exact.multiply(x, LOG2_E)),
    Log2: exact.logarithm,
    Log: lambda x: exact.multiply(exact.logarithm(x), LN_2),
    Log10: lambda x: exact.multiply(exact.logarithm(x), LOG10_2),
    Sqrt: _square_root,
    Rsqrt: lambda x: exact.reciprocal(_square_root(x)),
}
"""The function of each op on floats, without selects and casts; a `Function` without a row is hashed."""


def _meaning_of(op: Op) -> Callable[..., Any]:
    if isinstance(op, Function) and find_row(MEANING, op) is None:
        return partial(exact.hashed, key=crc32(op.name.encode()))
    return row_of(MEANING, op, "no exact meaning is given to")


class ExactNumbers(DTypeNumbers):
    """Elements for floats: results are bit-equal whatever the order of additions."""

    def storage(self, dtype: DType) -> np.dtype[Any]:
        return ELEMENT if dtype.is_float else dtype.numpy

    def poison(self, dtype: DType) -> Any:
        return NAN if dtype.is_float else super().poison(dtype)

    def given(self, x: Any, dtype: DType) -> Any:
        return elements(x)[()] if dtype.is_float else x

    def counted(self, x: Array, dtype: DType) -> Array:
        return elements(x) if dtype.is_float else super().counted(x, dtype)

    def constant(self, op: Op, value: int | float | bool) -> Any:
        kind = op.results[0].type
        if not kind.dtype.is_float:
            return super().constant(op, value)
        number = literal(float(value), kind.dtype)[()]
        return number if isinstance(kind, Scalar) else np.full(kind.shape, number, ELEMENT)

    def elementwise(self, op: Op, operands: list[Any]) -> Any:
        made, taken = op.results[0].type.dtype, op.operands[-1].type.dtype
        if not (made.is_float or taken.is_float):
            return super().elementwise(op, operands)
        if isinstance(op, Bitcast):
            return _same_bits(np.asarray(operands[0]), taken, made)
        if isinstance(op, Cast):
            return _cast(np.asarray(operands[0]), taken, made)
        if isinstance(op, Select):
            return np.where(*operands)[()]
        found = _meaning_of(op)(*(np.asarray(x, ELEMENT) for x in operands))
        return found[()] if made.is_float or found.ndim else found.item()

    def combined(self, how: str, dtype: DType, a: Array, b: Array) -> Array:
        if not dtype.is_float:
            return super().combined(how, dtype, a, b)
        found: Array = MEANING[COMBINED_BY[how]](a, b)
        return found

    def added(self, dtype: DType, a: Any, b: Any) -> Any:
        return exact.add(a, b) if dtype.is_float else super().added(dtype, a, b)

    def multiplied(self, a: Array, b: Array, acc: Array) -> Array:
        if acc.dtype != ELEMENT:
            return super().multiplied(a, b, acc)
        return exact.add(acc, exact.matrix_product(a, b))

    def multiplied_in_turn(self, a: Array, b: Array, acc: Array, depth: int, ignored_bits: int) -> Array:
        if acc.dtype != ELEMENT:
            return super().multiplied_in_turn(a, b, acc, depth, ignored_bits)
        return self.multiplied(a, b, acc)


EXACT_NUMBERS = ExactNumbers()


def literal(value: float, dtype: DType) -> Array:
    """Return the element of a literal; the largest number of a dtype is infinity, because a maximum begins with it."""
    if abs(value) == dtype.largest:
        value = inf if value > 0 else -inf
    with np.errstate(over="ignore"):
        known = SYMBOLIC.get(float(np.float32(abs(value))))
    if known is None:
        return elements(value)
    return known if value > 0 else exact.negate(known)


def _same_bits(x: Array, taken: DType, made: DType) -> Any:
    """Return a hash, because elements have no bits of a float."""
    found = exact.hashed(x if taken.is_float else elements(x), 11)
    return found[()] if made.is_float else _cast(found, taken, made)


def _cast(x: Array, taken: DType, made: DType) -> Any:
    if taken.is_float and made.is_float:
        return x[()]
    if made.is_float:
        return elements(x)[()]
    if made == BOOL:
        found = np.asarray(x != 0)
    else:
        least, greatest = DType("", "int", min(made.bits, 32), made.is_signed).bounds
        value, is_whole = exact.whole_number(x)
        other = exact.low(exact.hashed(x, 10)).astype(np.int64) % (greatest - least + 1) + least
        found = np.where(is_whole & (value >= least) & (value <= greatest), value, other).astype(made.numpy)
    return found if found.ndim else found.item()
