"""The passes that every target begins with, in a separate module, because code from the cache needs no others."""

from __future__ import annotations

from tilewave.passes.compute_at_launch import compute_at_launch
from tilewave.passes.map_workgroups import MapWorkgroups, TileOrder
from tilewave.passes.orient_reads import orient_reads
from tilewave.passes.simplify import simplify
from tilewave.passes.skip_masked_steps import skip_masked_steps
from tilewave.pipeline.runner import Pass


def tile_level(order: TileOrder) -> tuple[Pass, ...]:
    """Return the passes that every target begins with."""
    return (
        MapWorkgroups(order),  # first, because later passes need the positions of tiles
        orient_reads,  # before simplify, which removes the permutes that it leaves unused
        simplify,
        skip_masked_steps,  # after simplify, because it matches positions as sums in their simplest form
        compute_at_launch,  # after simplify, because the scalars that it hoists are folded then
    )
