"""Operands that L2 cannot keep, of sizes that are known or come so large."""

from dataclasses import replace

import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, gemm, sizes

from tilewave import *
from tilewave.analysis.l2_residency import NOTHING_STREAMED, streamed
from tilewave.backend.nvidia.code import ALIGNED
from tilewave.ir.launch import numbers_of
from tilewave.ir.ops import WaitPriorLaunch
from tilewave.ir.rewrite import walk
from tilewave.machine.chips import GFX942, SM_90A


def tiles(tile, shape=None, kernel=None):
    subs = dict(zip((BLOCK_M, BLOCK_N, BLOCK_K), tile, strict=True)) if shape is None else sizes(*shape, *tile)
    return wave_compile(WaveCompileOptions(subs=subs, target="numpy"), kernel or gemm()).kernel


def named(shape):
    return {dim.name: n for dim, n in zip((M, N, K), shape, strict=True)}


CASES = {
    "weights": ((128, 8192, 8192), (64, 128, 64), {"b"}),
    "activations": ((8192, 128, 8192), (128, 64, 64), {"a"}),
    "both": ((512, 512, 65536), (128, 128, 64), {"a", "b"}),
    "half of L2 keeps them": ((128, 4096, 3840), (64, 128, 64), set()),
    "half of L2 is too small": ((128, 4096, 3904), (64, 128, 64), {"b"}),
    "a round and some tiles": ((192, 8192, 8192), (64, 128, 64), set()),
}


@pytest.mark.parametrize("case", CASES)
def test_open_sizes_are_judged_by_how_large_they_come(case):
    shape, tile, wanted = CASES[case]
    found = streamed(tiles(tile), SM_90A, named(shape))
    assert found.arrays == wanted and (found.sizes == named(shape)) == bool(wanted)


@pytest.mark.parametrize("case", CASES)
def test_sizes_that_are_known_are_judged_alike(case):
    shape, tile, wanted = CASES[case]
    assert streamed(tiles(tile, shape), SM_90A, {}).arrays == wanted


def test_where_nobody_knows_how_large_sizes_come_nothing_is_said():
    kernel = tiles((64, 128, 128))
    assert streamed(kernel, SM_90A, {}) == streamed(kernel, SM_90A, {"M": 128}) == NOTHING_STREAMED


def test_of_a_chip_of_ones_own_nobody_knows_what_l2_keeps():
    kernel = tiles((64, 128, 128), (128, 8192, 8192))
    assert streamed(kernel, SM_90A, {}).arrays
    assert not streamed(kernel, replace(SM_90A, name="sm_of_mine"), {}).arrays


def test_where_requests_do_not_meet_nobody_minds_who_lies_where():
    assert not streamed(tiles((64, 128, 64), (128, 8192, 8192)), GFX942, {}).arrays


@pytest.mark.parametrize("known", [{}, {N: 8192, K: 8192}])
def test_calls_of_sizes_that_stream_start_when_those_before_have_ended(known):
    """One code serves both numbers of rows; with one row of tiles, neighbours have no weights in common."""
    kernel = gemm(out=f16, epilogue=lambda x: cast(x, f16))
    tune = Tune(BLOCK_M=64, BLOCK_N=128, BLOCK_K=128)
    options = WaveCompileOptions(known, target="sm_90a", batch_invariant=True, tune=tune)
    one = wave_compile(options, kernel)
    two_rows, one_row = (one.by_size.near({M: m, N: 8192, K: 8192}).build for m in (128, 64))
    assert two_rows.key == one_row.key and any(isinstance(op, WaitPriorLaunch) for op in walk(two_rows.lanes.body))
    program = two_rows.program
    formula = program._formula(program.code_for(ALIGNED))
    names = [v.name for v in numbers_of(program.tiles)]
    early = [formula([named((m, 8192, 8192))[name] for name in names]).uses_pdl for m in (128, 64)]
    assert early == [0, True]
