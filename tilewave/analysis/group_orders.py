"""Kernels as they are proved: row by row, the tiles of a group are those of any other order within the group."""

from __future__ import annotations

from tilewave.ir.core import Kernel, Value
from tilewave.ir.ops import TileInGroup
from tilewave.ir.rewrite import replace_values, rewrite, walk


def row_by_row(kernel: Kernel) -> Kernel:
    """Return the kernel without the orders within groups, each of which is a bijection of the tiles of a group."""
    same: dict[Value, Value] = {}
    for op in walk(kernel.body):
        if isinstance(op, TileInGroup):
            same.update(zip(op.results, (op.row, op.column), strict=True))
    return replace_values(rewrite(kernel, lambda op: [] if isinstance(op, TileInGroup) else None), same)
