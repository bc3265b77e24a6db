"""Products of a few rows or columns: where the depth is long, many lanes load at once, and no launch packs operands."""

import random
from functools import cache
from itertools import pairwise

import pytest
from test_unaligned_products import kernel

from tilewave.analysis.thin_products import ThinLanes, ThinTile, is_thin
from tilewave.cost.splits import split_work
from tilewave.cost.thin import lanes_of_thin
from tilewave.kernels.products import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N
from tilewave.machine.chips import SM_90A
from tilewave.tune.default import TunableKernel
from tilewave.tune.machines import machine_of
from tilewave.tune.space import SPLIT

LAYOUTS = ("NT", "NN", "TT", "TN")
UNITS = 132
TILES = ((1, 4, 1024), (4, 8, 1024), (4, 8, 512), (1, 64, 256), (4, 1, 4096), (8, 4, 1024), (64, 1, 256))


@cache
def tunable(layout):
    return TunableKernel.of(kernel(layout), {}, (M, N, K), {}, "sm_90a")


def best(shape, layout):
    return tunable(layout).predicted(dict(zip((M, N, K), shape, strict=True)))[0]


def cut(shape, layout, config):
    return tunable(layout).problem.sized(dict(zip((M, N, K), shape, strict=True))).cut(config)


def is_by_lanes(choice):
    return is_thin(choice.config[BLOCK_M], choice.config[BLOCK_N])


def drawn(count, seed, depth, side):
    """Sizes that are no multiples of a grain: one to four rows, or columns, of a product."""
    draw = random.Random(seed)
    for at in range(count):
        few, long, k = draw.randrange(1, 5), draw.randrange(1, side) | 1, draw.randrange(*depth) | 1
        yield ((few, long, k), (long, few, k))[at % 2], LAYOUTS[at // 2 % 4]


@pytest.mark.parametrize(("shape", "layout"), [*drawn(40, 1, (1024, 4096), 64)])
def test_few_rows_of_a_long_depth_are_multiplied_by_lanes_without_a_packing_launch(shape, layout):
    choice = best(shape, layout)
    work = cut(shape, layout, choice.config)
    parts = machine_of("sm_90a")._parts(work)
    assert is_by_lanes(choice) and not parts["packing"]
    shared, _ = lanes_of_thin(SM_90A, work)
    lanes = work.tasks * work.split * shared.waves * SM_90A.lanes
    assert lanes * 64 >= min(shape[2] * max(shape[:2]), UNITS * SM_90A.lanes * 64)
    assert work.split_steps <= 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_longer_depth_is_split(layout):
    """One workgroup waits for every step of its depth."""
    choice = best((2, 9, 16001), layout)
    assert choice.config.get(SPLIT, 1) > 1 and is_by_lanes(choice)


@pytest.mark.parametrize("few", [1, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_time_grows_with_the_depth_and_never_by_more_than_it(few, layout):
    times = [best((few, 33, k), layout).prediction.seconds for k in (515, 1031, 2063, 4127, 8255, 16511)]
    assert times == sorted(times)
    assert all(b < 2.2 * a for a, b in pairwise(times))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("is_across", [False, True])
@pytest.mark.parametrize("widest", [2, 16])
def test_lanes_have_registers_for_what_they_load(tile, is_across, widest):
    shared = ThinLanes.of(SM_90A, ThinTile(*tile[:2], 1, tile[2], is_across, 4), widest)
    lanes = shared.waves * SM_90A.lanes
    terms = tile[0] * tile[1] * shared.depth / lanes
    assert tile[2] % shared.depth == 0 and terms <= 32
    assert 4 * lanes * shared.resident * (terms + 40) <= SM_90A.register_bytes
    assert lanes * shared.resident <= SM_90A.tuning.rows.resident_lanes
    if is_across:
        assert shared.axes[-1] == (0 if tile[0] >= tile[1] else 1)  # neighbours in memory are neighbouring lanes
    else:
        assert shared.axes == (0, 1, 2)


def test_more_tiles_than_slots_are_not_shared():
    """Workgroups then compute all parts of their tiles, in many more steps."""
    config = {BLOCK_M: 16, BLOCK_N: 64, BLOCK_K: 128, SPLIT: 4}
    few, many = (split_work(SM_90A, cut((16, 64 * tiles, 4099), "NT", config), 1) for tiles in (100, 1000))
    assert few.is_shared and few.launched == 400 and few.steps == 9
    assert not many.is_shared and many.launched == 4 * UNITS and many.steps == 2 * 33
