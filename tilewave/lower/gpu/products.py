"""Products of fragments: the matrix instructions of a block and their order."""

from __future__ import annotations

from math import prod

from tilewave.ir.ops import Matrix
from tilewave.lower.gpu.target import LaneTarget, Product
from tilewave.lower.gpu.values import Held, cut, regrouped
from tilewave.lower.llvm import LlvmFunction


def multiply(f: LlvmFunction, target: LaneTarget, op: Matrix, a: Held, b: Held, acc: Held) -> Held:
    """Return acc + a · bᵀ; instructions on the same sum are as far apart as possible, since each waits for the last."""
    *batch, row_blocks, depth_blocks, chunk = a.shape
    col_blocks = b.shape[-3]
    several = op.shape[2] // target.instruction_depth(op.instruction)
    a, b = (regrouped(f, x, chunk) for x in (a, b))
    sums = regrouped(f, acc, prod(acc.shape[-2:]))
    found = list(sums.parts)
    for depth in range(depth_blocks):
        left, right = (
            [cut(f, x.parts[i * depth_blocks + depth], x.kind, chunk, chunk // several) for i in range(_rows(x))]
            for x in (a, b)
        )
        for part in range(several):
            for first in range(prod(batch)):
                for row in range(*op.rows or (0, row_blocks)):
                    for col in range(col_blocks):
                        at = (first * row_blocks + row) * col_blocks + col
                        x, y = left[first * row_blocks + row][part], right[first * col_blocks + col][part]
                        found[at] = target.multiply(f, Product(op.instruction, op.transposed, x, y, found[at]))
    return Held(acc.shape, sums.kind, sums.width, tuple(found))


def _rows(x: Held) -> int:
    """Return the row blocks of all batches."""
    return prod(x.shape[:-2])
