"""Tiles that are no whole number of a matrix instruction's blocks, on every GPU, against float64.

Arrays are larger than a tile and ragged, so that each tile has neighbours whose elements are not its own, and outputs
are poisoned. Lanes run in random order; AMD's machine code is emulated, and NVIDIA's written.
"""

import numpy as np
import pytest
from kernels import *
from sampled import some_of

from tilewave.ir.ops import Load, Mma, Store
from tilewave.ir.rewrite import walk
from tilewave.transform.padded_products import padded_products

pytestmark = pytest.mark.share(8)
CHIPS = ("gfx942", "gfx950", "sm_90a")
TILES = ((8, 8, 8), (8, 128, 32), (40, 48, 24), (1, 64, 64), (16, 16, 8), (16, 80, 16), (5, 7, 3))
PREFETCH = SchedulingType.PREFETCH
EIGHT_BIT = {"gfx942": f8e4m3fnuz, "gfx950": f8e4m3fn, "sm_90a": f8e4m3fn}


def shape_for(tile):
    """Two tiles and a part of one each way; three steps, the last of them ragged where a step has more than one."""
    m, n, k = tile
    return 2 * m + (m + 1) // 2, n + (n + 1) // 2, 3 * k - k // 2


def runs(made, arrays, out):
    """The results of lanes, and of machine code where it can be emulated."""
    for order in some_of(("in turn", "random")):
        c = poisoned(*out)
        made.interpret(*arrays, c, level="lane", order=order, seed=3)
        yield c
    if made.target == "sm_90a":
        assert made.asm
        return
    c = poisoned(*out)
    made.emulate(*arrays, c)
    yield c


def check(made, shape, dtype=f16, acc=f32, b_turned=False):
    m, n, k = shape
    rng = np.random.default_rng(5)
    a, b = random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype)
    given = a, np.ascontiguousarray(b.T) if b_turned else b
    for c in runs(made, given, ((m, n), acc)):
        check_product(c, a, b, acc)


@pytest.mark.share(16)
@pytest.mark.parametrize("schedule", [SchedulingType.NONE, PREFETCH])
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("chip", CHIPS)
def test_a_product_of_odd_tiles(chip, tile, schedule):
    shape = shape_for(tile)
    check(compiled(gemm(), target=chip, subs=sizes(*shape, *tile), schedule=schedule), shape)


@pytest.mark.share(16)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("dtype", [f16, bf16, f32, "f8", i8], ids=str)
def test_every_dtype_that_the_chip_multiplies(chip, dtype):
    if dtype == f32 and chip == "sm_90a":
        pytest.skip("sm_90a multiplies no f32")
    dtype = EIGHT_BIT[chip] if dtype == "f8" else dtype
    acc = i32 if dtype == i8 else f32
    tile, shape = (24, 40, 24), (37, 61, 53)
    check(compiled(gemm(dtype, acc), target=chip, subs=sizes(*shape, *tile)), shape, dtype, acc)


@pytest.mark.parametrize("chip", CHIPS)
def test_depth_in_front_of_columns(chip):
    tile, shape = (8, 24, 8), (19, 50, 21)
    made = compiled(gemm(b_dims=(K, N)), target=chip, subs=sizes(*shape, *tile), schedule=PREFETCH)
    check(made, shape, b_turned=True)


@pytest.mark.parametrize("chip", CHIPS)
def test_sizes_that_stay_open(chip):
    made = compiled(gemm(), target=chip, subs={BLOCK_M: 8, BLOCK_N: 24, BLOCK_K: 8}, schedule=PREFETCH)
    for shape in ((19, 50, 21), (8, 24, 8), (1, 1, 1), (8, 24, 0)):
        check(made, shape)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("waves", [(2, 1), (1, 2), (2, 2), (4, 1)], ids=str)
def test_waves_whose_parts_are_odd(chip, waves):
    tile, shape = (40, 48, 24), (93, 61, 53)
    check(compiled(with_waves(gemm(), waves), target=chip, subs=sizes(*shape, *tile)), shape)


@pytest.mark.parametrize("chip", CHIPS)
def test_workgroups_that_walk_several_tiles(chip):
    tile, shape = (8, 8, 8), (61, 37, 21)
    check(compiled(gemm(constraints=(GridConstraint(3),)), target=chip, subs=sizes(*shape, *tile)), shape)


