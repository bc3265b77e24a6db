"""Gradients of norms and of their weights in one pass over the rows.

A workgroup has a block of rows. It loads each row once, for the gradient of the row and for the terms of the weights'
gradients, which it adds up in registers; a second kernel adds the sums of all blocks:

    x, grad  →  grad_x                                      each row, from what is loaded of it
    x, grad  →  partial_weight[B, N], partial_bias[B, N]    sums over the rows of each block, in their order
    partial  →  grad_weight[N], grad_bias[N]                sums over the blocks

There are no atomics, and the number of blocks depends on the sizes and the target alone: each run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tilewave.call import room_for
from tilewave.ir.types import I64, DType
from tilewave.kernels.parameters import given, kernel_of
from tilewave.kernels.rows import M, N, a_number_a_column, arithmetic_of, matrix
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import Constraint, TilingConstraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.loops import iterate
from tilewave.lang.ops import cast, first_index, rsqrt, scalar
from tilewave.lang.shapes import rename
from tilewave.lang.symbols import sym
from tilewave.lang.types import GLOBAL_ADDRESS_SPACE, MemoryType, RegisterType
from tilewave.machine.chips import CHIPS

B, J = sym.B, sym.J
"""Blocks of rows, and the rows that a workgroup has at a time."""
SHORT, SHORT_ROWS = 512, 4
"""The longest row that one wave has alone, and the rows of a workgroup then."""
LONGEST_BYTES = 32768
"""The longest row, in the dtype of its sums, of which a workgroup's lanes hold sums and weights in registers."""
HELD = 8192
"""The elements of rows that the workgroups of an SM or CU have at a time: eight for each of 1024 lanes."""
MOST_A_PROCESSOR = 16
"""The most workgroups for each SM or CU: the sums of more are too many to add up."""
HOST_BLOCKS = 32
"""The blocks on a target without a known number of SMs or CUs."""
SUMMED_COLUMNS, SUMMED_BLOCKS = 16, 256
"""The tile of a sum over blocks."""


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
        at_once = max(1, min(MOST_A_PROCESSOR, HELD // (room * together)))
        return RowBlocks(together, max(1, min(chip.processors * at_once if chip else HOST_BLOCKS, rows // together)))

    @property
    def constraints(self) -> list[Constraint]:
        return [WorkgroupConstraint(B, 1, 0), TilingConstraint(M, self.together)]


@cache
def rms_norm_gradients_kernel(
    together: int, x_dtype: DType, grad_dtype: DType, grad_x_dtype: DType, weight_dtype: DType
) -> WaveKernel:
    """grad_x as `rms_norm_backward_kernel`, and partial_weight[B, N], the sums of grad · x · scale of each block."""
    of = arithmetic_of("rms_norm_gradients", x=x_dtype, grad=grad_dtype, grad_x=grad_x_dtype, weight=weight_dtype)

    def row(to: Any, weight: Any) -> tuple[Any, ...]:
        x, grad, count = cast(read(to.x), of), cast(read(to.grad), of), scalar(N, of)
        weighted = grad * weight
        scale = rsqrt((x * x).sum(dim=N) / count + to.eps)
        share = (x * weighted).sum(dim=N) / count * scale * scale
        write(cast((weighted - x * share) * scale, grad_x_dtype), to.grad_x)
        return (grad * (x * scale),)

    parameters = _parameters(x_dtype, grad_dtype, grad_x_dtype, weight_dtype, of, ("partial_weight",))
    return _in_blocks("rms_norm_gradients", together, parameters, of, row)


@cache
def layer_norm_gradients_kernel(
    together: int, x_dtype: DType, grad_dtype: DType, grad_x_dtype: DType, weight_dtype: DType
) -> WaveKernel:
    """grad_x as `layer_norm_backward_kernel`, and for each block partial_weight[B, N], the sums of grad · norm, and
    partial_bias[B, N], those of grad."""
    of = arithmetic_of("layer_norm_gradients", x=x_dtype, grad=grad_dtype, grad_x=grad_x_dtype, weight=weight_dtype)

    def row(to: Any, weight: Any) -> tuple[Any, ...]:
        x, grad, count = cast(read(to.x), of), cast(read(to.grad), of), scalar(N, of)
        weighted = grad * weight
        mean = x.sum(dim=N) / count
        far = x - mean
        scale = rsqrt((far * far).sum(dim=N) / count + to.eps)
        mean_grad = weighted.sum(dim=N) / count
        share = (weighted * far).sum(dim=N) / count * scale * scale
        write(cast((weighted - mean_grad - far * share) * scale, grad_x_dtype), to.grad_x)
        return grad * (far * scale), grad

    parameters = _parameters(x_dtype, grad_dtype, grad_x_dtype, weight_dtype, of, ("partial_weight", "partial_bias"))
    return _in_blocks("layer_norm_gradients", together, parameters, of, row)


def _parameters(
    x_dtype: DType, grad_dtype: DType, grad_x_dtype: DType, weight_dtype: DType, of: DType, partial: tuple[str, ...]
) -> dict[str, MemoryType | DType]:
    rows = {"x": matrix(x_dtype), "grad": matrix(grad_dtype), "weight": a_number_a_column(weight_dtype)}
    return given(**rows, grad_x=matrix(grad_x_dtype), **{name: _of_blocks(of) for name in partial}, eps=of)


def _of_blocks(dtype: DType) -> MemoryType:
    return MemoryType((B, N), GLOBAL_ADDRESS_SPACE, dtype)


def _in_blocks(
    name: str, together: int, parameters: dict[str, Any], of: DType, row: Callable[[Any, Any], tuple[Any, ...]]
) -> WaveKernel:
    """Return the kernel that computes `row` for all rows of a block, and adds up what it returns for each column.

    With several rows at a time, each has sums of its own: waves that have different rows meet at the end alone.
    """
    sums = [parameter for parameter in parameters if parameter.startswith("partial")]

    def block(to: Any) -> None:
        weight = cast(read(to.weight), of)
        rows = -(-scalar(M, I64) // (scalar(B, I64) * together)) * together
        first = first_index(B) * rows

        @iterate(M, init_args=[RegisterType((J, N), of)(0) for _ in sums], start=first, stop=first + rows)
        def totals(*so_far: Any) -> Any:
            found = [acc + rename(term, {M: J}) for acc, term in zip(so_far, row(to, weight), strict=True)]
            return tuple(found) if len(found) > 1 else found[0]

        for total, where in zip(totals if len(sums) > 1 else [totals], sums, strict=True):
            write(total.sum(dim=J), getattr(to, where))

    constraints = [WorkgroupConstraint(B, 1, 0), TilingConstraint(M, together)]
    return kernel_of(name, constraints, parameters, block, {J: together})


@cache
def block_sums_kernel(of: DType, *dtypes: DType) -> WaveKernel:
    """sum_0[N], … = the sums of partial_0[B, N], … over the blocks, one for each dtype."""
    names = [(f"partial_{i}", f"sum_{i}", dtype) for i, dtype in enumerate(dtypes)]

    def add(to: Any) -> None:
        @iterate(B, init_args=[RegisterType((N,), of)(0) for _ in names])
        def totals(*so_far: Any) -> Any:
            found = [acc + read(getattr(to, a)).sum(dim=B) for acc, (a, _, _) in zip(so_far, names, strict=True)]
            return tuple(found) if len(found) > 1 else found[0]

        for total, (_, where, dtype) in zip(totals if len(names) > 1 else [totals], names, strict=True):
            write(cast(total, dtype), getattr(to, where))

    constraints = [WorkgroupConstraint(N, SUMMED_COLUMNS, 0), TilingConstraint(B, SUMMED_BLOCKS)]
    read_from = {name: _of_blocks(of) for name, _, _ in names}
    return kernel_of("block_sums", constraints, {**read_from, **{s: a_number_a_column(t) for _, s, t in names}}, add)
