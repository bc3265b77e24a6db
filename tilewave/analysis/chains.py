"""Chained MMAs, as in attention: the accumulator of one becomes, elementwise, an operand of another.

%s = mma(%k, %q, %zero)
%p = cast(exp2(sub(%s, …)))
%o = mma(%v, %p, %acc)          a link from %s to %o: the rows of %s are the depth of %o
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Elementwise, Loop, Mma, Permute, ReadIndexed
from tilewave.ir.rewrite import walk
from tilewave.records import dataclass


@dataclass(frozen=True)
class Link:
    source: Mma
    axis: int
    """The axis of the source's accumulator that is the taker's K: 0 for rows, 1 for columns."""
    taker: Mma
    side: int
    """Which operand of the taker it becomes: 0 for a, 1 for b."""

    @property
    def length(self) -> int:
        n: int = self.source.acc.type.shape[self.axis - 2]
        return n


def links(kernel: Kernel) -> Iterator[Link]:
    for op in walk(kernel.body):
        if isinstance(op, Mma):
            for side, operand in enumerate((op.a, op.b)):
                found = sums_in(operand, len(operand.type.shape) - 1, kernel.defs)
                if found and found[1] >= 0:
                    yield Link(*found, op, side)


def sums_in(v: Value, axis: int, defs: Mapping[Value, Op]) -> tuple[Mma, int] | None:
    """Return the MMA that a tile is computed from elementwise, and the axis of its accumulator (0 for rows, 1 for
    columns, others for batches) that is `axis` of the tile."""
    op = defs.get(v)
    match op:
        case Mma():
            return op, axis - len(v.type.shape) + 2
        case Loop():  # one that adds products up
            return sums_in(op.body.yielded[op.results.index(v)], axis, defs)
        case Permute(x, axes):
            return sums_in(x, axes[axis], defs)
        case ReadIndexed():
            return None  # no sums of positions
        case Elementwise():
            found = (sums_in(x, axis, defs) for x in op.operands if x.type.shape == v.type.shape)
            return next((sums for sums in found if sums), None)
        case _:
            return None
