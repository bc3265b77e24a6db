"""Rows whose waves meet once for two sums: right for every row, also where a part of it holds nothing, in any order."""

import math

import numpy as np
import pytest
from kernels import UNIT, M, N
from softmax_rows import softmax_in_float64, softmax_of

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.constraint_locations import Places
from tilewave.ir.launch import bind
from tilewave.ir.ops import Barrier, Cast, KeepOrder, Load, OpaqueCopy, Store
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import rewrite, walk
from tilewave.machine.chips import CHIPS
from tilewave.passes.lanes.fuse_wave_reductions import FuseWaveReductions
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

ORDERS = ("in turn", "backwards", "random")
ROWS, COLUMNS = 6, 4096
EIGHT_WAVES = HardwareConstraint(threads_per_wave=32, waves_per_block=(8, 1, 1))


def lanes_of(target, kernel=None, most_bytes=0, **options):
    """A softmax of rows that eight waves share, as if lanes held much of them."""
    options = options or {"subs": {M: ROWS, N: COLUMNS}}
    of = kernel or softmax_of(1, COLUMNS, (1, 8))
    tiles = wave_compile(WaveCompileOptions(target="numpy", **options), of).kernel
    passes = (lists.hopper_plain if target == "sm_90a" else lists.lanes)(CHIPS[target], Places(), ())
    found, _ = run(tiles, [FuseWaveReductions(most_bytes) if isinstance(p, FuseWaveReductions) else p for p in passes])
    return found


def rows(columns=COLUMNS):
    """One at random, one far from 0, one of which most waves see nothing but -inf, and three without an answer."""
    x = np.random.default_rng(1).standard_normal((ROWS, columns)).astype(np.float32) * 10
    x[1] += 60000
    x[2, : columns * 7 // 8] = -np.inf
    x[3], x[4, 3], x[5, -1] = -np.inf, np.inf, np.nan
    return x


def check(kernel, x, values, order):
    y = np.zeros_like(x)
    interpret_lanes(bind(kernel, values), [x, y], values, order, 1)
    with np.errstate(invalid="ignore"):
        want = softmax_in_float64(x)
        far = np.where(want > 0, np.abs(x - x.max(axis=1, keepdims=True)), 0.0)
    # the difference is rounded, and so are the power, its product with a factor, each sum of the tree, and the quotient
    allowed = want * UNIT * (far + np.log2(x.shape[1]) + 8) + np.finfo(np.float32).tiny
    np.testing.assert_array_equal(np.isnan(y), np.isnan(want))
    assert not (np.abs(y - want) > allowed).any()


@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
@pytest.mark.parametrize("order", ORDERS)
def test_powers_are_added_up_after_one_meeting(target, order):
    kernel = lanes_of(target)
    assert sum(isinstance(op, Barrier) for op in walk(kernel.body)) == 1
    check(kernel, rows(), {}, order)


@pytest.mark.share(4)
@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("dtype", "waves"), [(f32, 8), (f16, 4)])
def test_squares_of_differences_are_added_up_after_one_meeting(target, order, dtype, waves):
    kernel = lanes_of(target, _spread(waves, dtype))
    assert sum(isinstance(op, Barrier) for op in walk(kernel.body)) == 1
    x = np.random.default_rng(2).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    x[1] += 1000
    x[2] += np.arange(COLUMNS)  # waves find other means than their neighbours, and runs than theirs
    x[3], x[4, 7], x[5, 9] = 3.1, np.inf, np.nan
    x = x.astype(dtype.numpy)
    found = np.zeros(x.shape, np.float32)
    interpret_lanes(kernel, [x, found], {}, order, 1)
    y = found[:, 0]
    np.testing.assert_array_equal(found, np.broadcast_to(y[:, None], x.shape))
    exact = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        mean = exact.mean(axis=1, keepdims=True)
        want = ((exact - mean) ** 2).mean(axis=1)
    own = exact.reshape(ROWS, waves, -1).mean(axis=2)
    rounded = np.abs(exact).max(axis=1) * UNIT * (np.log2(COLUMNS) + 2)  # of a mean
    with np.errstate(invalid="ignore"):
        allowed = want * UNIT * (np.log2(COLUMNS) + 8) + rounded * (2 * np.abs(own - mean).max(axis=1) + rounded)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(want))
    assert not (np.abs(y - want) > allowed).any()
    assert y[3] == 0


