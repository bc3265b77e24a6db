"""Lanes of kernels whose sizes stay open, on a machine whose groups of waves multiply what lies in shared memory."""

import pytest
from kernels import gemm
from open_kernels import blocks, check_call

from tilewave import *
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.launch import bind
from tilewave.ir.places import Places
from tilewave.machine.chips import CHIPS
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

SHAPES = ((65, 63, 33), (64, 64, 64), (1, 1, 1), (70, 130, 100), (5, 5, 0))


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_groups_of_waves_multiply_for_every_size(ahead):
    tiles = wave_compile(WaveCompileOptions(subs=blocks(64, 64, 32), target="numpy"), gemm()).kernel
    pipelining = lists.prefetch(ahead) if ahead else ()
    lanes, _ = run(tiles, lists.hopper_plain(CHIPS["sm_90a"], Places(), pipelining))

    def call(*arrays):
        interpret_lanes(bind(lanes, values), arrays, values, "random", 1)

    for shape in SHAPES:
        values = dict(zip("MNK", shape, strict=True))
        check_call(call, shape)
