"""Tiles smaller than a workgroup's lanes: each load is one instruction, however its lanes are masked."""

import pytest
from kernels import gemm, sizes, with_waves
from machine_code import check_gemm, lanes_of

from tilewave import *

CASES = [((2, 2), (32, 32, 16)), ((1, 2), (16, 32, 16)), ((4, 2), (64, 32, 16))]


@pytest.mark.parametrize("schedule", [SchedulingType.NONE, SchedulingType.PREFETCH], ids=lambda s: s.name)
@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])
@pytest.mark.parametrize(("waves", "tile"), CASES, ids=str)
def test_no_loop_over_lanes_stands_around_a_masked_load(waves, tile, chip, schedule):
    """LLVM writes one around a window that it takes to differ from lane to lane: the first lane's is read, and used."""
    shape = (45, 50, 40)
    lanes = lanes_of(with_waves(gemm(f16, f32), waves), sizes(*shape, *tile), chip, schedule)
    assert "less(%" in str(lanes), "no lane is masked"
    code = check_gemm(lanes, shape, chip)
    assert code.asm.count("v_readfirstlane") == 1, "the wave's number, and nothing else"
