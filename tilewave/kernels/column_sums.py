"""Sums of columns, of a matrix or of what is made of it on the way: blocks of rows first, then the sums of blocks.

    x             →  partial[B, N]        the sums over each of B blocks of rows
    partial[B, N] →  sums[N]              their sums

A matrix of one block is written at once. There are no atomics, and the number of blocks depends on the sizes and the
target alone: each run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tilewave.ir.types import I64, DType
from tilewave.kernels.activations import ACTIVATIONS
from tilewave.kernels.parameters import kernel_of
from tilewave.kernels.rows import M, N, a_number_a_column, arithmetic_of, fused, matrix
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import Constraint, TilingConstraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.loops import iterate
from tilewave.lang.ops import cast, first_index, scalar
from tilewave.lang.shapes import rename
from tilewave.lang.symbols import sym
from tilewave.lang.types import GLOBAL_ADDRESS_SPACE, MemoryType, RegisterType
from tilewave.machine.chips import CHIPS

B, J = sym.B, sym.J
"""Blocks of rows, and the rows that a workgroup has at a time."""
ROWS, COLUMNS = 8, 256
"""What a workgroup has of a matrix at a time: a chunk of 16 bytes of 16-bit elements for each of 256 lanes."""
WORKGROUPS_A_PROCESSOR = 8
"""Workgroups for each SM or CU: their loads keep memory busy."""
HOST_BLOCKS, HOST_ELEMENTS = 32, 1 << 16
"""The most blocks on a target without a known number of SMs or CUs, and the fewest elements of one."""
Term = tuple[Any, Any]
"""A tile that is added up, and one that it is multiplied by, or None."""
SUMMED_COLUMNS, SUMMED_BLOCKS = 16, 256
"""The tile of a sum over blocks."""


def column_blocks(target: str, rows: int, columns: int) -> int:
    """Return the number of blocks of rows for the sums of a matrix's columns."""
    chip = CHIPS.get(target)
    if chip is None:
        return host_blocks(rows, columns)
    tiles = max(1, -(-columns // COLUMNS))
    return max(1, min(-(-chip.processors * WORKGROUPS_A_PROCESSOR // tiles), rows // ROWS))


def host_blocks(rows: int, columns: int) -> int:
    """Return the number of blocks of rows on a target without a known number of SMs or CUs."""
    return max(1, min(HOST_BLOCKS, rows * columns // HOST_ELEMENTS))


@cache
def column_sums_kernel(x_dtype: DType, sums_dtype: DType) -> WaveKernel:
    """sums[B, N] = the sums of each column of x[M, N] over B blocks of rows."""
    of = arithmetic_of("column_sums", x=x_dtype, sums=sums_dtype)
    parameters = {"x": matrix(x_dtype), "sums": of_blocks(sums_dtype)}
    return _of_columns("column_sums", parameters, of, lambda to: cast(read(to.x), of))


@cache
def activation_gradients_kernel(
    activation: str, x_dtype: DType, grad_dtype: DType, grad_x_dtype: DType, sums_dtype: DType
) -> WaveKernel:
    """grad_x[M, N] = slope(x) · grad, and sums[B, N], its sums over blocks of rows, before it is rounded."""
    name = f"{activation}_gradients"
    of = arithmetic_of(name, x=x_dtype, grad=grad_dtype, grad_x=grad_x_dtype, sums=sums_dtype)
    slope = ACTIVATIONS[activation].slope

    def multiplied(to: Any) -> Any:
        found = slope(cast(read(to.x), of), grad_x_dtype) * cast(read(to.grad), of)
        write(cast(found, grad_x_dtype), to.grad_x)
        return found

    rows = {"x": matrix(x_dtype), "grad": matrix(grad_dtype), "grad_x": matrix(grad_x_dtype)}
    return _of_columns(name, {**rows, "sums": of_blocks(sums_dtype)}, of, multiplied)


def _of_columns(name: str, parameters: dict[str, MemoryType], of: DType, term: Callable[[Any], Any]) -> WaveKernel:
    """Return the kernel that writes to `sums` the sums of a term over blocks of rows."""
    dtype = parameters["sums"].dtype

    def add(to: Any) -> None:
        (total,) = sums_over_block(ROWS, of, 1, lambda: ((term(to), None),))
        write(cast(total, dtype), to.sums)

    constraints = [*block_of_rows(ROWS), WorkgroupConstraint(N, COLUMNS, 1)]
    return kernel_of(name, constraints, parameters, add, {J: ROWS})


def block_of_rows(together: int) -> list[Constraint]:
    """Return the constraints of a kernel whose workgroups have a block of rows each, some rows at a time."""
    return [WorkgroupConstraint(B, 1, 0), TilingConstraint(M, together)]


def of_blocks(dtype: DType) -> MemoryType:
    return MemoryType((B, N), GLOBAL_ADDRESS_SPACE, dtype)


def sums_over_block(together: int, of: DType, count: int, terms: Callable[[], tuple[Term, ...]]) -> list[Any]:
    """Return the sums over a workgroup's block of rows of as many terms, for each column.

    Each of the rows that are there at a time has sums of its own, which are added at the end: until then no lane needs
    those of another.
    """
    rows = -(-scalar(M, I64) // (scalar(B, I64) * together)) * together
    first = first_index(B) * rows

    @iterate(M, init_args=[RegisterType((J, N), of)(0) for _ in range(count)], start=first, stop=first + rows)
    def totals(*so_far: Any) -> Any:
        found = [_added(acc, *term) for acc, term in zip(so_far, terms(), strict=True)]
        return tuple(found) if count > 1 else found[0]

    return [total.sum(dim=J) for total in (totals if count > 1 else [totals])]


def _added(total: Any, x: Any, factor: Any) -> Any:
    x = rename(x, {M: J})
    return total + x if factor is None else fused(x, rename(factor, {M: J}), total)


def summed_blocks(target: str) -> int:
    """Return how many blocks `block_sums_kernel` adds at a time: a host has few, and each tile takes as long as any."""
    return SUMMED_BLOCKS if target in CHIPS else HOST_BLOCKS


@cache
def block_sums_kernel(together: int, of: DType, *dtypes: DType) -> WaveKernel:
    """sum_0[N], … = the sums of partial_0[B, N], … over the blocks, some at a time, one for each dtype."""
    names = [(f"partial_{i}", f"sum_{i}", dtype) for i, dtype in enumerate(dtypes)]

    def add(to: Any) -> None:
        @iterate(B, init_args=[RegisterType((N,), of)(0) for _ in names])
        def totals(*so_far: Any) -> Any:
            found = [acc + read(getattr(to, a)).sum(dim=B) for acc, (a, _, _) in zip(so_far, names, strict=True)]
            return tuple(found) if len(found) > 1 else found[0]

        for total, (_, where, dtype) in zip(totals if len(names) > 1 else [totals], names, strict=True):
            write(cast(total, dtype), getattr(to, where))

    constraints = [WorkgroupConstraint(N, SUMMED_COLUMNS, 0), TilingConstraint(B, together)]
    read_from = {name: of_blocks(of) for name, _, _ in names}
    return kernel_of("block_sums", constraints, {**read_from, **{s: a_number_a_column(t) for _, s, t in names}}, add)