@pytest.mark.parametrize("chip", CHIPS)
def test_what_is_computed_beyond_the_depth_does_not_count(chip):
    """exp2 of the zeros there is 1."""

    @wave(tiling())
    def powers(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            return mma(exp2(read(a)), exp2(read(b)), sum)

        write(total, c)

    rng = np.random.default_rng(5)
    a, b = rng.integers(-2, 3, (19, 24)).astype(np.float16), rng.integers(-2, 3, (21, 24)).astype(np.float16)
    for c in runs(compiled(powers, target=chip, subs=sizes(19, 21, 24, 8, 8, 8)), (a, b), ((19, 21), f32)):
        assert np.array_equal(c, np.exp2(a.astype(float)) @ np.exp2(b.astype(float)).T)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_bias_and_what_was_there_before(chip):
    @wave(tiling())
    def added(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], bias: Memory[N, G, f32], c: Memory[M, N, G, f32]):
        before = read(c)

        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(maximum(total + read(bias), 0.0) + before, c)

    rng = np.random.default_rng(5)
    a, b, bias, before = (
        rng.integers(-4, 5, s).astype(t)
        for s, t in (((19, 21), np.float16), ((21, 21), np.float16), (21, np.float32), ((19, 21), np.float32))
    )
    wanted = np.maximum(a.astype(float) @ b.astype(float).T + bias, 0) + before
    made = compiled(added, target=chip, subs=sizes(19, 21, 21, 8, 8, 8))
    for run in ("lane", "machine"):
        c = before.copy()
        if run == "lane":
            made.interpret(a, b, bias, c, level="lane", order="random", seed=3)
        elif chip == "sm_90a":
            assert made.asm
            continue
        else:
            made.emulate(a, b, bias, c)
        assert np.array_equal(c, wanted)


@pytest.mark.parametrize("chip", CHIPS)
def test_elements_that_a_formula_places(chip):
    """Rows are read and written from the last to the first."""
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    backwards = IndexMapping(2, inputs={M: M - 1 - i, K: j}, outputs={M: i, K: j})
    back = IndexMapping(2, inputs={M: i, N: j}, outputs={M: M - 1 - i, N: j})

    @wave(tiling())
    def turned(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            return mma(read(a, mapping=backwards), read(b), sum)

        write(total, c, mapping=back)

    shape = (24, 21, 21)
    check(compiled(turned, target=chip, subs=sizes(*shape, 8, 8, 8)), shape)


@pytest.mark.parametrize("chip", CHIPS)
def test_batches(chip):
    @wave([WorkgroupConstraint(B, 1, 2), *tiling()])
    def batched(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[B, M, N, G, f32]):
        @iterate(K, init_args=[Register[B, M, N, f32](0.0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total, c)

    rng = np.random.default_rng(5)
    a, b = rng.integers(-4, 5, (3, 19, 21)).astype(np.float16), rng.integers(-4, 5, (3, 13, 21)).astype(np.float16)
    made = compiled(batched, target=chip, subs={**sizes(19, 13, 21, 8, 8, 8), B: 3})
    for c in runs(made, (a, b), ((3, 19, 13), f32)):
        assert np.array_equal(c, a.astype(float) @ b.astype(float).swapaxes(1, 2))


@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])
def test_arrays_of_any_strides(chip):
    rng = np.random.default_rng(5)
    a, b = rng.integers(-4, 5, (13, 19)).astype(np.float16).T, rng.integers(-4, 5, (21, 26)).astype(np.float16)[:, ::2]
    c = poisoned((21, 19), f32).T
    compiled(gemm(), target=chip, subs=sizes(19, 21, 13, 8, 8, 8)).emulate(a, b, c)
    assert np.array_equal(c, a.astype(float) @ b.astype(float).T)


def grown(made):
    return next(op for op in walk(made.ir("select_mma").body) if isinstance(op, Mma))


def test_the_instruction_for_which_a_tile_grows_least():
    assert grown(compiled(gemm(), target="gfx950", subs=sizes(64, 64, 64, 8, 8, 8))).instruction == "f32_16x16x16_f16"
    assert grown(compiled(gemm(), target="gfx950", subs=sizes(64, 64, 64, 8, 8, 24))).instruction == "f32_16x16x32_f16"


def test_a_tile_that_fits_is_left_alone():
    kernel = compiled(gemm(), target="gfx942", subs=sizes(64, 64, 64, 64, 64, 32)).ir("select_mma")
    assert padded_products(kernel) is kernel


def test_lanes_ask_only_along_axes_that_grew():
    """With 16x16x8 only K is padded: rows of c are stored without predicates."""
    made = compiled(gemm(), target="gfx942", subs=sizes(64, 64, 64, 16, 16, 8))
    moved = [op for op in walk(made.ir("distribute_lanes").body) if isinstance(op, (Load, Store)) and op.own]
    assert {op.memory.name for op in moved} == {"a", "b"}


def test_code_for_nvidia_asks_before_it_looks():
    """Lanes ask for what grew, and for nothing else: more conditions for rows, columns and depth, each by itself."""

    def conditions(*tile):
        return compiled(gemm(), target="sm_90a", subs=sizes(*tile, *tile)).build.plain.asm.count("setp")

    whole = conditions(64, 16, 16)
    assert all(conditions(*tile) > whole for tile in ((60, 16, 16), (64, 12, 16), (64, 16, 12)))
