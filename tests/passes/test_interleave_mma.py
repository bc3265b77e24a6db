"""The K loop laid out for one and for two waves on a matrix unit: right, free of races, and short."""

from functools import cache

import numpy as np
import pytest
from kernels import check_product, gemm, poisoned, random_array, sizes, with_waves
from lane_runs import without
from machine_code import MachineCode
from sampled import some_of

from tilewave import *
from tilewave.emulator.statistics import loop_statistics
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.ops import Barrier, InstructionGroup, Loop, Matrix, Meet, Priority
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import walk
from tilewave.machine.chips import CHIPS
from tilewave.machine.matrix import NAMED
from tilewave.passes.schedule.interleave_mma import InterleaveMma
from tilewave.passes.tile.simplify import simplify
from tilewave.pipeline.runner import run

DEPTHS = {name: instruction.depth for name, instruction in NAMED.items()}
ORDERS = ("in turn", "backwards", "random")


@cache
def laid_out(chip, tile, waves, shape):
    kernel = with_waves(gemm(), waves)
    options = WaveCompileOptions(subs=sizes(*shape, *tile), target=chip, schedule=SchedulingType.PREFETCH)
    lanes = wave_compile(options, kernel).build.lanes
    return run(lanes, (InterleaveMma(DEPTHS, CHIPS[chip].matrix_units), simplify))[0]


def operands(shape):
    m, n, k = shape
    rng = np.random.default_rng(3)
    return random_array(rng, (m, k), f16), random_array(rng, (n, k), f16)


CASES = [
    ("gfx942", (128, 256, 64), (4, 2)),
    ("gfx942", (128, 256, 64), (2, 2)),
    ("gfx950", (256, 256, 64), (4, 2)),
    ("gfx942", (64, 64, 32), (2, 2)),
    ("gfx942", (128, 128, 32), (4, 2)),
]


@pytest.mark.share(4)
@pytest.mark.parametrize(("chip", "tile", "waves"), CASES, ids=str)
def test_every_order_of_waves_gives_the_product(chip, tile, waves):
    shape = (100, 200, 200)
    kernel = laid_out(chip, tile, waves, shape)
    a, b = operands(shape)
    for order in some_of(ORDERS):
        c = poisoned(shape[:2], f32)
        interpret_lanes(kernel, [a, b, c], {}, order, seed=5)
        check_product(c, a, b)
    c = poisoned(shape[:2], f32)
    MachineCode(kernel, chip).run(a, b, c)
    check_product(c, a, b)


def test_two_waves_on_a_unit_take_turns():
    kernel = laid_out(*CASES[0], (256, 256, 256))
    loop = next(op for op in walk(kernel.body) if isinstance(op, Loop) and _multiplies(op))
    ops = [type(op) for op in loop.body.ops]
    assert ops.count(Meet) == 6 and ops.count(Priority) == 6
    assert [op.rows for op in loop.body.ops if isinstance(op, Matrix)] == [(), (0, 1), (1, 2)]
    assert parse(str(kernel)) == kernel


def test_where_registers_are_short_the_second_half_is_multiplied_in_two_parts():
    kernel = laid_out("gfx942", *CASES[2][1:], (256, 256, 256))
    loop = next(op for op in walk(kernel.body) if isinstance(op, Loop) and _multiplies(op))
    assert [op.rows for op in loop.body.ops if isinstance(op, Matrix)] == [(), (0, 2), (2, 4)]


def test_a_wave_alone_has_its_loads_between_its_products():
    kernel = laid_out(*CASES[1], (256, 256, 256))
    loop = next(op for op in walk(kernel.body) if isinstance(op, Loop) and _multiplies(op))
    groups = [op for op in loop.body.ops if isinstance(op, InstructionGroup)]
    assert 96 <= sum(op.count for op in groups if op.kind == "matrix") <= 128
    assert max(op.count for op in groups) <= 5
    assert {op.kind for op in groups} == {"matrix", "load", "shared_load", "shared_store"}


def test_where_the_depth_has_no_halves_rows_have():
    for case in CASES[3:]:
        kernel = laid_out(*case, (256, 256, 256))
        loop = next(op for op in walk(kernel.body) if isinstance(op, Loop) and _multiplies(op))
        assert [op.rows for op in loop.body.ops if isinstance(op, Matrix)] == [(0, 1), (1, 2)]


def _multiplies(loop):
    return any(isinstance(op, Matrix) for op in loop.body.ops)


def barriers(kernel):
    return [op for op in walk(kernel.body) if isinstance(op, Barrier)]


NEEDED = [
    # Of six turns of a step, and of the six of the last step, the first two end with barriers that only keep turns:
    # they are far from the stores of the step before and after. The last step is followed by none that stores.
    (CASES[0], 15, {0, 1, 4, 5, 6, 7, 10, 11, 14}),
    (CASES[1], 5, {0, 1, 2, 3, 4}),
    # Registers hold half of the operands: a step of six turns, which stands once, and one of four.
    (("gfx942", (256, 256, 64), (4, 2)), 9, {0, 1, 4, 5, 6, 7, 8}),
    (CASES[4], 7, {0, 1, 2, 3, 4, 5, 6}),
]


@pytest.mark.parametrize(
    ("case", "count", "needed"), NEEDED, ids=["in turns", "alone", "halves in turns", "rows in turns"]
)
def test_every_barrier_is_needed(case, count, needed):
    shape = (128, 256, 192)
    kernel = laid_out(*case, shape)
    assert len(barriers(kernel)) == count
    assert {number for number in range(count) if is_needed(without(kernel, number), shape)} == needed


def is_needed(less, shape):
    """Whether an order of waves shows that a barrier is missing."""
    a, b = operands(shape)
    try:
        for order in ORDERS:
            interpret_lanes(less, [a, b, poisoned(shape[:2], f32)], {}, order, seed=5)
    except InterpreterError:
        return True
    return False


GOALS = [
    ("gfx942", (128, 256, 64), (4, 2), 1.8, 1.23),
    ("gfx942", (128, 256, 64), (2, 4), 1.75, 1.45),
    ("gfx942", (128, 256, 64), (2, 2), 1.6, 1.45),
    ("gfx942", (256, 256, 64), (4, 2), 1.55, 2.0),
    ("gfx950", (256, 256, 64), (4, 2), 1.75, 1.6),
    ("gfx950", (128, 256, 64), (2, 2), 1.9, 1.33),
    ("gfx950", (128, 128, 64), (4, 2), 2.9, 0.8),
]


@pytest.mark.share(4)
@pytest.mark.parametrize(("chip", "tile", "waves", "most", "least"), GOALS, ids=str)
def test_the_loop_holds_little_but_products(chip, tile, waves, most, least):
    code = MachineCode(laid_out(chip, tile, waves, (1024, 1024, 1024)), chip)
    found = loop_statistics(code.asm, code.lowered.name)
    assert found.instructions_per_matrix <= most
    assert found.matrix_over_next >= least - 0.005
    assert (found.vector_instructions, found.accumulator_moves, found.spills) == (0, 0, 0)
    assert found.nops <= (5 if chip == "gfx950" else 0)  # one after setting the destination of copies
    assert found.bank_conflict_cycles == 0
    widths = (found.shared_read_bytes, found.shared_write_bytes, found.global_load_bytes, found.store_bytes)
    assert widths == ((16,), () if chip == "gfx950" else (16,), (16,), (16,))
    assert found.shared_bytes == code.lowered.shared_bytes
