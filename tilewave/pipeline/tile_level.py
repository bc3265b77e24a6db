"""The passes that every target begins with, in a separate module, because code from the cache needs no others."""

from __future__ import annotations

from tilewave.passes.grid.expand_ragged_tiles import expand_ragged_tiles
from tilewave.passes.grid.hoist_to_launch import hoist_to_launch
from tilewave.passes.grid.map_workgroups import MapWorkgroups, TileOrder
from tilewave.passes.softmax.skip_masked_blocks import skip_masked_blocks
from tilewave.passes.tile.fold_permutes import fold_permutes
from tilewave.passes.tile.simplify import simplify
from tilewave.pipeline.runner import Pass


def tile_level(order: TileOrder) -> tuple[Pass, ...]:
    """Return the passes that every target begins with."""
    return (
        MapWorkgroups(order),  # first, because later passes need the positions of tiles
        fold_permutes,  # before simplify, which removes the permutes that it leaves unused
        simplify,
        skip_masked_blocks,  # after simplify, because it matches positions as sums in their simplest form
        hoist_to_launch,  # after simplify, because the scalars that it hoists are folded then
    )


def after_proofs() -> tuple[Pass, ...]:
    """Return the passes between the proofs and a target's own: proofs know the tiles of ragged grids as one op."""
    return (expand_ragged_tiles,)
