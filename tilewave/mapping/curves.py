"""Curves: orders that keep near in the plane what is near in number, at every scale.

`morton()` is the Z: at every scale the four quarters north-west, north-east, south-west, south-east. It is the Z of
the enclosing power of two, with the tiles that do not exist left out; 5×6:

     0  1  4  5 | 16 17
     2  3  6  7 | 18 19
     8  9 12 13 | 20 21
    10 11 14 15 | 22 23
    ------------+------
    24 25 26 27 | 28 29

`hilbert()` goes from tile to tile by single steps to a neighbour, on every grid, from corner to corner; 5×6:

     0  1  2  3 28 29
     7  6  5  4 27 26
     8  9 18 19 20 25
    11 10 17 16 21 24
    12 13 14 15 22 23

A rectangle of w×h (w along the way from its first corner to its last, h across) is cut into four:

        +-----+-------+        A goes away from the base line, B and C go along it, D comes back. A and D are the same
        |  B  →   C   |        problem turned over a diagonal, B and C are it unchanged. Each part must end beside the
    h   +--↑--+---↓---+        start of the next; colour the tiles like a chess board and you see when a w×h rectangle
    h2  |  A  |   D   |        can be walked from corner to corner along its base: if w is even, or w and h are odd. So
        +-----+-------+        w2 and h2 are even: then A, B and D can, and C can whenever the whole can.
          w2      w-w2

A grid whose longer side is odd and whose shorter side is even cannot be walked from corner to corner along its longer
side; there the last stretch is turned and ends in the opposite corner.

How many levels there are, and which sizes occur on each, depends on the grid alone: sizes that are the same for all
tiles of a level are plain ints and cost nothing. On 2ᵏ×2ᵏ all are, and the curve is the familiar one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

from tilewave.mapping.grid import AnyGrid, MappingError, OpenGrid
from tilewave.mapping.index import Index, choose, divide, smaller, total, zero_like
from tilewave.mapping.orders import Order

Shape = tuple[int, int]


@dataclass(frozen=True)
class Morton(Order):
    """The Z curve: quarters of quarters, row by row; tiles outside the grid are skipped."""

    name: ClassVar[str] = "morton"

    def formula(self, number: Index, grid: AnyGrid) -> tuple[Index, Index]:
        if isinstance(grid, OpenGrid):
            raise MappingError(f"{self} needs a grid whose sides are known, not {grid}")
        row, col = zero_like(number), zero_like(number)
        height, width = _Extent(grid.rows), _Extent(grid.cols)
        for half in _powers_of_two_below(max(grid.rows, grid.cols)):
            if height.most > half:
                number, down, height = _halve(number, half, height, width.value)
                row = total(row, down)
            if width.most > half:
                number, right, width = _halve(number, half, width, height.value)
                col = total(col, right)
        return row, col


@dataclass(frozen=True)
class _Extent:
    """How far the grid reaches into the square at hand: its value, and all values it can have."""

    value: Index
    possible: frozenset[int] = frozenset()

    @property
    def values(self) -> frozenset[int]:
        return self.possible or frozenset({self.value})

    @property
    def most(self) -> int:
        return max(self.values)


def _halve(number: Index, half: int, extent: _Extent, across: Index) -> tuple[Index, Index, _Extent]:
    """Is the tile in the first or second half of the square? The number within, how far in, the extent there."""
    near = smaller(extent.value, half)
    cells = near * across
    far = number >= cells
    possible = frozenset({min(half, e) for e in extent.values} | {e - half for e in extent.values if e > half})
    value = next(iter(possible)) if len(possible) == 1 else choose(far, extent.value - near, near)
    return number - choose(far, cells, 0), choose(far, half, 0), _Extent(value, possible)


def _powers_of_two_below(side: int) -> list[int]:
    return [1 << bit for bit in reversed(range((side - 1).bit_length()))]


@dataclass(frozen=True)
class Hilbert(Order):
    """A walk of single steps to neighbours, on every grid; Hilbert's curve on 2ᵏ×2ᵏ."""

    name: ClassVar[str] = "hilbert"

    def formula(self, number: Index, grid: AnyGrid) -> tuple[Index, Index]:
        if isinstance(grid, OpenGrid):
            raise MappingError(f"{self} needs a grid whose sides are known, not {grid}")
        if grid.rows > grid.cols:
            col, row = self.formula(number, grid.transposed)
            return row, col
        plan = _plan(grid.cols, grid.rows)
        if plan.count == 1:
            along, across = _descend(number, plan.levels, *plan.last)
            return (along, across) if plan.turned else (across, along)
        block = smaller(number // (plan.width * grid.rows), plan.count - 1)
        is_last = block >= plan.count - 1
        shape = (choose(is_last, plan.last[side], (plan.width, grid.rows)[side]) for side in (0, 1))
        along, across = _descend(number - block * (plan.width * grid.rows), plan.levels, *shape)
        if plan.turned:
            along, across = choose(is_last, across, along), choose(is_last, along, across)
        return across, along + block * plan.width


@dataclass(frozen=True)
class _Plan:
    """A long grid is a row of `count` blocks, all `width` wide but the last; sizes on each level below."""

    count: int
    width: int
    last: Shape
    turned: bool
    levels: tuple[frozenset[Shape], ...]


@lru_cache(maxsize=256)
def _plan(long: int, short: int) -> _Plan:
    width = short + short % 2
    count = max(1, (2 * long + width) // (2 * width))
    last = long - (count - 1) * width
    turned = long % 2 == 1 and short % 2 == 0
    last_shape = (short, last) if turned else (last, short)
    shapes = frozenset({last_shape} | ({(width, short)} if count > 1 else set()))
    levels = [shapes]
    while not all(_is_leaf(*shape) for shape in levels[-1]):
        levels.append(frozenset(part for shape in levels[-1] for part in _parts(*shape)))
    return _Plan(count, width, last_shape, turned, tuple(levels))


def _parts(w: int, h: int) -> Iterable[Shape]:
    """The shapes of A, B, C and D, each as seen along its own way."""
    if _is_leaf(w, h):
        return [(w, h)]
    w2, h2 = _even_half(w), h - 1 if _is_lane(w, h) else _even_half(h)
    return [(h2, w2), (w2, h - h2), (w - w2, h - h2), (h2, w - w2)]


def _is_leaf(w: Index, h: Index) -> Index:
    return smaller(w, h) <= 2


def _is_lane(w: int, h: int) -> bool:
    """3 wide and high: C would be one tile wide and end at its far side, so it is cut to a single tile."""
    return w == 3 and h > 3


def _even_half(side: Index) -> Index:
    return (side + 2) // 4 * 2


def _descend(number: Index, levels: tuple[frozenset[Shape], ...], w: Index, h: Index) -> tuple[Index, Index]:
    """(along, across) of a number in a w×h rectangle: down through the parts to a leaf, and back up."""
    cuts = []
    for here, below in pairwise(levels):
        cut = _Cut.of(number, here, w, h)
        number = number - cut.start
        w, h = _known(below, *cut.shape)
        cuts.append(cut)
    along, across = divide(number, h)
    if max(shape[1] for shape in levels[-1]) > 1:
        across = choose(along % 2 >= 1, h - 1 - across, across)
    for cut in reversed(cuts):
        along, across = cut.outward(along, across)
    return along, across


def _known(shapes: frozenset[Shape], w: Index, h: Index) -> tuple[Index, Index]:
    """Plain ints for the sides that are the same in all shapes of a level."""
    widths, heights = {shape[0] for shape in shapes}, {shape[1] for shape in shapes}
    return (widths.pop() if len(widths) == 1 else w), (heights.pop() if len(heights) == 1 else h)


@dataclass(frozen=True)
class _Cut:
    """Where one level's rectangle is cut, and on which side of each cut a number lies."""

    w: Index
    h: Index
    w2: Index
    h2: Index
    after_a: Index
    after_b: Index
    after_c: Index

    @staticmethod
    def of(number: Index, shapes: frozenset[Shape], w: Index, h: Index) -> _Cut:
        w2, h2 = _even_half(w), _even_half(h)
        if any(_is_lane(*shape) for shape in shapes):
            h2 = choose(w <= 3, h - 1, h2)
        if any(_is_leaf(*shape) for shape in shapes):  # a leaf is not cut: all of it is B
            leaf = _is_leaf(w, h)
            w2, h2 = choose(leaf, w, w2), choose(leaf, 0, h2)
        return _Cut(w, h, w2, h2, number >= w2 * h2, number >= w2 * h, number >= w * h - (w - w2) * h2)

    @property
    def start(self) -> Index:
        """The first number of the part."""
        b_starts, c_starts = self.w2 * self.h2, self.w2 * self.h
        d_starts = self.w * self.h - (self.w - self.w2) * self.h2
        return choose(self.after_c, d_starts, choose(self.after_b, c_starts, choose(self.after_a, b_starts, 0)))

    @property
    def shape(self) -> tuple[Index, Index]:
        """The part's sides along and across its own way."""
        wide = choose(self.after_b, self.w - self.w2, self.w2)
        along = choose(self.after_c, self.h2, choose(self.after_a, wide, self.h2))
        across = choose(self.after_c, wide, choose(self.after_a, self.h - self.h2, wide))
        return along, across

    def outward(self, along: Index, across: Index) -> tuple[Index, Index]:
        """From the part's own (along, across) to the rectangle's."""
        east = along + choose(self.after_b, self.w2, 0)
        return (
            choose(self.after_c, self.w - 1 - across, choose(self.after_a, east, across)),
            choose(self.after_c, self.h2 - 1 - along, choose(self.after_a, across + self.h2, along)),
        )


def morton() -> Morton:
    """The Z curve, on every grid."""
    return Morton()


def hilbert() -> Hilbert:
    """A walk of single steps to neighbours, on every grid."""
    return Hilbert()
