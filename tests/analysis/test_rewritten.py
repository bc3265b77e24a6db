"""What a workgroup writes twice is found, and a large grid is compiled without a look at its tiles."""

import pytest
from kernels import *

from tilewave.analysis.index_trace import CHUNK, IndexRun
from tilewave.analysis.multicast import MOST_TURNS
from tilewave.analysis.rewritten import written_again
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify
from tilewave.mapping import from_function

LARGE = sizes(32768, 32768, 128, 64, 64, 64)
TILES = 1 << 18
AT_ONCE = 132
"""Workgroups of a persistent kernel on Hopper."""


@pytest.fixture
def visited(monkeypatch):
    """Count the waves of workgroups that index arithmetic runs for when a kernel is compiled."""
    counts = []
    run = IndexRun.block

    def counted(self, block, env, w, *args):
        counts.append(len(w))
        return run(self, block, env, w, *args)

    monkeypatch.setattr(IndexRun, "block", counted)
    return counts


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942", "gfx950", "sm_90a"])
@pytest.mark.parametrize("order", ["linear()", "xcd_contiguous(8) >> grouped(4)", "hilbert()"])
def test_tiles_in_a_named_order_are_not_walked(order, target, visited):
    kernel = gemm(out=f16, epilogue=lambda x: cast(x, f16), constraints=[WorkgroupMapping(order)])
    compiled(kernel, subs=LARGE, target=target)
    assert sum(visited) <= AT_ONCE


@pytest.mark.parametrize("target", ["cpu", "gfx942", "sm_90a"])
def test_rounds_of_persistent_workgroups_are_not_walked(target, visited):
    persistent = [GridConstraint(AT_ONCE), WorkgroupMapping("grouped(4)")]
    kernel = gemm(out=f16, epilogue=lambda x: cast(x, f16), constraints=persistent)
    compiled(kernel, subs=LARGE, target=target)
    assert sum(visited) <= AT_ONCE


def test_neighbours_are_compared_in_their_first_turns(visited):
    """Rows that begin off cache lines: it is looked at whether neighbours want the same."""
    subs = sizes(8 * 4099, 8 * 4099, 8 * 13, 32, 32, 32)
    compiled(gemm(constraints=[WorkgroupMapping("grouped(4)")]), subs=subs, target="sm_90a")
    operands, persistent = 2, AT_ONCE * (MOST_TURNS + 1)
    assert sum(visited) <= operands * (CHUNK + persistent) + AT_ONCE < TILES


def test_a_formula_is_walked_once(visited):
    """The formula is proved for no grid, but its first trace shows that it writes each tile once."""
    formula = from_function(lambda w, grid: (w // grid.cols, w % grid.cols))
    compiled(gemm(constraints=[WorkgroupMapping(formula)]), subs=sizes(8192, 8192, 64, 32, 32, 32), target="sm_90a")
    assert (1 << 16) <= sum(visited) <= (1 << 16) + AT_ONCE


# -- what is written twice ---------------------------------------------------------------------------------------------

LOOPS = """
kernel @loops {{workgroups = {workgroups}}} (%c: memory<{rows}x64xf32, global>) {{
  %w = workgroup() : index
  %x = const() {{value = 1.0}} : tile<64x64xf32>
  %o = const() {{value = 0}} : index
  %size = const() {{value = 64}} : index
  %count = const() {{value = {workgroups}}} : index
  %more = const() {{value = {more}}} : index
  %left = sub(%more, %w) : index
  %trips = floor_div(%left, %count) : index
  loop(%trips, []) do (%i: index) {{
    {place}
    %m = mul(%place, %size) : index
    write(%x, %c, [%m, %o]) {{axes = [0, 1]}}
    yield([])
  }}
}}
"""
EVERY = "%far = mul(%i, %count) : index\n %place = add(%w, %far) : index"
TWICE = "%two = const() {value = 2} : index\n %place = floor_div(%i, %two) : index"
"""Every two iterations have the same tile."""


def again(place, tiles, rounds, workgroups):
    text = LOOPS.format(workgroups=workgroups, rows=64 * tiles, more=rounds + workgroups - 1, place=place)
    return {v.name for v in written_again(verify(parse(text)))}


@pytest.mark.parametrize(("tiles", "workgroups"), [(1, 1), (7, 3), (8, 4), (2, 5)])
def test_tiles_dealt_round_by_round_are_written_once(tiles, workgroups, visited):
    assert again(EVERY, tiles, tiles, workgroups) == set()
    assert sum(visited) == workgroups, "each was asked how many rounds it has"


@pytest.mark.parametrize("tiles", [1, 4])
def test_a_tile_that_a_second_round_comes_back_to_is_found(tiles):
    assert again(TWICE, tiles, 2 * tiles, 1) == {"c"}


def test_tiles_that_begin_off_their_grid_are_found():
    """The tiles overlap and cover everything, though there are as many as in a grid."""
    overlapping = "%far = mul(%i, %count) : index\n %place = add(%w, %far) : index"
    text = LOOPS.format(workgroups=1, rows=64 * 3 - 16, more=3, place=overlapping).replace("value = 64}", "value = 56}")
    assert {v.name for v in written_again(verify(parse(text)))} == {"c"}
