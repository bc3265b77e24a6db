"""The documents' tables, numbers and formulas, each reproduced by a mapping with a name."""

from __future__ import annotations

import numpy as np
import pytest
from seed_formulas import naive_wg_to_tile, swizzled_wg_to_tile, wave_l2_swizzle, wave_reordering, wave_xcd_swizzle

from tilewave.mapping import (
    Deal,
    Grid,
    PersistentFormula,
    find_counterexample,
    from_function,
    grouped,
    linear,
    locality,
    supertiles,
    xcd_chunked,
    xcd_contiguous,
)

ROCROLLER_LINEAR = """
 0   6  12  18  24  30  36  42
 1   7  13  19  25  31  37  43
 2   8  14  20  26  32  38  44
 3   9  15  21  27  33  39  45
 4  10  16  22  28  34  40  46
 5  11  17  23  29  35  41  47
"""

ROCROLLER_GROUPED = """
 0   4   8  12  16  20  24  28
 1   5   9  13  17  21  25  29
 2   6  10  14  18  22  26  30
 3   7  11  15  19  23  27  31
32  34  36  38  40  42  44  46
33  35  37  39  41  43  45  47
"""

GRIDS_TO_40 = [Grid(rows, cols) for rows in range(1, 41) for cols in range(1, 41)]


def numbers(table: str) -> list[list[int]]:
    return [[int(word) for word in line.split()] for line in table.strip().splitlines()]


def same_tiles(formula: object, mapping: object, grid: Grid) -> bool:
    w = np.arange(grid.size)
    return all(np.array_equal(a, b) for a, b in zip(formula(w, grid), mapping(w, grid), strict=True))


def test_rocrollers_linear_table():
    assert linear().table(Grid(6, 8)).tolist() == numbers(ROCROLLER_LINEAR)


def test_rocrollers_table_with_four_tiles_in_the_parallel_dimension():
    assert grouped(4).table(Grid(6, 8)).tolist() == numbers(ROCROLLER_GROUPED)


def test_rocrollers_other_parallel_dimension_is_the_transposed_table():
    assert grouped(4, along="n").table(Grid(8, 6)).T.tolist() == numbers(ROCROLLER_GROUPED)


@pytest.mark.parametrize("wgm", [6, 7, 48, 1000, 2**31])
def test_a_wgm_larger_than_the_tiles_walks_whole_columns(wgm):
    assert grouped(wgm).table(Grid(6, 8)).tolist() == numbers(ROCROLLER_LINEAR)


def test_waves_document_reads_72_blocks_in_launch_order():
    first = locality(linear(), Grid(8, 8), xcds=8, k_blocks=8).xcds[0]
    assert (first.a_blocks, first.b_blocks, first.blocks) == (8, 64, 72)


def test_waves_document_reads_48_blocks_when_reordered():
    first = locality(xcd_contiguous(8) >> grouped(2), Grid(8, 8), xcds=8, k_blocks=8).xcds[0]
    assert (first.a_blocks, first.b_blocks, first.blocks) == (16, 32, 48)


@pytest.mark.share(8)
@pytest.mark.parametrize("xcds", range(1, 9))
def test_waves_reordering_is_xcd_contiguous_then_grouped(xcds):
    for at, grid in enumerate(GRIDS_TO_40):
        size = at % 11 + 1
        assert same_tiles(wave_reordering(xcds, size), xcd_contiguous(xcds) >> grouped(size), grid)


def test_waves_l2_swizzle_is_grouped():
    for at, grid in enumerate(GRIDS_TO_40):
        size = at % 13 + 1
        assert same_tiles(wave_l2_swizzle(size), grouped(size), grid)


@pytest.mark.share(8)
@pytest.mark.parametrize("xcds", range(1, 9))
def test_waves_xcd_swizzle_is_xcd_chunked_where_every_tile_has_its_workgroup(xcds):
    for grid in GRIDS_TO_40:
        for chunk in (1, 2, 5):
            w = np.arange(grid.size)
            formula = wave_xcd_swizzle(xcds, chunk)(w, grid, grid.size)
            assert np.array_equal(formula, xcd_chunked(xcds, chunk)(w, Deal(grid.size, grid.size)))


def test_waves_persistent_xcd_swizzle_loses_tiles_on_one_row_of_16():
    found = find_counterexample(PersistentFormula(wave_xcd_swizzle(8, 2), grouped(4)), 40, 40, workgroups=range(1, 41))
    assert found is not None
    assert (found.grid, found.workgroups, found.computed_by, found.lost) == (Grid(1, 16), 2, (0, 1), (0, 1))
    assert str(found) == (
        "on a grid of 1×16 with 2 workgroups: workgroups 0 and 1 both compute tile (0, 2); "
        "tile (0, 1) is computed by none"
    )


@pytest.mark.parametrize(("workgroups", "right"), [(304, True), (256, True), (132, False), (7, False), (300, False)])
def test_waves_persistent_xcd_swizzle_needs_workgroups_in_multiples_of_xcds_times_chunk(workgroups, right):
    wave = PersistentFormula(wave_xcd_swizzle(8, 2), grouped(4))
    assert (wave.fault(Grid(64, 64), workgroups) is None) == right
    assert (xcd_chunked(8, 2) >> grouped(4)).fault(Grid(64, 64), workgroups) is None


def test_the_super_tile_formula_leaves_a_grid_of_2x1():
    found = find_counterexample(swizzled_wg_to_tile)
    assert found is not None
    assert (found.grid, found.computed_by, found.tile, found.lost) == (Grid(2, 1), (1,), (0, 1), (1, 0))
    assert found.message == "workgroup 1 computes tile (0, 1), which is outside; tile (1, 0) is computed by none"


def test_the_super_tile_formula_is_supertiles_where_it_is_right():
    for rows in range(2, 41, 2):
        for cols in range(4, 41, 4):
            assert same_tiles(swizzled_wg_to_tile, supertiles(2, 4), Grid(rows, cols))


def tile_sets(mapping: object, grid: Grid, xcds: int) -> list[set[tuple[int, int]]]:
    tiles = mapping.tiles(grid)
    return [set(map(tuple, tiles[xcd::xcds].tolist())) for xcd in range(xcds)]


@pytest.mark.parametrize("side", [32, 64])
def test_the_super_tile_formula_gives_each_xcd_the_same_tiles_as_the_naive_one(side):
    """2048³ and 4096³ in tiles of 64×64: the shapes that the document runs."""
    grid = Grid(side, side)
    naive = tile_sets(from_function(naive_wg_to_tile), grid, 8)
    assert tile_sets(from_function(swizzled_wg_to_tile), grid, 8) == naive
    assert tile_sets(xcd_contiguous(8) >> supertiles(2, 4), grid, 8) != naive


def test_supertiles_after_xcd_contiguous_put_one_super_tile_on_each_xcd():
    grid = Grid(32, 32)
    for xcd, tiles in enumerate(tile_sets(xcd_contiguous(8) >> supertiles(2, 4), grid, 8)):
        top, left = xcd // 4 * 16, xcd % 4 * 8
        assert tiles == {(row, col) for row in range(top, top + 16) for col in range(left, left + 8)}
