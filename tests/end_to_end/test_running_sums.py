"""Running sums on GPUs: lanes in every order of waves, both emulators, every dtype and axis, no barrier too many."""

import numpy as np
import pytest
from kernels import B, G, K, M, N
from lane_runs import ORDERS, without
from sampled import some_of

import tilewave as tw
from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.ops import Barrier
from tilewave.ir.rewrite import walk
from tilewave.lang.kernel import arguments

pytestmark = pytest.mark.share(12)

TARGETS = ("gfx942", "gfx950", "sm_90a")
EMULATED = TARGETS[:2]
"""Targets whose machine code is emulated."""


def build(target, kernel, **options):
    return wave_compile(WaveCompileOptions(target=target, **options), kernel)


def check(compiled, inputs, want):
    """On lanes in some order, and as machine code where that can be; sums of small integers are exact."""
    out = np.empty(want.shape, arguments(compiled.kernel)[0][-1].type.dtype.numpy)
    runs = [
        lambda order=order: compiled.interpret(*inputs, out, level="lane", order=order, seed=3)
        for order in some_of(ORDERS)
    ]
    if compiled.target in EMULATED:
        runs += [
            lambda order=order: compiled.emulate(*inputs, out, order=order) for order in some_of(("barrier", "random"))
        ]
    for run in runs:
        out.fill(-99)
        run()
        np.testing.assert_array_equal(out, want)


def small(shape, dtype=f32, seed=0):
    return np.random.default_rng(seed).integers(0 if dtype == tw.bool else -2, 2, shape).astype(dtype.numpy)


def rows_kernel(dims=(M, N), dtype=f32, made=f32, constraints=()):
    @wave([WorkgroupConstraint(M, 2, 0), *constraints])
    def running(x: Memory[(*dims, G, dtype)], y: Memory[(*dims, G, made)]):
        write(cumsum(read(x), dim=N), y)

    return running


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dims", [(M, N), (N, M)], ids=["rows", "columns"])
@pytest.mark.parametrize("length", [1, 2, 37, 64, 1000])
def test_of_rows_and_columns_of_any_length(target, dims, length):
    rows = small((3, length))
    x, want = (v if dims == (M, N) else v.T.copy() for v in (rows, np.cumsum(rows, 1)))
    room = 1 << (length - 1).bit_length()
    for options in ({"subs": {M: 3, N: length}}, {"max_sizes": {N: room}}):
        check(build(target, rows_kernel(dims), **options), [x], want)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("dtype", "made"),
    [(f64, f64), (f16, f32), (bf16, f32), (f8e4m3fn, f32), (i8, i32), (i32, i32), (i64, i64), (tw.bool, i32)],
    ids=str,
)
def test_of_every_dtype(target, dtype, made):
    if target == "gfx942" and dtype == f8e4m3fn:
        dtype = f8e4m3fnuz  # its own kind
    rows = small((3, 37), dtype)
    kernel = rows_kernel(dtype=dtype, made=made)
    check(build(target, kernel, subs={M: 3, N: 37}), [rows], np.cumsum(rows.astype(np.float64), 1))


@pytest.mark.parametrize("target", TARGETS)
def test_along_every_axis_of_a_tile_of_three(target):
    @wave([WorkgroupConstraint(B, 2, 0)])
    def running(x: Memory[B, M, N, G, f32], y: Memory[B, M, N, G, f32]):
        tile = read(x)
        write(cumsum(cumsum(tile, dim=M), dim=N) + cumsum(tile, dim=B), y)

    x = small((4, 5, 20))
    pairs = np.cumsum(x.reshape(2, 2, 5, 20), 1).reshape(x.shape)
    check(build(target, running, subs={B: 4, M: 5, N: 20}), [x], np.cumsum(np.cumsum(x, 1), 2) + pairs)


@pytest.mark.parametrize("target", TARGETS)
def test_in_a_loop_that_carries_the_last_sum_on(target):
    @wave([WorkgroupConstraint(M, 4, 0), TilingConstraint(N, 32)])
    def running(x: Memory[M, N, G, i32], y: Memory[M, N, G, i32]):
        @iterate(N, init_args=[Register[M, i32](0)])
        def before(so_far):
            sums = cumsum(read(x), dim=N) + so_far
            write(sums, y)
            return sums.max(dim=N)

    x = np.abs(small((6, 100), i32))
    for options in ({"subs": {M: 6, N: 100}}, {}):
        check(build(target, running, **options), [x], np.cumsum(x, 1))


@pytest.mark.parametrize("target", TARGETS)
def test_in_persistent_kernels_and_beside_reductions_cut_among_waves(target):
    x = small((15, 130), i64)
    check(
        build(target, rows_kernel(dtype=i64, made=i64, constraints=[GridConstraint(3)]), subs={M: 15, N: 130}),
        [x],
        np.cumsum(x, 1),
    )

    cut = [WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 64, 1), WaveConstraint(M, 8), WaveConstraint(N, 32)]

    @wave(cut)
    def beside(x: Memory[M, N, G, i8], y: Memory[M, N, G, i32]):
        tile = read(x)
        write(cumsum(tile, dim=N) + tile.sum(dim=N), y)

    x = small((20, 64), i8)
    wide = x.astype(np.int32)
    check(build(target, beside, subs={M: 20, N: 64}), [x], np.cumsum(wide, 1) + wide.sum(1, keepdims=True))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("schedule", [SchedulingType.NONE, SchedulingType.PREFETCH], ids=["plain", "prefetch"])
@pytest.mark.parametrize("dim", [M, N], ids=str)
def test_of_the_sums_of_a_product(target, schedule, dim):
    @wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
    def product(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(cumsum(total, dim=dim), c)

    for m, n, k in ((64, 128, 64), (70, 90, 40)):
        a, b = small((m, k), f16, 1), small((n, k), f16, 2)
        sums = a.astype(np.float64) @ b.astype(np.float64).T
        axis = (M, N).index(dim)
        parts = [np.cumsum(part, axis) for part in np.split(sums, range(64, sums.shape[axis], 64), axis)]
        compiled = build(target, product, subs={M: m, N: n, K: k}, schedule=schedule)
        check(compiled, [a, b], np.concatenate(parts, axis))


@pytest.mark.parametrize("target", TARGETS)
def test_a_barrier_that_is_left_out_is_a_race(target):
    """Except for the first barrier, between zeros and what is written after them, and those of the longest shift, by
    which each lane reads what it holds itself."""
    compiled = build(target, rows_kernel(), subs={M: 2, N: 1024})
    kernel = compiled.ir("distribute_lanes")
    count = sum(isinstance(op, Barrier) for op in walk(kernel.body))
    assert count == 2 * 10
    for number in range(1, count - 1):
        with pytest.raises(InterpreterError, match="no barrier between"):
            interpret_lanes(
                without(kernel, number), [small((2, 1024)), np.empty((2, 1024), np.float32)], {}, "random", 0
            )
