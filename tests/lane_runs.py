"""Kernels run lane by lane: in every order of waves against float64, and with any barrier taken out."""

from functools import cache
from itertools import count

import numpy as np
import pytest
from kernels import check_product, poisoned, random_array, with_waves
from sampled import some_of

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.ops import Barrier
from tilewave.ir.rewrite import rewrite, walk

CHIPS = ("gfx942", "gfx950")
ORDERS = ("in turn", "backwards", "random")
SCHEDULES = (SchedulingType.NONE, SchedulingType.PREFETCH)
RAGGED = ((300, 300, 300), (129, 257, 65), (1, 1, 1))
TILES = ((128, 256, 64), (64, 64, 32))
FOUR, EIGHT = (2, 2), (4, 2)


@cache
def compiled_seed(seed, chip, tile, waves, schedule, shape, num_stages=1):
    subs = seed.subs(*shape, block_m=tile[0], block_n=tile[1], block_k=tile[2])
    options = WaveCompileOptions(subs=subs, target=chip, schedule=schedule, num_stages=num_stages)
    return wave_compile(options, with_waves(seed.kernel, waves))


def operands(shape, dtype=f16, seed=7):
    m, n, k = shape
    rng = np.random.default_rng(seed)
    return random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype)


TIMES = (*((order, 0) for order in ORDERS), ("random", 1))


def check_same_bits(kernel, shape, times=TIMES):
    """A product by lanes, right and to the last bit the same in two of these orders, or in all, each with its seed."""
    a, b = operands(shape)
    found = []
    for order, seed in some_of(times, 2):
        c = poisoned(shape[:2], f32)
        interpret_lanes(kernel, [a, b, c], {}, order, seed)
        check_product(c, a, b)
        found.append(c)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def check_lanes(compiled, shape, orders=ORDERS, dtype=f16, out=f32):
    a, b = operands(shape, dtype)
    for order in some_of(orders):
        c = poisoned((shape[0], shape[1]), out)
        compiled.interpret(a, b, c, level="lane", order=order, seed=5)
        check_product(c, a, b, out)


def configurations():
    for chip in CHIPS:
        for tile in TILES:
            for waves in (FOUR, EIGHT):
                for schedule in SCHEDULES:
                    yield chip, tile, waves, schedule


def is_meeting(op):
    """Whether waves meet here: the lanes of one run together, and its own order nothing."""
    return isinstance(op, Barrier) and op.waves != 1


def meetings(kernel):
    return [op for op in walk(kernel.body) if is_meeting(op)]


def without(kernel, number, chosen=is_meeting):
    """The lane-level kernel without its number-th meeting, or chosen op; unrolled steps may share one object."""
    places = count()
    less = rewrite(kernel, lambda op: [] if chosen(op) and next(places) == number else None)
    assert sum(map(chosen, walk(less.body))) == sum(map(chosen, walk(kernel.body))) - 1
    return less


def check_every_barrier_is_needed(compiled, shape):
    kernel = compiled.ir("distribute_lanes")  # later passes add ping-pong's barriers, which only order turns
    assert meetings(kernel)
    a, b = operands(shape)
    for number in range(len(meetings(kernel))):
        with pytest.raises(InterpreterError, match=r"no barrier between|before the copy of wave \d+ has") as found:
            interpret_lanes(without(kernel, number), [a, b, poisoned(shape[:2], f32)], {}, "random", number)
        lines = str(found.value)
        assert lines.count(".py:") >= 2, lines
