"""Gradients of norms and of their weights in one pass over the rows.

A workgroup has a block of rows. It loads each row once, for the gradient of the row and for the terms of the weights'
gradients, which it adds up in registers; a second kernel adds up the sums of all blocks, where there are several:

    x, grad  →  grad_x                                      each row, from what is loaded of it, its mean and scale
    x, grad  →  partial_weight[B, N], partial_bias[B, N]    sums over the rows of each block, in their order
    partial  →  grad_weight[N], grad_bias[N]                sums over the blocks (`column_sums.py`)

There are no atomics, and the number of blocks depends on the sizes and the target alone: each run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tilewave.call import room_for
from tilewave.ir.types import DType
from tilewave.kernels.column_sums import J, Term, block_of_rows, host_blocks, of_blocks, sums_over_block
from tilewave.kernels.parameters import kernel_of
from tilewave.kernels.rows import N, a_number_a_column, a_number_a_row, arithmetic_of, fused, matrix
from tilewave.lang.accesses import read, write
from tilewave.lang.functions import reciprocal
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.ops import cast, scalar
from tilewave.lang.types import MemoryType
from tilewave.machine.chips import CHIPS
from tilewave.records import dataclass

SHORT, SHORT_ROWS = 512, 4
"""The longest row that one wave has alone, and the rows of a workgroup then."""
LONGEST_BYTES = 32768
"""The longest row, in the dtype of its sums, of which a workgroup's lanes hold sums and weights in registers."""
HELD = 8192
"""The elements of rows that the workgroups of an SM or CU have at a time: eight for each of 1024 lanes."""
MOST_A_PROCESSOR = 16
"""The most workgroups for each SM or CU: the sums of more are too many to add up."""


@dataclass(frozen=True)
class RowBlocks:
    """How many rows a workgroup has at a time, and the number of blocks of rows."""

    together: int
    blocks: int

    @staticmethod
    def of(target: str, rows: int, columns: int, of: DType) -> RowBlocks | None:
        """Return the blocks for a matrix; None where a row is too long to hold sums of, or each block has few rows."""
        room = room_for(columns)
        if room * of.bytes > LONGEST_BYTES:
            return None
        chip = CHIPS.get(target)
        together = SHORT_ROWS if room <= SHORT else 1
        if chip is None:
            return RowBlocks(together, host_blocks(rows, columns))
        at_once = max(1, min(MOST_A_PROCESSOR, HELD // (room * together)))
        return RowBlocks(together, max(1, min(chip.processors * at_once, rows // together)))


@cache
def rms_norm_gradients_kernel(
    together: int,
    x_dtype: DType,
    grad_dtype: DType,
    grad_x_dtype: DType,
    scale_dtype: DType,
    weight_dtype: DType,
    *sums: DType,
) -> WaveKernel:
    """grad_x as `rms_norm_backward_kernel`, and partial_weight[B, N], the sums of grad · x · scale of each block;
    `sums` is their dtype."""
    of = arithmetic_of("rms_norm_gradients", x=x_dtype, grad=grad_dtype, grad_x=grad_x_dtype, weight=weight_dtype)

    def row(to: Any, weight: Any) -> tuple[Term, ...]:
        x, grad, part = cast(read(to.x), of), cast(read(to.grad), of), reciprocal(scalar(N, of))
        weighted, scale = grad * weight, cast(read(to.scale), of)
        share = (x * weighted).sum(dim=N) * part
        write(cast(fused(x, -share * scale * scale * scale, weighted * scale), grad_x_dtype), to.grad_x)
        return ((grad, x * scale),)

    of_rows = {"scale": scale_dtype}
    parameters = _parameters(x_dtype, grad_dtype, grad_x_dtype, weight_dtype, of_rows, _named(sums, "weight"))
    return _in_blocks("rms_norm_gradients", together, parameters, of, row)


@cache
def layer_norm_gradients_kernel(
    together: int,
    x_dtype: DType,
    grad_dtype: DType,
    grad_x_dtype: DType,
    scale_dtype: DType,
    weight_dtype: DType,
    *sums: DType,
) -> WaveKernel:
    """grad_x as `layer_norm_backward_kernel`, and for each block partial_weight[B, N], the sums of grad · norm, and
    partial_bias[B, N], those of grad."""
    of = arithmetic_of("layer_norm_gradients", x=x_dtype, grad=grad_dtype, grad_x=grad_x_dtype, weight=weight_dtype)

    def row(to: Any, weight: Any) -> tuple[Term, ...]:
        x, grad, part = cast(read(to.x), of), cast(read(to.grad), of), reciprocal(scalar(N, of))
        weighted, scale = grad * weight, cast(read(to.scale), of)
        norm = (x - cast(read(to.mean), of)) * scale
        mean_grad, share = weighted.sum(dim=N) * part, (weighted * norm).sum(dim=N) * part
        rest = fused(weighted, scale, -mean_grad * scale)
        write(cast(fused(norm, -share * scale, rest), grad_x_dtype), to.grad_x)
        return (grad, norm), (grad, None)

    of_rows = {"mean": scale_dtype, "scale": scale_dtype}
    parameters = _parameters(x_dtype, grad_dtype, grad_x_dtype, weight_dtype, of_rows, _named(sums, "weight", "bias"))
    return _in_blocks("layer_norm_gradients", together, parameters, of, row)


def _parameters(
    x_dtype: DType,
    grad_dtype: DType,
    grad_x_dtype: DType,
    weight_dtype: DType,
    of_rows: dict[str, DType],
    partial: dict[str, DType],
) -> dict[str, MemoryType]:
    read_from = {"x": matrix(x_dtype), "grad": matrix(grad_dtype), "weight": a_number_a_column(weight_dtype)}
    read_from |= {name: a_number_a_row(dtype) for name, dtype in of_rows.items()}
    sums = {f"partial_{name}": of_blocks(dtype) for name, dtype in partial.items()}
    return {**read_from, "grad_x": matrix(grad_x_dtype), **sums}


def _named(dtypes: tuple[DType, ...], *names: str) -> dict[str, DType]:
    return dict(zip(names, dtypes, strict=True))


def _in_blocks(
    name: str, together: int, parameters: dict[str, Any], of: DType, row: Callable[[Any, Any], tuple[Term, ...]]
) -> WaveKernel:
    """Return the kernel that computes `row` for all rows of a block, and adds up what it returns for each column."""
    sums = {name: kind.dtype for name, kind in parameters.items() if name.startswith("partial")}

    def block(to: Any) -> None:
        weight = cast(read(to.weight), of)
        totals = sums_over_block(together, of, len(sums), lambda: row(to, weight))
        for total, (where, dtype) in zip(totals, sums.items(), strict=True):
            write(cast(total, dtype), getattr(to, where))

    return kernel_of(name, block_of_rows(together), parameters, block, {J: together})
