"""Machine code computes the same for a call as Python, or reports that it cannot."""

from __future__ import annotations

import ast
import ctypes
import operator
import random
import re
from pathlib import Path

import pytest

import tilewave
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
from tilewave.ir.stream_k import equal_splits, reciprocal, reciprocal_shift, stream_k_workgroups
from tilewave.runtime.native.engine import engine
from tilewave.runtime.native.records import in_memory, words

LEAST, MOST = -(1 << 63), (1 << 63) - 1
FORMULAS = {
    "add": (2, operator.add),
    "sub": (2, operator.sub),
    "mul": (2, operator.mul),
    "quotient": (2, quotient),
    "remainder": (2, remainder),
    "xor": (2, operator.xor),
    "and": (2, operator.and_),
    "or": (2, operator.or_),
    "less": (2, operator.lt),
    "less_equal": (2, operator.le),
    "equal": (2, operator.eq),
    "not_equal": (2, operator.ne),
    "greater": (2, operator.gt),
    "greater_equal": (2, operator.ge),
    "smaller": (2, smaller),
    "larger": (2, larger),
    "chosen": (3, chosen),
    "power": (1, lambda x: power(remainder(x, 70))),
    "bits": (1, bits),
    "root": (1, root),
    "grain": (1, grain),
    "rank": (1, rank),
    "neg": (1, operator.neg),
    "from constants": (1, lambda x: 7 - x * 3 + (2 & x) + (1 ^ x) + (4 | x)),
    "rounded_up": (2, rounded_up),
    "reciprocal": (1, reciprocal),
    "reciprocal_shift": (1, reciprocal_shift),
    "stream_k_workgroups": (2, lambda left, steps: stream_k_workgroups(left, steps, 132, 128, 512)),
    "equal_splits": (2, lambda left, steps: equal_splits(left, steps, 132, 128, 512)),
}
NEVER_LOST = {"bits", "grain", "rank", "chosen", "smaller", "larger", "remainder", "xor", "less", "equal"}
"""What fits always, so nothing may be left to Python."""


class Native:
    """A formula, recorded and run by machine code."""

    def __init__(self, count, formula):
        recorder = Recorder(count)
        self.program, ((self.at,),) = recorder.finished([formula(*recorder.given)])
        self.memory = in_memory(self.program)

    def __call__(self, *numbers):
        """None where it ends early."""
        found = words(numbers, self.program.numbers)
        ended = engine().evaluate(self.memory.address, ctypes.addressof(found))
        return None if ended else found[self.at]


def drawn(rng):
    near = rng.choice((0, 1, 2, 127, 128, 132, 1 << 30, 1 << 31, 1 << 52, MOST, LEAST)) + rng.randint(-2, 2)
    anywhere = rng.randrange(LEAST, MOST + 1) >> rng.randrange(64)
    return min(MOST, max(LEAST, rng.choice((near, anywhere, rng.randint(-140, 140)))))


@pytest.mark.parametrize("name", FORMULAS)
def test_machine_code_computes_what_python_computes(name):
    count, formula = FORMULAS[name]
    native, rng, told = Native(count, formula), random.Random(name), 0
    for _ in range(1500):
        numbers = [drawn(rng) for _ in range(count)]
        found = native(*numbers)
        assert found is None or found == formula(*numbers), numbers
        told += found is not None
    assert told == 1500 if name in NEVER_LOST else told > 300


def test_every_step_is_tried():
    recorders = [Recorder(count) for count, _ in FORMULAS.values()]
    for recorder, (_, formula) in zip(recorders, FORMULAS.values(), strict=True):
        formula(*recorder.given)
    tried = {STEPS[step] for recorder in recorders for step, *_ in recorder.finished()[0].steps}
    assert tried == {*STEPS} - {"want"}


def test_roots_next_to_squares_are_rounded_down():
    native = Native(1, root)
    for base in (1, 2, 3, 1000, 65535, (1 << 26) - 1, 1 << 26):
        for x in (base * base - 1, base * base, base * base + 1):
            assert native(x) == (None if x > 1 << 52 else root(x))


@pytest.mark.parametrize("x", [-1, 0, 1, 5])
def test_a_program_ends_where_something_wanted_does_not_hold(x):
    recorder = Recorder(1)
    recorder.want(recorder.given[0] >= 1, True)
    program, _ = recorder.finished()
    found = words([x], program.numbers)
    assert (engine().evaluate(in_memory(program).address, ctypes.addressof(found)) == 0) == (x >= 1)


def test_what_can_never_hold_ends_a_program_too():
    for wanted in (False, 0):
        recorder = Recorder(1)
        recorder.want(wanted)
        program, _ = recorder.finished()
        assert engine().evaluate(in_memory(program).address, ctypes.addressof(words([1], program.numbers)))


def test_a_number_that_no_word_holds_ends_a_program():
    native = Native(1, lambda x: chosen(x > 1 << 70, 1, 0))
    assert native(3) is None


def test_nothing_is_computed_twice():
    recorder = Recorder(2)
    x, y = recorder.given
    program, ((first, second),) = recorder.finished([(x + y) * 3, (x + y) * 3])
    assert first == second and len(program.steps) == 2


def test_a_recorded_number_is_not_taken_for_a_known_one():
    (x,) = Recorder(1).given
    with pytest.raises(TypeError, match="is not known yet"):
        bool(x > 0)


def test_no_text_becomes_code_of_python():
    """Files and authors give text; what is computed for a launch is numbers."""
    package = Path(tilewave.__file__).parent
    texts = {path.relative_to(package).as_posix(): path.read_text() for path in package.rglob("*.py")}
    assert len(texts) > 500, "the package was read"
    called = [
        (file, node.func.id)
        for file, text in texts.items()
        if re.search(r"\b(exec|eval|compile)\b", text)  # others need no parsing
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert len(called) > 1000, "calls by name were found"
    made = [(file, name) for file, name in called if name in ("exec", "eval", "compile")]
    assert not made
