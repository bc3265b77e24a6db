"""The numbers of an interpreted kernel: those of its dtypes, or exact substitutes."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from tilewave.interp import arithmetic
from tilewave.interp.arithmetic import MEANING, Array
from tilewave.ir.core import Op
from tilewave.ir.ops.reduction import COMBINED_BY
from tilewave.ir.types import DType


class Numbers(Protocol):
    """How the numbers of each dtype are represented, and how ops compute with them."""

    def storage(self, dtype: DType) -> np.dtype[Any]:
        """Return the numpy dtype of a representation, in which 0 is all bits 0."""

    def poison(self, dtype: DType) -> Any:
        """Return the value of uninitialized memory, chosen to be noticed in results."""

    def given(self, x: Any, dtype: DType) -> Any:
        """Return a scalar argument of a call."""

    def counted(self, x: Array, dtype: DType) -> Array:
        """Return integers in a dtype."""

    def constant(self, op: Op, value: int | float | bool) -> Any:
        """Return a literal, or a tile of it."""

    def elementwise(self, op: Op, operands: list[Any]) -> Any:
        """Return the result of an elementwise op on numbers or arrays."""

    def combined(self, how: str, dtype: DType, a: Array, b: Array) -> Array:
        """Combine two elements of a dtype as a reduction does."""

    def added(self, dtype: DType, a: Any, b: Any) -> Any:
        """Return the sum of two tiles of a dtype."""

    def multiplied(self, a: Array, b: Array, acc: Array) -> Array:
        """Return acc + a · bᵀ."""

    def multiplied_in_turn(self, a: Array, b: Array, acc: Array, depth: int, ignored_bits: int) -> Array:
        """Return acc + a · bᵀ by instructions of a depth, which ignore the last bits of their operands."""


class DTypeNumbers(Numbers):
    """The numbers of the dtypes, with the dtypes' rounding."""

    def storage(self, dtype: DType) -> np.dtype[Any]:
        return dtype.numpy

    def poison(self, dtype: DType) -> float | int:
        return poison_of(dtype)

    def given(self, x: Any, dtype: DType) -> Any:
        return x

    def counted(self, x: Array, dtype: DType) -> Array:
        return x.astype(dtype.numpy)

    def constant(self, op: Op, value: int | float | bool) -> Any:
        return arithmetic.constant(op, value)

    def elementwise(self, op: Op, operands: list[Any]) -> Any:
        return arithmetic.elementwise(op, operands)

    def combined(self, how: str, dtype: DType, a: Array, b: Array) -> Array:
        found: Array = MEANING[COMBINED_BY[how]](a, b)
        return found if found.dtype == a.dtype else found.astype(a.dtype)

    def added(self, dtype: DType, a: Any, b: Any) -> Any:
        return a + b

    def multiplied(self, a: Array, b: Array, acc: Array) -> Array:
        return arithmetic.multiply(a, b, acc)

    def multiplied_in_turn(self, a: Array, b: Array, acc: Array, depth: int, ignored_bits: int) -> Array:
        a, b = (arithmetic.without_last_bits(x, ignored_bits) for x in (a, b))
        return arithmetic.multiply_in_turn(a, b, acc, depth)


DTYPE_NUMBERS = DTypeNumbers()


def poison_of(dtype: DType) -> float | int:
    """Return the value of uninitialized memory, chosen to be noticed in results."""
    return math.nan if dtype.is_float else dtype.bounds[1] if dtype.is_int else 1
