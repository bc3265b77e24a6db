"""A program's own code for numbers of known ranges computes what its steps compute, within the ranges and beyond."""

import ctypes
import random

import pytest

from tilewave.ir.host_program import (
    STEPS,
    Recorder,
    bits,
    chosen,
    grain,
    larger,
    power,
    quotient,
    rank,
    remainder,
    root,
    rounded_up,
    smaller,
)
from tilewave.runtime.native.compiled_program import CompilableProgram, unrolled
from tilewave.runtime.native.engine import engine
from tilewave.runtime.native.ranges import ANY, SIZE, TRUTH, Range, ranges_of
from tilewave.runtime.native.records import in_memory, words

MOST = (1 << 63) - 1
GIVEN = SIZE, SIZE, Range(0, 40), TRUTH
EDGES = [(0, 1, 2, 131, 132, 4096, SIZE.most - 1, SIZE.most)] * 2 + [(0, 1, 39, 40), (0, 1)]
CHECKED = "add", "sub", "mul", "quotient", "remainder", "rounded_up"
BINARY = *CHECKED, "xor", "and", "or", "less", "less_equal", "equal", "not_equal", "smaller", "larger"
MADE = {"quotient": quotient, "remainder": remainder, "rounded_up": rounded_up, "smaller": smaller, "larger": larger}


def random_program(draw):
    """Return a random program that reads all that it is given, and the positions of all its results."""
    recorder = Recorder(len(GIVEN))
    numbers = [*recorder.given, *(draw.choice((0, 1, 2, 3, 64, 132, 1 << 20, 1 << 40, -5)) for _ in range(3))]
    for _ in range(draw.randrange(1, 40)):
        x, y, z = (draw.choice(numbers) for _ in range(3))
        if not any(hasattr(one, "recorder") for one in (x, y)):
            continue
        name = draw.choice((*BINARY, "chosen", "root", "bits", "grain", "rank", "power"))
        numbers.append(applied(recorder, name, x, y, z))
    program, [results] = recorder.finished([one for one in numbers if hasattr(one, "recorder")])
    return program, results


def applied(recorder, name, x, y, z):
    match name:
        case "chosen":
            return chosen(x, y, z) if hasattr(x, "recorder") else chosen(y, x, z)
        case "root" | "bits" | "grain" | "rank" | "power":
            one = x if hasattr(x, "recorder") else y
            return {"root": root, "bits": bits, "grain": grain, "rank": rank, "power": power}[name](one)
        case _ if name in MADE:
            return MADE[name](x, y)
    return recorder.record(name, x, y)


def evaluated(program, memory, given, results):
    found = words(given, program.numbers)
    ended = engine().evaluate(memory.address, ctypes.addressof(found))
    return None if ended else [found[at] for at in results]


def drawn(draw, beyond):
    found = [
        draw.choice((draw.choice(edges), draw.randrange(one.most + 1))) for one, edges in zip(GIVEN, EDGES, strict=True)
    ]
    if beyond:
        found[draw.randrange(len(found))] = draw.choice((-1, SIZE.most + 1, 1 << 40, MOST, -MOST))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_code_for_ranges_computes_what_steps_compute(seed):
    draw = random.Random(seed)
    program, results = random_program(draw)
    memory, own = in_memory(program), in_memory(program)
    CompilableProgram(program, own, tuple(results), GIVEN).compile()
    assert own.get("code")
    for at in range(60):
        given = drawn(draw, at % 3 == 0)
        assert evaluated(program, own, given, results) == evaluated(program, memory, given, results), given


@pytest.mark.parametrize("seed", range(40))
def test_results_are_in_their_ranges(seed):
    draw = random.Random(100 + seed)
    program, results = random_program(draw)
    memory, ranges = in_memory(program), ranges_of(program, GIVEN)
    for _ in range(60):
        found = evaluated(program, memory, drawn(draw, False), results)
        for at, value in zip(results, found or (), strict=found is not None):
            assert ranges[at].least <= value <= ranges[at].most, STEPS


def test_sizes_need_no_checks_and_short_divisions():
    recorder = Recorder(2)
    x, y = recorder.given
    program, [results] = recorder.finished([quotient(x * y, 7), rounded_up(x, y), smaller(x, 1 << 20)])
    within, anywhere = (unrolled(program, results, [one] * 2) for one in (SIZE, ANY))
    assert "overflow" in anywhere and "sdiv" in anywhere
    body = within[within.index("within:") :]
    assert not any(word in body for word in ("overflow", "sdiv", "smin", "lost"))
    assert "udiv i32" in body and "udiv i64" in body


def test_a_result_that_may_not_fit_is_checked():
    recorder = Recorder(4)
    a, b, c, d = recorder.given
    program, [results] = recorder.finished([a * b * c * d])
    own = in_memory(program)
    CompilableProgram(program, own, tuple(results), (SIZE,) * 4).compile()
    assert evaluated(program, own, [SIZE.most] * 4, results) is None
    assert evaluated(program, own, [SIZE.most, SIZE.most, SIZE.most, 8], results) == [8 * SIZE.most**3]
