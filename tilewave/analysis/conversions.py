"""Layout conversions within a wave: how lanes convert a tile without shared memory, and what that costs."""

from __future__ import annotations

from math import prod

from tilewave.analysis.layouts_needed import LayoutsNeeded
from tilewave.analysis.tied_layouts import TileLayouts
from tilewave.ir.ops import Convert
from tilewave.layouts.conversions import WORD_BYTES, Conversion, conversion
from tilewave.layouts.formulas import Layout, as_linear


def conversion_of(spreads: LayoutsNeeded, op: Convert, needed: TileLayouts) -> Conversion | None:
    """Return the conversion; None where waves must exchange data, or a layout is not linear over bits."""
    held, shape = spreads.held(op.x), op.x.type.shape
    if held == needed:
        return Conversion(())
    if len(held) > 1 or len(needed) > 1:
        return None
    waves = prod(spreads.waves)
    a, b = (as_linear(spread[0], shape, waves, spreads.lanes // waves) for spread in (held, needed))
    return conversion(a, b) if a and b else None


def stays_in_waves(spreads: LayoutsNeeded, op: Convert) -> bool:
    """Return whether each wave can convert by itself, moving no more words than shared memory would.

    Both use the same banks at the same rate, and shared memory needs barriers besides.
    """
    size, needed = op.x.type.dtype.bytes, spreads.needed.get(op.result, [])
    found = [conversion_of(spreads, op, spread) for spread in needed]
    exchanged = sum(c.exchanged(size) for c in found if c)
    moved = sum(_bytes(layout, size) for spread in (spreads.held(op.x), *needed) for layout in spread)
    return None not in found and exchanged * WORD_BYTES <= moved


def _bytes(layout: Layout, element_bytes: int) -> int:
    """Return how many bytes a lane holds in a layout."""
    return prod(layout.registers) * element_bytes
