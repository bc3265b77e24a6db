"""The net of kernels whose sizes stay open: what its programs are, and that one wrong call of several is seen."""

from dataclasses import replace

import numpy as np
import pytest

from . import judge
from .data import given
from .open_sizes import generate_open
from .ownership import WrongProgram
from .program import Array, Call, Compute, Dim, Layout, Loop, Mapping, Parameter, Place, Program, Read, Write
from .reference import expected
from .reproduction import reproduction
from .shrink import shrink
from .source import kernel_source, options
from .text import program_of, text_of

REVERSED = Mapping(("M",), (("M", Place("M", -1, -1, (("M", 1),))),))
SCALED = Program(
    (Dim("M", 5, 4, 0),),
    (Array("a", ("M",), "f32", "small"), Array("c", ("M",), "f32")),
    (Read("x", "a", REVERSED), Compute("y", "*", ("x", "n")), Write("y", "c")),
    left_open=("M",),
    numbers=(Parameter("n", "f32", 0.5),),
    arrays_before=1,
    more=(
        Call((("M", 1),), numbers=(("n", -2.0),), seed=7),
        Call((("M", 0),), by_name=True),
        Call((("M", 11),), numbers=(("n", 0.0),), layouts=(("c", Layout((0,), (2,), (1,), (0,))),), by_name=True),
    ),
)


def test_a_seed_gives_the_same_program_and_its_text_gives_it_back():
    texts = [text_of(generate_open(seed, "numpy")) for seed in range(30)]
    assert [text_of(generate_open(seed, "numpy")) for seed in range(30)] == texts
    assert [text_of(program_of(text)) for text in texts] == texts


def test_programs_cover_what_may_stay_open():
    programs = [generate_open(seed, "numpy") for seed in range(100)]
    calls = [call for p in programs for call in p.calls()]
    dims = [(d, p) for p in programs for d in p.dims if d.tile]
    walked = [s.dim for p in programs for s in p.walk() if isinstance(s, Loop) and not s.is_while]
    assert {d.name in p.left_open for d, p in dims if d.axis is None and d.name in walked} == {True, False}
    assert {d.name in p.left_open for d, p in dims if d.axis is not None} == {True, False}
    assert {0, 1, 2, 3} <= {sum(d.tiles for d in call.dims if d.axis == 0) for call in calls}
    assert {"f32", "i32", "bool", "f64", "i8", "index"} <= {n.dtype for p in programs for n in p.numbers}
    assert {call.by_name for call in calls} == {p.declared_open for p in programs} == {True, False}
    said = "".join(kernel_source(p) for p in programs)
    assert "ReorderingConstraint(ceiling(" in said and "% scalar(ceiling(" in said and ") % M" in said
    assert len(calls) > 3 * len(programs)


def test_the_calls_of_a_program_have_one_source():
    for seed in range(40):
        program = generate_open(seed, "gfx942")
        assert {kernel_source(call) for call in program.calls()} == {kernel_source(program)}
        assert {str(options(call)) for call in program.calls()} == {str(options(program))}


def test_every_call_has_arrays_of_its_own():
    held = [given(call) for call in SCALED.calls()]
    assert [h["c"].view.shape for h in held] == [(5,), (1,), (0,), (11,)]
    assert held[3]["c"].view.strides == (8,)
    for call, h in zip(SCALED.calls(), held, strict=True):
        wanted = h["a"].view[::-1] * np.float32(call.numbers[0].value)
        np.testing.assert_array_equal(expected(call)["c"].x, wanted)


def test_an_output_that_no_tile_writes_makes_no_program():
    row_ends = replace(SCALED, dims=(*SCALED.dims, Dim("N", 0, 4, 1)), more=())
    with pytest.raises(WrongProgram, match="c is not written everywhere"):
        expected(row_ends)


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942"])
def test_what_is_right_is_found_right(target):
    assert judge.judge(SCALED, target).kind == "agrees"


def wrong_where(monkeypatch, is_wrong, program=SCALED):
    """What is found where a call is computed wrong."""

    def run(compiled, arrays, symbols):
        compiled.interpret(*arrays, **symbols)
        c = symbols.get("c", arrays[-1] if arrays else None)
        if is_wrong(c):
            c[-1:] += 1

    monkeypatch.setattr(judge, "ways", lambda target, seed: [judge.Way("so", run)])
    return judge.judge(program, "numpy")


@pytest.mark.parametrize("size", [5, 1, 11])
def test_one_wrong_call_of_several_is_seen(monkeypatch, size):
    assert wrong_where(monkeypatch, lambda c: len(c) == size).kind == "wrong numbers"
    assert wrong_where(monkeypatch, lambda c: False).kind == "agrees"


def test_a_program_shrinks_to_the_call_that_matters(monkeypatch):
    small = shrink(SCALED, lambda p: wrong_where(monkeypatch, lambda c: len(c) > 5, p).wrong)
    assert [call.dims[0].size for call in small.calls()] == [6]
    small = shrink(SCALED, lambda p: {0, 11} <= {call.dims[0].size for call in p.calls()})
    assert [call.dims[0].size for call in small.calls()] in ([0, 11], [11, 0])


def test_a_reproduction_makes_every_call():
    text = reproduction(SCALED, "cpu", judge.Outcome("wrong numbers", "cpu called", "so and so"))
    names: dict = {"__name__": "right"}
    exec(text, names)
    names["check"]()
    assert text.count("compiled(") == 4
    for wrong in (text.replace("x * n", "x * n + 1.0"), text.replace("-2.0", "-3.0", 1)):
        exec(wrong, names)
        with pytest.raises(AssertionError):
            names["check"]()
