"""Rows that are reduced whole get the length of a power of two, which lanes can share; what is beyond never counts.

%x = read(%a, [%m, %c0]) : tile<1x1000xf32>       →  %x = read(%a, [%m, %c0]) : tile<1x1024xf32>
%s = reduce(%x) {axes = [1], how = sum}              %inside = less(%places, %c1000) …
                                                     %s = reduce(select(%inside, %x, %zero)) {axes = [1], how = sum}

A row is whole where everything along it begins at 0 and nothing in memory lies behind its end, so that the longer one
reads zeros there and writes nothing. Other tiles keep their lengths: what lies behind them belongs to somebody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewave.analysis.axes import Axes, Label, own_leaves
from tilewave.analysis.positions import BlockScalars
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Broadcast, Const, Gather, Iota, Less, Mma, Read, Reduce, Scatter, Select, Write
from tilewave.ir.ops.reduction import identity
from tilewave.ir.rewrite import map_blocks, names, rename, walk
from tilewave.ir.types import BOOL, INDEX, Tile, Type


def widen_rows(kernel: Kernel) -> Kernel:
    odd = [op for op in walk(kernel.body) if isinstance(op, Reduce) and any(map(_is_odd, _extents(op)))]
    if not odd:
        return kernel
    widening = _Widening(own_leaves(kernel))
    return widening.kernel() if widening.lengths else kernel


def _extents(op: Reduce) -> list[int]:
    return [op.x.type.shape[axis] for axis in op.axes]


def _is_odd(extent: int) -> bool:
    return extent & (extent - 1) != 0


class _Widening:
    def __init__(self, kernel: Kernel) -> None:
        self.old, self.axes = kernel, Axes(kernel.body.ops)
        self.positions, self.builder = BlockScalars(kernel.body), Builder(names(kernel))
        self.lengths: dict[Label, int] = {}
        """The rows to be widened, and how long each is in memory."""
        for op in walk(kernel.body):
            if isinstance(op, Reduce):
                for axis in op.axes:
                    label, extent = self.axes.of(op.x)[axis], op.x.type.shape[axis]
                    if _is_odd(extent) and (length := self.whole(label, extent)) is not None:
                        self.lengths[label] = length
        self.wider = {v: Value(v.name, self.widened(v)) for v in _tiles(kernel) if self.widened(v) != v.type}

    def whole(self, label: Label, extent: int) -> int | None:
        """The length of a row in memory, if all that moves along it is a whole row."""
        for op in walk(self.old.body):
            match op:
                case Read(memory, at, axes) | Write(_, memory, at, axes):
                    tile = op.result if isinstance(op, Read) else op.tile
                    for axis, mine in zip(axes, self.axes.of(tile), strict=True):
                        begins = self.positions.constant(at[axis]) == 0
                        if mine == label and (memory.type.extents[axis] != extent or not begins):
                            return None
                case Gather() | Scatter() | Mma() if self.goes_along(op, label):
                    return None
                case _:
                    pass
        return extent

    def goes_along(self, op: Op, label: Label) -> bool:
        tiles = (v for v in (*op.results, *op.operands) if isinstance(v.type, Tile))
        return any(label in self.axes.of(v) for v in tiles)

    def widened(self, v: Value) -> Type:
        shape = zip(self.axes.of(v), v.type.shape, strict=True)
        return Tile(tuple(_power_above(n) if label in self.lengths else n for label, n in shape), v.type.dtype)

    # -- the kernel

    def kernel(self) -> Kernel:
        return replace(self.old, body=self.block(self.old.body))

    def block(self, block: Block) -> Block:
        with self.builder.region():
            for op in block.ops:
                self.builder.locate = lambda op=op: op.loc  # type: ignore[misc]
                self.op(map_blocks(op, self.block))
            return Block(tuple(self.wider.get(v, v) for v in block.args), tuple(self.builder.ops))

    def op(self, op: Op) -> None:
        wider = rename(op, self.wider)
        if isinstance(op, Reduce):
            assert isinstance(wider, Reduce)
            for axis in op.axes:
                if (length := self.lengths.get(self.axes.of(op.x)[axis])) is not None:
                    wider = replace(wider, x=self.inside(wider.x, axis, length, op.how))
        self.builder.ops.append(wider)

    def inside(self, x: Value, axis: int, length: int, how: str) -> Value:
        """x with what changes nothing behind a row's end."""
        out, kind = self.builder, x.type
        row = Tile((kind.shape[axis],), INDEX)
        end = out.emit(Broadcast, out.const(length), type=row)
        holds = out.binary(Less, out.emit(Iota, type=row), end)
        everywhere = out.emit(Broadcast, holds, (axis,), type=Tile(kind.shape, BOOL))
        other = out.emit(Const, identity(how, kind.dtype), type=kind)
        return out.emit(Select, everywhere, x, other, type=kind)


def _power_above(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _tiles(kernel: Kernel) -> Iterator[Value]:
    for op in walk(kernel.body):
        for v in (*op.results, *(arg for block in op.blocks for arg in block.args)):
            if isinstance(v.type, Tile):
                yield v
