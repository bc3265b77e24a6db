"""Backward passes of an activation, of softmax, layer_norm and rms_norm, and of the weights of norms of long rows.

Rows are tiled as in the forward passes, whole or step by step, and have the mean and the scale that these wrote. The
gradient of a norm's weights is a sum of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tilewave.ir.types import DType
from tilewave.kernels.activations import ACTIVATIONS
from tilewave.kernels.parameters import given, kernel_of
from tilewave.kernels.rows import M, N, RowNumbers, Rows, a_number_a_column, a_number_a_row, arithmetic_of, matrix
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import TilingConstraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.loops import iterate
from tilewave.lang.ops import cast, scalar
from tilewave.lang.types import MemoryType, RegisterType

COLUMNS, ROWS = 64, 64
"""The tile of a sum of columns, and of an elementwise kernel."""


@cache
def activation_backward_kernel(activation: str, x_dtype: DType, grad_dtype: DType, grad_x_dtype: DType) -> WaveKernel:
    """grad_x[M, N] = slope(x) · grad."""
    of = arithmetic_of(f"{activation}_backward", x=x_dtype, grad=grad_dtype, grad_x=grad_x_dtype)
    slope = ACTIVATIONS[activation].slope

    def multiply(to: Any) -> None:
        write(cast(slope(cast(read(to.x), of), grad_x_dtype) * cast(read(to.grad), of), grad_x_dtype), to.grad_x)

    constraints = [WorkgroupConstraint(M, ROWS, 0), WorkgroupConstraint(N, COLUMNS, 1)]
    parameters = {"x": matrix(x_dtype), "grad": matrix(grad_dtype), "grad_x": matrix(grad_x_dtype)}
    return kernel_of(f"{activation}_backward", constraints, parameters, multiply)


@cache
def softmax_backward_kernel(rows: Rows, y_dtype: DType, grad_dtype: DType, grad_x_dtype: DType) -> WaveKernel:
    """grad_x = y · (grad - the sum of y · grad), where y is softmax's output."""
    of = arithmetic_of("softmax_backward", y=y_dtype, grad=grad_dtype, grad_x=grad_x_dtype)

    def backward(to: Any) -> None:
        numbers = RowNumbers(rows, of, lambda: (cast(read(to.y), of), cast(read(to.grad), of)))
        shared = numbers.sum(lambda v: v[0] * v[1])
        numbers.each(lambda v: write(cast(v[0] * (v[1] - shared), grad_x_dtype), to.grad_x))

    parameters = {"y": matrix(y_dtype), "grad": matrix(grad_dtype), "grad_x": matrix(grad_x_dtype)}
    return kernel_of("softmax_backward", rows.constraints, parameters, backward)


@cache
def rms_norm_backward_kernel(
    rows: Rows,
    x_dtype: DType,
    grad_dtype: DType,
    grad_x_dtype: DType,
    scale_dtype: DType,
    weight_dtype: DType | None = None,
) -> WaveKernel:
    """grad_x = scale · (g - x · scale² · the mean of g · x), where g = grad · weight, and scale[M] is the forward
    pass's."""
    of = arithmetic_of("rms_norm_backward", x=x_dtype, grad=grad_dtype, grad_x=grad_x_dtype, weight=weight_dtype)

    def backward(to: Any) -> None:
        numbers = RowNumbers(rows, of, lambda: (cast(read(to.x), of), _weighted(to, of, weight_dtype)))
        scale = cast(read(to.scale), of)
        share = numbers.sum(lambda v: v[0] * v[1]) / scalar(N, of) * scale * scale
        numbers.each(lambda v: write(cast((v[1] - v[0] * share) * scale, grad_x_dtype), to.grad_x))

    of_rows = {"scale": a_number_a_row(scale_dtype)}
    parameters = {**_inputs(x_dtype, grad_dtype, weight_dtype), **of_rows, "grad_x": matrix(grad_x_dtype)}
    return kernel_of("rms_norm_backward", rows.constraints, parameters, backward)


