"""Sums of a product that are an operand of another are held as that one takes them, so that lanes exchange nothing.

    %s = mma(%k, %q, %zero)         →  %s = mma(%k, %q, %zero) {in_order = rows}
    %p = cast(…(%s))                   …
    %o = mma(%v, %p, %acc)             %o = mma(%v, %p, %acc) {depth = 64, in_order = rows}

The rows of %s are the depth of %o. Which of them a lane holds follows from the instruction, but nobody minds in which
order rows are multiplied: %k is read so that each lane has neighbours in its sums, %v so that it has the same ones.
%o holds along lanes what %s does, the columns: a factor for each of them, such as a softmax's, meets both as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewave.analysis.instructions import instruction_of
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Elementwise, Mma, Permute
from tilewave.ir.rewrite import rewrite, walk
from tilewave.layouts.fragments import SIDES
from tilewave.machine.matrix import GroupInstruction


def chain_products(kernel: Kernel) -> Kernel:
    products = [op for op in walk(kernel.body) if isinstance(op, Mma)]
    if len(products) < 2:
        return kernel
    makers = {v: op for op in walk(kernel.body) for v in op.results}
    chosen: dict[Value, Mma] = {}
    for op in products:
        for side, operand in enumerate((op.a, op.b)):
            link = _link(operand, makers)
            if link and link.source.result not in chosen and link.fits(op, kernel.waves):
                chosen[link.source.result] = replace(link.source, in_order=SIDES[link.axis])
                chosen[op.result] = replace(op, depth=link.length, in_order=SIDES[1 - side])

    def choose(op: Op) -> Sequence[Op] | None:
        return [chosen[op.result]] if isinstance(op, Mma) and op.result in chosen else None

    return rewrite(kernel, choose) if chosen else kernel


@dataclass(frozen=True)
class _Link:
    """A product whose sums become an operand, and which of their axes is its depth: 0 are rows, 1 columns."""

    source: Mma
    axis: int

    @property
    def length(self) -> int:
        n: int = self.source.acc.type.shape[self.axis - 2]
        return n

    def fits(self, op: Mma, waves: tuple[int, ...]) -> bool:
        """Whether a wave has all of the depth, and a lane holds as many neighbours as the other instruction takes."""
        one, other = instruction_of(self.source), instruction_of(op)
        if isinstance(one, GroupInstruction) or isinstance(other, GroupInstruction) or one.block != other.block:
            return False
        held = one.fragment().many_behind_each_other(self.length)
        whole = waves[self.axis] == 1 and self.length & self.length - 1 == 0
        return whole and self.length >= one.rows and held % other.fragment().neighbours == 0


def _link(v: Value, makers: dict[Value, Op], axis: int | None = None) -> _Link | None:
    """The product that an operand is computed from element by element, followed along the operand's last axis."""
    along = len(v.type.shape) - 1 if axis is None else axis
    op = makers.get(v)
    match op:
        case Mma():
            return _Link(op, along - len(v.type.shape) + 2) if along >= len(v.type.shape) - 2 else None
        case Permute(x, axes):
            return _link(x, makers, axes[along])
        case Elementwise():
            links = (_link(x, makers, along) for x in op.operands if x.type.shape == v.type.shape)
            return next((link for link in links if link), None)
        case _:
            return None
