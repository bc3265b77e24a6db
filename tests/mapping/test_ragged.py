"""Ragged grids: every row of every group in one tile, for every vector of counts, and formulas for which that fails."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewave.mapping import MappingError
from tilewave.mapping.ragged import RaggedGrid, prove_ragged


def test_the_example_of_the_module():
    found = RaggedGrid(4).tiles([3, 3, 9, 10], range(RaggedGrid(4).count(10, 4)))
    assert found.group.tolist() == [0, 2, 2, 3, -1, -1]
    assert found.first.tolist() == [0, 3, 6, 9, -4, -4]
    assert found.end.tolist() == [3, 6, 9, 10, 0, 0]


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), st.integers(1, 200), st.integers(0, 50))
def test_every_row_is_in_one_tile_of_its_group(counts, block, more):
    ends = np.cumsum(counts)
    grid, rows = RaggedGrid(block), int(ends[-1]) + more
    found, seen = grid.tiles(ends, range(grid.count(rows, len(counts)))), []
    for group, first, end in zip(found.group, found.first, found.end, strict=True):
        seen += [(row, group) for row in range(max(first, 0), min(first + block, end))]
    assert sorted(seen) == [(row, np.searchsorted(ends, row, "right")) for row in range(ends[-1])]
    assert grid.fault([int(end) for end in ends], rows) is None


@pytest.mark.parametrize("block", [1, 2, 3, 4])
def test_all_small_vectors_of_counts(block):
    found = prove_ragged(RaggedGrid(block))
    assert found.checks == sum((2 * block + 2) ** n for n in (1, 2, 3))
    assert str(found).startswith("every row exactly once, for all")


@dataclass(frozen=True)
class DropsTheLastTile(RaggedGrid):
    """Counts a group's tiles as count // block, which loses the last one unless the count is a multiple."""

    def tiles_of(self, count):
        return count // self.block


@dataclass(frozen=True)
class LosesWholeGroups(RaggedGrid):
    """Gives a tile to groups of a whole tile at least."""

    def tiles_of(self, count):
        return (count >= self.block) * super().tiles_of(count)


@dataclass(frozen=True)
class OneTileTooFew(RaggedGrid):
    def count(self, rows, groups):
        return rows // self.block + groups - 1


@dataclass(frozen=True)
class Overlaps(RaggedGrid):
    def first_row(self, tile, start, length):
        return start + tile * (length - 1)


@pytest.mark.parametrize("wrong", [DropsTheLastTile, LosesWholeGroups, OneTileTooFew, Overlaps])
def test_a_wrong_formula_has_a_counterexample(wrong):
    with pytest.raises(MappingError) as error:
        prove_ragged(wrong(4))
    found = error.value.counterexample
    assert wrong(4).fault(found.ends) == found and len(found.tiles) != 1
    assert str(found) in str(error.value)


def test_the_counterexample_names_the_row_and_its_tiles():
    assert str(DropsTheLastTile(4).fault([1])) == "row 0 of groups that end at [1] is computed by no tile"
    assert str(Overlaps(4).fault([8])) == "row 3 of groups that end at [8] is computed by tiles 0, 1"


@pytest.mark.parametrize("ends", [[5, 2, 9], [-7, -7, 3], [2**31 - 1, 2**31 - 1], [-(2**31)]])
def test_ends_that_are_none_give_rows_all_the_same(ends):
    """What they are is undefined; that no row before the first one is stored follows from the bounds of arrays."""
    found = RaggedGrid(4).tiles(ends, range(20))
    assert ((found.group >= -1) & (found.group <= len(ends))).all()


@pytest.mark.parametrize("band", [1, 2, 3, 8])
@pytest.mark.parametrize("ends", [[0, 9, 9, 40], [3], [0, 0], [17, 18, 90]])
def test_an_order_in_groups_computes_each_tile_of_a_group_once(ends, band):
    grid, columns = RaggedGrid(4), 3
    rows = range(grid.count(ends[-1], len(ends)))
    group = grid.tiles(ends, rows).group
    at = np.divmod(np.arange(len(rows) * columns), columns)
    placed = grid.tiles_in_groups(ends, at, columns, band)
    assert sorted(zip(*placed, strict=True)) == sorted(zip(*at, strict=True))
    assert (group[placed[0]] == group[at[0]]).all()


def test_a_band_of_a_group_is_computed_column_by_column():
    """Groups of one tile and of three, in two columns: bands of two tiles, then the third one."""
    rows, columns = RaggedGrid(4).tiles_in_groups([4, 16], np.divmod(np.arange(10), 2), 2, 2)
    found = list(zip(rows.tolist(), columns.tolist(), strict=True))
    assert found == [(0, 0), (0, 1), (1, 0), (2, 0), (1, 1), (2, 1), (3, 0), (3, 1), (4, 0), (4, 1)]
