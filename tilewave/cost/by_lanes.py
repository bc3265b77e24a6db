"""The time of what lanes load and store themselves, in picoseconds: an SM takes so long for each access of a wave.

Unaligned rows are loaded in aligned blocks and stored in chunks and elements, so accesses count, and not bytes.
"""

from __future__ import annotations

from tilewave.cost.work import CutTransfer, CutWork

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
SHORTEST, SHORTEST_TRANSPOSED = 16, 40
"""The fewest columns, and rows of a product that is computed transposed, of tiles that TMA stores."""
UNEVEN = 4
"""Lanes share a tile whose rows have three chunks, say, in several layouts."""
STAGED_ROWS, STAGED_COLUMNS = 64, 128
"""Tiles of multiples of these rows, and at most these columns, are transposed into rows before they are stored."""


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
