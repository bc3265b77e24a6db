"""The kernels of Wave's documents as machine code of AMD chips, emulated with every check on."""

import numpy as np
import pytest
from kernels import check_product, poisoned
from lane_runs import CHIPS, EIGHT, FOUR, RAGGED, SCHEDULES, compiled_seed, configurations, operands
from sampled import some_of
from seeds import SEEDS

from tilewave import *

ORDERS = ("barrier", "random")


def check_emulated(compiled, shape, orders=ORDERS, dtype=f16, out=f32):
    a, b = operands(shape, dtype)
    for order in some_of(orders):
        c = poisoned(shape[:2], out)
        report = compiled.emulate(a, b, c, order=order, seed=3)
        assert report.findings == ()
        check_product(c, a, b, out)


@pytest.mark.parametrize("seed", SEEDS, ids=repr)
@pytest.mark.parametrize("configuration", list(configurations()), ids=str)
@pytest.mark.parametrize("shape", [(256, 512, 256), *RAGGED], ids=str)
@pytest.mark.slow
def test_every_kernel_of_the_documents_is_emulated_without_a_finding(seed, configuration, shape):
    check_emulated(compiled_seed(seed, *configuration, shape), shape)


@pytest.mark.share(6)
@pytest.mark.parametrize("seed", SEEDS, ids=repr)
@pytest.mark.parametrize("chip", CHIPS)
def test_small_tiles_of_the_documents_are_emulated_without_a_finding(seed, chip):
    shape = (129, 130, 65)
    check_emulated(compiled_seed(seed, chip, (64, 64, 32), FOUR, SchedulingType.PREFETCH, shape), shape)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_the_large_tile_of_the_documents_is_emulated_without_a_finding(schedule):
    shape = (300, 300, 300)
    check_emulated(compiled_seed(SEEDS[1], "gfx942", (128, 256, 64), EIGHT, schedule, shape), shape, ["random"])


def test_arrays_of_any_strides_are_right():
    shape = (70, 90, 50)
    compiled = compiled_seed(SEEDS[0], "gfx942", (64, 64, 32), FOUR, SchedulingType.NONE, shape)
    a, b = operands(shape)
    turned = np.asfortranarray(a)
    spaced = np.zeros((90, 200), np.float16)[:, ::4]
    spaced[...] = b
    c = poisoned((70, 180), f32)
    compiled.emulate(turned, spaced, c[:, ::2])
    check_product(np.ascontiguousarray(c[:, ::2]), a, b)
    assert np.isnan(c[:, 1::2]).all()
