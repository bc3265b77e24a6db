"""The semantics of arithmetic ops on numbers and on arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewave.errors import InterpreterError
from tilewave.ir.casts import cast
from tilewave.ir.core import Op
from tilewave.ir.dispatch import row_of
from tilewave.ir.ops import (
    Abs,
    Add,
    And,
    BitAnd,
    Bitcast,
    BitNot,
    BitOr,
    Cast,
    Ceil,
    Cos,
    Div,
    DivideBy,
    Equal,
    Erf,
    Exp,
    Exp2,
    Exp2Flushed,
    Floor,
    FloorDiv,
    Fma,
    Function,
    Less,
    LessEqual,
    Log,
    Log1p,
    Log2,
    Log10,
    Max,
    Min,
    Mod,
    Mul,
    Neg,
    Not,
    NotEqual,
    Or,
    ReciprocalFlushed,
    RoundAway,
    RoundEven,
    Rsqrt,
    Select,
    ShiftLeft,
    ShiftRight,
    Sin,
    Sqrt,
    Sub,
    Tanh,
    Xor,
)
from tilewave.ir.types import INDEX, WIDEST_BYTES, DType, Scalar

Array = np.ndarray[Any, Any]
NEVER_USED = 77
"""The value of elements that nothing may depend on: a wrong number that every dtype has."""


def _floor_divided(a: Any, b: Any) -> Any:
    """Return a // b, rounded down; 0 for a divisor of 0; the smallest integer by -1 is itself, as in numpy."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else 0
    return np.floor_divide(a, b)


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else 0
    return np.remainder(a, b)


def _shifted_left(a: Any, b: Any) -> Any:
    """Return a << b, of Python's integers before it is wrapped; 0 for a negative b, or one beyond every width."""
    if isinstance(a, int) and isinstance(b, int):
        return a << b if 0 <= b < WIDEST_BITS else 0
    return np.left_shift(a, b)


def _shifted_right(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a >> (b if 0 <= b < WIDEST_BITS else WIDEST_BITS)
    return np.right_shift(a, b)


def _smaller(a: Any, b: Any) -> Any:
    """Return the minimum; NaN wins, and -0 is smaller than 0, which numpy leaves open."""
    if not _is_float(a):
        return min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b)
    return np.where(a == b, np.where(np.signbit(a), a, b), np.minimum(a, b))[()]


def _larger(a: Any, b: Any) -> Any:
    if not _is_float(a):
        return max(a, b) if isinstance(a, int) and isinstance(b, int) else np.maximum(a, b)
    return np.where(a == b, np.where(np.signbit(a), b, a), np.maximum(a, b))[()]


def _rounded_away(x: Any) -> Any:
    """Return the nearest integer; halves are rounded away from 0, for which numpy has no function."""
    whole = np.trunc(x)
    return np.copysign(np.where(np.abs(x - whole) >= 0.5, np.abs(whole) + 1, whole), x)


