"""The time of what lanes load and store themselves, in picoseconds: an SM takes so long for each access of a wave.

Unaligned rows are loaded in aligned blocks and stored in chunks and elements, so accesses count, and not bytes.
"""

from __future__ import annotations

from tilewave.cost.work import CutTransfer, CutWork
from tilewave.ir.host_program import Number, chosen, larger, quotient

WAVE_ACCESS = 6_000
"""The time of an access of a wave: measured for loads of dot products, and for stores of neighbouring elements."""
CHUNK_BYTES = 16
CHUNK_ACCESSES = 6
"""The accesses that storing a chunk of an unaligned row takes as long as: two reads of shared memory, a shift, its
store, and those of the elements at the ends of rows."""
BLOCK_ACCESSES = 3
"""The accesses that loading a chunk of an unaligned row takes as long as: two blocks are loaded and shifted."""
SCATTERED_ACCESS = 11_000
"""The time of a store whose lanes have elements of several rows."""
WIDEST_BYTES = 8
"""What a lane loads at once of an operand that it converts for its sums."""
SECTOR_BYTES, APART = 32, 3
"""Lanes that load elements of rows shorter than a sector touch so many times the memory of an access."""
ALONE = 250_000
"""The time that a lane waits for each element that it loads from a row of its own."""
OUTSIDE = 4
"""An access out of bounds takes this part of another's time: it is issued, and moves nothing."""
SHORTEST, SHORTEST_TRANSPOSED = 16, 40
"""The fewest columns, and rows of a product that is computed transposed, of tiles that TMA stores."""
UNEVEN = 4
"""Lanes share a tile whose rows have three chunks, say, in several layouts."""
STAGED_ROWS, STAGED_COLUMNS = 64, 128
"""Tiles of multiples of these rows, and at most these columns, are transposed into rows before they are stored."""


def loads_of_thin(work: CutWork, lanes: int) -> Number:
    """Return the time of a task's loads in a product with one row or column: a lane loads both factors of its terms.

    Neighbouring lanes load neighbours along K, and bytes count, however few a lane loads at once; elements of rows
    across it that are shorter than a sector count each.
    """
    (p,) = work.products
    inside = quotient(p.all, larger(work.tasks, 1))
    terms = inside + quotient(work.steps * p.elements * p.depth - inside, OUTSIDE)
    each = sum(_accesses(t, terms) for t in work.operands)
    return quotient(each * WAVE_ACCESS, lanes)


def _accesses(t: CutTransfer, terms: Number) -> Number:
    """Return the accesses of lanes to load so many elements of an operand."""
    if not t.is_across or t.tile_row_bytes >= SECTOR_BYTES:
        return quotient(terms * (t.tile_bytes // t.elements), WIDEST_BYTES)
    return terms if _is_alone(t) else APART * terms


def _is_alone(t: CutTransfer) -> bool:
    """Return whether the tile has one element of each row."""
    return t.is_across and t.tile_row_bytes * t.elements == t.tile_bytes


def waits_of_thin(work: CutWork, lanes: int) -> Number:
    """Return how long a lane waits in each step for elements that are each in a row of their own, a longer one."""
    single = [chosen(t.row_bytes > t.tile_row_bytes, t.elements // lanes, 0) for t in work.operands if _is_alone(t)]
    return sum(single) * ALONE


def loads_of_blocks(work: CutWork, lanes: int) -> int:
    """Return the time in which an SM loads the operands of a step in the aligned blocks that they are in."""
    loaded = sum(t.tile_bytes * _rounds(t) for t in work.operands)
    return loaded * BLOCK_ACCESSES * WAVE_ACCESS // (CHUNK_BYTES * lanes)


def _rounds(t: CutTransfer) -> int:
    """Return how many times as long a tile takes whose rows across the depth are no power of two of chunks."""
    return UNEVEN if t.is_across and t.tile_row_bytes & (t.tile_row_bytes - 1) else 1


def is_stored_by_tma(work: CutWork) -> bool:
    """Return whether TMA stores the tiles, if need be to a packed copy; lanes store those with short sides."""
    short = ((p.cols, SHORTEST) if p.rows >= STAGED_ROWS else (p.rows, SHORTEST_TRANSPOSED) for p in work.products)
    return all(side >= shortest for side, shortest in short)


def stores_of_elements(work: CutWork, lanes: int) -> int:
    """Return the time in which an SM stores a tile's sums: aligned chunks of rows where they are staged, else each
    alone."""
    (p, *_) = work.products
    if p.rows % STAGED_ROWS or p.cols > STAGED_COLUMNS:
        return work.sums * SCATTERED_ACCESS // lanes
    size = max((t.tile_bytes // t.elements for t in work.transfers if t.is_written), default=p.acc.bytes)
    return work.sums * CHUNK_ACCESSES * WAVE_ACCESS * size // (CHUNK_BYTES * lanes)
