"""Sums, cumulative sums and argmax of rows."""

from __future__ import annotations

from functools import cache
from typing import Any

from tilewave.call import power_of_two_for
from tilewave.errors import DTypeError, here
from tilewave.ir.ops.reduction import identity
from tilewave.ir.types import I32, I64, DType
from tilewave.kernels.rows import M, N, RowNumbers, Rows, a_number_a_row, kernel_for, matrix
from tilewave.lang.accesses import read, write
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.loops import iterate
from tilewave.lang.ops import cast, select
from tilewave.lang.reductions import SUMMED_IN
from tilewave.lang.types import RegisterType

RUNNING_SUMS = 256
"""Numbers of a row that one wave scans at once: twice as many would need another pass over the lanes."""


def sum_(x: Any, y: Any) -> None:
    """y = the sum of each row of x.

    f16, bf16 and f8 are added in f32, i8, i16 and bool in i32, u8 and u16 in u32, and in y's dtype where that is
    wider; integers wrap.
    """
    kernel_for(sum_kernel, x=x, y=y)(x, y)


def cumsum(x: Any, y: Any) -> None:
    """y[:, n] = the sum of x[:, : n + 1], in the dtypes of `sum`."""
    kernel_for(cumsum_kernel, running_rows, x=x, y=y)(x, y)


def argmax(x: Any, y: Any) -> None:
    """y = the column of the largest number in each row, i32 or i64: the first of several, or the first NaN."""
    kernel_for(argmax_kernel, x=x, y=y)(x, y)


@cache
def sum_kernel(rows: Rows, x_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel from x[M, N] to y[M]."""
    of = summed_in("sum", x_dtype, y_dtype)

    def sum(x: Any, y: Any) -> None:
        numbers = RowNumbers(rows, of, lambda: cast(read(x), of))
        write(cast(numbers.sum(lambda v: v), y_dtype), y)

    return rows.kernel(sum, x=matrix(x_dtype), y=a_number_a_row(y_dtype))


@cache
def cumsum_kernel(rows: Rows, x_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel from x[M, N] to y[M, N]; `rows` are those of `running_rows`."""
    of = summed_in("cumsum", x_dtype, y_dtype)

    def cumsum(x: Any, y: Any) -> None:
        @iterate(N, init_args=[RegisterType((M,), of)(0)])
        def total(so_far: Any) -> Any:
            numbers = cast(read(x), of)
            write(cast(numbers.cumsum(dim=N) + so_far, y_dtype), y)
            return numbers.sum(dim=N, acc=so_far)

    return rows.kernel(cumsum, x=matrix(x_dtype), y=matrix(y_dtype))


def running_rows(target: str, columns: int, dtype: DType) -> Rows:
    """Return the tiling of rows for `cumsum`: always in steps, as a scan moves every number log2(step) times."""
    step = min(RUNNING_SUMS, power_of_two_for(columns))
    return Rows(RUNNING_SUMS // step, step)


@cache
def argmax_kernel(rows: Rows, x_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel from x[M, N] to y[M]."""
    if y_dtype not in (I32, I64):
        what = f"argmax: y is {y_dtype}, but it takes columns, i32 or i64"
        raise DTypeError(what, loc=here(), remedy="pass an array of i64 as y")

    def argmax(x: Any, y: Any) -> None:
        write(cast(read(x).argmax(dim=N), y_dtype), y)

    def walked_argmax(x: Any, y: Any) -> None:
        least = RegisterType((M,), x_dtype)(identity("max", x_dtype))

        @iterate(N, init_args=[least, RegisterType((M,), I32)(0)])
        def found(largest: Any, place: Any) -> Any:
            numbers = read(x)
            here = numbers.max(dim=N)
            is_first = (here > largest) | ((here != here) & (largest == largest))
            return select(is_first, here, largest), select(is_first, numbers.argmax(dim=N), place)

        write(cast(found[1], y_dtype), y)

    return rows.kernel(walked_argmax if rows.step else argmax, x=matrix(x_dtype), y=a_number_a_row(y_dtype))


def summed_in(kernel: str, x: DType, y: DType) -> DType:
    """Return the dtype that numbers are added in: the language's choice, or the result's dtype where that is wider."""
    wide = SUMMED_IN.get(x, x)
    if y == I64 and wide.is_int and wide.bits < I64.bits:
        return y  # which has all numbers of the unsigned ones, too
    if y.kind != wide.kind:
        what = f"{kernel}: y is {y}, but sums of {x} are {wide}"
        raise DTypeError(what, loc=here(), remedy=f"pass an array of {wide} as y")
    return y if y.bits > wide.bits else wide
