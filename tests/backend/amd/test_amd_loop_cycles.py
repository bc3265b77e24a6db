"""The share of matrix cycles in compiled K loops, by the cycle model, at latencies of global loads up to 1,500."""

import pytest
from kernels import gemm, sizes, with_waves

from tilewave import *
from tilewave.cycles.loop import loop_model
from tilewave.emulator.assembly import read_assembly

LOOPS = [
    ("gfx942", (128, 256, 64), (2, 4), 1, 0.95, 0.95),
    ("gfx942", (128, 256, 64), (2, 2), 1, 0.97, 0.83),
    ("gfx942", (256, 256, 64), (2, 4), 1, 0.98, 0.88),
    ("gfx942", (128, 128, 64), (2, 2), 2, 0.94, 0.94),
    ("gfx950", (128, 256, 64), (2, 4), 1, 0.97, 0.81),
    ("gfx950", (128, 256, 64), (2, 2), 1, 0.97, 0.83),
    ("gfx950", (256, 256, 64), (2, 4), 1, 0.99, 0.99),
    ("gfx950", (256, 256, 64), (2, 2), 1, 0.91, 0.9),
    ("gfx950", (128, 128, 64), (2, 2), 1, 0.91, 0.72),
]
"""Chip, tile, waves, workgroups on a CU, and the least share at 1,000 and at 1,500 cycles."""


@pytest.mark.parametrize(("chip", "tile", "waves", "workgroups", "at_1000", "at_1500"), LOOPS, ids=str)
def test_matrix_units_are_busy_while_loads_are_in_flight(chip, tile, waves, workgroups, at_1000, at_1500):
    options = WaveCompileOptions(subs=sizes(2048, 2048, 2048, *tile), target=chip, schedule=SchedulingType.PREFETCH)
    compiled = wave_compile(options, with_waves(gemm(), waves))
    model = loop_model(read_assembly(compiled.asm))
    found = [model.cycles(latency, workgroups).utilization for latency in (1000, 1500)]
    assert found[0] >= at_1000 and found[1] >= at_1500
    assert compiled.resources.spills == 0
