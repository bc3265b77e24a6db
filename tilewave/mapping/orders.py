"""Orders: from a tile number to the (row, col) of its tile.

Rows are tiles along M, columns along N. The tables below show a grid of 6×8; the entry in row M and column N is
the number of the tile there. The simplest order counts down each column before it moves to the next, `linear()`:

        |  N
        |  0   1   2   3   4   5   6   7
    ----+-------------------------------
    M 0 |  0   6  12  18  24  30  36  42
      1 |  1   7  13  19  25  31  37  43
      2 |  2   8  14  20  26  32  38  44
      3 |  3   9  15  21  27  33  39  45
      4 |  4  10  16  22  28  34  40  46
      5 |  5  11  17  23  29  35  41  47

Twelve workgroups that run at the same time touch 6 rows of A and 2 columns of B here. `grouped(4)` moves to the next
column after 4 steps and comes back for the rest; the first twelve now touch 4 rows and 3 columns. The last group is
as high as what remains (2 rows), so nothing is lost:

        |  0   1   2   3   4   5   6   7
    ----+-------------------------------
    M 0 |  0   4   8  12  16  20  24  28
      1 |  1   5   9  13  17  21  25  29
      2 |  2   6  10  14  18  22  26  30
      3 |  3   7  11  15  19  23  27  31
      4 | 32  34  36  38  40  42  44  46
      5 | 33  35  37  39  41  43  45  47

`snake(4)` traverses the same groups to and fro, so that a step never leaves both its row and its column:

    M 0 |  0   7   8  15  16  23  24  31
      1 |  1   6   9  14  17  22  25  30
      2 |  2   5  10  13  18  21  26  29
      3 |  3   4  11  12  19  20  27  28
      4 | 47  44  43  40  39  36  35  32
      5 | 46  45  42  41  38  37  34  33

`supertiles(2, 4)` cuts the grid into 2×4 super-tiles and traverses one after the other, row by row inside each:

    M 0 |  0   1 |  6   7 | 12  13 | 18  19
      1 |  2   3 |  8   9 | 14  15 | 20  21
      2 |  4   5 | 10  11 | 16  17 | 22  23
        +--------+--------+--------+-------
      3 | 24  25 | 30  31 | 36  37 | 42  43
      4 | 26  27 | 32  33 | 38  39 | 44  45
      5 | 28  29 | 34  35 | 40  41 | 46  47

`paired()` goes down each column from its ends inwards, the last row first: where lower rows take longer, as in causal
attention, any two consecutive tiles take as long together as the next two:

    M 0 |  1   7  13  19  25  31  37  43
      1 |  3   9  15  21  27  33  39  45
      2 |  5  11  17  23  29  35  41  47
      3 |  4  10  16  22  28  34  40  46
      4 |  2   8  14  20  26  32  38  44
      5 |  0   6  12  18  24  30  36  42

The curves `morton()` and `hilbert()` are in `curves.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NoReturn

from tilewave.mapping.grid import AnyGrid, Grid, MappingError, checked_number
from tilewave.mapping.index import Index, choose, divide, is_one, smaller, total
from tilewave.mapping.steps import MappingStep
from tilewave.records import dataclass


class Order(MappingStep):
    """A bijection from the numbers below `grid.plane` to the (row, col) of one plane."""

    def __call__(self, number: Index, grid: Grid) -> tuple[Index, Index]:
        """(row, col) of a tile number, which is below `grid.plane`."""
        return self.formula(checked_number(number, grid.plane, f"{self} on one plane of {grid}"), grid)

    @abstractmethod
    def formula(self, number: Index, grid: AnyGrid) -> tuple[Index, Index]:
        """(row, col) of a number that is one of the plane's."""

    def tile(self, t: Index, grid: AnyGrid, workgroups: Index | None = None) -> tuple[Index, Index, Index]:
        """(batch, row, col): one batch after the other, each in this order."""
        if isinstance(grid, Grid):
            t = checked_number(t, grid.size, f"{self} on {grid}")
        batch, number = (0, t) if is_one(grid.batches) else divide(t, grid.plane)
        return batch, *self.formula(number, grid)

    def no_effect(self, grid: Grid) -> str:
        """Why this order could as well be left out on this grid; empty where it matters."""
        return ""

    def warnings(self, grid: Grid, workgroups: int | None = None) -> tuple[str, ...]:
        """What does nothing on this grid, in words."""
        reason = "" if self.parameters() or min(grid.rows, grid.cols) == 1 else self.no_effect(grid)
        return (f"{self} has no effect on a grid of {grid}: {reason}",) if reason else ()

    def __rshift__(self, other: object) -> NoReturn:
        raise MappingError(f"{self} is an order and ends a mapping; {other} cannot follow it")


@dataclass(frozen=True)
class Linear(Order):
    """Column by column (along m), or row by row (along n)."""

    along: str = "m"
    name: ClassVar[str] = "linear"

    def formula(self, number: Index, grid: AnyGrid) -> tuple[Index, Index]:
        if self.along == "n":
            return divide(number, grid.cols)
        col, row = divide(number, grid.rows)
        return row, col