def _multiplied_and_added(a: Any, b: Any, c: Any) -> Any:
    """Return fma of f32, rounded once: the float64 sum is rounded to odd, so that rounding it to f32 is correct."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)  # exact: 24 bits times 24
    added = np.asarray(c, np.float64)
    total = product + added
    back = total - product
    rest = (product - (total - back)) + (added - back)
    bits = total.view(np.int64)
    inexact = (rest != 0) & np.isfinite(total) & (bits & 1 == 0)
    towards = np.where((rest > 0) == (total > 0), 1, -1)  # away from 0, or to it
    return np.where(inexact, bits + towards, bits).view(np.float64).astype(np.float32)[()]


def _is_float(x: Any) -> bool:
    return isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind not in "iub"


MEANING: dict[type[Op], Callable[..., Any]] = {
    Add: operator.add,
    Sub: operator.sub,
    Mul: operator.mul,
    Div: operator.truediv,
    FloorDiv: _floor_divided,
    Mod: _remainder,
    DivideBy: lambda a, b, factor, shift: a * factor >> shift,
    Xor: operator.xor,
    BitAnd: operator.and_,
    BitOr: operator.or_,
    BitNot: operator.invert,
    ShiftLeft: _shifted_left,
    ShiftRight: _shifted_right,
    Min: _smaller,
    Max: _larger,
    And: np.logical_and,
    Or: np.logical_or,
    Not: np.logical_not,
    Less: operator.lt,
    LessEqual: operator.le,
    Equal: operator.eq,
    NotEqual: operator.ne,
    Neg: operator.neg,
    Abs: abs,
    Exp: np.exp,
    Exp2: np.exp2,
    ReciprocalFlushed: lambda x: np.where(np.abs(x) > 2.0**126, 0.0, 1 / x),
    Exp2Flushed: lambda x: np.where(x < -126, 0.0, np.exp2(x)),
    Log: np.log,
    Log1p: np.log1p,
    Log2: np.log2,
    Log10: np.log10,
    Sqrt: np.sqrt,
    Rsqrt: lambda x: 1 / np.sqrt(x),
    Tanh: np.tanh,
    Erf: np.vectorize(math.erf, otypes=[np.float64]),
    Sin: np.sin,
    Cos: np.cos,
    Floor: np.floor,
    Ceil: np.ceil,
    RoundAway: _rounded_away,
    RoundEven: np.rint,
    Select: np.where,
    Fma: _multiplied_and_added,
}


WIDEST_BITS = 8 * WIDEST_BYTES
GROWING = (Add, Sub, Mul, Neg, Abs)
"""Ops whose result may overflow."""
LARGEST_INDEX = (1 << INDEX.bits - 1) - 1


def elementwise(op: Op, operands: list[Any]) -> Any:
    """Return the result of an elementwise op on numbers or arrays."""
    kind = op.results[0].type
    if isinstance(op, Cast):
        return cast(operands[0], kind.dtype)
    if isinstance(op, Bitcast):
        return _same_bits(operands[0], op.x.type.dtype, kind.dtype)
    if isinstance(op, Function):
        return function(op, operands[0], kind.dtype)
    if isinstance(kind, Scalar) and isinstance(op, Select) and np.ndim(operands[0]) == 0:
        return operands[1] if operands[0] else operands[2]
    meaning = row_of(MEANING, op, "no meaning is given to")
    if {*map(type, operands)} == {int}:  # most indices: Python warns of nothing, and setting numpy takes time
        taken, result = operands, meaning(*operands)
    else:
        taken = _of_their_dtypes(op, operands)
        with np.errstate(all="ignore"):
            result = meaning(*taken)
    if isinstance(result, np.generic) and not kind.dtype.is_float:
        result = result.item()  # np.minimum and others return numpy scalars for Python numbers
    if kind.dtype == INDEX:
        _want_fitting(op, taken, result)
    if kind.dtype.is_int and isinstance(result, int):
        return wrapped(result, kind.dtype)
    return result


def function(op: Op, x: Any, dtype: DType) -> Any:
    """Return exp and others, computed in float64 and rounded to f32; narrower dtypes are rounded from f32."""
    with np.errstate(all="ignore"):
        found = row_of(MEANING, op, "no meaning is given to")(np.asarray(x, np.float64))
        return (found if dtype.bits > 32 else found.astype(np.float32)).astype(dtype.numpy)[()]


def _same_bits(x: Any, old: DType, new: DType) -> Any:
    """Return the numbers of a dtype with the bits of those of another one."""
    found = np.asarray(x, old.numpy).view(new.numpy)
    return found if found.ndim else found[()] if new.is_float else found.item()


def _of_their_dtypes(op: Op, operands: list[Any]) -> list[Any]:
    """Convert Python integers next to an array to their dtype, so that numpy wraps as the dtype does."""
    if not any(isinstance(x, np.ndarray) for x in operands):
        return operands
    return [np.asarray(x, v.type.dtype.numpy) for x, v in zip(operands, op.operands, strict=True)]


def wrapped(x: int, dtype: DType) -> int:
    """Return an integer wrapped to a dtype."""
    least, greatest = dtype.bounds
    return x if least <= x <= greatest else (x - least) % (greatest - least + 1) + least


def _want_fitting(op: Op, operands: list[Any], result: Any) -> None:
    """Raise where an index overflows, because that is an author's mistake."""
    if not isinstance(op, GROWING):
        return
    if isinstance(result, np.ndarray):
        if result.size == 0 or _bound(op, operands) <= LARGEST_INDEX:
            return
        exact = row_of(MEANING, op, "no meaning is given to")(*(np.asarray(x, object) for x in operands))
        result = next((x for x in exact.reshape(-1) if wrapped(x, INDEX) != x), 0)
    if wrapped(int(result), INDEX) != result:
        raise InterpreterError(f"{op.name}: {result} does not fit into {INDEX}", loc=op.loc)


def _bound(op: Op, operands: list[Any]) -> int:
    """Return a bound on the magnitude of the result."""
    sizes = [max(abs(int(x.min())), abs(int(x.max()))) for x in operands]
    return math.prod(sizes) if isinstance(op, Mul) else sum(sizes)


def unmapped_tile(number: Any, rows: int, cols: int) -> tuple[Any, Any, Any]:
    """Return (batch, row, column) of a tile's number: column by column, unless `map_workgroups` decides otherwise."""
    within = number % (rows * cols)
    return number // (rows * cols), within % rows, within // rows


def constant(op: Op, value: int | float | bool) -> Any:
    kind = op.results[0].type
    number = cast(float(value), kind.dtype) if kind.dtype.is_float else value
    return number if isinstance(kind, Scalar) else np.full(kind.shape, number, kind.dtype.numpy)


def without_last_bits(x: Array, count: int) -> Array:
    """Return floats with the last `count` bits of the mantissa cleared."""
    if not count:
        return x
    words = x.view(f"u{x.dtype.itemsize}")
    kept: Array = (words & ~words.dtype.type((1 << count) - 1)).view(x.dtype)
    return kept


def multiply(a: Array, b: Array, acc: Array) -> Array:
    """Return acc + a · bᵀ in the accumulator's dtype; integers exactly, then wrapped as the hardware does."""
    if np.issubdtype(acc.dtype, np.integer):
        exact = np.matmul(a.astype(np.float64), b.astype(np.float64).swapaxes(-1, -2))
        wrapped: Array = (acc + exact.astype(np.int64)).astype(acc.dtype)
        return wrapped
    # copies, because BLAS may add in another order for other strides, and results must not depend on strides
    wide_a, wide_b = (np.ascontiguousarray(x, acc.dtype) for x in (a, b))
    product: Array = np.matmul(wide_a, wide_b.swapaxes(-1, -2))
    product += acc
    return product


def multiply_in_turn(a: Array, b: Array, acc: Array, depth: int) -> Array:
    """Return acc + a · bᵀ by consecutive instructions of a depth; each adds exactly, and then rounds once."""
    if np.issubdtype(acc.dtype, np.integer):
        return multiply(a, b, acc)
    wide_a, wide_b = (x.astype(np.float64) for x in (a, b))
    for first in range(0, a.shape[-1], depth):
        part = slice(first, first + depth)
        acc = (acc + np.matmul(wide_a[..., part], wide_b[..., part].swapaxes(-1, -2))).astype(acc.dtype)
    return acc
