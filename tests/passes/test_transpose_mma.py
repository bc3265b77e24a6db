"""Few rows: the weights become the rows of the matrix unit, and a deep software pipeline keeps memory busy."""

import numpy as np
import pytest
from hopper_kernels import biased, check_biased
from kernels import G, K, M, N, check_product, gemm, poisoned, sizes
from lane_runs import ORDERS, check_lanes, operands

from tilewave import *
from tilewave.interp.tiles import interpret
from tilewave.ir.ops import Loop, MakeMbarriers, Mma, Permute, WgmmaShared
from tilewave.ir.rewrite import walk
from tilewave.machine.chips import SM_90A
from tilewave.passes.tile.transpose_mma import TransposeMma

TURN = TransposeMma(SM_90A)
ROWS = (1, 8, 16, 32, 64, 128)


def hopper(shape, tile, kernel=None, **options):
    return wave_compile(WaveCompileOptions(subs=sizes(*shape, *tile), target="sm_90a", **options), kernel or gemm())


def tiles_of(shape, tile, kernel=None):
    return wave_compile(WaveCompileOptions(subs=sizes(*shape, *tile), target="numpy"), kernel or gemm()).kernel


def products(kernel):
    return [op.shape for op in walk(kernel.body) if isinstance(op, WgmmaShared)]


def stages(kernel):
    (count,) = {op.result.type.shape[0] for op in walk(kernel.body) if isinstance(op, MakeMbarriers)}
    return count


@pytest.mark.parametrize("rows", ROWS)
def test_weights_are_the_rows_of_the_unit_and_one_wave_brings_them_far_ahead(rows):
    columns = max(8, rows)
    made = hopper((rows, 256, 512), (columns, 64, 64))
    lanes = made.build.lanes
    narrow = (64, columns, 64) if rows <= 64 else (64, 64, 64)
    assert products(lanes) == [narrow]
    assert lanes.waves == ((8, 1) if rows <= 64 else (12, 1))
    stage_bytes = (columns + 64) * 64 * 2
    assert stages(lanes) == max(4, (96 << 10) // stage_bytes, (48 << 10) // (64 * 64 * 2))
    assert "wgmma.mma_async.sync.aligned.m64n" + str(narrow[1]) + "k16" in made.asm
    check_lanes(made, (rows, 256, 512), ("random",))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((128, 1024, 1024), 6),  # split-K: the parts of one tile have other steps, and the same rows
        ((128, 64 * 140, 128), 6),  # several tiles for each workgroup
        ((256, 1024, 1024), 4),  # two rows of tiles: each workgroup has different activations
    ],
    ids=str,
)
def test_activations_that_all_share_do_not_count_as_weights_on_their_way(shape, expected):
    assert stages(hopper(shape, (128, 64, 64)).build.lanes) == expected


def test_as_many_stages_as_are_asked_for():
    assert stages(hopper((16, 128, 512), (16, 64, 64), num_stages=3).build.lanes) == 3


@pytest.mark.parametrize("dtype", [bf16, f8e4m3fn, i8], ids=str)
def test_every_dtype(dtype):
    shape, out = (16, 192, 160), i32 if dtype is i8 else f32
    made = hopper(shape, (16, 64, 32), gemm(dtype=dtype, acc=out))
    assert products(made.build.lanes) == [(64, 16, 32)]
    check_lanes(made, shape, ORDERS, dtype, out)


@pytest.mark.parametrize("shape", [(5, 200, 136), (24, 70, 8), (40, 129, 64), (1, 1, 8)], ids=str)
def test_ragged_sizes(shape):
    check_lanes(hopper(shape, (24, 64, 64)), shape)


@pytest.mark.parametrize("a_dims", [(M, K), (K, M)], ids=str)
@pytest.mark.parametrize("b_dims", [(N, K), (K, N)], ids=str)
def test_every_storage_order(a_dims, b_dims):
    shape = (16, 128, 128)
    made = hopper(shape, (16, 64, 64), gemm(a_dims=a_dims, b_dims=b_dims))
    assert products(made.build.lanes) == [(64, 16, 64)]
    assert made.build.lanes.waves == (8, 1)
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    arrays = (x if dims[1] is K else x.T.copy() for x, dims in ((a, a_dims), (b, b_dims)))
    made.interpret(*arrays, c, level="lane", order="random")
    check_product(c, a, b)


