"""The time of what lanes load and store themselves, in picoseconds: an SM takes so long for each access of a wave.

Unaligned rows are accessed by elements, or by as many as their alignment allows, so accesses count, and not bytes.
"""

from __future__ import annotations

from tilewave.cost.work import CutTransfer, CutWork
from tilewave.ir.host_program import Number, chosen, larger, quotient, remainder, smaller

WAVE_ACCESS = 6_000
"""The time of an access of a wave: measured for loads of dot products, and for stores of neighbouring elements."""
SCATTERED_ACCESS = 11_000
"""The time of a store whose lanes have elements of several rows."""
WIDEST_BYTES = 8
"""What a lane loads at once of an operand that it converts for its sums."""
OUTSIDE = 4
"""An access out of bounds takes this part of another's time: it is issued, and moves nothing."""
STAGED_ROWS, STAGED_COLUMNS = 64, 128
"""Tiles of multiples of these rows, and at most these columns, are transposed into rows before they are stored."""


def loads_of_thin(work: CutWork, lanes: int) -> Number:
    """Return the time of a task's loads in a product with one row or column: a lane loads both factors of its terms.

    An operand whose rows do not go along K is loaded by elements where the tile has one element of a row.
    """
    (p,) = work.products
    inside = quotient(p.all, larger(work.tasks, 1))
    terms = inside + quotient(work.steps * p.elements * p.depth - inside, OUTSIDE)
    wide = [t for t in work.operands if t.tile_row_bytes > t.tile_bytes // t.elements]
    bytes_at_once: Number = WIDEST_BYTES
    for t in wide:
        bytes_at_once = smaller(bytes_at_once, _alignment(t))
    each = sum(quotient(terms * p.dtype.bytes, bytes_at_once) if t in wide else terms for t in work.operands)
    return quotient(each * WAVE_ACCESS, lanes)


def _alignment(t: CutTransfer) -> Number:
    """Return the bytes that all rows of an array begin at multiples of, at most the widest load."""
    size = t.tile_bytes // t.elements
    found: Number = size
    while size < WIDEST_BYTES:
        size *= 2
        found = chosen(remainder(t.row_bytes, size) > 0, found, size)
    return found


def stores_of_elements(work: CutWork, lanes: int) -> int:
    """Return the time in which an SM stores a tile's sums one by one."""
    (p, *_) = work.products
    is_staged = p.rows % STAGED_ROWS == 0 and p.cols <= STAGED_COLUMNS
    return work.sums * (WAVE_ACCESS if is_staged else SCATTERED_ACCESS) // lanes
