"""Cross entropy of rows, its mean over labels, and its gradient.

Labels are columns, from memory: the logit of a label is loaded from its place, and the rest of a row is needed for the
sum of powers alone, which is computed online where rows are long. A label that is no column asks for nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tilewave.call import power_of_two_for
from tilewave.errors import DTypeError, here
from tilewave.ir.types import I64, DType
from tilewave.kernels.parameters import given, kernel_of
from tilewave.kernels.rows import M, N, RowNumbers, Rows, a_number_a_row, arithmetic_of, kernel_for, matrix
from tilewave.kernels.softmaxes import power_for, powers
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.ops import cast, log, scalar, select, self_index

GRADIENT_BYTES = 4096
"""The bytes of a row that a workgroup of the gradient takes."""


def cross_entropy(x: Any, target: Any, y: Any) -> None:
    """y = -log_softmax(x)[target] for each row; `target` are whole numbers, one a row, as is y.

    A target that is no column, such as torch's -100, asks for nothing: y is 0 there.
    """
    kernel_for(cross_entropy_kernel, x=x, target=target, y=y)(x, target, y)


@cache
def cross_entropy_kernel(
    rows: Rows,
    x_dtype: DType,
    target_dtype: DType,
    y_dtype: DType,
    lse_dtype: DType | None = None,
    ignored_dtype: DType | None = None,
) -> WaveKernel:
    """Return the kernel from x[M, N] and target[M] to y[M], and to lse[M], the logarithms of the sums of exp(x).

    A further number, `ignored`, is the target that asks for nothing even where it is a column.
    """
    of = arithmetic_of("cross_entropy", x=x_dtype, y=y_dtype, lse=lse_dtype)
    want_labels("cross_entropy", target_dtype)

    def loss(to: Any) -> None:
        numbers, label = RowNumbers(rows, of, lambda: cast(read(to.x), of)), read(to.target)
        largest, total = powers(numbers, power_for(x_dtype))  # logits of 16 bits are less precise than either power
        there, logarithm = cast(read(to.x, at={M: self_index(M), N: label}), of), log(total)
        is_asked = _is_asked(label, scalar(N, I64), to.ignored if ignored_dtype else None)
        write(cast(select(is_asked, logarithm - (there - largest), 0.0), y_dtype), to.y)
        if lse_dtype:
            write(cast(logarithm + largest, lse_dtype), to.lse)

    arrays = given(x=matrix(x_dtype), target=a_number_a_row(target_dtype), y=a_number_a_row(y_dtype))
    more = given(lse=lse_dtype and a_number_a_row(lse_dtype), ignored=ignored_dtype)
    return kernel_of("cross_entropy", rows.constraints, {**arrays, **more}, loss)


@cache
def mean_loss_kernel(rows: Rows, loss_dtype: DType, target_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel from loss[M, N] and target[M, N] to y[M]: the mean along a row over targets that are below
    `columns`, at least 0 and not `ignored`, two further numbers."""
    of = arithmetic_of("cross_entropy", loss=loss_dtype, y=y_dtype)

    def mean(to: Any) -> None:
        def read_them() -> Any:
            return cast(read(to.loss), of), select(_is_asked(read(to.target), to.columns, to.ignored), one, 0.0)

        one = scalar(1.0, of)
        numbers = RowNumbers(rows, of, read_them)
        write(cast(numbers.sum(lambda v: v[0]) / numbers.sum(lambda v: v[1]), y_dtype), to.y)

    arrays = {"loss": matrix(loss_dtype), "target": matrix(target_dtype), "y": a_number_a_row(y_dtype)}
    return kernel_of("mean_loss", rows.constraints, given(**arrays, columns=I64, ignored=I64), mean)


@cache
def cross_entropy_backward_kernel(
    columns: int, x_dtype: DType, target_dtype: DType, lse_dtype: DType, grad_dtype: DType, grad_x_dtype: DType
) -> WaveKernel:
    """Return the kernel from x[M, N], target[M], lse[M] and grad[M], the gradient of each loss, to grad_x[M, N]."""
    of = arithmetic_of("cross_entropy_backward", x=x_dtype, lse=lse_dtype, grad=grad_dtype, grad_x=grad_x_dtype)
    want_labels("cross_entropy_backward", target_dtype)

    def backward(to: Any) -> None:
        label = cast(read(to.target), I64)
        share = power_for(grad_x_dtype)(cast(read(to.x), of) - cast(read(to.lse), of))
        slope = select(self_index(N, I64) == label, share - 1.0, share) * cast(read(to.grad), of)
        is_asked = _is_asked(label, scalar(N, I64), to.ignored)
        write(cast(select(is_asked, slope, 0.0), grad_x_dtype), to.grad_x)

    of_rows = {"target": target_dtype, "lse": lse_dtype, "grad": grad_dtype}
    arrays = {"x": matrix(x_dtype), **{name: a_number_a_row(dtype) for name, dtype in of_rows.items()}}
    parameters = given(**arrays, grad_x=matrix(grad_x_dtype), ignored=I64)
    constraints = [WorkgroupConstraint(M, 1, 0), WorkgroupConstraint(N, columns, 1)]
    return kernel_of("cross_entropy_backward", constraints, parameters, backward)


def gradient_columns(columns: int, dtype: DType) -> int:
    """Return how many columns of a row a workgroup of the gradient takes."""
    return min(power_of_two_for(columns), GRADIENT_BYTES // max(2, dtype.bytes))


def want_labels(kernel: str, target: DType) -> None:
    """Raise an error where targets are no integers."""
    if not target.is_int:
        what = f"{kernel}: target is {target}, but it names columns"
        raise DTypeError(what, loc=here(), remedy="cast target to i64 first")


def _is_asked(label: Any, columns: Any, ignored: Any = None) -> Any:
    wide = cast(label, I64)
    found = (wide >= 0) & (wide < columns)
    return found if ignored is None else found & (wide != ignored)
