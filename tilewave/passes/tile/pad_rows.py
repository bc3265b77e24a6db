"""Pad rows that are reduced whole to a length that lanes can share evenly; the padding never counts.

%x = read(%a, [%m, %c0]) : tile<1x1000xf32>       →  %x = read(%a, [%m, %c0]) : tile<1x1024xf32>
%s = reduce(%x) {axes = [1], how = sum}              %inside = less(%places, %c1000) …
                                                     %s = reduce(select(%inside, %x, %zero)) {axes = [1], how = sum}

A wave that has several rows of a tile takes each as a multiple of what its lanes load at once. A single row, which
waves may share, gets a power of two, or, if it is long, a whole number of parts, one per wave and each a power of two.
A row is whole where every access along it begins at 0 and the memory ends where the row ends, so that the padded row
reads zeros there and writes nothing; gathered and scattered elements get positions outside the memory. Other tiles keep
their lengths, because the elements past their end belong to other tiles. So do rows in an author's shared memory, of
which no access is compared with the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from tilewave.analysis.axes import Axes, Label, own_leaves
from tilewave.analysis.positions import scalars_of
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.launch import limits_of
from tilewave.ir.match import ANY, constant, made
from tilewave.ir.ops import (
    Broadcast,
    Cast,
    Gather,
    Iota,
    Less,
    Mma,
    Read,
    Reduce,
    Scatter,
    Select,
    Write,
    WriteIndexed,
)
from tilewave.ir.ops.reduction import padding
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import Rewriter, names, walk
from tilewave.ir.types import Extent, Tile, Type
from tilewave.records import dataclass

PART_BYTES, MOST_PARTS = 2048, 16
"""Bytes of a row for a wave of 32 lanes, in four chunks of 16 bytes a lane, and the most waves that share a row."""
MOST_PADDING = 4
"""Lanes load narrower vectors where the padding would otherwise be more than this fraction of a row, 1 / 4."""
INSIDE = made(Select, made(Broadcast, made(Less, made(Iota), made(Broadcast, "size"))).named("inside"), ANY, "other")
"""What lanes reduce of a row of dynamic size: `other` past its end."""


@dataclass(frozen=True)
class PadRows:
    """Pads rows for waves of `lanes` lanes."""

    lanes: int

    def __call__(self, kernel: Kernel) -> Kernel:
        odd = [op for op in walk(kernel.body) if isinstance(op, Reduce) and any(map(_is_unaligned, _extents(op)))]
        if not odd:
            return kernel
        widening = _Widening(own_leaves(kernel), self.lanes)
        return widening.kernel() if widening.lengths else kernel


def _extents(op: Reduce) -> list[int]:
    return [op.x.type.shape[axis] for axis in op.axes]


def _is_unaligned(extent: int) -> bool:
    return extent & (extent - 1) != 0


class _Widening(Rewriter):
    def __init__(self, kernel: Kernel, lanes: int) -> None:
        self.old, self.lanes, self.axes = kernel, lanes, Axes(kernel.body.ops)
        self.limits = limits_of(kernel)
        self.positions, self.builder = scalars_of(kernel.body), Builder(names(kernel))
        self.lengths: dict[Label, int] = {}
        """The rows to pad, and the length of each in memory."""
        for op in walk(kernel.body):
            if isinstance(op, Reduce):
                for axis in op.axes:
                    label, extent = self.axes.of(op.x)[axis], op.x.type.shape[axis]
                    if _is_unaligned(extent) and self.longer(label, extent) != extent and self.is_whole(label, extent):
                        self.lengths[label] = extent
        super().__init__({v: Value(v.name, self.widened(v)) for v in _tiles(kernel) if self.widened(v) != v.type})

    def is_whole(self, label: Label, extent: int) -> bool:
        """Whether every access along `label` is to a whole row in memory."""
        for op in walk(self.old.body):
            match op:
                case Read(memory, at, axes) | Write(_, memory, at, axes):
                    tile = op.result if isinstance(op, Read) else op.tile
                    for axis, mine in zip(axes, self.axes.of(tile), strict=True):
                        begins = self.positions.constant(at[axis]) == 0
                        if mine == label and not (self.ends_at(memory.type.extents[axis], extent) and begins):
                            return False
                        if mine == label and is_in(memory, "shared"):
                            return False  # no access of shared memory is compared with its end
                case Mma() if self.goes_along(op, label):
                    return False
                case _:
                    pass  # accesses no memory along the row
        return True

    def ends_at(self, end: Extent, extent: int) -> bool:
        """Return whether a memory's axis ends where a row of a tile does, or, of dynamic size, before."""
        return end == extent if isinstance(end, int) else self.limits.get(end, (0, extent + 1))[1] <= extent

    def goes_along(self, op: Op, label: Label) -> bool:
        tiles = (v for v in (*op.results, *op.operands) if isinstance(v.type, Tile))
        return any(label in self.axes.of(v) for v in tiles)

    def widened(self, v: Value) -> Type:
        shape = zip(self.axes.of(v), v.type.shape, strict=True)
        return Tile(tuple(self.longer(label, n) if label in self.lengths else n for label, n in shape), v.type.dtype)

    def longer(self, label: Label, length: int) -> int:
        """Return the padded length of a row."""
        part = PART_BYTES // self.element_bytes(label)
        while -(-length // part) > MOST_PARTS:
            part *= 2
        if length > part:
            return -(-length // part) * part
        return self.of_a_wave(label, length) if self.has_rows_for_waves(label) else _power_above(length)

    def of_a_wave(self, label: Label, length: int) -> int:
        """Return the length of a row that a wave has alone: a multiple of vectors of all its lanes, as wide as they
        can be without much padding."""
        widest = min((self.old.vector_bytes_of(op.memory) for op in self.reads(label)), default=self.old.vector_bytes)
        width = max(1, widest // self.element_bytes(label))
        while width > 1 and MOST_PADDING * (-length % (self.lanes * width)) > length:
            width //= 2
        chunk = self.lanes * width
        return min(_power_above(length), -(-length // chunk) * chunk)

    def has_rows_for_waves(self, label: Label) -> bool:
        """Return whether tiles have several rows, a power of two, so that no row is shared by waves."""
        tiles = (op.x for op in walk(self.old.body) if isinstance(op, Reduce) and label in self.axes.of(op.x))
        rows = [prod(n for mine, n in zip(self.axes.of(x), x.type.shape, strict=True) if mine != label) for x in tiles]
        return all(n > 1 and not _is_unaligned(n) for n in rows)

    def element_bytes(self, label: Label) -> int:
        """Return the bytes of the narrowest element that is read along a row."""
        return min((op.result.type.dtype.bytes for op in self.reads(label)), default=4)

    def reads(self, label: Label) -> list[Read]:
        """Return the reads of tiles with this row."""
        return [op for op in walk(self.old.body) if isinstance(op, Read) and label in self.axes.of(op.result)]

    # -- the kernel

    def kernel(self) -> Kernel:
        return replace(self.old, body=self.block(self.old.body))

    def op(self, op: Op) -> list[Op]:
        wider = self.renamed(op)
        with self.builder.region():
            self.builder.locate = lambda: op.loc
            last = self.masked(op, wider)
            return [*self.builder.ops, last]

    def masked(self, op: Op, wider: Op) -> Op:
        if isinstance(op, Reduce):
            assert isinstance(wider, Reduce)
            for axis in op.axes:
                length, nothing = self.lengths.get(self.axes.of(op.x)[axis]), padding(op.how, op.x.type.dtype)
                if length is not None and not self.is_masked(op.x, axis, nothing):
                    wider = replace(wider, x=self.builder.first_along(wider.x, axis, length, nothing))
        if isinstance(wider, (Gather, Scatter)):
            tile = op.tile if isinstance(op, Scatter) else op.results[0]
            wider = replace(wider, where=self.nowhere_past_ends(wider.where, self.axes.of(tile)))
        if isinstance(op, WriteIndexed) and isinstance(wider, WriteIndexed):
            first, *others = wider.at
            for axis, label in enumerate(self.axes.of(op.tile)):
                if label in self.lengths:
                    first = self.builder.first_along(first, axis, self.lengths[label], -1)
            wider = replace(wider, at=(first, *others))
        return wider

    def is_masked(self, x: Value, axis: int, nothing: int | float | bool) -> bool:
        """Return whether elements past the end of a row of dynamic size are neutral already: a mask selects what is
        neutral there, or they are read as zeros."""
        found = INSIDE.match(x, self.old.defs)
        if found:
            mask, size = self.old.defs[found["inside"]], found["size"].name
            assert isinstance(mask, Broadcast)
            ends = size in self.limits and self.ends_at(size, x.type.shape[axis])
            return ends and mask.axes == (axis,) and constant(found["other"], self.old.defs) == nothing
        op = self.old.defs.get(x)
        while isinstance(op, Cast):
            op = self.old.defs.get(op.x)
        return isinstance(op, Read) and nothing == 0 and isinstance(op.memory.type.extents[op.axes[axis]], str)

    def nowhere_past_ends(self, where: Block, along: Sequence[Label]) -> Block:
        """Return a formula of positions that is outside the memory for elements past the ends of rows."""
        ends = [(v, self.lengths[label]) for v, label in zip(where.args, along, strict=True) if label in self.lengths]
        *ops, end = where.ops
        if not ends or not end.operands:
            return where
        first, *others = end.operands
        with self.builder.region():
            self.builder.ops += ops
            for v, length in ends:
                inside = Number(self.builder, v) < length
                first = inside.choose(Number(self.builder, first), -1).value
            return self.builder.block(where.args, (first, *others))


def _power_above(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _tiles(kernel: Kernel) -> Iterator[Value]:
    for op in walk(kernel.body):
        for v in (*op.results, *(arg for block in op.blocks for arg in block.args)):
            if isinstance(v.type, Tile):
                yield v
