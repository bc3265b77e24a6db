"""The time of what lanes load and store themselves, in picoseconds: an SM takes so long for each access of a wave.

Unaligned rows are accessed by elements, or by as many as their alignment allows, so accesses count, and not bytes.
"""

from __future__ import annotations

from tilewave.cost.work import CutTransfer, CutWork
from tilewave.ir.host_program import Number, chosen, larger, quotient, remainder, smaller

WAVE_ACCESS = 6_000
"""The time of an access of a wave: measured for loads of dot products, and for stores of neighbouring elements."""
CHUNK_BYTES = 16
CHUNK_ACCESSES = 4
"""The accesses of a chunk of a row: it is read from shared memory by elements, as fast as two, and takes a store, as
the elements at the ends of rows do."""
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
    """Return the time in which an SM stores a tile's sums: aligned chunks of rows where they are staged, else each
    alone."""
    (p, *_) = work.products
    if p.rows % STAGED_ROWS or p.cols > STAGED_COLUMNS:
        return work.sums * SCATTERED_ACCESS // lanes
    size = max((t.tile_bytes // t.elements for t in work.transfers if t.is_written), default=p.acc.bytes)
    return work.sums * CHUNK_ACCESSES * WAVE_ACCESS * size // (CHUNK_BYTES * lanes)
