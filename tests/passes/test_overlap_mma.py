"""A group of waves that begins a product before the last one is over: results, and what is found if that is wrong."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hopper_kernels import changed, mapped_tiles
from kernels import check_product, poisoned
from lane_runs import ORDERS, operands
from tunings import tuned

from tilewave import *
from tilewave.errors import InterpreterError, TilewaveError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import Value
from tilewave.ir.launch import bind
from tilewave.ir.ops import Arrive, HandOver, Neg, WaitMma, WaitOlderMma, WgmmaShared
from tilewave.ir.rewrite import replace_values, rewrite, walk
from tilewave.ir.verify import verify
from tilewave.kernels import gemm
from tilewave.kernels.products import K, M, N
from tilewave.machine.chips import SM_90A
from tilewave.pipeline import lists
from tilewave.pipeline.runner import pass_name, run

TILE = (64, 32, 16)
SHAPES = {
    "one tile": ((64, 32, 96), 1),
    "one step": ((64, 32, 16), 1),
    "several tiles": ((192, 64, 48), 1),
    "tiles of one step": ((256, 64, 16), 1),
    "hanging over": ((100, 50, 72), 2),
    "a last round in parts": ((192, 32, 192), 2),
}


CHIP = tuned(tuned(SM_90A, "pipeline", least_overlapped=1), "splits", hand_over_bytes=1)
"""Small products are overlapped, too, and small tiles split."""


def overlapped(shape, workgroups, stages=4, tile=TILE):
    passes = lists.hopper(CHIP, Places(), stages, workgroups)
    return run(mapped_tiles(shape, tile, "grouped(2)", f32), passes)[0]


def ops_of(kernel, kind):
    return [op for op in walk(kernel.body) if isinstance(op, kind)]


def check(kernel, shape, order="random", seed=0):
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    interpret_lanes(kernel, [a, b, c], {}, order, seed)
    check_product(c, a, b, f32)
    return c


@pytest.mark.share(8)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("order", ORDERS)
def test_results_are_right_in_any_order(name, order):
    shape, workgroups = SHAPES[name]
    kernel = overlapped(shape, workgroups)
    assert [op.later for op in ops_of(kernel, WgmmaShared)] == [shape[2] > TILE[2]]  # a single step has none to follow
    check(kernel, shape, order, seed=len(name))


@pytest.mark.parametrize("order", ORDERS)
def test_members_of_a_cluster_leave_stages_for_each_other(order):
    shape = (192, 64, 48)
    kernel = overlapped(shape, 2, tile=(64, 64, 16))
    assert kernel.cluster == 2 and ops_of(kernel, WaitOlderMma)
    assert {op.members for op in ops_of(kernel, Arrive) if op.mbarriers.name == "empty"} == {2}
    check(kernel, shape, order, seed=2)


def test_a_round_is_in_parts_where_the_name_says_so():
    assert ops_of(overlapped(*SHAPES["a last round in parts"]), HandOver)


def test_no_bit_changes():
    shape, workgroups = SHAPES["several tiles"]
    plain = [p for p in lists.hopper(CHIP, Places(), 4, workgroups) if pass_name(p) != "overlap_mma"]
    before = check(run(mapped_tiles(shape, TILE, "grouped(2)", f32), plain)[0], shape)
    np.testing.assert_array_equal(check(overlapped(shape, workgroups), shape), before)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_short_rings_are_left_as_they_were(stages):
    shape = (128, 32, 112)
    kernel = overlapped(shape, 1, stages)
    assert [op.later for op in ops_of(kernel, WgmmaShared)] == [stages >= 3]
    check(kernel, shape)


def test_open_sizes():
    kernel = open_gemm()
    assert ops_of(kernel, WaitOlderMma)
    for shape in ((128, 64, 48), (100, 40, 16)):
        a, b = operands(shape)
        c = poisoned(shape[:2], f32)
        numbers = dict(zip("MNK", shape, strict=True))
        interpret_lanes(bind(kernel, numbers), [a, b, c], numbers, "random", 0)
        check_product(c, a, b, f32)


@cache
def open_gemm():
    made = gemm((1, 1, 1), f16, f32, tile=TILE)
    subs = {name: value for name, value in made.subs.items() if name not in (M, N, K)}
    tiles = wave_compile(WaveCompileOptions(subs=subs, target="numpy"), made.kernel).kernel
    return run(tiles, lists.hopper(CHIP, Places(), None, 132))[0]


# -- what is left out or wrong is found


@pytest.mark.parametrize("order", ORDERS)
def test_a_stage_that_is_left_while_it_is_read_is_found(order):
    shape = (64, 32, 160)
    kernel = overlapped(shape, 1)
    with pytest.raises(InterpreterError):
        check(changed(kernel, WaitOlderMma, 0, lambda op: []), shape, order)
    with pytest.raises(InterpreterError):
        check(changed(kernel, WaitOlderMma, 0, lambda op: [replace(op, pending=2)]), shape, order)


@pytest.mark.parametrize("which", [0, 1])
def test_a_stage_that_is_never_left_is_found(which):
    """In the loop, or after it, where the next tile needs it."""
    shape = (256, 64, 160)
    kernel = overlapped(shape, 1)
    with pytest.raises(InterpreterError, match="no wave of workgroup 0 can go on"):
        check(changed(kernel, Arrive, which, lambda op: []), shape)


def test_sums_are_taken_when_they_are_there():
    kernel = overlapped((64, 32, 96), 1)
    (end,) = ops_of(kernel, WaitMma)
    too_early = replace_values(rewrite(kernel, lambda op: [] if op is end else None), {end.result: end.sums})
    with pytest.raises(TilewaveError, match="is in flight, and must be waited for first"):
        verify(too_early)


def test_nothing_but_the_next_product_takes_sums_that_are_under_way():
    kernel = overlapped((64, 32, 96), 1)
    (product,) = ops_of(kernel, WgmmaShared)

    def looked_at(op):
        return [op, Neg(op.acc, results=(Value("looked", op.acc.type),), loc=op.loc)] if op is product else None

    with pytest.raises(TilewaveError, match="is in flight, and must be waited for first"):
        verify(rewrite(kernel, looked_at))
