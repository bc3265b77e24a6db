"""Loops of few steps on both chips, for every layout of arrays: one, two, three … steps, pipelined or not."""

from functools import cache

import numpy as np
import pytest
from kernels import K, M, N, check_product, gemm, poisoned, random_array, sizes, with_waves
from sampled import some_of

from tilewave import *

DEPTH = 32
LAYOUTS = {
    "rows": np.ascontiguousarray,
    "columns": np.asfortranarray,
    "padded": lambda x: np.pad(x, ((0, 0), (0, 3)))[:, :-3],
    "every second": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1])[::-1],
}
PAIRS = [(a, b) for a in LAYOUTS for b in LAYOUTS if "rows" in (a, b) or a == b]
DTYPES = [(f32, f32), (f16, f32), (bf16, f32), (i8, i32), (f8e4m3fn, f32)]
SCHEDULES = [SchedulingType.NONE, SchedulingType.PREFETCH]


@cache
def compiled(chip, steps, schedule, dtype, acc, num_stages=1):
    dtype = f8e4m3fnuz if dtype is f8e4m3fn and chip == "gfx942" else dtype
    options = WaveCompileOptions(
        subs=sizes(64, 64, steps * DEPTH, 64, 64, DEPTH), target=chip, schedule=schedule, num_stages=num_stages
    )
    return wave_compile(options, with_waves(gemm(dtype, acc, (M, K), (N, K)), (2, 2))), dtype


def check(chip, steps, schedule, dtypes, layouts, num_stages=1):
    """Without a finding, in the emulator's own order or in others."""
    found, dtype = compiled(chip, steps, schedule, *dtypes, num_stages)
    rng = np.random.default_rng(steps)
    a, b = (LAYOUTS[layout](random_array(rng, (64, steps * DEPTH), dtype)) for layout in layouts)
    for order, seed in some_of((("barrier", 0), ("random", 1), ("random", 2))):
        c = poisoned((64, 64), dtypes[1])
        assert not found.emulate(a, b, c, order=order, seed=seed).findings
        check_product(c, a, b, dtypes[1])


@pytest.mark.share(10)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("layouts", [("columns", "rows"), ("rows", "padded")], ids=str)
def test_few_steps_of_arrays_that_lie_otherwise(layouts, steps, chip, schedule):
    check(chip, steps, schedule, (f32, f32), layouts)


@pytest.mark.parametrize("dtypes", DTYPES[1:], ids=lambda d: str(d[0]))
def test_two_steps_of_other_dtypes_of_which_one_operand_is_stored_by_lanes(dtypes):
    check("gfx950", 2, SchedulingType.PREFETCH, dtypes, ("columns", "rows"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "num_stages"),
    [(SchedulingType.NONE, 1), *((SchedulingType.PREFETCH, n) for n in (1, 2, 3))],
    ids=lambda x: getattr(x, "name", str(x)),
)
@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtypes", DTYPES, ids=lambda d: str(d[0]))
@pytest.mark.parametrize("layouts", PAIRS, ids=str)
def test_any_number_of_steps_of_arrays_that_lie_with_any_strides(layouts, dtypes, steps, chip, schedule, num_stages):
    check(chip, steps, schedule, dtypes, layouts, num_stages)
