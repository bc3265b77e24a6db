"""Products of unaligned arrays: what the model says of who loads the operands is what calls do."""

import random
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from tilewave import *
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.kernels.products import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N
from tilewave.lang.constraints import SplitConstraint
from tilewave.runtime.arrays import view
from tilewave.runtime.native.choice import NativeChoice
from tilewave.tune.default import TunableKernel
from tilewave.tune.space import SPLIT

TILE = {BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 64}
LANES, PACKED = (16, 4097, 323), (300, 4097, 4099)


@cache
def kernel(layout="NT"):
    axes = (K, M) if layout[0] == "T" else (M, K), (N, K) if layout[1] == "T" else (K, N)
    return product_kernel(ProductForm(f16, f16, *axes))


@cache
def tunable(layout="NT"):
    return TunableKernel.of(kernel(layout), {}, (), {}, "sm_90a")


@cache
def compiled(layout, split=1):
    found = kernel(layout)
    if split > 1:
        found = replace(found, constraints=(*found.constraints, SplitConstraint(K, split)), kept={})
    return wave_compile(WaveCompileOptions(subs=TILE, target="sm_90a"), found)


def cut(shape, layout="NT", split=1):
    sizes = dict(zip((M, N, K), shape, strict=True))
    return tunable(layout).problem.sized(sizes).cut(TILE | {SPLIT: split})


def seconds(shape, split=1):
    return tunable().machine.predict(cut(shape, split=split)).seconds


@pytest.mark.parametrize(("layout", "split"), [("NT", 1), ("NN", 1), ("TT", 1), ("TN", 1), ("NT", 8)])
def test_calls_load_operands_as_the_model_says(layout, split):
    draw, machine, program = random.Random(layout), tunable(layout).machine, compiled(layout, split).build.program
    found = set()
    for _ in range(60):
        m, n, k = (draw.randrange(1, 400) << draw.randrange(4) for _ in range(3))
        shapes = (k, m) if layout[0] == "T" else (m, k), (n, k) if layout[1] == "T" else (k, n), (m, n)
        plan = program.plans.plan_for([view(np.empty(shape, np.float16)) for shape in shapes])
        work = cut((m, n, k), layout, split)
        assert bool(machine.loads_in_place(work)) == plan.key.is_by_lanes, (m, n, k)
        found.add((plan.key.is_by_lanes, bool(plan.packed_copies)))
    assert found == {(True, False), (False, True), (False, False)}


def test_workgroups_that_share_the_depth_load_where_one_would_pack():
    """A quarter of the steps is a quarter of the waits."""
    few = 16, 1000, 4099
    machine = tunable().machine
    assert not machine.loads_in_place(cut(few)) and machine.loads_in_place(cut(few, split=8))


def test_lanes_store_unaligned_results_of_short_products_as_long_as_they_take():
    """On an H200, 16258x7833x25 takes 230 µs in tiles of 128x64, and a tile of 64x64 half of one of 64x128."""
    sized = tunable("TT").problem.sized(dict(zip((M, N, K), (16258, 7833, 25), strict=True)))
    times = [
        tunable("TT").machine.predict(sized.cut({BLOCK_M: m, BLOCK_N: n, BLOCK_K: 64})).seconds
        for m, n in ((128, 64), (64, 128), (64, 64), (48, 64))
    ]
    assert times[0] == pytest.approx(230e-6, rel=0.35) and times[1] == pytest.approx(times[0], rel=0.1)
    assert times[2] < 1.3 * times[1] < times[3]


def test_packing_is_paid_for_where_calls_pack():
    machine = tunable().machine
    by_lanes, packed = (machine._parts(cut(shape))["packing"] for shape in (LANES, PACKED))
    assert not by_lanes and packed > machine.parameters.copy


def test_packed_copies_begin_on_cache_lines():
    """Rows of 4104 elements are loaded as they are; packed copies of rows of 4103 have no such slow loads."""
    machine = tunable().machine
    loads = [machine._step(cut((4096, 4096, k))).loads for k in (4096, 4103, 4104)]
    assert loads[0] == loads[1] < loads[2]


def test_lanes_wait_for_each_step():
    """Parts of a sum, which have fewer steps, are then a choice for longer."""
    machine = tunable().machine
    ahead, alone = (machine._step(cut((16, 4096, k))) for k in (320, 323))
    assert alone.loads > 1.9 * ahead.loads and alone.alone > machine.parameters.latency
    gains = [seconds((16, 4096, k)) / seconds((16, 4096, k), split=4) for k in (4096, 4099)]
    assert gains[1] > gains[0]


def test_machine_code_computes_the_same():
    machine, problem = tunable().machine, tunable().problem

    def time(split, sizes):
        return machine.picoseconds(problem.sized(dict(zip((M, N, K), sizes, strict=True))).cut(TILE | {SPLIT: split}))

    choice = NativeChoice.of(3, {str(split): partial(time, split) for split in (1, 4)})
    for shape in (LANES, PACKED, (16, 4096, 4096), (333, 333, 333), (4097, 4097, 4097)):
        times = [machine.picoseconds(cut(shape, split=s)) for s in (1, 4)]
        assert choice(shape) == ("1", "4")[times.index(min(times))]
