"""Pad tiles to multiples of a product's blocks.

    %x = read(%a, [%m, %k]) : tile<8x24xf16>       →  %x = read(%a, [%m, %k]) {within = [8, 24]} : tile<16x32xf16>
    %z = mma(%x, %y, %acc) : tile<8x8xf32>            %z = mma(%x, %y, %acc) : tile<16x16xf32>
    write(%z, %c, [%m, %n])                           write(%z, %c, [%m, %n]) {within = [8, 8]}

All axes that run together are padded equally, in all that is computed from them and in loop-carried values. Elements
past the old end are 0 without a load, and results there are not stored: no access touches a neighbour's elements.
A product sums over its depth: an operand that may be nonzero past the end is masked with 0 by a `select`, and the
operand of a reduction with the identity of the reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import lcm

from tilewave.analysis.axes import Axes, Label, own_leaves
from tilewave.analysis.instructions import instruction_of
from tilewave.ir.build import Builder
from tilewave.ir.core import Axis, Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Abs,
    Add,
    Broadcast,
    Cast,
    Const,
    Gather,
    Less,
    Max,
    Min,
    Mma,
    Neg,
    Permute,
    Read,
    Reduce,
    Scatter,
    Select,
    Sub,
    Write,
    WriteIndexed,
    Yield,
)
from tilewave.ir.ops.reduction import identity
from tilewave.ir.rewrite import Rewriter, made_in, names, walk
from tilewave.ir.types import INDEX_SCALAR, Exchange, Tile
from tilewave.machine.matrix import GroupInstruction, up_to_multiple

KEEPS_ZERO = (Cast, Neg, Abs, Add, Sub, Min, Max)
"""Ops that return 0 for zeros."""


def padded_products(kernel: Kernel) -> Kernel:
    """Return the kernel with the tiles of its products padded to blocks of the selected instructions."""
    products = [op for op in walk(kernel.body) if isinstance(op, Mma)]
    odd = any(v.type.shape[axis] % size for op in products for (v, axis), size in _sizes(op, kernel))
    return _Padding(own_leaves(kernel)).kernel() if odd else kernel


def _sizes(op: Mma, kernel: Kernel) -> Iterator[tuple[Axis, int]]:
    """Yield the axes of rows, columns and depth, with the multiple that each must be."""
    instruction = instruction_of(op)
    down, across = kernel.waves
    last = len(op.acc.type.shape) - 1
    high, wide = op.acc.type.shape[-2:]
    rows, cols, depth = instruction.multiples((down, across), (high, wide))
    yield (op.acc, last - 1), rows
    yield (op.acc, last), cols
    yield (op.a, last), depth if isinstance(instruction, GroupInstruction) else op.depth


class _Padding(Rewriter):
    def __init__(self, kernel: Kernel) -> None:
        self.old, self.builder = kernel, Builder(names(kernel))
        self.defs = kernel.defs
        self.axes = Axes(kernel.body.ops)
        self.multiples: dict[Label, int] = {}
        for op in walk(kernel.body):
            if isinstance(op, Mma):
                for (v, axis), size in _sizes(op, kernel):
                    label = self.axes.of(v)[axis]
                    self.multiples[label] = lcm(size, self.multiples.get(label, 1))
        computed = (v for v in made_in(kernel.body) if v not in kernel.body.args)
        super().__init__({v: grown for v in computed if (grown := self.grown(v)) != v})

    def kernel(self) -> Kernel:
        return replace(self.old, body=self.block(self.old.body))

    def grown(self, v: Value) -> Value:
        if not isinstance(v.type, (Tile, Exchange)):
            return v
        labels = zip(v.type.shape, self.axes.of(v), strict=True)
        shape = tuple(up_to_multiple(n, self.multiples.get(label, 1)) for n, label in labels)
        return Value(v.name, replace(v.type, shape=shape))

    def op(self, old: Op) -> list[Op]:
        op = self.renamed(old)
        with self.builder.region():
            self.builder.locate = lambda: op.loc
            last = self.padded(old, op)
            return [*self.builder.ops, last]

    def padded(self, old: Op, op: Op) -> Op:
        """Return the op on padded tiles; the ops that it needs are emitted to the builder."""
        match old, op:
            case Read(), Read() if old.result in self.new:
                return replace(op, within=old.result.type.shape)
            case Write(), Write() if old.tile in self.new:
                return replace(op, within=old.tile.type.shape)
            case Gather(), Gather() if old.result in self.new:
                return replace(op, where=self.inside(op.where, old.result, op.result), part=True)
            case Scatter(), Scatter() if old.tile in self.new:
                return replace(op, where=self.inside(op.where, old.tile, op.tile), part=True)
            case WriteIndexed(), WriteIndexed() if old.tile in self.new:
                return replace(op, at=self.nowhere_beyond(old.tile, op.at))
            case Mma(), Mma():
                a, b = self.whole_depth(old.a, op.a), self.whole_depth(old.b, op.b)
                group = isinstance(instruction_of(op), GroupInstruction)
                return replace(op, a=a, b=b, depth=a.type.shape[-1] if group else op.depth)
            case Reduce(), Reduce():
                return replace(op, x=self.without_more(old, op.x))
            case _:
                return op

    def inside(self, where: Block, old: Value, new: Value) -> Block:
        """Return a formula that maps the elements of the padding to positions outside the memory."""
        *ops, end = where.ops
        assert isinstance(end, Yield)
        with self.builder.region():
            self.builder.ops += ops
            first, *others = end.values
            for i, n, larger in zip(where.args, old.type.shape, new.type.shape, strict=True):
                if n != larger:
                    there = self.builder.binary(Less, i, self.builder.const(n))
                    first = self.builder.emit(Select, there, first, self.builder.const(-1), type=INDEX_SCALAR)
            return self.builder.block(where.args, (first, *others))

    def nowhere_beyond(self, old: Value, at: Sequence[Value]) -> tuple[Value, ...]:
        """Return positions that are outside the memory for the elements of the padding."""
        first, *others = at
        for axis, (n, larger) in enumerate(zip(old.type.shape, first.type.shape, strict=True)):
            if n != larger:
                first = self.builder.first_along(first, axis, n, -1)
        return (first, *others)

    # -- zeros

    def whole_depth(self, old: Value, new: Value) -> Value:
        """Return an operand with zeros past the old end of its depth."""
        axis = len(old.type.shape) - 1
        if old.type.shape[axis] == new.type.shape[axis] or self.is_zero_beyond(old, axis):
            return new
        zero = 0.0 if new.type.dtype.is_float else 0
        return self.builder.first_along(new, axis, old.type.shape[axis], zero)

    def without_more(self, old: Reduce, x: Value) -> Value:
        """Return the operand of a reduction with the reduction's identity past its old ends."""
        for axis in old.axes:
            count = old.x.type.shape[axis]
            if count != x.type.shape[axis] and not (old.how == "sum" and self.is_zero_beyond(old.x, axis)):
                x = self.builder.first_along(x, axis, count, identity(old.how, x.type.dtype))
        return x

    def is_zero_beyond(self, v: Value, axis: int) -> bool:
        """Whether a tile is 0 in its padding along an axis."""
        op = self.defs.get(v)
        match op:
            case Read() | Gather():
                return True
            case Const(value):
                return value == 0
            case Permute(x, axes):
                return self.is_zero_beyond(x, axes[axis])
            case Broadcast(x, axes) if axis in axes:
                return self.is_zero_beyond(x, axes.index(axis))
            case Select(_, a, b):
                return self.is_zero_beyond(a, axis) and self.is_zero_beyond(b, axis)
            case _ if isinstance(op, KEEPS_ZERO):
                return all(self.is_zero_beyond(x, axis) for x in op.operands)
            case _:
                return False
