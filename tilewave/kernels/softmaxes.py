"""Softmax, its logarithm, and the cross entropy of rows.

Long rows are read twice: first for the largest number so far and the sum of powers relative to it, then for the result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import e, inf, log2, nan
from typing import Any

from tilewave.errors import DTypeError, here
from tilewave.ir.types import BF16, F32, F64, I32, I64, DType
from tilewave.kernels.rows import M, N, RowNumbers, Rows, a_number_a_row, arithmetic_of, kernel_for, matrix
from tilewave.lang.accesses import read, write
from tilewave.lang.functions import reciprocal
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.loops import iterate
from tilewave.lang.ops import cast, exp, exp2, log, scalar, select, self_index
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


def cross_entropy(x: Any, target: Any, y: Any) -> None:
    """y = -log_softmax(x)[target] for each row; `target` are whole numbers, one a row, as is y.

    A negative target, such as torch's -100, asks for nothing: y is 0 there. One past the last column gives NaN.
    """
    kernel_for(cross_entropy_kernel, x=x, target=target, y=y)(x, target, y)


@cache
def softmax_kernel(rows: Rows, x_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel from x[M, N] to y[M, N]."""
    of = arithmetic_of("softmax", x=x_dtype, y=y_dtype)

    def softmax(x: Any, y: Any) -> None:
        numbers = RowNumbers(rows, of, lambda: cast(read(x), of))
        power = _power(y_dtype)
        largest, total = _powers(numbers, power)
        share = reciprocal(total)
        numbers.each(lambda v: write(cast(power(v - largest) * share, y_dtype), y))

    return rows.kernel(softmax, x=matrix(x_dtype), y=matrix(y_dtype))


@cache
def log_softmax_kernel(rows: Rows, x_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel from x[M, N] to y[M, N]."""
    of = arithmetic_of("log_softmax", x=x_dtype, y=y_dtype)

    def log_softmax(x: Any, y: Any) -> None:
        numbers = RowNumbers(rows, of, lambda: cast(read(x), of))
        largest, total = _powers(numbers, _power(y_dtype))
        logarithm = log(total)
        numbers.each(lambda v: write(cast(v - largest - logarithm, y_dtype), y))

    return rows.kernel(log_softmax, x=matrix(x_dtype), y=matrix(y_dtype))


@cache
def cross_entropy_kernel(rows: Rows, x_dtype: DType, target_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel from x[M, N] and target[M] to y[M]."""
    of = arithmetic_of("cross_entropy", x=x_dtype, y=y_dtype)
    if not target_dtype.is_int:
        what = f"cross_entropy: target is {target_dtype}, but it names columns"
        raise DTypeError(what, loc=here(), remedy="cast target to i64 first")

    def cross_entropy(x: Any, target: Any, y: Any) -> None:
        numbers, wanted = RowNumbers(rows, of, lambda: cast(read(x), of)), read(target)
        largest, total = _powers(numbers, _power(y_dtype))
        column = cast(wanted, I32)  # a target that does not fit is out of range, and its row is replaced below
        there = numbers.sum(lambda v: select(column == self_index(N, I32), v - largest, 0.0))
        is_column = cast(wanted, I64) < scalar(N, I64)
        write(cast(select(wanted < 0, 0.0, select(is_column, log(total) - there, nan)), y_dtype), y)

    parameters = {"x": matrix(x_dtype), "target": a_number_a_row(target_dtype), "y": a_number_a_row(y_dtype)}
    return rows.kernel(cross_entropy, **parameters)


def _power(result: DType) -> Callable[[Any], Any]:
    """Return exp for a difference; for results of less precision by exp2, which GPUs have an instruction for, and where
    results are 0 far above the subnormals of f32, with these flushed."""
    if result in (F32, F64):
        return lambda difference: exp(difference)
    return lambda difference: exp2(difference * LOG2_E, flush=result != BF16)


def _powers(numbers: RowNumbers, power: Callable[[Any], Any]) -> Any:
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
