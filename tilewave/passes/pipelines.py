"""The order of passes, decided here and nowhere else; each line says why it stands where it does."""

from __future__ import annotations

from collections.abc import Mapping

from tilewave.passes.map_workgroups import MapWorkgroups, Order
from tilewave.passes.orient_reads import orient_reads
from tilewave.passes.prepack_operands import PanelFormat, PrepackOperands
from tilewave.passes.runner import Pass
from tilewave.passes.simplify import simplify
from tilewave.passes.split_tiles import SplitTiles
from tilewave.passes.use_matrix_unit import use_matrix_unit


def tile_level(order: Order) -> tuple[Pass, ...]:
    """What every target begins with."""
    return (
        MapWorkgroups(order),  # first: everything behind it may look at where tiles are
        orient_reads,  # before simplify, which drops what it leaves unused
        simplify,
    )


def cpu(rows: int, cols: int, unit: int, formats: Mapping[str, PanelFormat]) -> tuple[Pass, ...]:
    """From whole tiles to register blocks of `rows` x `cols`."""
    return (
        SplitTiles(rows, cols),  # first: what is packed depends on how high and wide a block is
        PrepackOperands(rows, cols, unit, formats),
        simplify,  # last: folds the positions of blocks and panels
    )


def cpu_with_matrix_unit(rows: int, cols: int, unit: int, formats: Mapping[str, PanelFormat]) -> tuple[Pass, ...]:
    """The same, with sums in the registers of a matrix unit."""
    return (*cpu(rows, cols, unit, formats), use_matrix_unit)  # behind: it takes what was packed