@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
def test_narrow_numbers_are_made_wide_once_for_both_sums(target):
    """Each slice is converted while the rest of the row is still being loaded."""
    ops = list(walk(lanes_of(target, _spread(4, f16)).body))
    met, kept = (next(i for i, op in enumerate(ops) if isinstance(op, kind)) for kind in (Barrier, KeepOrder))
    (row,) = (op.result.type.shape for op in ops[:kept] if isinstance(op, Load))
    taken = [math.prod(op.result.type.shape) for op in ops[kept:met] if isinstance(op, Cast)]
    assert sum(taken) == math.prod(row) and len(taken) > 1
    assert not any(isinstance(op, (Load, OpaqueCopy)) for op in ops[kept:met])


def _spread(waves, dtype=f32):
    """The variance of rows that so many waves share, in every column."""

    @wave([WorkgroupConstraint(M, 1, 0), WorkgroupConstraint(N, COLUMNS, 1), WaveConstraint(N, COLUMNS // waves)])
    def spread(x: Memory[M, N, GLOBAL_ADDRESS_SPACE, dtype], y: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]):
        row = cast(read(x), f32)
        far = row - row.sum(dim=N) / float(COLUMNS)
        write(far * 0.0 + (far * far).sum(dim=N) / float(COLUMNS), y)

    return spread


def test_squares_of_rows_that_are_masked_are_met_for_apart():
    """Waves have different numbers of elements there."""
    options = {"subs": {M: ROWS, N: COLUMNS - 8}}
    assert lanes_of("sm_90a", _spread(8), 0, **options) == lanes_of("sm_90a", _spread(8), 1 << 20, **options)


def test_what_needs_more_of_the_first_meeting_waits_for_it():
    """Powers relative to the largest number of what was multiplied by it."""

    @wave([WorkgroupConstraint(M, 1, 0), EIGHT_WAVES])
    def scaled(x: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32], y: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]):
        largest = read(x).max(dim=N)
        powers = exp(read(x) * largest - largest)
        write(powers / powers.sum(dim=N), y)

    options = {"subs": {M: ROWS, N: COLUMNS}}
    assert lanes_of("sm_90a", scaled, 0, **options) == lanes_of("sm_90a", scaled, 1 << 20, **options)


@pytest.mark.parametrize("columns", [4096, 4095, 1000, 512, 1])
def test_rows_that_end_before_some_waves_begin(columns):
    kernel = lanes_of("sm_90a", _whole(), max_sizes={N: COLUMNS})
    assert sum(isinstance(op, Barrier) for op in walk(kernel.body)) == 2  # for rows that are as long, and for others
    check(kernel, rows(columns) if columns > 8 else rows()[:, :columns], {"M": ROWS, "N": columns}, "random")


def _whole():
    @wave([WorkgroupConstraint(M, 1, 0), EIGHT_WAVES])
    def softmax(x: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32], y: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]):
        powers = exp(read(x) - read(x).max(dim=N))
        write(powers / powers.sum(dim=N), y)

    return softmax


def test_powers_that_lanes_can_hold_are_computed_once():
    assert lanes_of("sm_90a", most_bytes=192) == lanes_of("sm_90a", most_bytes=1 << 20)


@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
def test_neither_what_waves_leave_nor_the_barrier_can_be_left_out(target):
    kernel = lanes_of(target)
    needed = [op for op in walk(kernel.body) if isinstance(op, Barrier) or _leaves(op)]
    assert len(needed) == 3
    for gone in needed:
        with pytest.raises(InterpreterError, match=r"no barrier between|was never written"):
            without = rewrite(kernel, lambda op, gone=gone: [] if op is gone else None)
            for order in ORDERS:
                interpret_lanes(without, [rows(), np.zeros((ROWS, COLUMNS), np.float32)], {}, order, 1)


def _leaves(op):
    return isinstance(op, Store) and is_in(op.memory, "shared")


def test_meetings_of_a_loop_stay_apart():
    """Waves could leave their numbers of the next round before all have read those of this one."""

    @wave([WorkgroupConstraint(M, 1, 0), TilingConstraint(N, 2048), EIGHT_WAVES])
    def walked(x: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32], y: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]):
        @iterate(N)
        def step():
            powers = exp(read(x) - read(x).max(dim=N))
            write(powers / powers.sum(dim=N), y)

    options = {"subs": {M: ROWS, N: 4096}}
    assert lanes_of("sm_90a", walked, 0, **options) == lanes_of("sm_90a", walked, 1 << 20, **options)
