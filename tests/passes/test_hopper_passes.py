"""Kernels for Hopper as their lanes run them: groups of waves that multiply from shared memory, on any machine."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hopper_kernels import biased, both, check_biased, check_both
from kernels import (
    BLOCK_B,
    BLOCK_K,
    BLOCK_M,
    BLOCK_N,
    B,
    G,
    K,
    M,
    N,
    check_product,
    gemm,
    poisoned,
    random_array,
    sizes,
    tiling,
)
from lane_runs import ORDERS, RAGGED, SCHEDULES, TILES, check_every_barrier_is_needed, check_lanes, meetings, operands
from sampled import some_of
from seeds import SEEDS

from tilewave import *
from tilewave.backend.nvidia.build import build_plain
from tilewave.errors import ConstraintError, InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import Read, Store, WgmmaShared
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.types import Panels
from tilewave.layouts.fragments import WARPGROUP
from tilewave.machine.chips import SM_90A
from tilewave.pipeline.lists import prefetch

TARGET = "sm_90a"
EIGHT_BITS = [(a, b) for a in (f8e4m3fn, f8e5m2) for b in (f8e4m3fn, f8e5m2)]


def compiled(kernel, subs, **options):
    """A kernel whose lanes load its tiles."""
    made = wave_compile(WaveCompileOptions(subs=subs, target=TARGET, **options), kernel)
    pipelining = prefetch(options["num_stages"], SM_90A) if options.get("schedule") is SchedulingType.PREFETCH else ()
    return replace(made, build=build_plain(made.kernel, SM_90A, Places(), pipelining))


@cache
def compiled_seed(seed, tile, schedule, shape, num_stages=1, **more):
    subs = seed.subs(*shape, block_m=tile[0], block_n=tile[1], block_k=tile[2], **more)
    return compiled(seed.kernel, subs, schedule=schedule, num_stages=num_stages)


def compiled_gemm(shape, tile, **options):
    return compiled(gemm(**options), sizes(*shape, *tile))


@pytest.mark.share(6)
@pytest.mark.parametrize("seed", SEEDS, ids=repr)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_small_tiles_of_the_documents_run_lane_by_lane(seed, schedule):
    shape = (129, 130, 65)
    check_lanes(compiled_seed(seed, (64, 64, 32), schedule, shape), shape, ["random"])


@pytest.mark.parametrize("order", ORDERS)
def test_the_large_tile_of_the_documents_runs_lane_by_lane(order):
    shape = (256, 256, 128)
    check_lanes(compiled_seed(SEEDS[1], (128, 256, 64), SCHEDULES[1], shape, 2), shape, [order])


@pytest.mark.parametrize("seed", SEEDS, ids=repr)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
@pytest.mark.parametrize("shape", [(256, 512, 256), *RAGGED], ids=str)
@pytest.mark.slow
def test_every_kernel_of_the_documents_runs_lane_by_lane(seed, tile, schedule, shape):
    check_lanes(compiled_seed(seed, tile, schedule, shape), shape)


# -- the matrix unit


@pytest.mark.share(6)
@pytest.mark.parametrize(
    ("left", "right", "acc"),
    [(f16, f16, f32), (bf16, bf16, f32), (i8, i8, i32), *((a, b, f32) for a, b in EIGHT_BITS)],
    ids=str,
)
def test_every_matrix_instruction(left, right, acc):
    @wave([WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1), TilingConstraint(K, BLOCK_K)])
    def product(a: Memory[M, K, G, left], b: Memory[N, K, G, right], c: Memory[M, N, G, acc]):
        @iterate(K, init_args=[Register[M, N, acc](0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total, c)

    m, n, k = 70, 65, 129
    made = compiled(product, sizes(m, n, k, 64, 80, 64))
    rng = np.random.default_rng(1)
    a, b = random_array(rng, (m, k), left), random_array(rng, (n, k), right)
    for order in some_of(ORDERS):
        c = poisoned((m, n), acc)
        made.interpret(a, b, c, level="lane", order=order)
        check_product(c, a, b, acc)


@pytest.mark.parametrize(("rows", "cols", "waves"), [(64, 8, (4, 1)), (128, 24, (8, 1)), (256, 16, (8, 1))])
def test_sums_lie_where_the_layout_says(rows, cols, waves):
    layout = WARPGROUP.sums((rows, cols), waves)
    where = layout.positions(waves[0], 32).reshape(-1, 2)
    assert len({tuple(at) for at in where}) == len(where) == rows * cols
    row, col = 64 * 1 + 16 * 2 + 8 + 5, 8 * 2 + 2 * 3 + 1  # block 1, wave 2, h 1, lane 5 · 4 + 3, j 2, e 1
    if rows == 128 and cols == 24:  # two groups of one block each
        assert tuple(layout.positions(8, 32)[(4 + 2) * 32 + 5 * 4 + 3, 0, 2, 1, 1]) == (row, col)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_sums_become_a_matrix_and_sums_again(batch):
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((*batch, 32, 24))  # the 16 rows that one wave has of each 64
    fragment = WARPGROUP
    held = fragment.to_sums(matrix)
    np.testing.assert_array_equal(fragment.from_sums(held), matrix)
    layout = fragment.sums((*batch, 128, 24), (4, 1))
    where = layout.positions(1, 32)
    rows = where[..., -2] // 64 * 16 + where[..., -2] % 64
    at = (*(where[..., i] for i in range(len(batch))), rows, where[..., -1])
    np.testing.assert_array_equal(matrix[at], held)


def test_rows_lie_as_the_matrix_unit_reads_them():
    placed = {16: "xor(8, 2, 4)", 32: "xor(8, 4, 2)", 64: "xor(8, 8, 1)"}
    for depth, placement in placed.items():
        made = compiled_gemm((64, 64, 2 * depth), (64, 64, depth))
        (product,) = (op for op in walk(made.ir().body) if isinstance(op, WgmmaShared))
        assert {str(memory.type.placement) for memory in (product.a, product.b)} == {placement}


def test_no_lane_holds_an_operand():
    made = compiled_gemm((128, 256, 128), (128, 256, 64))
    (product,) = (op for op in walk(made.ir().body) if isinstance(op, WgmmaShared))
    assert (product.shape, product.instruction) == ((64, 256, 64), "f32_64xNx16_f16")
    assert str(product.result.type) == "vector<1x32x2x2xf32>"
    assert made.resources.waves == (8, 1)
    assert not any(op.spread == "rows" for op in walk(made.ir("predicate_edges").body) if isinstance(op, Read))


@pytest.mark.share(4)
@pytest.mark.parametrize(("depth", "width"), [(64, 0), (128, 64), (192, 64), (96, 32), (48, 16), (112, 16)])
def test_rows_of_deep_steps_go_on_in_the_next_panel(depth, width):
    """The matrix unit reads rows of 128, 64 or 32 bytes."""
    shape = (64, 72, 200)
    made = compiled_gemm(shape, (64, 80, depth))
    (product,) = (op for op in walk(made.ir().body) if isinstance(op, WgmmaShared))
    assert product.shape[2] == depth
    placements = {memory.type.placement for memory in (product.a, product.b)}
    assert {p.width if isinstance(p, Panels) else 0 for p in placements} == {width}
    check_lanes(made, shape)


def test_operands_that_are_computed_are_staged():
    @wave([WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1), TilingConstraint(K, BLOCK_K)])
    def scaled(a: Memory[M, K, G, f16], by: Memory[K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0)])
        def total(sum):
            return mma(read(a) * read(by), read(b), sum)

        write(total, c)

    m, n, k = 70, 65, 140
    made = compiled(scaled, sizes(m, n, k, 64, 64, 128))
    a, b = operands((m, n, k))
    by = random_array(np.random.default_rng(3), (k,), f16)
    c = poisoned((m, n), f32)
    made.interpret(a, by, b, c, level="lane", order="random")
    check_product(c, a * by, b)


@pytest.mark.share(8)
@pytest.mark.parametrize("seed", SEEDS, ids=repr)
@pytest.mark.parametrize(("schedule", "num_stages"), [(SCHEDULES[0], 1), (SCHEDULES[1], 1), (SCHEDULES[1], 2)], ids=str)
def test_every_barrier_is_needed(seed, schedule, num_stages):
    shape = (128, 128, 160)
    more = {"num_ctas": 2} if "persistent" in repr(seed) else {}
    made = compiled_seed(seed, (64, 64, 32), schedule, shape, num_stages, **more)
    check_lanes(made, shape, ["random"])
    check_every_barrier_is_needed(made, shape)


# -- what else kernels do


@pytest.mark.parametrize("a_dims", [(M, K), (K, M)], ids=str)
@pytest.mark.parametrize("b_dims", [(N, K), (K, N)], ids=str)
def test_operands_of_any_orientation(a_dims, b_dims):
    m, n, k = 70, 90, 50
    made = compiled_gemm((m, n, k), (64, 64, 32), a_dims=a_dims, b_dims=b_dims)
    a, b = operands((m, n, k))
    c = poisoned((m, n), f32)
    given = [np.ascontiguousarray(x if dims[1] is K else x.T) for x, dims in ((a, a_dims), (b, b_dims))]
    made.interpret(*given, c, level="lane")
    check_product(c, a, b)


def test_an_epilogue_with_a_bias_and_a_narrow_output():
    shape = (100, 70, 40)
    check_biased(compiled(biased, sizes(*shape)), shape)


def test_a_kernel_without_products():
    @wave([WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1)])
    def scale(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a) * 2.0 + 1.0, c)

    subs = {M: 37, N: 53, BLOCK_M: 10, BLOCK_N: 24}
    made = compiled(scale, subs)
    a = np.random.default_rng(0).standard_normal((37, 53)).astype(np.float32)
    c = poisoned(a.shape, f32)
    made.interpret(a, c, level="lane")
    np.testing.assert_array_equal(c, a * 2 + 1)
    assert any(isinstance(op, Store) for op in walk(made.ir().body))


@pytest.mark.parametrize("at_once", [1, 2])
def test_batches(at_once):
    @wave(
        [
            WorkgroupConstraint(M, BLOCK_M, 0),
            WorkgroupConstraint(N, BLOCK_N, 1),
            WorkgroupConstraint(B, BLOCK_B, 2),
            TilingConstraint(K, BLOCK_K),
        ]
    )
    def batched(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[B, M, N, G, f32]):
        @iterate(K, init_args=[Register[B, M, N, f32](0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total, c)

    rng = np.random.default_rng(4)
    a, b = random_array(rng, (3, 70, 50), f16), random_array(rng, (3, 33, 50), f16)
    c = poisoned((3, 70, 33), f32)
    subs = sizes(70, 33, 50, 64, 32, 32) | {B: 3, BLOCK_B: at_once}
    compiled(batched, subs).interpret(a, b, c, level="lane")
    check_product(c, a, b)


@pytest.mark.parametrize("at_once", [1, 2])
def test_batches_that_do_not_lie_in_front_are_staged_two_steps_deep(at_once):
    """Shared memory then holds several steps, with the batch dim after the stage dim."""
    B = sym.B
    cuts = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), WorkgroupConstraint(B, at_once, 2)]

    @wave([*cuts, TilingConstraint(K, 32)])
    def batched(a: Memory[K, M, B, G, f16], b: Memory[N, B, K, G, f16], c: Memory[B, M, N, G, f32]):
        @iterate(K, init_args=[Register[B, M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    rng = np.random.default_rng(5)
    a, b = rng.integers(-3, 4, (96, 64, 3)).astype(np.float16), rng.integers(-3, 4, (64, 3, 96)).astype(np.float16)
    c = np.full((3, 64, 64), np.nan, np.float32)
    options = {"schedule": SchedulingType.PREFETCH, "num_stages": 2, "target": "sm_90a"}
    made = wave_compile(WaveCompileOptions(subs={B: 3, M: 64, N: 64, K: 96}, **options), batched)
    made.interpret(a, b, c, level="lane", order="random", seed=1)
    assert made.asm
    np.testing.assert_array_equal(c, np.einsum("kmb,nbk->bmn", a.astype(np.float32), b.astype(np.float32)))


def test_a_tile_is_kept_until_the_last_product_that_reads_it():
    check_both(compiled(both, sizes(70, 72, 104)))


def test_sums_are_staged_where_they_are_multiplied_again():
    inner, block_inner = sym.L, sym.BLOCK_L

    @wave([*tiling(), TilingConstraint(inner, block_inner)])
    def chain(
        q: Memory[M, inner, G, f16], k: Memory[K, inner, G, f16], v: Memory[N, K, G, f16], c: Memory[M, N, G, f32]
    ):
        @iterate(K, init_args=[Register[M, N, f32](0)])
        def total(sum):
            @iterate(inner, init_args=[Register[M, K, f32](0)])
            def scores(so_far):
                return mma(read(q), read(k), so_far)

            return mma(cast(scores, f16), read(v), sum)

        write(total, c)

    m, n, k, depth = 70, 72, 96, 50
    made = compiled(chain, sizes(m, n, k, 64, 64, 32) | {inner: depth, block_inner: 32})
    rng = np.random.default_rng(6)
    a, b, d = (random_array(rng, shape, f16) for shape in ((m, depth), (k, depth), (n, k)))
    scores = (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16)
    for order in some_of(ORDERS):
        c = poisoned((m, n), f32)
        made.interpret(a, b, d, c, level="lane", order=order)
        np.testing.assert_allclose(c, scores.astype(float) @ d.astype(float).T, atol=2e-3 * np.abs(scores).max() * k)
    check_every_barrier_is_needed_by(made.build.lanes, [a, b, d, poisoned((m, n), f32)])


def check_every_barrier_is_needed_by(kernel, arrays):
    barriers = meetings(kernel)
    for gone in barriers:
        with pytest.raises(InterpreterError, match="no barrier between"):
            interpret_lanes(rewrite(kernel, lambda op, gone=gone: [] if op is gone else None), arrays, {}, "random")
    assert barriers


# -- what cannot be


def told(shape, tile, **options):
    with pytest.raises(ConstraintError) as found:
        compiled_gemm(shape, tile, **options)
    return found.value.what, found.value.remedy


def test_f32_products_are_refused_where_nobody_asks_for_less():
    what, remedy = told((64, 64, 64), (64, 64, 32), dtype=f32)
    assert what.startswith("no matrix instruction of sm_90a is used for f32 times f32 into f32, which the mma at ")
    assert remedy == (
        "it multiplies f16, bf16, f8e4m3fn, f8e5m2 into f32; i8 into i32; declare the memories so, or cast what is read"
        "; or write mma_type=MMAType.F32_64xNx8_TF32, which ignores the last 13 bits of both"
    )


def test_tiles_that_no_group_computes_are_refused():
    assert told((64, 64, 64), (64, 512, 32)) == (
        "the tile has 512 columns, but f32_64xNx16_f16 computes 256 at most",
        "make the tile of N 256 or less",
    )
    assert told((64, 64, 64), (256, 256, 32)) == (
        "a tile of 256x256 leaves each lane 256 sums to hold, but sm_90a has registers for 192",
        "make the tile of M or that of N smaller",
    )
    assert told((64, 64, 64), (192, 250, 32)) == (
        "a tile of 192x256 leaves each lane 384 sums to hold, but sm_90a has registers for 192",
        "make the tile of M or that of N smaller",
    )
