"""How a CPU cuts a tile's sums into blocks for its vector registers, as the lowering does and the cost model counts."""

from __future__ import annotations

from tilewave.machine.matrix import largest_divisor
from tilewave.records import dataclass

VECTORS = 2
"""Vectors per row of a block of sums, where there are enough rows."""
FEW_ROWS = 2
"""Up to this many rows do not pay for transposing b."""
STREAMS = 4
"""Rows or columns that are read in parallel along k."""


PART_VECTORS = 8
"""Vectors of a row of a tile that is reduced part by part."""


@dataclass(frozen=True)
class RegisterBlock:
    """The largest block of sums in registers: rows x cols, of vectors of `lanes`."""

    rows: int
    cols: int
    lanes: int
    part: int
    """Elements of a part of a row that is reduced."""


def runs_along_depth(lanes: int, rows: int, columns: int, is_transposed: bool) -> bool:
    """Return whether float sums use vectors along k; `is_transposed`: b is stored transposed already."""
    return columns < lanes or (rows <= FEW_ROWS and not is_transposed)


def block_of(registers: int, rows: int, vectors: int) -> tuple[int, int]:
    """Return the rows and vectors of a block of sums: they divide the tile's and leave registers for b and a."""
    wide = min(VECTORS, vectors)
    high = largest_divisor(rows, (registers - 1) // wide - 1)
    return high, largest_divisor(vectors, (registers - 1) // (high + 1))


def dots_of(rows: int, columns: int) -> tuple[int, int]:
    """Return the rows and columns of a block of sums that divide a tile's, each sum a vector; few enough operands are
    read in parallel for the hardware prefetcher to follow them."""
    high = largest_divisor(rows, STREAMS if columns < STREAMS else VECTORS)
    return high, largest_divisor(columns, STREAMS)