@cache
def layer_norm_backward_kernel(
    rows: Rows,
    x_dtype: DType,
    grad_dtype: DType,
    grad_x_dtype: DType,
    scale_dtype: DType,
    weight_dtype: DType | None = None,
) -> WaveKernel:
    """grad_x = scale · (g - mean of g - n · mean of g · n), where n is the norm, and mean[M] and scale[M] are those of
    the forward pass."""
    of = arithmetic_of("layer_norm_backward", x=x_dtype, grad=grad_dtype, grad_x=grad_x_dtype, weight=weight_dtype)

    def backward(to: Any) -> None:
        numbers = RowNumbers(rows, of, lambda: (cast(read(to.x), of), _weighted(to, of, weight_dtype)))
        mean, scale, count = cast(read(to.mean), of), cast(read(to.scale), of), scalar(N, of)
        mean_grad = numbers.sum(lambda v: v[1]) / count
        share = numbers.sum(lambda v: v[1] * (v[0] - mean)) / count * scale * scale

        @numbers.each
        def one(v: Any) -> None:
            write(cast((v[1] - mean_grad - (v[0] - mean) * share) * scale, grad_x_dtype), to.grad_x)

    of_rows = {"mean": a_number_a_row(scale_dtype), "scale": a_number_a_row(scale_dtype)}
    parameters = {**_inputs(x_dtype, grad_dtype, weight_dtype), **of_rows, "grad_x": matrix(grad_x_dtype)}
    return kernel_of("layer_norm_backward", rows.constraints, parameters, backward)


def _inputs(x_dtype: DType, grad_dtype: DType, weight_dtype: DType | None) -> dict[str, Any]:
    weight = weight_dtype and a_number_a_column(weight_dtype)
    return given(x=matrix(x_dtype), grad=matrix(grad_dtype), weight=weight)


def _weighted(to: Any, of: DType, weight_dtype: DType | None) -> Any:
    grad = cast(read(to.grad), of)
    return grad * cast(read(to.weight), of) if weight_dtype else grad


# sums of columns ----------------------------------------------------------------------------------------------------


@cache
def rms_norm_weights_kernel(x_dtype: DType, grad_dtype: DType, scale_dtype: DType, weight_dtype: DType) -> WaveKernel:
    """grad_weight[N] = the sums of grad · x · scale."""
    of = arithmetic_of("rms_norm_weights", x=x_dtype, grad=grad_dtype, weight=weight_dtype)

    def terms(to: Any) -> tuple[Any, ...]:
        return (cast(read(to.grad), of) * (cast(read(to.x), of) * cast(read(to.scale), of)),)

    read_from = {"x": matrix(x_dtype), "grad": matrix(grad_dtype), "scale": a_number_a_row(scale_dtype)}
    return _columns("rms_norm_weights", of, read_from, {"grad_weight": weight_dtype}, terms)


@cache
def layer_norm_weights_kernel(
    x_dtype: DType, grad_dtype: DType, scale_dtype: DType, weight_dtype: DType, bias_dtype: DType
) -> WaveKernel:
    """grad_weight[N] = the sums of grad · (x - mean) · scale, and grad_bias[N] those of grad."""
    of = arithmetic_of("layer_norm_weights", x=x_dtype, grad=grad_dtype, weight=weight_dtype)

    def terms(to: Any) -> tuple[Any, ...]:
        grad = cast(read(to.grad), of)
        return grad * ((cast(read(to.x), of) - cast(read(to.mean), of)) * cast(read(to.scale), of)), grad

    of_rows = {"mean": a_number_a_row(scale_dtype), "scale": a_number_a_row(scale_dtype)}
    read_from = {"x": matrix(x_dtype), "grad": matrix(grad_dtype), **of_rows}
    results = {"grad_weight": weight_dtype, "grad_bias": bias_dtype}
    return _columns("layer_norm_weights", of, read_from, results, terms)


def _columns(
    name: str,
    of: DType,
    read_from: dict[str, MemoryType],
    results: dict[str, DType],
    terms: Callable[[Any], tuple[Any, ...]],
) -> WaveKernel:
    """Return the kernel that writes, for each result, the sums of a term along M."""

    def add(to: Any) -> None:
        @iterate(M, init_args=[RegisterType((N,), of)(0) for _ in results])
        def totals(*so_far: Any) -> Any:
            found = [acc + term.sum(dim=M) for acc, term in zip(so_far, terms(to), strict=True)]
            return tuple(found) if len(found) > 1 else found[0]

        every = totals if len(results) > 1 else [totals]
        for total, (where, dtype) in zip(every, results.items(), strict=True):
            write(cast(total, dtype), getattr(to, where))

    constraints = [WorkgroupConstraint(N, COLUMNS, 0), TilingConstraint(M, ROWS)]
    written = {where: a_number_a_column(dtype) for where, dtype in results.items()}
    return kernel_of(name, constraints, {**read_from, **written}, add)
