"""activation(gate) · up, which is SwiGLU for silu and GeGLU for gelu, and its gradients, each in one pass."""

from __future__ import annotations

from functools import cache
from typing import Any

from tilewave.ir.types import DType
from tilewave.kernels.activations import ACTIVATIONS
from tilewave.kernels.indexed import RowTile, row_tile, scatter_tile_for
from tilewave.kernels.parameters import kernel_of
from tilewave.kernels.rows import M, N, arithmetic_of, matrix
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import Constraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.ops import cast
from tilewave.machine.chips import CHIPS

TILE_BYTES = 1024
"""The bytes of a tile of each array on GPUs: lanes of one wave load two or three arrays, and more workgroups are
resident where each has less."""


def gated_tile_for(target: str, columns: int, dtype: DType) -> RowTile:
    """Return the tile of arrays that are combined element by element."""
    return (
        row_tile(columns, dtype, TILE_BYTES, TILE_BYTES)
        if target in CHIPS
        else scatter_tile_for(target, columns, dtype)
    )


@cache
def gated_kernel(tile: RowTile, activation: str, gate_dtype: DType, up_dtype: DType, y_dtype: DType) -> WaveKernel:
    """y[M, N] = activation(gate) · up."""
    of = arithmetic_of("gated", gate=gate_dtype, up=up_dtype, y=y_dtype)

    def gated(to: Any) -> None:
        active = ACTIVATIONS[activation].value(cast(read(to.gate), of), y_dtype)
        write(cast(active * cast(read(to.up), of), y_dtype), to.y)

    parameters = {"gate": matrix(gate_dtype), "up": matrix(up_dtype), "y": matrix(y_dtype)}
    return kernel_of("gated", _constraints(tile), parameters, gated)


@cache
def gated_gradients_kernel(
    tile: RowTile, activation: str, gate_dtype: DType, up_dtype: DType, grad_dtype: DType
) -> WaveKernel:
    """grad_gate[M, N] = slope(gate) · up · grad and grad_up[M, N] = activation(gate) · grad, in the dtypes of both."""
    of = arithmetic_of("gated_gradients", gate=gate_dtype, up=up_dtype, grad=grad_dtype)
    function = ACTIVATIONS[activation]

    def gradients(to: Any) -> None:
        gate, grad = cast(read(to.gate), of), cast(read(to.grad), of)
        value, slope = function.both(gate, max(gate_dtype, up_dtype, key=lambda dtype: dtype.bits))
        write(cast(slope * (cast(read(to.up), of) * grad), gate_dtype), to.grad_gate)
        write(cast(value * grad, up_dtype), to.grad_up)

    inputs = {"gate": matrix(gate_dtype), "up": matrix(up_dtype), "grad": matrix(grad_dtype)}
    parameters = {**inputs, "grad_gate": matrix(gate_dtype), "grad_up": matrix(up_dtype)}
    return kernel_of("gated_gradients", _constraints(tile), parameters, gradients)


def _constraints(tile: RowTile) -> list[Constraint]:
    return [WorkgroupConstraint(M, tile.rows, 0), WorkgroupConstraint(N, tile.columns, 1)]