def test_an_epilogue_is_computed_on_what_lanes_hold():
    made = hopper((16, 136, 96), (16, 64, 32), biased)
    assert products(made.build.lanes) == [(64, 16, 32)]
    check_biased(made, (16, 136, 96))


def test_open_sizes_are_turned_too():
    subs = {s: v for s, v in sizes(0, 0, 0, 16, 64, 64).items() if v}
    made = wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), gemm())
    assert products(made.build.lanes) == [(64, 16, 64)]
    for shape in [(16, 128, 128), (3, 200, 72), (33, 64, 8)]:
        check_lanes(made, shape, ("random",))


@pytest.mark.parametrize("tile", [(64, 64, 32), (128, 64, 32), (64, 16, 32), (128, 256, 64), (16, 16, 32)], ids=str)
def test_products_that_would_not_be_less_work_stay(tile):
    kernel = tiles_of((256, 256, 128), tile)
    assert TURN(kernel).body == kernel.body


def test_a_loop_that_looks_at_its_sums_stays():
    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
    def capped(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            return minimum(mma(read(a), read(b), sum), 5.0)

        write(total, c)

    kernel = wave_compile(WaveCompileOptions(subs={M: 16, N: 64, K: 64}, target="numpy"), capped).kernel
    assert TURN(kernel).body == kernel.body


@pytest.mark.parametrize("with_product", [False, True])
def test_what_a_loop_only_hands_on_stays_as_it_is(with_product):
    """A loop-carried value that the loop does not change may have one axis, so that it cannot be transposed."""

    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
    def handed_on(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32], d: Memory[M, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0), Register[M, f32](2.0)])
        def both(sum, row):
            return mma(read(a), read(b), sum) if with_product else sum, row

        write(both[0], c)
        write(both[1], d)

    made = wave_compile(WaveCompileOptions(subs={M: 16, N: 64, K: 64}, target="sm_90a"), handed_on)
    a, b = operands((16, 64, 64))
    c, d = poisoned((16, 64), f32), poisoned((16,), f32)
    made.interpret(a, b, c, d, level="lane")
    check_product(c, a if with_product else 0 * a, b)
    np.testing.assert_array_equal(d, 2)


def test_zeros_stay_a_constant_and_the_sums_are_transposed_behind_the_loop():
    kernel = TURN(tiles_of((16, 64, 64), (16, 64, 32)))
    (loop,) = (op for op in kernel.body.ops if isinstance(op, Loop))
    assert loop.results[0].type.shape == (64, 16)
    (product,) = (op for op in walk(kernel.body) if isinstance(op, Mma))
    assert (product.a.type.shape, product.b.type.shape) == ((64, 32), (16, 32))
    assert [op.x for op in walk(kernel.body) if isinstance(op, Permute)] == [loop.results[0]]
    a, b = operands((16, 64, 64))
    c = poisoned((16, 64), f32)
    interpret(kernel, [a, b, c], {})
    check_product(c, a, b)


def test_two_groups_of_weights():
    made = hopper((16, 256, 128), (16, 128, 64))
    assert products(made.build.lanes) == [(64, 16, 64)]
    assert made.build.lanes.waves == (12, 1)
    check_lanes(made, (16, 256, 128))


def test_lanes_that_load_by_themselves_turn_it_too():
    shape = (16, 136, 70)
    made = hopper(shape, (16, 64, 32))
    kernel = made.build.lanes  # rows of 140 bytes are unaligned for TMA
    assert "use_tma" in str(made.why())
    assert products(kernel) == [(64, 16, 32)] * 2, "in the loop, and of the step behind it, which is loaded ahead"
    check_lanes(made, shape)


def test_a_tile_wider_than_the_unit_is_computed_the_other_way_round():
    made = hopper((16, 512, 64), (16, 512, 32))
    assert products(made.build.lanes) == [(256, 16, 32)]
    check_lanes(made, (16, 512, 64), ("random",))
