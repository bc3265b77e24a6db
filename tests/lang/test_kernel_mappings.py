"""A mapping in a kernel is the mapping itself: what is proved and drawn is what the compiled kernel does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import *

from tilewave.errors import CallError, CoverageError
from tilewave.mapping import (
    Grid,
    as_mapping,
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
@settings(max_examples=60)
def test_the_compiled_kernel_does_what_the_mapping_says(mapping, rows, cols):
    kernel = compiled(with_constraints(WorkgroupMapping(mapping)), subs={M: 4 * rows, N: 4 * cols})
    np.testing.assert_array_equal(kernel.schedule.table(), mapping.table(Grid(rows, cols)))


@given(mappings(), st.integers(1, 12), st.integers(1, 12), st.integers(1, 40))
@settings(max_examples=60)
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
@settings(max_examples=40)
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
