"""The lists of passes for CPUs, apart from those for GPUs: a product on a CPU does not wait for their imports."""

from __future__ import annotations

from collections.abc import Mapping

from tilewave.machine.register_blocks import RegisterBlock
from tilewave.passes.grid.serialize_split_k import serialize_split_k
from tilewave.passes.grid.skip_empty_tiles import skip_empty_tiles
from tilewave.passes.memory.prefetch_results import prefetch_results
from tilewave.passes.memory.prepack_operands import PanelFormat, PrepackOperands
from tilewave.passes.memory.read_rows_in_place import read_rows_in_place
from tilewave.passes.tile.fold_trivial_loops import fold_trivial_loops
from tilewave.passes.tile.simplify import simplify
from tilewave.passes.tile.split_tiles import SplitTiles
from tilewave.passes.tile.tile_reductions import TileReductions
from tilewave.passes.tile.use_matrix_unit import use_matrix_unit
from tilewave.pipeline.runner import Pass


def cpu(block: RegisterBlock, unit: int, formats: Mapping[str, PanelFormat]) -> tuple[Pass, ...]:
    """Return the passes from whole tiles to register blocks, for CPUs that broadcast an element as they load it."""
    # read_rows_in_place before simplify, because it takes the first rows of panels from the numbers of these.
    return _packed(block, unit, formats, (read_rows_in_place,))


def cpu_by_lane(block: RegisterBlock, unit: int, formats: Mapping[str, PanelFormat]) -> tuple[Pass, ...]:
    """Return the passes of `cpu`, for CPUs that multiply by one lane of a vector, loaded from a panel."""
    return _packed(block, unit, formats, ())


def _packed(
    block: RegisterBlock, unit: int, formats: Mapping[str, PanelFormat], unpacking: tuple[Pass, ...]
) -> tuple[Pass, ...]:
    """Return the passes to register blocks of panels whose depth is a multiple of `unit`, and those panels that
    `unpacking` leaves."""
    return (
        serialize_split_k,  # first, because later passes expect K loops that are not split
        skip_empty_tiles,  # before tile_reductions, which writes to memories of a workgroup
        TileReductions(block.part, 8),  # before split_tiles, because it leaves tiles of other shapes
        # Before prepack_operands, because the size of a block decides the panels.
        SplitTiles(block.rows, block.cols, block.lanes),
        PrepackOperands(block.rows, block.cols, unit, formats),
        *unpacking,
        simplify,  # after prepack_operands, because it folds the positions of blocks and panels
        prefetch_results,  # after simplify, because it moves the positions of blocks before their K loops
        fold_trivial_loops,  # after simplify, because it computes the trip counts of blocks of known sizes
    )


def cpu_in_place(block: RegisterBlock) -> tuple[Pass, ...]:
    """Return the passes for small products, which read operands in place: packing would cost more than the product.

    Tiles stay whole, and what a step transposes of them is transposed once for all of its rows.
    """
    return (serialize_split_k, skip_empty_tiles, fold_trivial_loops, TileReductions(block.part, 8), simplify)


def cpu_with_matrix_unit(block: RegisterBlock, unit: int, formats: Mapping[str, PanelFormat]) -> tuple[Pass, ...]:
    """Return the passes of `cpu`, with accumulators in the registers of a matrix unit."""
    return (*cpu(block, unit, formats), use_matrix_unit)  # after prepack_operands, because it needs panels
