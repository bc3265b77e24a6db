"""verify, prove, find_counterexample, warnings, locality: what is found, and in which words."""

from __future__ import annotations

import ast
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import tilewave.mapping
from tilewave.mapping import (
    Deal,
    Grid,
    MappingError,
    MappingHasNoEffect,
    PersistentFormula,
    Renumbering,
    as_mapping,
    find_counterexample,
    from_function,
    grouped,
    hilbert,
    linear,
    locality,
    morton,
    parse,
    prove,
    supertiles,
    xcd_chunked,
    xcd_contiguous,
)


def drops_the_short_group(w, grid):
    """Triton's grouping without its minimum: right only where the groups divide the rows."""
    per_group = 2 * grid.cols
    return w // per_group * 2 + w % 2, w % per_group // 2


def test_verify_names_the_workgroups_and_the_lost_tile():
    with pytest.raises(MappingError) as caught:
        from_function(drops_the_short_group).verify(Grid(3, 2))
    assert str(caught.value) == (
        "drops_the_short_group fails on a grid of 3×2: workgroup 5 computes tile (3, 0), which is outside; "
        "tile (2, 1) is computed by none"
    )
    assert caught.value.counterexample.lost == (2, 1)


def test_verify_names_two_workgroups_that_clash():
    found = as_mapping(lambda w, grid: (w % 16 // 4, w % 4)).fault(Grid(5, 4))
    assert found.message == "workgroups 0 and 16 both compute tile (0, 0); tile (4, 0) is computed by none"
    assert (found.computed_by, found.tile, found.lost) == ((0, 16), (0, 0), (4, 0))


def test_verify_names_a_workgroup_that_computes_a_tile_twice():
    found = as_mapping(lambda w, grid: (0, w // 4 * 4)).fault(Grid(1, 8), 2)
    assert found.message == "workgroup 0 computes tile (0, 0) twice; tile (0, 1) is computed by none" or (
        found.computed_by == (0, 1)
    )
    found = as_mapping(lambda w, grid: (0, w % 2)).fault(Grid(1, 4), 2)
    assert str(found) == (
        "on a grid of 1×4 with 2 workgroups: workgroup 0 computes tile (0, 0) twice; tile (0, 2) is computed by none"
    )


def test_tiles_of_several_batches_are_named_with_their_batch():
    found = as_mapping(lambda w, grid: (w % 2, w * 0)).fault(Grid(2, 2, batches=2))
    assert found.message == "workgroups 0 and 2 both compute tile (0, 0, 0); tile (0, 0, 1) is computed by none"


def test_a_formula_in_plain_python_is_verified_number_by_number():
    def clipped(w, grid):
        return min(w, 3), 0

    assert as_mapping(clipped).fault(Grid(4, 1)) is None
    assert as_mapping(clipped).fault(Grid(5, 1)).computed_by == (3, 4)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (lambda w, grid: (w / 2, w), "a formula returns integers, not float64"),
        (lambda w, grid: w, "must return \\(row, col\\), not"),
        (lambda w, grid: (w // (grid.rows - 1), w), "divides by zero for workgroup 0 of a grid of 1×4"),
        (lambda w, grid: (w[:2], w), "given 4 workgroups answered with shape \\(2,\\)"),
    ],
)
def test_formulas_that_answer_nonsense_are_told_so(formula, message):
    with pytest.raises(MappingError, match=message):
        as_mapping(formula).verify(Grid(1, 4))


def test_the_smallest_counterexample_is_found_first():
    found = find_counterexample(drops_the_short_group)
    assert found.grid == Grid(1, 2)
    assert find_counterexample("xcd_contiguous(8) >> hilbert()", 10, 10) is None
    assert find_counterexample(xcd_chunked(3, 2) >> morton(), 8, 8, workgroups=range(1, 20)) is None


def test_a_persistent_loop_that_never_starts_loses_everything():
    late = PersistentFormula(lambda w, grid, workgroups: w + grid.size, linear())
    assert find_counterexample(late).message == "tile (0, 0) is computed by none"
    below = PersistentFormula(lambda w, grid, workgroups: w - 1, linear())
    assert find_counterexample(below).message.startswith("workgroup 0 computes tile (0, -1), which is outside")
    right = PersistentFormula(lambda w, grid, workgroups: w, grouped(3))
    assert find_counterexample(right, workgroups=range(1, 20)) is None


def test_prove_reports_what_it_proved():
    proof = prove(grouped, 6, 5, size=range(1, 4))
    assert str(proof) == "3 mappings proved on all 30 grids up to 6×5 (90 checks)"
    # two grids; deals of 1 tile to 1 workgroup, of 2 to 1 and 2: more workgroups than tiles are no new case
    assert prove("xcd_contiguous(2)", 1, 2, workgroups=range(1, 100)).checks == 2 + 1 + 2
    with pytest.raises(MappingError, match="drops_the_short_group fails on a grid of 1×2"):
        prove(drops_the_short_group)
    with pytest.raises(MappingError, match="is not a function of size"):
        prove("linear()", size=[1])


def test_prove_finds_a_renumbering_that_is_no_permutation():
    class Doubling(Renumbering):
        name = "doubling"

        def formula(self, t, deal: Deal):
            return t * 2 % deal.count

        def _fields(self):
            return ()

    prove(Doubling() >> linear(), 1, 1)
    with pytest.raises(MappingError, match="doubling\\(\\) >> linear\\(\\) fails on a grid of 1×2: workgroups 0 and 1"):
        prove(Doubling() >> linear(), 5, 5)


@pytest.mark.parametrize(
    ("mapping", "workgroups", "message"),
    [
        (
            "xcd_chunked(8, 9) >> linear()",
            None,
            "xcd_chunked(8, 9) has no effect on a grid of 8×8: "
            "a chunk of 9 is larger than an XCD's share of 8, so nothing is chunked",
        ),
        (
            "xcd_chunked(8, 9) >> linear()",
            24,
            "xcd_chunked(8, 9) has no effect on a grid of 8×8 with 24 workgroups: "
            "a chunk of 9 is larger than an XCD's share of 8, so nothing is chunked",
        ),
        (
            "xcd_chunked(8, 1)",
            None,
            "xcd_chunked(8, 1) has no effect on a grid of 8×8: chunks of 1 are what the hardware deals",
        ),
        (
            "xcd_contiguous(1)",
            None,
            "xcd_contiguous(1) has no effect on a grid of 8×8: with one XCD there is nothing to renumber",
        ),
        (
            "xcd_contiguous(64)",
            None,
            "xcd_contiguous(64) has no effect on a grid of 8×8: each of the 64 tiles is alone on its XCD",
        ),
        (
            "grouped(8)",
            None,
            'grouped(8) has no effect on a grid of 8×8: 8 rows are one group, as in linear(along="m")',
        ),
        (
            'grouped(9, along="n")',
            None,
            'grouped(9, along="n") has no effect on a grid of 8×8: 8 columns are one group, as in linear(along="n")',
        ),
        (
            "supertiles(8, 4)",
            None,
            'supertiles(8, 4) has no effect on a grid of 8×8: each super-tile is one row high, as in linear(along="n")',
        ),
        (
            "supertiles(2, 1)",
            None,
            "supertiles(2, 1) has no effect on a grid of 8×8: "
            'each super-tile is as wide as the grid, as in linear(along="n")',
        ),
    ],
)
def test_a_parameter_that_does_nothing_is_told_with_a_named_warning(mapping, workgroups, message):
    assert parse(mapping).warnings(Grid(8, 8), workgroups) == (message,)
    with pytest.warns(MappingHasNoEffect) as caught:
        parse(mapping).verify(Grid(8, 8), workgroups)
    assert str(caught[0].message) == message
    assert caught[0].filename == __file__


LINEAR = {"m": linear(), "n": linear("n")}


def test_warnings_tell_the_truth():
    """Where a step is said to have no effect, leaving it out changes nothing; where it is not, something changes."""
    for rows in range(2, 9):
        for cols in range(2, 9):
            grid = Grid(rows, cols)
            for size in range(1, 10):
                for along, plain in LINEAR.items():
                    same = np.array_equal(grouped(size, along).table(grid), plain.table(grid))
                    assert same == bool(grouped(size, along).warnings(grid))
                    pieces = supertiles(size, 3) if along == "m" else supertiles(3, size)
                    same = np.array_equal(pieces.table(grid), linear("n").table(grid))
                    assert same == bool(pieces.warnings(grid)), (pieces, grid)
                for step in (xcd_contiguous(size), xcd_chunked(size, 2), xcd_chunked(3, size)):
                    same = np.array_equal(step.table(grid), linear().table(grid))
                    assert same == bool(step.warnings(grid)), (step, grid)


def test_nothing_is_said_where_no_parameter_could_help():
    for text in ("grouped(4)", "supertiles(2, 4)", "grouped(4, along='n')"):
        assert parse(text).warnings(Grid(1, 9)) == parse(text).warnings(Grid(9, 1)) == ()
    assert xcd_contiguous(8).warnings(Grid(1, 1)) == ()
    assert (xcd_contiguous(8) >> hilbert()).warnings(Grid(16, 16)) == ()


def test_open_parameters_must_be_bound_before_tiles_are_counted():
    symbol = np.arange(3)
    with pytest.raises(MappingError, match=r"is not known here\n  give it one with \.bind"):
        grouped(symbol).tiles(Grid(4, 4))


def test_a_table_tells_who_computes_a_tile_and_minus_one_where_nobody_does():
    mapping = xcd_contiguous(3) >> grouped(2)
    table, tiles = mapping.table(Grid(5, 4)), mapping.tiles(Grid(5, 4))
    assert all(tuple(tiles[table[row, col]]) == (row, col) for row in range(5) for col in range(4))
    assert from_function(drops_the_short_group).table(Grid(3, 2)).tolist() == [[0, 2], [1, 3], [4, -1]]
    assert linear().table(Grid(2, 1, batches=3)).tolist() == [[[0], [1]], [[2], [3]], [[4], [5]]]


def test_a_call_tells_row_and_column_and_refuses_batches():
    mapping = xcd_contiguous(8) >> grouped(2)
    assert mapping(8, Grid(8, 8)) == (1, 0)
    with pytest.raises(MappingError, match="a grid of 8×8×2 has 2 batches\n  use tile\\(\\)"):
        mapping(8, Grid(8, 8, 2))
    assert mapping.tile(64, Grid(8, 8, 2))[0] in (0, 1)


def test_zero_workgroups_cannot_be_launched():
    with pytest.raises(MappingError, match="a launch needs workgroups >= 1, not 0"):
        linear().verify(Grid(4, 4), 0)


def test_locality_counts_rows_and_columns_per_round():
    report = locality("grouped(2)", Grid(4, 4), xcds=2, k_blocks=3, concurrent=8)
    assert report.rounds == 2
    first = report.xcds[0]  # even numbers: row 0 of the first group, row 2 of the second
    assert [(share.tiles, share.rows, share.cols) for share in first.rounds] == [(4, 1, 4), (4, 1, 4)]
    assert (first.whole.tiles, first.whole.rows, first.whole.cols) == (8, 2, 4)
    assert (first.blocks, first.reads) == (18, 30)
    assert (report.reads, report.compulsory, report.without_reuse) == (60, 24, 96)


def test_locality_of_persistent_workgroups_counts_a_round_each_time_all_have_one_tile():
    report = locality(xcd_contiguous(8) >> grouped(4), Grid(16, 16), xcds=8, workgroups=132)
    assert report.concurrent == 132
    assert report.rounds == 2
    assert sum(xcd.whole.tiles for xcd in report.xcds) == 256
    assert sum(share.tiles for xcd in report.xcds for share in xcd.rounds) == 256


def test_batches_share_neither_rows_nor_columns():
    one, two = (locality(linear(), Grid(4, 4, batches), xcds=1) for batches in (1, 2))
    assert two.reads == 2 * one.reads and two.compulsory == 2 * one.compulsory


def test_locality_prints_a_small_table():
    lines = str(locality(linear(), Grid(8, 8), xcds=8, k_blocks=8)).splitlines()
    assert lines[0] == "linear() on 8×8, 8 XCDs, 8 k-blocks, 1 wave of 64"
    assert lines[2].split() == ["0", "8", "1", "8", "8", "64", "72", "72"]
    assert lines[-1] == "  reads 576: 4.50 × the compulsory 128, 0.56 × the 1024 without reuse"


def test_locality_with_more_xcds_than_workgroups_leaves_some_idle():
    report = locality(linear(), Grid(1, 3), xcds=5)
    assert [xcd.whole.tiles for xcd in report.xcds] == [1, 1, 1, 0, 0]
    with pytest.raises(MappingError, match="xcds is a whole number of at least 1, not 0"):
        locality(linear(), Grid(1, 3), xcds=0)


def fastest(mapping: object, grid: Grid, workgroups: int | None = None) -> float:
    """Seconds of this process, which other work on the machine does not lengthen; numpy's integers use one core."""
    seconds = []
    for _ in range(3):
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mapping.verify(grid, workgroups)
        seconds.append(time.process_time() - start)
    return min(seconds)


@pytest.mark.parametrize("workgroups", [None, 304])
def test_a_million_workgroups_are_mapped_and_verified_in_less_than_0_3_seconds(workgroups):
    assert fastest(xcd_contiguous(8) >> grouped(8), Grid(1000, 1000), workgroups) < 0.3
    assert fastest(xcd_chunked(8, 3) >> grouped(7), Grid(1024, 1023), workgroups) < 0.3


def test_a_million_workgroups_along_a_curve_take_less_than_two_seconds():
    assert fastest(xcd_contiguous(8) >> hilbert(), Grid(1000, 1003)) < 2
    assert fastest(xcd_contiguous(8) >> morton(), Grid(1000, 1003)) < 2


@pytest.mark.slow
def test_sixteen_million_workgroups_are_verified_in_less_than_3_seconds():
    assert fastest(xcd_contiguous(8) >> grouped(8), Grid(4096, 4096)) < 3


def test_mapping_imports_errors_records_numpy_and_the_standard_library_only():
    for file in sorted(Path(tilewave.mapping.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                inside = name.startswith(("tilewave.mapping", "tilewave.errors", "tilewave.records"))
                assert inside or not name.startswith("tilewave"), (file.name, name)
