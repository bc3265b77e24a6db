"""Curves: orders in which tiles that are near in number are near in the plane, at every scale.

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
        |  B  →   C   |        problem transposed, B and C are it unchanged. Each part must end next to the start of
    h   +--↑--+---↓---+        the next; colour the tiles like a chess board and you see when a w×h rectangle can be
    h2  |  A  |   D   |        traversed from corner to corner along its base: if w is even, or w and h are odd. So
        +-----+-------+        w2 and h2 are even: then A, B and D can, and C can whenever the whole can.
          w2      w-w2

A grid whose longer side is odd and whose shorter side is even cannot be traversed from corner to corner along its
longer side; there the last stretch is transposed and ends in the opposite corner.

How many levels there are, and which sizes occur on each, depends on the grid alone: sizes that are the same for all
tiles of a level are plain ints and cost nothing. On 2ᵏ×2ᵏ all are, and the curve is the familiar one.

On a grid whose sides are known only at launch, both curves take as many levels as the shorter side can need, since the
longer one is cut into squares (`morton`) or near-squares (`hilbert`) first, by a division. A level halves: a side of
at most 2ᵏ becomes one of at most 2ᵏ⁻¹, for `hilbert` too, as w2 and w − w2 are at most 2ᵏ⁻¹ for k > 1. A launch has
fewer than 2³¹ tiles, so the shorter side is below 2¹⁶, and 16 levels are enough. A level beyond those that a grid needs
does nothing.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

from tilewave.mapping.grid import MOST_TILES, AnyGrid, Grid
from tilewave.mapping.index import Index, choose, divide, is_one, is_zero, larger, smaller, total, zero_like
from tilewave.mapping.orders import Order
from tilewave.records import dataclass

Shape = tuple[int, int]


class Curve(Order):
    """An order of levels: how many there are is known with the grid, or bounded by what a launch can hold."""

    def formula(self, number: Index, grid: AnyGrid) -> tuple[Index, Index]:
        if isinstance(grid.rows, int) and isinstance(grid.cols, int):
            return self.known(number, Grid(grid.rows, grid.cols))
        if is_one(grid.rows):
            return zero_like(number), number
        if is_one(grid.cols):
            return number, zero_like(number)
        long, short, is_tall = larger(grid.rows, grid.cols), smaller(grid.rows, grid.cols), grid.rows > grid.cols
        return self.open(number, _Sides(long, short, is_tall, _bits_of_shorter(grid)))

    @abstractmethod
    def known(self, number: Index, grid: Grid) -> tuple[Index, Index]:
        """(row, col) on a grid whose sides are ints."""

    @abstractmethod
    def open(self, number: Index, sides: _Sides) -> tuple[Index, Index]:
        """Return (row, col) on a grid whose sides are known only at launch."""


@dataclass(frozen=True)
class _Sides:
    """The sides of an open grid: which is the longer, and how many bits the shorter can have."""

    long: Index
    short: Index
    is_tall: Index
    bits: int

    def turn(self, along: Index, across: Index) -> tuple[Index, Index]:
        """Return (row, col) from the coordinates along the longer side and across it."""
        return choose(self.is_tall, along, across), choose(self.is_tall, across, along)


def _bits_of_shorter(grid: AnyGrid) -> int:
    """The k of the least 2ᵏ that no shorter side exceeds."""
    known = [side for side in (grid.rows, grid.cols) if isinstance(side, int)]
    return (min([*known, math.isqrt(MOST_TILES)]) - 1).bit_length()


@dataclass(frozen=True)
class Morton(Curve):
    """The Z curve: quarters of quarters, row by row; tiles outside the grid are skipped."""

    name: ClassVar[str] = "morton"

    def known(self, number: Index, grid: Grid) -> tuple[Index, Index]:
        side = max(grid.rows, grid.cols)
        return _quarters(number, side, _Extent.known(grid.rows), _Extent.known(grid.cols))

    def open(self, number: Index, sides: _Sides) -> tuple[Index, Index]:
        square = 1 << sides.bits
        # No side is cut at `square` or above but the longer: squares along it, one after the other.
        nth, number = divide(number, smaller(sides.long, square) * sides.short)
        start = nth * square
        height, width = sides.turn(smaller(sides.long - start, square), sides.short)
        row, col = _quarters(number, square, _Extent(height), _Extent(width))
        down, right = sides.turn(start, 0)
        return total(down, row), total(right, col)


def _quarters(number: Index, side: int, height: _Extent, width: _Extent) -> tuple[Index, Index]:
    """(row, col) of a number in the corner of a square that has a power of two, at least `side`, on each side."""
    row, col = zero_like(number), zero_like(number)
    for half in _powers_of_two_below(side):
        if height.exceeds(half):
            number, down, height = _halve(number, half, height, width.value)
            row = total(row, down)
        if width.exceeds(half):
            number, right, width = _halve(number, half, width, height.value)
            col = total(col, right)
    return row, col


@dataclass(frozen=True)
class _Extent:
    """How far the grid reaches into the square at hand: its value, and all values it can have; none: any."""

    value: Index
    possible: frozenset[int] = frozenset()

    @staticmethod
    def known(side: int) -> _Extent:
        return _Extent(side, frozenset({side}))

    def exceeds(self, half: int) -> bool:
        """Whether it can."""
        return not self.possible or max(self.possible) > half

    def on_side(self, far: Index, near: Index, half: int) -> _Extent:
        """Return the extent of the half of the square that contains the tile."""
        possible = frozenset({min(half, e) for e in self.possible} | {e - half for e in self.possible if e > half})
        value = next(iter(possible)) if len(possible) == 1 else choose(far, self.value - near, near)
        return _Extent(value, possible)


def _halve(number: Index, half: int, extent: _Extent, across: Index) -> tuple[Index, Index, _Extent]:
    """Is the tile in the first or second half of the square? The number within, how far in, the extent there."""
    near = smaller(extent.value, half)
    cells = near * across
    far = number >= cells
    there = extent.on_side(far, near, half)
    return number - choose(far, cells, 0), choose(far, half, 0), there


def _powers_of_two_below(side: int) -> list[int]:
    return [1 << bit for bit in reversed(range((side - 1).bit_length()))]


@dataclass(frozen=True)
class Hilbert(Curve):
    """A path of single steps to neighbours, on every grid; Hilbert's curve on 2ᵏ×2ᵏ."""

    name: ClassVar[str] = "hilbert"

    def known(self, number: Index, grid: Grid) -> tuple[Index, Index]:
        if grid.rows > grid.cols:
            col, row = self.known(number, grid.transposed)
            return row, col
        plan = _plan(grid.cols, grid.rows)
        if is_one(plan.count):
            along, across = _descend(number, plan.levels, *plan.last)
            return (along, across) if plan.rotated else (across, along)
        along, across = plan.walk(number, grid.rows)
        return across, along

    def open(self, number: Index, sides: _Sides) -> tuple[Index, Index]:
        return sides.turn(*_open_plan(sides).walk(number, sides.short))


