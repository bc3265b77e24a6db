"""The passes that every target begins with; alone, because code from the cache needs no others."""

from __future__ import annotations

from tilewave.passes.compute_at_launch import compute_at_launch
from tilewave.passes.map_workgroups import MapWorkgroups, TileOrder
from tilewave.passes.orient_reads import orient_reads
from tilewave.passes.simplify import simplify
from tilewave.passes.skip_masked_steps import skip_masked_steps
from tilewave.pipeline.runner import Pass


def tile_level(order: TileOrder) -> tuple[Pass, ...]:
    """What every target begins with."""
    return (
        MapWorkgroups(order),  # first: everything behind it may look at where tiles are
        orient_reads,  # before simplify, which drops what it leaves unused
        simplify,
        skip_masked_steps,  # behind: it knows positions as sums, which are as simple as they get then
        compute_at_launch,  # behind: what is moved there is as simple as it gets
    )
