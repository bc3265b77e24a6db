"""What arithmetic means, on numbers and on arrays of them alike."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewave.errors import InterpreterError
from tilewave.ir.core import Op
from tilewave.ir.ops import (
    FUNCTIONS,
    Abs,
    Add,
    And,
    Cast,
    Cos,
    Div,
    Equal,
    Erf,
    Exp,
    Exp2,
    FloorDiv,
    Less,
    LessEqual,
    Log,
    Log2,
    Max,
    Min,
    Mod,
    Mul,
    Neg,
    Not,
    NotEqual,
    Or,
    Rsqrt,
    Select,
    Sin,
    Sqrt,
    Sub,
    Tanh,
    Xor,
)
from tilewave.ir.types import DType, Scalar

Array = np.ndarray[Any, Any]

MEANING: dict[type[Op], Callable[..., Any]] = {
    Add: operator.add,
    Sub: operator.sub,
    Mul: operator.mul,
    Div: operator.truediv,
    FloorDiv: operator.floordiv,
    Mod: operator.mod,
    Xor: operator.xor,
    Min: np.minimum,
    Max: np.maximum,
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
    Log: np.log,
    Log2: np.log2,
    Sqrt: np.sqrt,
    Rsqrt: lambda x: 1 / np.sqrt(x),
    Tanh: np.tanh,
    Erf: np.vectorize(math.erf, otypes=[np.float64]),
    Sin: np.sin,
    Cos: np.cos,
    Select: np.where,
}


def elementwise(op: Op, operands: list[Any]) -> Any:
    """An elementwise op on numbers or arrays of them."""
    kind = op.results[0].type
    try:
        if isinstance(op, Cast):
            return cast(operands[0], kind.dtype)
        if isinstance(op, FUNCTIONS):
            return function(op, operands[0], kind.dtype)
        if isinstance(kind, Scalar) and isinstance(op, Select) and np.ndim(operands[0]) == 0:
            return operands[1] if operands[0] else operands[2]
        with np.errstate(divide="raise" if isinstance(op, (FloorDiv, Mod)) else "ignore"):
            result = MEANING[type(op)](*operands)
    except (ZeroDivisionError, FloatingPointError):
        raise InterpreterError(f"{op.name}: divides by zero", loc=op.loc) from None
    if isinstance(result, np.generic) and not kind.dtype.is_float:
        result = result.item()  # np.minimum and its kind make numpy numbers of Python's
    if isinstance(result, int) and not isinstance(result, bool) and result.bit_length() >= kind.dtype.bits:
        raise InterpreterError(f"{op.name}: {result} does not fit into {kind.dtype}", loc=op.loc)
    return result


def function(op: Op, x: Any, dtype: DType) -> Any:
    """exp and its kind, by float64's digits rounded to f32 once; what is narrower is then rounded from there."""
    with np.errstate(all="ignore"):
        found = MEANING[type(op)](np.asarray(x, np.float64))
        return (found if dtype.bits > 32 else found.astype(np.float32)).astype(dtype.numpy)[()]


def unmapped_tile(number: Any, rows: int, cols: int) -> tuple[Any, Any, Any]:
    """(batch, row, column) of a tile's number: column by column, unless MapWorkgroups decides otherwise."""
    within = number % (rows * cols)
    return number // (rows * cols), within % rows, within // rows


def cast(x: Any, dtype: DType) -> Any:
    if isinstance(x, int) and dtype.is_int:
        return int(np.asarray(x).astype(dtype.numpy))
    with np.errstate(all="ignore"):
        wide = np.asarray(x)
        if dtype.kind == "float" and dtype.bits == 8 and wide.dtype.itemsize > 4:
            wide = wide.astype(np.float32)
        result = wide.astype(dtype.numpy)
    return int(result) if dtype.is_int and result.ndim == 0 else result[()]


def constant(op: Op, value: int | float | bool) -> Any:
    kind = op.results[0].type
    if not isinstance(kind, Scalar):
        return np.full(kind.shape, value, kind.dtype.numpy)
    return kind.dtype.numpy.type(value) if kind.dtype.is_float else value


def without_last_bits(x: Array, count: int) -> Array:
    """Floats whose last bits of the mantissa are 0: rounded towards zero."""
    if not count:
        return x
    words = x.view(f"u{x.dtype.itemsize}")
    kept: Array = (words & ~words.dtype.type((1 << count) - 1)).view(x.dtype)
    return kept


def multiply(a: Array, b: Array, acc: Array) -> Array:
    """acc + a · bᵀ in the accumulator's dtype; integers exactly, then wrapped as the hardware does."""
    if np.issubdtype(acc.dtype, np.integer):
        exact = np.matmul(a.astype(np.float64), b.astype(np.float64).swapaxes(-1, -2))
        wrapped: Array = (acc + exact.astype(np.int64)).astype(acc.dtype)
        return wrapped
    # BLAS may add in another order where operands have other strides; the meaning of a kernel must not
    wide_a, wide_b = (np.ascontiguousarray(x, acc.dtype) for x in (a, b))
    product: Array = np.matmul(wide_a, wide_b.swapaxes(-1, -2))
    product += acc
    return product
