"""Softmax and its logarithm.

Long rows are read twice: first for the largest number so far and the sum of powers relative to it, then for the result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import e, inf, log2
from typing import Any

from tilewave.errors import DTypeError, here
from tilewave.ir.types import BF16, F32, F64, I64, DType
from tilewave.kernels.rows import M, N, RowNumbers, Rows, a_number_a_row, arithmetic_of, kernel_for, matrix
from tilewave.lang.accesses import read, write
from tilewave.lang.functions import reciprocal
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.loops import iterate
from tilewave.lang.ops import cast, exp, exp2, log, select, self_index
from tilewave.lang.types import RegisterType

LOG2_E = log2(e)


def softmax(x: Any, y: Any) -> None:
    """y = exp(x) / the sum of exp(x) along each row, of floats.

    A row in which every number is -inf, or one is inf or NaN, gives NaN, as it does in numpy.
    """
    kernel_for(softmax_kernel, x=x, y=y)(x, y)


def log_softmax(x: Any, y: Any) -> None:
    """y = x - log of the sum of exp(x) along each row; where `softmax` gives NaN, this does."""
    kernel_for(log_softmax_kernel, x=x, y=y)(x, y)


def masked_softmax(x: Any, lengths: Any, y: Any) -> None:
    """y = softmax of the first lengths[m] numbers of each row m of x, and 0 after them.

    A length beyond the row is the row's; of 0 or less, the whole row of y is 0.
    """
    kernel_for(masked_softmax_kernel, x=x, lengths=lengths, y=y)(x, lengths, y)


@cache
def softmax_kernel(rows: Rows, x_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel from x[M, N] to y[M, N]."""
    of = arithmetic_of("softmax", x=x_dtype, y=y_dtype)

    def softmax(x: Any, y: Any) -> None:
        numbers = RowNumbers(rows, of, lambda: cast(read(x), of))
        power = power_for(y_dtype)
        largest, total = powers(numbers, power)
        share = reciprocal(total)
        numbers.each(lambda v: write(cast(power(v - largest) * share, y_dtype), y))

    return rows.kernel(softmax, x=matrix(x_dtype), y=matrix(y_dtype))


@cache
def masked_softmax_kernel(rows: Rows, x_dtype: DType, lengths_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel from x[M, N] and lengths[M] to y[M, N]."""
    of = arithmetic_of("masked_softmax", x=x_dtype, y=y_dtype)
    if not lengths_dtype.is_int:
        what = f"masked_softmax: lengths is {lengths_dtype}, but it counts columns"
        raise DTypeError(what, loc=here(), remedy="cast lengths to i64 first")

    def masked_softmax(x: Any, lengths: Any, y: Any) -> None:
        length = cast(read(lengths), I64)

        def where_it_counts(v: Any, otherwise: float) -> Any:
            return select(self_index(N, I64) < length, v, otherwise)

        numbers, power = RowNumbers(rows, of, lambda: where_it_counts(cast(read(x), of), -inf)), power_for(y_dtype)
        largest, total = powers(numbers, power)
        share = reciprocal(total)
        numbers.each(lambda v: write(cast(where_it_counts(power(v - largest) * share, 0.0), y_dtype), y))

    return rows.kernel(masked_softmax, x=matrix(x_dtype), lengths=a_number_a_row(lengths_dtype), y=matrix(y_dtype))


@cache
def log_softmax_kernel(rows: Rows, x_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel from x[M, N] to y[M, N]."""
    of = arithmetic_of("log_softmax", x=x_dtype, y=y_dtype)

    def log_softmax(x: Any, y: Any) -> None:
        numbers = RowNumbers(rows, of, lambda: cast(read(x), of))
        largest, total = powers(numbers, power_for(y_dtype))
        logarithm = log(total)
        numbers.each(lambda v: write(cast(v - largest - logarithm, y_dtype), y))

    return rows.kernel(log_softmax, x=matrix(x_dtype), y=matrix(y_dtype))


def power_for(result: DType) -> Callable[[Any], Any]:
    """Return the function exp for differences, as precise as results of a dtype need it.

    For results of 16 bits it is made of exp2, which GPUs have an instruction for, and where results are 0 far above the
    subnormals of f32, with these flushed.
    """
    if result in (F32, F64):
        return lambda difference: exp(difference)
    return lambda difference: exp2(difference * LOG2_E, flush=result != BF16)


def powers(numbers: RowNumbers, power: Callable[[Any], Any]) -> Any:
    """Return each row's largest number, and its sum of exp(number - largest)."""
    if numbers.held is not None:
        largest = numbers.held.max(dim=N)
        return largest, power(numbers.held - largest).sum(dim=N)
    none = RegisterType((M,), numbers.dtype)

    @iterate(N, init_args=[none(-inf), none(0.0)])
    def found(largest: Any, total: Any) -> Any:
        here = numbers.read_them()
        larger = here.max(dim=N, acc=largest)
        zero = select(larger == -inf, 0.0, larger)  # nothing but -inf so far: -inf - -inf would be NaN
        return larger, total * power(largest - zero) + power(here - zero).sum(dim=N)

    return found
