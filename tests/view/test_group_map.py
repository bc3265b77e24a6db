"""Ragged grids drawn with example counts: which group each tile has, and what XCDs read."""

import json
import xml.etree.ElementTree as xml

import numpy as np
import pytest

from tilewave import *
from tilewave.mapping import Grid, MappingError, locality
from tilewave.mapping.ragged import RaggedGrid
from tilewave.view import show
from tilewave.view.groups import PicturedGroups

T, N, K, X = sym.T, sym.N, sym.K, sym.X
G = GLOBAL_ADDRESS_SPACE
COUNTS = [300, 0, 700, 90, 190]
ENDS = np.cumsum(COUNTS).tolist()
ORDER = "xcd_contiguous(8) >> grouped(4)"


@wave(
    [
        WorkgroupConstraint(T, 128, 0, ragged=Ragged(X, "ends")),
        WorkgroupConstraint(N, 64, 1),
        TilingConstraint(K, 32),
        WorkgroupMapping(ORDER),
    ]
)
def experts(x: Memory[T, K, G, f16], w: Memory[X, N, K, G, f16], ends: Memory[X, G, i32], y: Memory[T, N, G, f32]):
    @iterate(K, init_args=[Register[T, N, f32](0)])
    def total(acc):
        return mma(read(x), read(w), acc)

    write(total, y)


def squares(svg):
    """Return the tiles of the third figure: row, column, fill."""
    figure = next(e for e in xml.fromstring(svg).iter() if "figure groups" in e.get("class", ""))
    return [e for e in figure.iter() if e.tag.endswith("rect") and "tile" in e.get("class", "")]


def test_each_tile_is_drawn_in_the_colour_of_its_group():
    picture = show(ORDER, "15x4", ends=ENDS, block=128)
    found = squares(picture.svg())
    groups = RaggedGrid(128).tiles(ENDS, range(15)).group
    turns = picture.placements[0].turns
    fills = {}
    for square in found:
        (row,), (col,) = np.nonzero(turns == int(square.get("data-turn")))
        assert ("empty" in square.get("class")) == (groups[row] < 0)
        fills.setdefault(int(groups[row]), set()).add(square.get("fill"))
        assert 0 <= col < 4
    assert len(found) == 60 and all(len(fill) == 1 for fill in fills.values())
    assert len(set.union(*fills.values())) == len(fills) == 5
    assert "group 2: 700 rows" in picture.svg() and "5 groups, 1 of them empty" in picture.svg()


def test_a_kernel_is_drawn_with_its_own_groups_and_order():
    compiled = experts.compile(target="numpy", subs={T: 1280, N: 256, K: 64, X: 5})
    own = show(compiled, ends=ENDS)
    given = show(ORDER, "15x4", ends=ENDS, block=128)
    assert str(own.placements[0].launch) == str(given.placements[0].launch)
    assert (own.placements[0].turns == given.placements[0].turns).all()
    assert own.to_json()["groups"] == given.to_json()["groups"]
    assert compiled.schedule.grid == (15, 4)


def test_the_page_says_what_rows_a_tile_has():
    data = json.loads(show(ORDER, "15x4", ends=ENDS, block=128).html().split('id="data">')[1].split("</script>")[0])
    rows = data["groups"]["rows"]
    assert rows["group"] == [0] * 3 + [2] * 6 + [3] + [4] * 2 + [-1] * 3
    assert rows["first"][4] == 300 + 128 and rows["end"][4] == 300 + 2 * 128


def test_reads_are_those_of_each_groups_matrix():
    """One XCD reads all rows that are any, and each group's columns."""
    groups = PicturedGroups.of(ENDS, 128).of_rows()
    found = locality("grouped(4)", Grid(15, 4), xcds=1, k_blocks=2, groups=groups)
    assert (found.xcds[0].a_blocks, found.xcds[0].b_blocks) == (12 * 2, 4 * 4 * 2)
    assert found.compulsory == found.reads == 12 * 2 + 4 * 4 * 2 and found.without_reuse == 12 * 4 * 2 * 2
    empty = locality("grouped(4)", Grid(2, 4), xcds=2, groups=np.array([-1, -1]))
    assert empty.reads == empty.compulsory == 0


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: show(ORDER, "14x4", ends=ENDS, block=128), "are 15 rows of tiles of 128, and the grid is 14×4"),
        (lambda: show(ORDER, "15x4", ends=ENDS), "not known how many rows a tile"),
        (lambda: show(ORDER, "15x4", ends=[3, 2], block=1), "groups end at [3, 2]"),
        (lambda: show(ORDER, "15x4", ends=[], block=1), "groups end at []"),
        (lambda: show(ORDER, "1x4", ends=[2**31], block=128), "groups have 2,147,483,648 rows"),
        (lambda: show(experts.compile(target="numpy", subs={T: 64, N: 8, K: 8, X: 2}), ends=[1]), "has 2 groups"),
        (lambda: show(experts.compile(target="numpy", subs={T: 64, N: 8, K: 8, X: 1}), ends=[65]), "there are 64 rows"),
    ],
)
def test_groups_that_are_refused(call, what):
    with pytest.raises(MappingError) as error:
        call()
    assert what in str(error.value)
