"""The time of what lanes load and store themselves, in picoseconds: an SM takes so long for each access of a wave.

Unaligned rows are loaded in aligned blocks and stored in chunks and elements, so accesses count, and not bytes.
"""

from __future__ import annotations

from tilewave.analysis.thin_products import ThinTile
from tilewave.cost.work import CutTransfer, CutWork
from tilewave.ir.host_program import Number, chosen, larger, quotient, smaller

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
WAVE_TERM = 300
"""The time of a multiplication of a wave: an SM issues two instructions a cycle beside the loads of others."""
SECTOR_BYTES, LINE_BYTES, LINES = 32, 128, 40
"""What a load moves at least; a cache line; and the lines of a load that take as long as an access."""
ALONE = 250_000
"""The time that a lane waits for each sector that it loads alone."""
OUTSIDE = 4
"""An access out of bounds takes this part of another's time: it is issued, and moves nothing."""
SHORTEST, SHORTEST_TRANSPOSED = 16, 40
"""The fewest columns, and rows of a product that is computed transposed, of tiles that TMA stores."""
UNEVEN = 4
"""Lanes share a tile whose rows have three chunks, say, in several layouts."""
STAGED_ROWS, STAGED_COLUMNS = 64, 128
"""Tiles of multiples of these rows, and at most these columns, are transposed into rows before they are stored."""


def thin_tile_of(work: CutWork) -> ThinTile:
    """Return the tile of a product with few rows or columns."""
    (p,) = work.products
    longer = max(work.operands, key=lambda t: t.tile_bytes)
    return ThinTile(p.rows, p.cols, p.batch, p.depth, longer.is_across, p.acc.bytes)


def loads_of_thin(work: CutWork, lanes: int) -> Number:
    """Return the time of a task's loads and terms in a product with few rows or columns.

    Bytes count, however few a lane loads at once, and the cache lines that lanes of a wave load from. Each lane beside
    others along the longer side loads the shorter operand again.
    """
    (p,), tile = work.products, thin_tile_of(work)
    longer = max(work.operands, key=lambda t: t.tile_bytes)
    beside = min(lanes, tile.long) if tile.is_across else 1
    accesses: Number = 0
    for t in work.operands:
        inside = quotient(t.swept_bytes * t.elements, larger(work.tasks, 1) * t.tile_bytes)
        loaded = (inside + quotient(work.steps * t.elements - inside, OUTSIDE)) * (1 if t is longer else beside)
        lines = quotient(lanes // beside * smaller(t.row_bytes, LINE_BYTES), LINE_BYTES) if t.is_across else 0
        accesses += quotient(loaded * (t.tile_bytes // t.elements), WIDEST_BYTES) + quotient(loaded * lines, LINES)
    return quotient(accesses * WAVE_ACCESS + work.steps * p.elements * p.depth * WAVE_TERM, lanes)


def waits_of_thin(work: CutWork, lanes: int) -> Number:
    """Return how long a task's lanes wait for rows that are shorter than a sector, and that no other row is beside."""
    waits: Number = 0
    for t in work.operands:
        if t.is_across and t.tile_row_bytes < SECTOR_BYTES:
            rows = quotient(t.swept_bytes, larger(work.tasks, 1) * smaller(t.tile_row_bytes, t.row_bytes))
            waits += chosen(t.row_bytes >= SECTOR_BYTES, quotient(rows * ALONE, lanes), 0)
    return waits


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
