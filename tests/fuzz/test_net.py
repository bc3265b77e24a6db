"""The net itself: its reference's numbers, what its judge sees, how programs shrink, what its runner survives."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tilewave.errors import InterpreterError

from . import exact, judge
from .data import between_changed, given, laid_out
from .exact import FORMATS, NUMPY, Value
from .fake_holders import fake_cupy, fake_torch
from .generate import generate
from .ownership import WrongProgram
from .process import Child
from .program import (
    COMPARISONS,
    FUNCTIONS,
    Array,
    Cast,
    Compute,
    Dim,
    Fill,
    IllTyped,
    Layout,
    Loop,
    Mapping,
    Mma,
    Place,
    Program,
    Read,
    Write,
    check,
)
from .reference import expected
from .reproduction import reproduction
from .shrink import shrink
from .text import program_of, text_of

COPY = Program(
    (Dim("M", 5, 4, 0),),
    (Array("a", ("M",), "f32", "small"), Array("c", ("M",), "f32")),
    (Read("x", "a"), Write("x", "c")),
)
UPSIDE_DOWN = Mapping(("M",), (("M", Place("M", -1, 4)),))


def value(x, dtype):
    x = np.asarray(x)
    return Value(x, np.zeros(x.shape), ("M",), dtype)


# -- numbers


@pytest.mark.parametrize("dtype", sorted(set(FORMATS) - {"f32"}))
def test_rounding_from_f32_is_that_of_ml_dtypes(dtype):
    """Every f16 as it is, doubled digits to make ties, and numbers close to these."""
    with np.errstate(all="ignore"):
        halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
        x = np.concatenate([halves, np.nextafter(halves, np.float32(np.inf)), halves * np.float32(1.0625)])
        wanted = x.astype(NUMPY[dtype]).astype(np.float64)
        np.testing.assert_array_equal(exact.rounded(x.astype(np.float64), dtype), wanted)


def test_rounding_from_f64_happens_once():
    x = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11, 65519.999999, 2.0**-25 + 2.0**-60])
    np.testing.assert_array_equal(exact.rounded(x, "f16"), [1 + 2.0**-10, 1, 65504, 2.0**-24])


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_integers_become_the_nearest_float(dtype):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.integers(-(2**63), 2**63, 300), 2**53 + np.arange(-40, 40), [2**63 - 1, -(2**63)]])
    found = exact.cast(value(x, "i64"), dtype).x
    for number, got in zip(x.tolist(), found.tolist(), strict=True):
        unit = Fraction(2) ** (max(abs(number).bit_length(), 1) - FORMATS[dtype].digits)
        near = round(Fraction(number) / unit) * unit  # Python takes the even one of two
        assert got == (near if abs(near) <= FORMATS[dtype].largest else np.copysign(np.inf, number))


def test_casts_to_integers_go_towards_zero_and_stop_at_the_ends():
    x = value([1.9, -1.9, 300.0, -300.0, np.inf, -np.inf, np.nan], "f32")
    assert exact.cast(x, "i8").x.tolist() == [1, -1, 127, -128, 127, -128, 0]
    assert exact.cast(value([2.0**63, -(2.0**63), 1e30], "f64"), "i64").x.tolist() == [2**63 - 1, -(2**63), 2**63 - 1]


def test_integers_wrap_and_are_divided_as_the_language_says():
    a, b = value([127, -128, -128, 7, -7, 5], "i8"), value([1, -1, -1, 0, 2, 0], "i8")
    assert exact.compute("+", [a, b]).x.tolist() == [-128, 127, 127, 7, -5, 5]
    assert exact.compute("//", [a, b]).x.tolist() == [127, -128, -128, 0, -4, 0]
    assert exact.compute("%", [a, b]).x.tolist() == [0, 0, 0, 0, 1, 0]
    assert exact.compute("//", [value([-(2**63)], "i64"), value([-1], "i64")]).x.tolist() == [-(2**63)]


def test_a_bound_holds_whatever_the_order_of_a_sum():
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((1, 300)).astype(np.float32) for _ in range(2))
    unsure = exact.product(
        Value(a.astype(np.float64), np.zeros(a.shape), ("M", "K"), "f32"),
        Value(b.astype(np.float64), np.zeros(b.shape), ("N", "K"), "f32"),
        Value(np.zeros((1, 1)), np.zeros((1, 1)), ("M", "N"), "f32"),
        "ac,bc->ab",
        2.0**-24,
    )
    offs = []
    for _ in range(50):
        total = np.float32(0)
        for k in rng.permutation(300):
            total += a[0, k] * b[0, k]
        offs.append(abs(float(total) - unsure.x[0, 0]))
    magnitude = float(np.abs(a.astype(np.float64) * b).sum())
    assert 0 < max(offs) <= unsure.err[0, 0] < 310 * 2.0**-24 * magnitude


def test_sums_of_small_whole_numbers_are_decided():
    ones = np.ones((1, 100))
    parts = [Value(ones, 0 * ones, (d, "K"), "f16") for d in "MN"]
    acc = Value(np.zeros((1, 1)), np.zeros((1, 1)), ("M", "N"), "f32")
    found = exact.product(*parts, acc, "ac,bc->ab", 2.0**-24)
    assert found.x == 100 and found.err == 0


# -- programs


def test_a_seed_gives_the_same_program_and_its_text_gives_it_back():
    for seed in range(20):
        program = generate(seed, "gfx942")
        assert program == generate(seed, "gfx942") == program_of(text_of(program))


def test_programs_cover_the_language():
    programs = [generate(seed, target) for seed in range(120) for target in ("numpy", "gfx942")]
    statements = [s for p in programs for s in p.walk()]
    ops = {s.op for s in statements if isinstance(s, Compute)}
    assert ops >= {"+", "-", "*", "/", "//", "%", "minimum", "maximum", "neg", "abs", "select", "&", "|", "~", "**3"}
    assert ops >= {*COMPARISONS, *FUNCTIONS}
    assert {s.dtype for s in statements if isinstance(s, Cast)} >= set(NUMPY) - {"index"}
    assert {a.dtype for p in programs for a in p.arrays} >= set(NUMPY) - {"index"}
    loops = [s for s in statements if isinstance(s, Loop)]
    assert any(s.is_while for s in loops) and any(len(s.init) > 2 for s in loops)
    assert any(isinstance(t, Loop) for s in loops for t in s.body), "loops in loops"
    assert any(isinstance(s, Mma) for s in statements)
    assert any(p.dealt for p in programs) and any(p.workgroups and not p.dealt for p in programs)
    for field in ("mapping", "opens", "threads_per_wave", "mma_type", "prefetch", "buffers", "named_tiles"):
        assert any(getattr(p, field) for p in programs), field
    back = [p for p in programs if {s.array for s in p.walk() if isinstance(s, Read)} & p.written()]
    assert len(back) > 10, "what was written is read back"


def test_workgroups_that_meet_make_no_program():
    in_place = replace(COPY, body=(Read("x", "c", UPSIDE_DOWN), Write("x", "c")))
    with pytest.raises(WrongProgram, match="another workgroup"):
        expected(in_place)
    expected(replace(in_place, dims=(Dim("M", 5, 8, 0),)))


def test_a_write_outside_its_memory_makes_no_program_and_a_read_gives_zeros():
    far = Mapping(("M",), (("M", Place("M", 1, 300)),))
    with pytest.raises(WrongProgram):
        expected(replace(COPY, body=(Read("x", "a"), Write("x", "c", far))))
    found = expected(replace(COPY, body=(Read("x", "a", far), Write("x", "c"))))
    assert (np.asarray(found["c"].x, float) == 0).all()


@pytest.mark.parametrize(
    ("op", "other", "fits"),
    [("*", 9, False), ("*", 1, True), ("+", -1, False), ("+", 1, True), ("neg", None, False), ("**2", None, False)],
)
def test_an_index_that_overflows_makes_no_program(op, other, fits):
    """An overflow is an error in both interpreters, and not a number."""
    args = ("x",) if other is None else ("x", other)
    lowest = (Fill("low", ("M",), "f32", -float("inf")), Cast("x", "low", "index"))
    body = (*lowest, Compute("y", op, args), Cast("z", "y", "f32"), Write("z", "c"))
    program = Program((Dim("M", 2, 4, 0),), (Array("c", ("M",), "f32"),), body)
    compiled = judge.compile_program(program, "gfx950")
    with nullcontext() if fits else pytest.raises(WrongProgram, match="an index overflows"):
        expected(program)
    for level in ("tile", "lane"):
        with nullcontext() if fits else pytest.raises(InterpreterError, match="does not fit into index"):
            compiled.interpret(given(program)["c"].view, level=level)


def test_a_value_that_nobody_made_makes_no_program():
    with pytest.raises(IllTyped):
        check(replace(COPY, body=(Write("x", "c"),)))


# -- the judge


def outcome_of(monkeypatch, run, program=COPY):
    monkeypatch.setattr(judge, "ways", lambda target, seed: [judge.Way("so", run)])
    return judge.judge(program, "numpy")


def test_what_is_right_is_found_right(monkeypatch):
    found = outcome_of(monkeypatch, judge._interpret())
    assert (found.kind, found.decided, found.undecided) == ("agrees", 5, 0)


def test_one_wrong_element_is_seen(monkeypatch):
    def run(compiled, arrays, symbols):
        compiled.interpret(*arrays)
        arrays[1][3] += 1

    assert outcome_of(monkeypatch, run).text.startswith("1 of 5 elements of c; c[3] is ")


def test_an_element_that_nobody_wrote_is_seen(monkeypatch):
    assert outcome_of(monkeypatch, lambda *_: None).text.startswith("5 of 5 elements of c; c[0] is nan")


def test_a_changed_input_is_seen(monkeypatch):
    def run(compiled, arrays, symbols):
        compiled.interpret(*arrays)
        arrays[0][0] = -0.0 if arrays[0][0] == 0 else arrays[0][0] + 1

    assert outcome_of(monkeypatch, run).kind == "an input changed"


def test_a_write_between_the_elements_is_seen(monkeypatch):
    spaced = Array("c", ("M",), "f32", layout=Layout((0,), (2,), (1,), (0,)))

    def run(compiled, arrays, symbols):
        compiled.interpret(*arrays)
        arrays[1].base.reshape(-1)[2] = 0

    found = outcome_of(monkeypatch, run, replace(COPY, arrays=(COPY.arrays[0], spaced)))
    assert found.kind == "memory changed between the elements"


@pytest.mark.parametrize("steps", [(1, 1), (2, -1), (-2, 2)])
def test_arrays_lie_as_they_are_asked_to(steps):
    layout = Layout((1, 0), steps, (1, 2), (0, 3))
    array = Array("a", ("M", "N"), "bf16", "normal", layout=layout)
    g = given(Program((Dim("M", 3), Dim("N", 4)), (array,), ()))["a"]
    plain = given(Program((Dim("M", 3), Dim("N", 4)), (replace(array, layout=None),), ()))["a"]
    np.testing.assert_array_equal(g.view, plain.view)
    assert [np.sign(s) for s in g.view.strides] == [np.sign(s) for s in steps]
    assert g.view.dtype == ml_dtypes.bfloat16 and np.shares_memory(g.view, g.memory)


# -- findings


def test_a_program_shrinks_to_what_matters():
    seed = next(s for s in range(200) if any(isinstance(x, Mma) for x in generate(s, "gfx942").walk()))
    program = generate(seed, "gfx942")
    small = shrink(program, lambda p: any(isinstance(s, Mma) for s in p.walk()))
    assert len(small.walk()) <= 7 < len(program.walk())
    assert all(d.size == 1 for d in small.dims)
    expected(small)


def test_a_reproduction_runs_alone_and_fails_where_the_kernel_is_wrong(tmp_path):
    outcome = judge.Outcome("wrong numbers", "tiles", "so and so")
    for name, program in {"right": COPY, "mapped": generate(4, "numpy")}.items():
        names: dict = {"__name__": name}
        exec(reproduction(program, "numpy", outcome), names)
        names["check"]()
    text = reproduction(COPY, "numpy", outcome).replace("write(x, c)", "write(x + 1.0, c)")
    names = {"__name__": "wrong"}
    exec(text, names)
    with pytest.raises(AssertionError):
        names["check"]()


@pytest.mark.parametrize("held", ["torch", "cupy"])
@pytest.mark.parametrize("layout", [None, Layout((0,), (2,), (3,), (1,))], ids=["dense", "spaced"])
def test_a_reproduction_for_a_card_brings_its_arrays_there_and_back(held, layout, monkeypatch):
    for name, library in {"torch": fake_torch(), "cupy": fake_cupy()}.items():
        monkeypatch.setitem(sys.modules, name, library)
        monkeypatch.setattr(library.cuda, "is_available", lambda name=name: name == held)
    program = replace(COPY, arrays=tuple(replace(a, layout=layout) for a in COPY.arrays))
    names: dict = {"__name__": "for a card"}
    exec(reproduction(program, "sm_90a", judge.Outcome("wrong numbers", "sm_90a card", "so and so")), names)
    seen = []

    def on_the_card(a, c):
        seen.append((a, c))
        c[...] = a

    names["wave_compile"] = lambda options, kernel: on_the_card
    names["check"]()
    assert len(seen) == 1 and all(x.strides == ((8,) if layout else (4,)) for x in seen[0])
    names["wave_compile"] = lambda options, kernel: lambda a, c: None
    with pytest.raises(AssertionError):
        names["check"]()


@pytest.mark.parametrize("shape", [(5,), (0,), (3, 0), (3, 4)])
@pytest.mark.parametrize("is_spaced", [False, True], ids=["dense", "spaced"])
def test_arrays_of_a_card_come_back_as_they_were_left_there(shape, is_spaced, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    ones = (1,) * len(shape)
    layout = Layout(tuple(range(len(shape))), tuple(2 * n for n in ones), ones, ones) if is_spaced else None
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    arrays = {"a": laid_out(x, layout)}
    card = judge.OnCard(arrays)
    (tensor,) = card.tensors
    np.testing.assert_array_equal(tensor, x)
    tensor[...] = x + 1
    np.testing.assert_array_equal(arrays["a"].view, x)
    card.bring_back()
    np.testing.assert_array_equal(arrays["a"].view, x + 1)
    assert not between_changed(arrays["a"])


# -- the runner


@pytest.fixture(scope="module")
def child():
    with Child("tests.fuzz.misbehaving") as child:
        yield child


@pytest.mark.parametrize(
    ("net", "kind"),
    [
        ("dies", "killed by SIGSEGV"),
        ("takes_all_memory", "memory ran out"),
        ("raises", "the net raised ValueError"),
        ("finds", "3 is odd"),
    ],
)
def test_a_child_that_misbehaves_is_reported_and_the_next_case_runs(child, net, kind):
    assert child.ask({"net": net, "seed": 3}, 60)["kind"] == kind
    assert child.ask({"net": "finds", "seed": 2}, 60)["kind"] == "agrees"


def test_a_child_that_hangs_is_stopped(child):
    assert child.ask({"net": "finds", "seed": 2}, 60)["kind"] == "agrees"
    assert child.ask({"net": "hangs", "seed": 0}, 0.2)["kind"] == "takes too long"
    assert child.ask({"net": "finds", "seed": 5}, 60)["kind"] == "5 is odd"
