"""The time of a product with few rows or columns, in picoseconds: lanes load what they multiply."""

from __future__ import annotations

from tilewave.analysis.thin_products import ThinLanes, ThinTile
from tilewave.cost.by_lanes import WAVE_ACCESS
from tilewave.cost.work import CutWork
from tilewave.ir.host_program import Number, chosen, larger, quotient, smaller
from tilewave.machine.chips import Chip

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
        size = t.tile_bytes // t.elements
        inside = quotient(t.swept_bytes, larger(work.tasks, 1) * size)
        loaded = (inside + quotient(work.steps * t.elements - inside, OUTSIDE)) * (1 if t is longer else beside)
        lines = quotient(lanes // beside * smaller(t.row_bytes, LINE_BYTES), LINE_BYTES) if t.is_across else 0
        accesses += quotient(loaded * size, WIDEST_BYTES) + quotient(loaded * lines, LINES)
    return quotient(accesses * WAVE_ACCESS + work.steps * p.elements * p.depth * WAVE_TERM, lanes)


def waits_of_thin(work: CutWork, lanes: int) -> Number:
    """Return how long a task's lanes wait for rows that are shorter than a sector, and that no other row is beside."""
    waits: Number = 0
    for t in work.operands:
        if t.is_across and t.tile_row_bytes < SECTOR_BYTES:
            rows = quotient(t.swept_bytes, larger(work.tasks, 1) * smaller(t.tile_row_bytes, t.row_bytes))
            waits += chosen(t.row_bytes >= SECTOR_BYTES, quotient(rows * ALONE, lanes), 0)
    return waits


def lanes_of_thin(chip: Chip, work: CutWork) -> tuple[ThinLanes, ThinLanes]:
    """Return the lanes of a product with few rows or columns where rows are unaligned, and where they are not."""
    tile, (p,) = thin_tile_of(work), work.products
    return ThinLanes.of(chip, tile, p.dtype.bytes), ThinLanes.of(chip, tile)