@dataclass(frozen=True)
class _Level:
    """What is known of the rectangles on one level before anything runs; a side that they do not share is None."""

    lanes: bool = True
    leaves: bool = True
    w: int | None = None
    h: int | None = None
    is_flat: bool = False

    @staticmethod
    def of(shapes: frozenset[Shape]) -> _Level:
        widths, heights = {shape[0] for shape in shapes}, {shape[1] for shape in shapes}
        return _Level(
            any(_is_lane(*shape) for shape in shapes),
            any(_is_leaf(*shape) for shape in shapes),
            min(widths) if len(widths) == 1 else None,
            min(heights) if len(heights) == 1 else None,
            heights == {1},
        )

    def sides(self, w: Index, h: Index) -> tuple[Index, Index]:
        """Plain ints for the sides that are the same in all rectangles of the level."""
        return (w if self.w is None else self.w), (h if self.h is None else self.h)


@dataclass(frozen=True)
class _Plan:
    """A long grid as `count` blocks in a row, `width` wide except the last, which may be transposed, and its levels."""

    count: Index
    width: Index
    last: tuple[Index, Index]
    rotated: Index
    levels: tuple[_Level, ...]

    def walk(self, number: Index, short: Index) -> tuple[Index, Index]:
        """(along, across) of a number, block after block."""
        block = smaller(number // (self.width * short), self.count - 1)
        is_last = block >= self.count - 1
        shape = (choose(is_last, self.last[side], (self.width, short)[side]) for side in (0, 1))
        along, across = _descend(number - block * (self.width * short), self.levels, *shape)
        if not is_zero(self.rotated):
            is_transposed = is_last if is_one(self.rotated) else block >= self.count - self.rotated
            along, across = choose(is_transposed, across, along), choose(is_transposed, along, across)
        return along + block * self.width, across


@lru_cache(maxsize=256)
def _plan(long: int, short: int) -> _Plan:
    width = short + short % 2
    count = max(1, (2 * long + width) // (2 * width))
    last = long - (count - 1) * width
    rotated = int(long % 2 > short % 2)
    last_shape = (short, last) if rotated else (last, short)
    shapes = frozenset({last_shape} | ({(width, short)} if count > 1 else set()))
    levels = [shapes]
    while not all(_is_leaf(*shape) for shape in levels[-1]):
        levels.append(frozenset(part for shape in levels[-1] for part in _parts(*shape)))
    return _Plan(count, width, last_shape, rotated, tuple(map(_Level.of, levels)))


def _open_plan(sides: _Sides) -> _Plan:
    """Return the plan by arithmetic on traced sides; avoids 2 · long, which could exceed 32 bits."""
    long, short = sides.long, sides.short
    width = short + short % 2
    whole, rest = divide(long, width)
    count = whole + choose(rest >= width // 2, 1, 0)
    last = long - (count - 1) * width
    is_transposed = long % 2 > short % 2
    last_shape = choose(is_transposed, short, last), choose(is_transposed, last, short)
    return _Plan(count, width, last_shape, choose(is_transposed, 1, 0), (_Level(),) * max(1, sides.bits))


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


def _descend(number: Index, levels: tuple[_Level, ...], w: Index, h: Index) -> tuple[Index, Index]:
    """(along, across) of a number in a w×h rectangle: down through the parts to a leaf, and back up."""
    cuts = []
    for here, below in pairwise(levels):
        cut = _Cut.of(number, here, w, h)
        number = number - cut.start
        w, h = below.sides(*cut.shape)
        cuts.append(cut)
    along, across = divide(number, h)
    if not levels[-1].is_flat:
        across = choose(along % 2 >= 1, h - 1 - across, across)
    for cut in reversed(cuts):
        along, across = cut.outward(along, across)
    return along, across


@dataclass(frozen=True)
class _Cut:
    """The cuts of one level's rectangle, and the side of each cut that a number is on."""

    w: Index
    h: Index
    w2: Index
    h2: Index
    after_a: Index
    after_b: Index
    after_c: Index

    @staticmethod
    def of(number: Index, level: _Level, w: Index, h: Index) -> _Cut:
        w2, h2 = _even_half(w), _even_half(h)
        if level.lanes:
            h2 = choose(w <= 3, h - 1, h2)
        if level.leaves:  # a leaf is not cut: all of it is B
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
    """Return an order of single steps to neighbours, on every grid."""
    return Hilbert()
