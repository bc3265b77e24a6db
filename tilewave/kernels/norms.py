"""layer_norm and rms_norm along rows, with optional weight, bias and residual.

The mean comes first, then the squares of the differences from it: rows far from 0 keep their precision. Long rows are
read once for each of these, and once more for the result.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tilewave.errors import CallError, here
from tilewave.ir.types import F32, DType
from tilewave.kernels.numbers import checked_eps
from tilewave.kernels.parameters import given, kernel_of
from tilewave.kernels.rows import (
    N,
    RowNumbers,
    Rows,
    a_number_a_column,
    a_number_a_row,
    arithmetic_of,
    kernel_for,
    matrix,
)
from tilewave.lang.accesses import read, write
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.ops import cast, fma, rsqrt, scalar
from tilewave.lang.types import MemoryType


def layer_norm(x: Any, y: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> None:
    """y = (x - mean) / sqrt(variance + eps) · weight + bias along each row; weight and bias have a number a column.

    The variance is that of all numbers of a row: the mean of (x - mean)².
    """
    kernel, eps = layer_norm_for(x, y, weight, bias), checked_eps("layer_norm", eps)
    kernel(*(array for array in (x, weight, bias) if array is not None), y, eps)


def layer_norm_for(
    x: Any, y: Any, weight: Any = None, bias: Any = None, mean: Any = None, scale: Any = None
) -> WaveKernel:
    """Return the kernel of a layer_norm call."""
    if bias is not None and weight is None:
        what = "layer_norm: there is a bias, but no weight"
        raise CallError(what, loc=here(), remedy="pass ones as weight")
    return kernel_for(layer_norm_kernel, x=x, y=y, weight=weight, bias=bias, mean=mean, scale=scale)


def rms_norm(x: Any, y: Any, weight: Any = None, eps: float = 1e-5, residual: Any = None, total: Any = None) -> None:
    """y = x / sqrt(mean of x² + eps) · weight along each row; weight has a number a column.

    With a residual, x + residual is written to `total`, and y is the norm of what is written there.
    """
    if (residual is None) != (total is None):
        what = "rms_norm: x + residual goes to total, so they come together"
        raise CallError(what, loc=here(), remedy="pass residual=r, total=np.empty_like(x), or neither")
    kernel = kernel_for(rms_norm_kernel, x=x, y=y, weight=weight, residual=residual, total=total)
    kernel(*(array for array in (x, residual, weight, total) if array is not None), y, checked_eps("rms_norm", eps))


@cache
def layer_norm_kernel(
    rows: Rows,
    x_dtype: DType,
    y_dtype: DType,
    weight_dtype: DType | None = None,
    bias_dtype: DType | None = None,
    mean_dtype: DType | None = None,
    scale_dtype: DType | None = None,
) -> WaveKernel:
    """Return the kernel from x[M, N], eps, and weight[N] and bias[N] where they have dtypes, to y[M, N], and to mean[M]
    and scale[M] where these have."""
    of = arithmetic_of("layer_norm", x=x_dtype, y=y_dtype, weight=weight_dtype, bias=bias_dtype)

    def norm(to: Any) -> None:
        numbers, count = RowNumbers(rows, of, lambda: cast(read(to.x), of)), scalar(N, of)
        mean = numbers.sum(lambda v: v) / count
        scale = rsqrt(numbers.sum(lambda v: (v - mean) * (v - mean)) / count + to.eps)

        @numbers.each
        def one(v: Any) -> None:
            found = (v - mean) * scale
            if weight_dtype is not None:
                found = _weighted(found, cast(read(to.weight), of), bias_dtype and cast(read(to.bias), of))
            write(cast(found, y_dtype), to.y)

        _keep(to, mean=mean, scale=scale)

    columns = _columns(weight=weight_dtype, bias=bias_dtype)
    kept = _numbers(mean=mean_dtype, scale=scale_dtype)
    parameters = given(x=matrix(x_dtype), **columns, y=matrix(y_dtype), **kept, eps=of)
    return kernel_of("layer_norm", rows.constraints, parameters, norm)


@cache
def rms_norm_kernel(
    rows: Rows,
    x_dtype: DType,
    y_dtype: DType,
    weight_dtype: DType | None = None,
    residual_dtype: DType | None = None,
    total_dtype: DType | None = None,
    scale_dtype: DType | None = None,
) -> WaveKernel:
    """Return the kernel from x[M, N], weight[N] and eps to y[M, N]; with a residual[M, N], total[M, N] as well, and to
    scale[M] where it has a dtype."""
    of = arithmetic_of(
        "rms_norm", x=x_dtype, y=y_dtype, weight=weight_dtype, residual=residual_dtype, total=total_dtype
    )

    def norm(to: Any) -> None:
        def read_numbers() -> Any:
            x = cast(read(to.x), of)
            return x if residual_dtype is None else cast(cast(x + cast(read(to.residual), of), total_dtype or of), of)

        numbers = RowNumbers(rows, of, read_numbers)
        scale = rsqrt(numbers.sum(lambda v: v * v) / scalar(N, of) + to.eps)

        @numbers.each
        def one(v: Any) -> None:
            if total_dtype is not None:
                write(cast(v, total_dtype), to.total)
            found = v * scale
            write(cast(found if weight_dtype is None else found * cast(read(to.weight), of), y_dtype), to.y)

        _keep(to, scale=scale)

    before = given(x=matrix(x_dtype), residual=residual_dtype and matrix(residual_dtype))
    after = given(total=total_dtype and matrix(total_dtype), y=matrix(y_dtype))
    parameters = {**before, **_columns(weight=weight_dtype), **after, **_numbers(scale=scale_dtype), **given(eps=of)}
    return kernel_of("rms_norm", rows.constraints, parameters, norm)


def _weighted(x: Any, weight: Any, bias: Any) -> Any:
    if bias is None:
        return x * weight
    return fma(x, weight, bias) if x.dtype == F32 else x * weight + bias


def _keep(to: Any, **numbers: Any) -> None:
    """Write numbers of rows where there is an array for them: a backward pass reads them."""
    for name, number in numbers.items():
        if hasattr(to, name):
            write(number, getattr(to, name))


def _columns(**dtypes: DType | None) -> dict[str, MemoryType]:
    return {name: a_number_a_column(dtype) for name, dtype in dtypes.items() if dtype is not None}


def _numbers(**dtypes: DType | None) -> dict[str, MemoryType]:
    return {name: a_number_a_row(dtype) for name, dtype in dtypes.items() if dtype is not None}
