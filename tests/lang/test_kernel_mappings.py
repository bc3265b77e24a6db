"""A mapping in a kernel is the mapping itself: what is proved and drawn is what the compiled kernel does."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import *
from sampled import examples

from tilewave.errors import CallError, ConstraintError, CoverageError, SymbolError
from tilewave.mapping import (
    Grid,
    MappingError,
    as_mapping,
    find_counterexample,
    grouped,
    hilbert,
    linear,
    morton,
    snake,
    supertiles,
    xcd_chunked,
    xcd_contiguous,
)

sizes_1_to_9 = st.integers(1, 9)
along = st.sampled_from(["m", "n"])
orders = st.one_of(
    st.builds(linear, along),
    st.builds(grouped, sizes_1_to_9, along),
    st.builds(snake, sizes_1_to_9, along),
    st.builds(supertiles, st.integers(1, 4), st.integers(1, 4)),
    st.just(morton()),
    st.just(hilbert()),
)
renumberings = st.lists(
    st.one_of(st.builds(xcd_contiguous, sizes_1_to_9), st.builds(xcd_chunked, sizes_1_to_9, sizes_1_to_9)), max_size=2
)


@st.composite
def mappings(draw):
    mapping = draw(orders)
    for step in reversed(draw(renumberings)):
        mapping = step >> mapping
    return as_mapping(mapping)


@wave([WorkgroupConstraint(M, 4, 0), WorkgroupConstraint(N, 4, 1)])
def nothing_special(c: Memory[M, N, G, i32]):
    write(Register[M, N, i32](1), c)


def with_constraints(*constraints):
    return wave([*nothing_special.constraints, *constraints])(nothing_special.function)


@given(mappings(), st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=examples(60))
def test_the_compiled_kernel_does_what_the_mapping_says(mapping, rows, cols):
    kernel = compiled(with_constraints(WorkgroupMapping(mapping)), subs={M: 4 * rows, N: 4 * cols})
    np.testing.assert_array_equal(kernel.schedule.table(), mapping.table(Grid(rows, cols)))


@given(mappings(), st.integers(1, 12), st.integers(1, 12), st.integers(1, 40))
@settings(max_examples=examples(60))
def test_a_persistent_kernel_deals_the_tiles_in_rounds(mapping, rows, cols, workgroups):
    constraints = [WorkgroupMapping(mapping), GridConstraint(workgroups)]
    schedule = compiled(with_constraints(*constraints), subs={M: 4 * rows, N: 4 * cols}).schedule
    numbers = mapping.table(Grid(rows, cols), workgroups)
    np.testing.assert_array_equal(schedule.table(), numbers % workgroups)
    np.testing.assert_array_equal(schedule.rounds(), numbers // workgroups)


@pytest.mark.parametrize("workgroups", [7, 132, 256, 304])
def test_persistent_workgroups_keep_to_their_xcds_part_of_the_grid(workgroups):
    """Workgroup w runs on XCD w % 8; with xcd_contiguous each XCD's tiles are one contiguous range of the order."""
    constraints = [WorkgroupMapping("xcd_contiguous(8) >> linear(along='n')"), GridConstraint(workgroups)]
    schedule = compiled(with_constraints(*constraints), subs={M: 4 * 40, N: 4 * 33}).schedule
    xcd = (schedule.table() % 8).reshape(-1)
    assert (np.diff(xcd) != 0).sum() == min(8, workgroups) - 1


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=examples(40))
def test_a_named_mapping_and_the_formulas_it_stands_for_have_one_schedule(rows, cols, xcds, size):
    """Wave's reordering, as constraints and by name."""
    wg0, wg1 = WORKGROUP_0, WORKGROUP_1
    total = rows * cols
    flat = wg1 * rows + wg0
    number = flat % xcds * (total // xcds) + Min(flat % xcds, total % xcds) + flat // xcds
    group = number // (size * cols)
    height = Min(rows - group * size, size)
    within = number % (size * cols)
    formulas = [
        ReorderingConstraint(group * size + within % height, 0),
        ReorderingConstraint(within // height, 1),
    ]
    subs = {M: 4 * rows, N: 4 * cols}
    by_name = WorkgroupMapping(xcd_contiguous(xcds) >> grouped(size))
    assert (
        compiled(with_constraints(*formulas), subs=subs).schedule
        == compiled(with_constraints(by_name), subs=subs).schedule
    )


@pytest.mark.parametrize("target", ["numpy", "cpu"])
def test_wgm_is_an_argument_of_the_kernel(target):
    """rocRoller's view: the parallel dimension is baked in, WGM is given at the call."""
    rng = np.random.default_rng(0)
    a, b = random_array(rng, (6 * 64, 40), f16), random_array(rng, (8 * 64, 40), f16)
    kernel = gemm(constraints=[WorkgroupMapping(grouped(sym.WGM))])
    made = compiled(kernel, subs=sizes(6 * 64, 8 * 64, 40), dynamic_symbols=[sym.WGM], target=target)
    for wgm in (1, 4, 6, 7, 1000):
        c = poisoned((6 * 64, 8 * 64), f32)
        made(a, b, c, WGM=wgm)
        check_product(c, a, b)
        np.testing.assert_array_equal(made.schedule_for(WGM=wgm).table(), grouped(wgm).table(Grid(6, 8)))
    assert made.schedule_for(WGM=4).table()[4].tolist() == [32, 34, 36, 38, 40, 42, 44, 46]
    with pytest.raises(CallError, match="gemm: WGM is 0, no whole number of at least 1"):
        made(a, b, c, WGM=0)


def test_a_free_formula_is_a_mapping_and_is_checked_like_the_others():
    def back_to_front(w, grid):
        last = grid.size - 1 - w
        return last // grid.cols, last % grid.cols

    kernel = compiled(with_constraints(WorkgroupMapping(back_to_front)), subs={M: 12, N: 20})
    assert kernel.schedule.table()[0].tolist() == [14, 13, 12, 11, 10]

    def one_off(w, grid):
        return (w + 1) // grid.cols, (w + 1) % grid.cols

    with pytest.raises(CoverageError, match=r"workgroup 14 computes tile \(3, 0\), outside the 3x5 tiles of c"):
        compiled(with_constraints(WorkgroupMapping(one_off)), subs={M: 12, N: 20})


def test_batches_are_walked_one_after_the_other():
    @wave(
        [
            WorkgroupConstraint(B, 1, 2),
            *nothing_special.constraints,
            WorkgroupMapping("xcd_contiguous(4) >> grouped(2)"),
        ]
    )
    def batched(c: Memory[B, M, N, G, i32]):
        write(Register[B, M, N, i32](1), c)

    schedule = compiled(batched, subs={B: 3, M: 20, N: 28}).schedule
    mapping = as_mapping("xcd_contiguous(4) >> grouped(2)")
    np.testing.assert_array_equal(schedule.table(), mapping.table(Grid(5, 7, 3)))


# -- reordering formulas that are wrong -------------------------------------------------------------------------------


def per_tile(x, tile=BLOCK_M):
    return ceiling(x / tile)


SWAPPED = [ReorderingConstraint(WORKGROUP_1, 0), ReorderingConstraint(WORKGROUP_0, 1)]
ROW_BY_ROW = [
    ReorderingConstraint((WORKGROUP_1 * per_tile(M) + WORKGROUP_0) // per_tile(N, BLOCK_N), 0),
    ReorderingConstraint((WORKGROUP_1 * per_tile(M) + WORKGROUP_0) % per_tile(N, BLOCK_N), 1),
]


def refused(*constraints, **more):
    """The error of a GEMM of 6x7 tiles with these constraints."""
    with pytest.raises(CoverageError) as raised:
        compiled(gemm(constraints=constraints), subs=sizes(6 * 64, 7 * 64, 40, **more))
    return raised.value


def test_a_formula_that_leaves_the_grid_says_which_tiles_are_lost_and_names_the_workgroup_by_its_coordinates():
    error = refused(*SWAPPED)
    assert error.what == (
        "workgroup 36 (WORKGROUP_0 = 0, WORKGROUP_1 = 6) computes tile (6, 0), outside the 6x7 tiles of c; "
        "tile (0, 6) is computed by none"
    )
    assert "c has 42 tiles: 6 lost, 0 computed more than once. They are written at " in error.remedy
    assert "not reordered" not in error.remedy
    on_grid = find_counterexample(gemm(constraints=SWAPPED), subs=sizes(1, 1, 1)).message
    assert on_grid.startswith("workgroup 1 (WORKGROUP_0 = 0, WORKGROUP_1 = 1) computes tile (1, 0), which is outside")
    assert "(0, 1) is computed by none" in on_grid
    compiled(gemm(constraints=ROW_BY_ROW), subs=sizes(6 * 64, 7 * 64, 40))
    compiled(gemm(constraints=[WorkgroupMapping(xcd_contiguous(8) >> grouped(4))]), subs=sizes(6 * 64, 7 * 64, 40))


def test_the_coordinates_are_named_where_sizes_are_dynamic_too():
    kernel = compiled(gemm(constraints=SWAPPED), subs={BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 32})
    a, b, c = (np.zeros(shape, dtype) for shape, dtype in (((384, 40), "f2"), ((448, 40), "f2"), ((384, 448), "f4")))
    with pytest.raises(CoverageError, match=r"448, workgroup 36 \(WORKGROUP_0 = 0, WORKGROUP_1 = 6\) computes"):
        kernel(a, b, c)


def test_persistent_workgroups_have_no_coordinates():
    assert "WORKGROUP_1 =" not in str(refused(*SWAPPED, GridConstraint(5)))


def test_every_formula_is_underlined():
    first, second = ReorderingConstraint(WORKGROUP_1, 0), ReorderingConstraint(WORKGROUP_0, 1)
    _, line, carets, *_ = str(refused(first, second)).splitlines()[1:]
    if sys.version_info >= (3, 11):
        marked = ["".join(c for c, caret in zip(line, carets, strict=False) if caret == "^")]
        assert marked == ["ReorderingConstraint(WORKGROUP_1, 0)ReorderingConstraint(WORKGROUP_0, 1)"]
    assert str(refused(*SWAPPED)).count("test_kernel_mappings.py:") == 1
    first = ReorderingConstraint(WORKGROUP_1, 0)
    second = ReorderingConstraint(WORKGROUP_0, 1)
    said = str(refused(first, second))
    assert "first = ReorderingConstraint" in said and "second = ReorderingConstraint" in said


def test_a_dimension_without_a_formula_is_named():
    assert "Dimension 1 of the grid is not reordered." in refused(ReorderingConstraint(WORKGROUP_0 // 2, 0)).remedy
    assert "Dimension 0 of the grid is not reordered." in refused(ReorderingConstraint(WORKGROUP_1 // 2, 1)).remedy


def test_constraints_are_searched_for_a_counterexample():
    group = sym.GROUP
    halves = ReorderingConstraint(WORKGROUP_0 // group, 0)
    assert find_counterexample(ROW_BY_ROW + tiling()) is None
    assert find_counterexample(gemm(constraints=ROW_BY_ROW), subs=sizes(640, 640, 64)) is None
    assert find_counterexample(gemm(constraints=[WorkgroupMapping(grouped(group))]), subs={group: 4}) is None
    assert find_counterexample(gemm()) is None
    batches = [WorkgroupConstraint(dim, 1, 2 + axis) for axis, dim in enumerate((sym.B, sym.B2, sym.B3))]
    assert find_counterexample([*ROW_BY_ROW, *tiling(), *batches]) is None, "a grid has one axis for all batches"
    assert str(find_counterexample(halves, subs={group: 2})) == (
        "on a grid of 2×1: workgroups 0 (WORKGROUP_0 = 0) and 1 (WORKGROUP_0 = 1) both compute tile (0, 0); "
        "tile (1, 0) is computed by none"
    )
    with pytest.raises(SymbolError, match="GROUP has no value") as raised:
        find_counterexample([*tiling(), halves])
    assert "find_counterexample(…, subs={GROUP: …})" in raised.value.remedy
    with pytest.raises(SymbolError, match="M has no value") as size:
        find_counterexample(ROW_BY_ROW)
    assert "where its WorkgroupConstraint is in the list too" in size.value.remedy
    with pytest.raises(MappingError, match="is not a mapping") as other:
        find_counterexample([ROW_BY_ROW] * 20)
    assert len(str(other.value)) < 250
    with pytest.raises(ConstraintError, match="5 is no constraint"):
        find_counterexample([halves, 5])