@dataclass(frozen=True)
class Grouped(Order):
    """Sweep `size` tiles along one dimension before each step along the other; the last group may be shorter."""

    size: Index
    along: str = "m"
    name: ClassVar[str] = "grouped"

    def formula(self, number: Index, grid: AnyGrid) -> tuple[Index, Index]:
        if self.along == "n":
            col, row = Grouped(self.size).formula(number, grid.transposed)
            return row, col
        _, first, height, within = _bands(number, grid, self.size)
        col, row = divide(within, height)
        return total(first, row), col

    def no_effect(self, grid: Grid) -> str:
        side, what = (grid.rows, "rows") if self.along == "m" else (grid.cols, "columns")
        return f'{side} {what} are one group, as in linear(along="{self.along}")' if self.size >= side else ""


@dataclass(frozen=True)
class Snake(Order):
    """`grouped`, traversed to and fro: each step keeps its row or its column.

    A step leads to a neighbour, except from one group to the next where the number of columns is even and the group
    higher than one tile: it then stays in its column and jumps over the group.
    """

    size: Index
    along: str = "m"
    name: ClassVar[str] = "snake"

    def formula(self, number: Index, grid: AnyGrid) -> tuple[Index, Index]:
        if self.along == "n":
            col, row = Snake(self.size).formula(number, grid.transposed)
            return row, col
        band, first, height, within = _bands(number, grid, self.size)
        step, down = divide(within, height)
        row = total(first, choose(step % 2 >= 1, height - 1 - down, down))
        return row, choose(band % 2 >= 1, grid.cols - 1 - step, step)


def _bands(number: Index, grid: AnyGrid, size: Index) -> tuple[Index, Index, Index, Index]:
    """Cut the rows into bands of `size`: which band, its first row, its height, and the number within it."""
    size = smaller(size, grid.rows)
    if isinstance(size, int) and size == grid.rows:
        return 0, 0, size, number
    if not isinstance(grid.rows, int):
        return _open_bands(number, grid, size)
    band, within = divide(number, size * grid.cols)
    first = band * size
    ends_evenly = isinstance(size, int) and grid.rows % size == 0
    return band, first, size if ends_evenly else smaller(grid.rows - first, size), within


def _open_bands(number: Index, grid: AnyGrid, size: Index) -> tuple[Index, Index, Index, Index]:
    """Return the results of `_bands` for dynamic rows, from the number of whole bands and the rows that remain.

    `smaller(…, whole)` changes no value: it bounds the band, so that the index is computed in 32 bits.
    """
    whole, left = divide(grid.rows, size)
    across = size * grid.cols
    band = smaller(number // across, whole)
    return band, band * size, choose(band >= whole, left, size), number - band * across


@dataclass(frozen=True)
class Paired(Order):
    """`linear`, each line from its ends inwards, the last tile first: heavy and light in turn."""

    along: str = "m"
    name: ClassVar[str] = "paired"

    def formula(self, number: Index, grid: AnyGrid) -> tuple[Index, Index]:
        if self.along == "n":
            row, place = divide(number, grid.cols)
            return row, _from_both_ends(place, grid.cols)
        col, place = divide(number, grid.rows)
        return _from_both_ends(place, grid.rows), col


def _from_both_ends(place: Index, count: Index) -> Index:
    """count - 1, 0, count - 2, 1, …"""
    pair, is_second = divide(place, 2)
    return choose(is_second >= 1, pair, count - 1 - pair)


@dataclass(frozen=True)
class Supertiles(Order):
    """An order that cuts the grid into rows × cols super-tiles, as even as possible, and traverses them in turn."""

    rows: Index
    cols: Index
    name: ClassVar[str] = "supertiles"

    def formula(self, number: Index, grid: AnyGrid) -> tuple[Index, Index]:
        top, height, rest = _piece(number, grid.rows, self.rows, grid.cols)
        left, width, rest = _piece(rest, grid.cols, self.cols, height)
        row, col = divide(rest, width)
        return top + row, left + col

    def no_effect(self, grid: Grid) -> str:
        if self.cols == 1:
            return 'each super-tile is as wide as the grid, as in linear(along="n")'
        return 'each super-tile is one row high, as in linear(along="n")' if self.rows >= grid.rows else ""


def _piece(number: Index, side: Index, pieces: Index, across: Index) -> tuple[Index, Index, Index]:
    """Cut `side` lines of `across` tiles into even pieces, the longer first: first line, lines, number within."""
    length, longer = divide(side, pieces)
    if isinstance(longer, int) and longer == 0:
        piece, within = divide(number, length * across)
        return piece * length, length, within
    lines = longer * (length + 1)
    late = number >= lines * across
    height = choose(late, length, length + 1)
    piece, within = divide(number - choose(late, lines * across, 0), height * across)
    return piece * height + choose(late, lines, 0), height, within


def linear(along: str = "m") -> Linear:
    """Column by column (along m), or row by row (along n)."""
    return Linear(along)


def grouped(size: Index, along: str = "m") -> Grouped:
    """`size` tiles along one dimension before each step along the other: WGM, GROUP_SIZE_M."""
    return Grouped(size, along)


def snake(size: Index, along: str = "m") -> Snake:
    """Return `grouped(size, along)`, traversed to and fro."""
    return Snake(size, along)


def paired(along: str = "m") -> Paired:
    """`linear(along)`, each line from its ends inwards, the last tile first."""
    return Paired(along)


def supertiles(rows: Index, cols: Index) -> Supertiles:
    """rows × cols super-tiles, one after the other; after `xcd_contiguous(rows * cols)`, one per XCD."""
    return Supertiles(rows, cols)
