"""Narrow products to the columns that are stored, where their number is known only when the kernel runs.

    %sum_t = loop(%steps, [%zero_t]) {                %left = min(sub(%end, %first), 128)
      %z_t = mma(%w, %x, %acc_t)                  →   %sum_t = loop(%steps, [%zero_t]) {
      yield([%z_t])                                     %z_t = mma(%w, %x, %acc_t, [%left])
    }                                                   yield([%z_t])
    %sum = permute(%sum_t)                            }
    write_indexed(%sum, ‹rows from %first before %end›)

The last tile of a group in a ragged grid has rows of the next group after its own. They are the columns of a product
that `transpose_mma` transposed, and a matrix unit that takes any number of columns computes as few as there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.analysis.bounded_rows import BoundedUse, bounded_use
from tilewave.analysis.tile_programs import only_adds_up
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Loop, Mma
from tilewave.ir.rewrite import names, rewrite


def narrow_mma(kernel: Kernel) -> Kernel:
    builder = Builder(names(kernel))

    def narrow(op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Loop) or not only_adds_up(op):
            return None
        uses = {bounded_use(v, kernel) for v in op.results}
        (use,) = uses if len(uses) == 1 else (None,)
        if use is None or not _along_columns(use, op) or not {use.start, use.end} <= _known_at(op, kernel.body):
            return None
        builder.locate = lambda: op.loc
        with builder.region():
            columns = op.results[0].type.shape[-1]
            left = (Number(builder, use.end) - Number(builder, use.start)).smaller(columns)
            before = list(builder.ops)
        ops = (replace(inner, columns_used=(left.value,)) if isinstance(inner, Mma) else inner for inner in op.body.ops)
        return [*before, replace(op, body=replace(op.body, ops=tuple(ops)))]

    return rewrite(kernel, narrow)


def _along_columns(use: BoundedUse, loop: Loop) -> bool:
    """Return whether the part that is used ends along the columns of all products of a loop, none of which says so."""
    shapes = {v.type.shape for v in loop.results}
    products = [op for op in loop.body.ops if isinstance(op, Mma)]
    return len(shapes) == 1 and use.axis == len(shapes.pop()) - 1 and not any(op.columns_used for op in products)


def _known_at(loop: Loop, block: Block) -> frozenset[Value]:
    """Return the values that ops before a loop define, where it can use them."""
    found = list(block.args)
    for op in block.ops:
        if op is loop:
            return frozenset(found)
        inside = (_known_at(loop, inner) for inner in op.blocks)
        known = next((values for values in inside if values), None)
        if known is not None:
            return known.union(found)
        found.extend(op.results)
    return frozenset()
