"""Sums that are cut into parts, on every target: the order in which parts are added is the same."""

import numpy as np
import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, G, K, M, N, check_product, gemm, poisoned, sizes, tiling
from lane_runs import ORDERS, operands
from sampled import some_of

from tilewave import *
from tilewave.errors import ConstraintError, TraceError

P = sym.P
PARTS = (2, 3, 8)
SHAPE = (70, 40, 136)
TILE = (32, 32, 16)


def in_parts(**more):
    return gemm(constraints=(SplitConstraint(K, P),), **more)


def compiled(target, parts, shape=SHAPE, kernel=None, tile=TILE, **options):
    subs = {s: v for s, v in {**sizes(*shape, *tile), P: parts}.items() if v}
    return wave_compile(WaveCompileOptions(subs=subs, target=target, **options), kernel or in_parts())


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("target", ["numpy", "cpu"])
def test_run_here(target, parts):
    a, b = operands(SHAPE)
    c = poisoned(SHAPE[:2], f32)
    compiled(target, parts)(a, b, c)
    check_product(c, a, b)


@pytest.mark.parametrize("schedule", [SchedulingType.NONE, SchedulingType.PREFETCH], ids=str)
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_run_on_lanes_and_emulated(target, schedule):
    made = compiled(target, 3, schedule=schedule)
    a, b = operands(SHAPE)
    for order in some_of(ORDERS):
        c = poisoned(SHAPE[:2], f32)
        made.interpret(a, b, c, level="lane", order=order)
        check_product(c, a, b)
    c = poisoned(SHAPE[:2], f32)
    made.emulate(a, b, c)
    check_product(c, a, b)
    (said,) = (row.remarks for row in made.why() if row.step == "serialize_split_k")
    assert "3 splits" in said.what


@pytest.mark.parametrize(
    ("shape", "tile", "parts", "workgroups"),
    [
        ((3, 1, 943), (8, 16, 128), 8, 8),
        ((70, 67, 119), (64, 64, 16), 3, 12),
        ((70, 67, 119), (64, 64, 16), 5, 16),  # of two steps each, which four parts are
        ((300, 301, 71), (128, 192, 32), 3, 18),
    ],
)
def test_lanes_that_load_share_parts(shape, tile, parts, workgroups):
    """Rows are unaligned for TMA, and too little is read for packed copies: each part of a split-K has a workgroup."""
    made = compiled("sm_90a", parts, shape, tile=tile)
    (said,) = (row.step for row in made.why() if row.step in ("use_tma", "serialize_split_k"))
    assert said == "use_tma"
    assert made.build.plain.lanes.workgroups == workgroups
    a, b = operands(shape)
    for order in some_of(ORDERS):
        c = poisoned(shape[:2], f32)
        made.interpret(a, b, c, level="lane", order=order, seed=3)
        check_product(c, a, b)


@pytest.mark.parametrize("target", ["cpu", "gfx942", "sm_90a"])
def test_the_parts_are_added_in_the_interpreters_order(target):
    """A step at a time is exact, so that what differs would be the order of the parts."""
    rng = np.random.default_rng(1)
    a = np.zeros((32, 128), np.float16)
    a[:, ::16] = 2.0 ** rng.integers(-12, 13, (32, 8))
    b = np.zeros((32, 128), np.float16)
    b[:, ::16] = 2.0 ** rng.integers(-12, 13, (32, 8))
    want = {}
    for parts in (1, 2, 4, 8):
        made = compiled(target, parts, (32, 32, 128))
        c = poisoned((32, 32), f32)
        want[parts] = poisoned((32, 32), f32)
        made.interpret(a, b, want[parts])
        if target == "cpu":
            made(a, b, c)
        else:
            made.interpret(a, b, c, level="lane", order="random")
        np.testing.assert_array_equal(c, want[parts])
    assert (want[1] != want[4]).any() and (want[2] != want[4]).any()


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942", "sm_90a"])
def test_the_depth_stays_open(target):
    made = compiled(target, 4, (70, 40, 0))
    for depth in (8, 16, 40, 136):
        a, b = operands((70, 40, depth))
        c = poisoned((70, 40), f32)
        if target in ("numpy", "cpu"):
            made(a, b, c)
        else:
            made.interpret(a, b, c, level="lane", order="random")
        check_product(c, a, b)


@pytest.mark.parametrize("target", ["numpy", "cpu"])
def test_a_depth_of_nothing_is_an_empty_sum(target):
    c = poisoned((70, 40), f32)
    compiled(target, 4, (70, 40, 0))(np.zeros((70, 0), np.float16), np.zeros((40, 0), np.float16), c)
    assert not c.any()


def test_whole_numbers_wrap_as_ever():
    made = compiled("cpu", 3, kernel=in_parts(dtype=i8, acc=i32))
    a, b = operands(SHAPE, i8)
    c, want = poisoned(SHAPE[:2], i32), poisoned(SHAPE[:2], i32)
    made(a, b, c)
    made.interpret(a, b, want)
    np.testing.assert_array_equal(c, want)
    check_product(c, a, b, i32)


def test_what_a_sum_begins_with_is_added_once():
    @wave(tiling(SplitConstraint(K, 4)))
    def begun(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](100.0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total, c)

    x, y = np.ones((32, 64), np.float16), np.ones((32, 64), np.float16)
    for target in ("numpy", "cpu", "gfx942", "sm_90a"):
        made = compiled(target, 4, (32, 32, 64), begun)
        c = poisoned((32, 32), f32)
        if target in ("numpy", "cpu"):
            made(x, y, c)
        else:
            made.interpret(x, y, c, level="lane", order="random")
        assert (c == 164).all()


# -- what is refused


def test_a_dim_that_is_not_walked():
    with pytest.raises(ConstraintError, match="the steps along M are to be split into parts, but no loop"):
        wave_compile(WaveCompileOptions(subs=sizes(*SHAPE, *TILE)), gemm(constraints=(SplitConstraint(M, 2),)))


@pytest.mark.parametrize("parts", [0, -1])
def test_no_parts(parts):
    with pytest.raises(ConstraintError, match="a number of parts is at least 1"):
        wave_compile(WaveCompileOptions(subs=sizes(*SHAPE, *TILE)), gemm(constraints=(SplitConstraint(K, parts),)))


def test_cut_twice():
    with pytest.raises(ConstraintError, match="K is split into parts twice"):
        twice = (SplitConstraint(K, 2), SplitConstraint(K, 3))
        wave_compile(WaveCompileOptions(subs=sizes(*SHAPE, *TILE)), gemm(constraints=twice))


def test_parts_that_stay_open():
    with pytest.raises(ConstraintError, match="P is a number of parts, and fixed when a kernel is compiled"):
        options = WaveCompileOptions(subs=sizes(*SHAPE, *TILE), dynamic_symbols=[P])
        wave_compile(options, in_parts())


def test_a_loop_that_uses_its_sums():
    @wave(
        [
            WorkgroupConstraint(M, BLOCK_M, 0),
            WorkgroupConstraint(N, BLOCK_N, 1),
            TilingConstraint(K, BLOCK_K),
            SplitConstraint(K, 2),
        ]
    )
    def halved(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            return mma(read(a), read(b), sum * 0.5)

        write(total, c)

    with pytest.raises(
        TraceError, match="total does more than add products up, and only sums can be split into 2 parts"
    ):
        wave_compile(WaveCompileOptions(subs=sizes(*SHAPE, *TILE)), halved)
