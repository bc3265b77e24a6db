"""Operands that L2 cannot keep: which neighbours should bring together, of sizes that are known or come so large."""

from dataclasses import replace

import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, gemm, sizes

from tilewave import *
from tilewave.analysis.streaming import NOTHING_STREAMED, streamed
from tilewave.ir.core import ONE_ORDER
from tilewave.ir.ops import CopyAsyncCluster
from tilewave.ir.rewrite import walk
from tilewave.machine.chips import SM_90A


def tiles(tile, shape=None, kernel=None):
    subs = dict(zip((BLOCK_M, BLOCK_N, BLOCK_K), tile, strict=True)) if shape is None else sizes(*shape, *tile)
    return wave_compile(WaveCompileOptions(subs=subs, target="numpy"), kernel or gemm()).kernel


def named(shape):
    return {dim.name: n for dim, n in zip((M, N, K), shape, strict=True)}


CASES = {
    "weights larger than L2": ((128, 8192, 8192), (64, 128, 128), {"b"}),
    "activations larger than L2": ((8192, 128, 8192), (128, 64, 128), {"a"}),
    "more tiles than processors": ((192, 8192, 8192), (64, 128, 128), set()),
    "half of the processors have no tile": ((128, 4096, 14336), (64, 128, 128), set()),
    "products take longer": ((512, 8192, 8192), (128, 256, 64), set()),
    "short steps": ((128, 8192, 8192), (64, 128, 64), set()),
    "L2 keeps them": ((128, 4096, 4096), (64, 64, 256), set()),
}


@pytest.mark.parametrize("case", CASES)
def test_open_sizes_are_judged_by_how_large_they_come(case):
    shape, tile, wanted = CASES[case]
    found = streamed(tiles(tile), SM_90A, named(shape))
    assert found.arrays == wanted and (found.sizes == named(shape)) == bool(wanted)


@pytest.mark.parametrize("case", CASES)
def test_sizes_that_are_known_are_judged_alike_where_sums_have_one_order(case):
    shape, tile, wanted = CASES[case]
    kernel = tiles(tile, shape)
    assert streamed(replace(kernel, sums=ONE_ORDER), SM_90A, {}).arrays == wanted
    filled = "half" in case  # by parts, which nobody hinders here
    assert streamed(kernel, SM_90A, {}).arrays == ({"b"} if filled else wanted)


AHEAD = {
    "short steps of weights larger than L2": ((128, 8192, 8192), (64, 128, 64), 8, {"b"}),
    "of weights that fill half of it": ((256, 4096, 4096), (64, 128, 64), 8, {"b"}),
    "of weights that it keeps": ((256, 4096, 3072), (64, 128, 64), 8, set()),
    "of weights that fill half of it, where memory takes longest": ((64, 4096, 4096), (32, 64, 128), 8, set()),
    "too few of them": ((128, 8192, 8192), (64, 128, 64), 6, set()),
    "products take much longer": ((384, 2048, 16384), (128, 64, 64), 8, set()),
    "products and memory take about as long": ((192, 4096, 11008), (96, 64, 64), 8, set()),
    "steps that are shorter still": ((128, 4096, 14336), (64, 64, 64), 12, set()),
}


@pytest.mark.parametrize("case", AHEAD)
def test_many_steps_ahead_may_be_short(case):
    shape, tile, ahead, wanted = AHEAD[case]
    kernel = tiles(tile, shape)
    assert streamed(kernel, SM_90A, {}, ahead).arrays == wanted
    assert streamed(kernel, SM_90A, {}).arrays == set()


@pytest.mark.parametrize(("shape", "wanted"), [((128, 8192, 8192), {"b"}), ((256, 4096, 4096), set())])
def test_short_steps_across_the_depth_are_shared_where_memory_takes_longest(shape, wanted):
    kernel = tiles((64, 128, 64), shape, gemm(b_dims=(K, N)))
    assert streamed(kernel, SM_90A, {}, 8).arrays == wanted


def test_a_compiled_kernel_goes_by_the_steps_that_it_was_asked_for():
    subs = sizes(256, 4096, 4096, 64, 128, 64)
    made = [wave_compile(WaveCompileOptions(subs=subs, target="sm_90a", buffers=n), gemm()) for n in (6, 8)]
    assert [one.ir().cluster for one in made] == [1, 2]


def test_where_nobody_knows_how_large_sizes_come_nothing_is_said():
    kernel = tiles((64, 128, 128))
    assert streamed(kernel, SM_90A, {}) == streamed(kernel, SM_90A, {"M": 128}) == NOTHING_STREAMED


def test_of_a_chip_of_ones_own_nobody_knows_what_l2_keeps():
    kernel = tiles((64, 128, 128), (128, 8192, 8192))
    assert streamed(kernel, SM_90A, {}).arrays
    assert not streamed(kernel, replace(SM_90A, name="sm_of_mine"), {}).arrays


@pytest.mark.parametrize("known", [{}, {N: 8192, K: 8192}])
@pytest.mark.parametrize("one_order", [True, False])
def test_calls_of_a_bucket_that_streams_take_code_whose_neighbours_share(one_order, known):
    """The same tile serves both buckets; where there is one row of tiles, neighbours have no weights in common."""
    kernel = gemm(out=f16, epilogue=lambda x: cast(x, f16))
    tune = Tune(BLOCK_M=64, BLOCK_N=128, BLOCK_K=128)
    options = WaveCompileOptions(known, target="sm_90a", batch_invariant=one_order, tune=tune)
    one = wave_compile(options, kernel)
    two_rows, one_row = (one.by_size.near({M: m, N: 8192, K: 8192}).build for m in (128, 64))
    shared = [op.memory.name for op in walk(two_rows.lanes.body) if isinstance(op, CopyAsyncCluster)]
    assert {*shared} == {"b"} and two_rows.lanes.cluster == 2 and one_row.lanes.cluster == 1
    assert two_rows.key != one_row.key
