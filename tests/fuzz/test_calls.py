"""The net of random public calls: a share of it in every test run, and what its judge sees."""

from __future__ import annotations

import runpy
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tilewave.errors import CallError

from . import call_judge
from .call_arrays import HeldArrays, buffered, changed_outside
from .call_expected import expected
from .call_judge import judge_call
from .call_maker import FUNCTIONS, RUN, make_call
from .call_references import rounded
from .call_shrink import shrink_call
from .call_source import call_source
from .calls import Alias, Call, Laid, Said, call_of_text, text_of_call
from .judge import Outcome
from .program import Layout

SHARE = 10
"""Seeds that are tested from each run; there is one run for each function."""
SPACED = Layout((1, 0), (2, 1), (1, 0), (0, 3))
X, OUT = Laid((3, 5), "f32", "small"), Laid((3, 5), "f32", "poison", SPACED)
SOFTMAX = Call("ops.softmax", (("x", X), ("out", OUT)))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_random_calls_are_right_or_refused(function):
    pytest.importorskip("torch")
    first = FUNCTIONS.index(function) * RUN
    found = []
    for seed in range(first, first + SHARE):
        outcome = judge_call(make_call(seed, "cpu"))
        if outcome.wrong:
            found.append(f"python -m tests.fuzz --net calls --seed {seed} --count 1\n{outcome}")
    assert not found, "\n\n".join(found)


def test_calls_cover_what_users_pass():
    calls = [make_call(seed, "cpu") for seed in range(2 * RUN * len(FUNCTIONS))]
    laid = [a for c in calls for _, a in c.arguments if isinstance(a, Laid)]
    assert {c.function for c in calls} == set(FUNCTIONS) and {c.library for c in calls} == {"numpy", "torch"}
    assert {a.flaw for a in laid} >= {"", "read-only", "swapped", "misaligned", "repeated", "sliding"}
    assert {a.dtype for a in laid} >= {"f16", "bf16", "f32", "f64", "f8e4m3fn", "f8e5m2", "i8", "i32", "i64", "bool"}
    assert any(0 in a.shape for a in laid) and any(len(a.shape) > 5 for a in laid) and any(c.other for c in calls)
    assert any(a.layout and min(a.layout.steps, default=1) < 0 for a in laid)
    assert any(isinstance(a, Alias) for c in calls for _, a in c.arguments)
    unfit = [
        expected(c, buffered(c), "cpu").unfit for c in calls[::17] if not any(_is_alias(a) for _, a in c.arguments)
    ]
    assert 0.03 < sum(map(bool, unfit)) / len(unfit) < 0.4, "most are right, some are not"


def _is_alias(argument: object) -> bool:
    return isinstance(argument, Alias)


def test_a_call_is_made_again_by_its_seed_and_its_text():
    for seed in range(0, 600, 7):
        call = make_call(seed, "cpu")
        assert call == make_call(seed, "cpu") == call_of_text(text_of_call(call))
    assert all(make_call(seed, "cuda").library == "torch" for seed in range(40))


# -- what the judge sees ---------------------------------------------------------------------------------------------


def judged(monkeypatch, function, call=SOFTMAX):
    monkeypatch.setattr(call_judge, "_function", lambda name: function)
    return judge_call(call)


def softmax(x, out):
    e = np.exp(x.astype(np.float64))
    out[...] = e / e.sum(axis=-1, keepdims=True)
    return out


def test_what_is_right_is_found_right(monkeypatch):
    found = judged(monkeypatch, softmax)
    assert (found.kind, found.decided, found.undecided) == ("agrees", 15, 0)


@pytest.mark.parametrize(
    ("mutate", "kind"),
    [
        (lambda x, out: out.__setitem__((1, 2), out[1, 2] * np.float32(1.0001)), "wrong numbers in out"),
        (lambda x, out: out.__setitem__((1, 2), np.nan), "wrong numbers in out"),
        (lambda x, out: x.__setitem__((0, 0), 100), "an input changed"),
        (lambda x, out: out.base.reshape(-1).__setitem__(0, 0), "memory outside of a result changed"),
    ],
    ids=["a digit", "a NaN", "an input", "padding"],
)
def test_one_wrong_element_is_seen(mutate, kind, monkeypatch):
    def wrong(x, out):
        softmax(x, out)
        mutate(x, out)
        return out

    assert judged(monkeypatch, wrong).kind == kind


def test_a_result_that_is_not_out_is_seen(monkeypatch):
    found = judged(monkeypatch, lambda x, out: softmax(x, out).copy())
    assert found.kind == "the result is not the array that was given for it"
    assert judged(monkeypatch, lambda x, out: out).kind == "wrong numbers in out"


def test_a_result_of_another_dtype_or_shape_is_seen(monkeypatch):
    plain = SOFTMAX.having(out=None)
    assert judged(monkeypatch, lambda x: softmax(x, np.empty((3, 5))), plain).kind == "out has another dtype"
    found = judged(monkeypatch, lambda x: softmax(x, np.empty((3, 5), np.float32))[:2], plain)
    assert found.kind == "out has another shape"
    assert judged(monkeypatch, lambda x: (x, x), plain).kind == "2 results, not 1"


def test_foreign_errors_and_warnings_are_seen(monkeypatch):
    def raises(x, out):
        raise ValueError("7 of numpy's")

    def warns(x, out):
        np.float64(1.0) / np.zeros(1)
        return softmax(x, out)

    assert judged(monkeypatch, raises).kind == "raised ValueError: # of numpy's"
    assert judged(monkeypatch, warns).kind.startswith("warned RuntimeWarning: divide by zero")


def test_refusals_are_judged(monkeypatch):
    def refuses(x, out):
        raise CallError("no")

    def writes_first(x, out):
        out[0, 0] = 1
        raise CallError("no")

    dense = SOFTMAX.having(out=replace(OUT, layout=None))
    assert judged(monkeypatch, refuses).kind == "refused", "a spaced out need not be taken"
    assert judged(monkeypatch, refuses, dense).kind.startswith("refused, though it fits")
    assert judged(monkeypatch, writes_first).kind == "refused, and yet written"


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (SOFTMAX.having(out=replace(OUT, flaw="read-only")), "out is read-only"),
        (SOFTMAX.having(out=Laid((3, 5), "f32", "poison", None, "repeated")), "elements of out share an address"),
        (SOFTMAX.having(out=Laid((3, 5), "f32", "poison", None, "sliding")), "elements of out share an address"),
        (SOFTMAX.having(out=Laid((5, 3), "f32", "poison")), "out has another shape than the result"),
        (SOFTMAX.having(dim=Said("'x'")), "dim is no whole number"),
        (SOFTMAX.having(dim=Said("7")), "there is no such axis"),
        (SOFTMAX.having(x=Said("None")), "x is missing"),
        (SOFTMAX.having(x=replace(X, dtype="i32")), "softmax takes floats"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_must_be_refused_and_is_taken_is_seen(call, why, monkeypatch):
    found = judged(monkeypatch, lambda x, out, dim=-1: out, call)
    assert found.kind == f"taken, though {why}"


def test_a_result_in_the_memory_of_an_input_is_judged_by_what_the_input_was(monkeypatch):
    in_place = SOFTMAX.having(out=Alias("x", (3, 5)))
    assert judged(monkeypatch, softmax, in_place).kind == "agrees"

    def row_by_row(x, out):
        for n in range(3):
            softmax(x[n : n + 1], out[n : n + 1])
        return out

    shifted = SOFTMAX.having(x=replace(X, layout=Layout((0, 1), (1, 1), (0, 0), (2, 0))), out=Alias("x", (3, 5), 5))
    assert judged(monkeypatch, row_by_row, shifted).kind == "wrong numbers in out"


# -- arrays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flaw", ["", "read-only", "swapped", "misaligned", "repeated", "sliding"])
def test_arrays_are_as_they_are_said_to_be(flaw):
    (b,) = buffered(Call("ops.softmax", (("x", Laid((3, 5), "f32", "normal", None, flaw)),))).values()
    assert b.view.shape == (3, 5) and np.shares_memory(b.view, b.memory) and b.memory.tobytes() == b.before
    assert b.view.flags.writeable == (flaw != "read-only") and b.view.dtype.isnative == (flaw != "swapped")
    assert b.view.flags.aligned == (flaw != "misaligned")
    assert b.shares_addresses == (flaw in ("repeated", "sliding"))


def test_every_changed_byte_is_told_apart():
    call = Call("ops.softmax", (("x", X), ("out", OUT)))
    for byte in range(buffered(call)["out"].memory.nbytes):
        arrays = buffered(call)
        arrays["out"].memory.reshape(-1).view(np.uint8)[byte] ^= 1
        inside = byte in {p + n for p in arrays["out"].places.tolist() for n in range(4)}
        assert changed_outside(arrays, {"out"}) == ("" if inside else "out")
        assert changed_outside(arrays, set()) == "out"


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f8e4m3fn", "i64", "bool"])
def test_torch_holds_the_same_memory(dtype):
    pytest.importorskip("torch")
    arrays = buffered(Call("ops.softmax", (("x", Laid((3, 5), dtype, "small", SPACED)),)))
    tensor = HeldArrays(arrays, {"x": "torch"}, "cpu").objects["x"]
    np.testing.assert_array_equal(tensor.double().numpy(), arrays["x"].view.astype(np.float64))
    tensor.zero_()
    assert not arrays["x"].view.astype(np.float64).any() and not changed_outside(arrays, {"x"})


def test_calls_for_a_gpu_are_made_and_judged_with_copies():
    """By another name of this machine's memory: everything but the GPU itself."""
    pytest.importorskip("torch")
    softmaxes = range(FUNCTIONS.index("kernels.softmax") * RUN, FUNCTIONS.index("kernels.softmax") * RUN + 8)
    outcomes = [judge_call(make_call(seed, "cuda"), "cpu:0") for seed in softmaxes]
    assert {outcome.kind for outcome in outcomes} <= {"agrees", "refused"} and outcomes[0].way.endswith("cpu:0")
    arrays = buffered(SOFTMAX)
    held = HeldArrays(arrays, {"x": "torch", "out": "torch"}, "cpu:0")
    held.buffers = {key: (memory, buffer.clone()) for key, (memory, buffer) in held.buffers.items()}
    held.buffers[id(arrays["out"].memory)][1].zero_()
    held.bring_back()
    assert not arrays["out"].memory.any() and arrays["x"].memory.tobytes() == arrays["x"].before


# -- references ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("function", ["ops.matmul", "ops.softmax", "ops.rms_norm", "ops.layer_norm", "kernels.cumsum"])
def test_bounds_hold_for_plain_arithmetic_and_not_for_a_wrong_result(function, dtype):
    """numpy's own arithmetic in f32, rounded once, is within every bound; its float16 sums of many numbers are not."""
    name = {np.float16: "f16", ml_dtypes.bfloat16: "bf16", np.float32: "f32"}[dtype]
    call, compute = PLAIN[function](name)
    arrays = buffered(call)
    (result,) = expected(call, arrays, "cpu").results.values()
    with np.errstate(all="ignore"):
        right = compute(**{n: b.view.astype(np.float32) for n, b in arrays.items() if n != "y"}).astype(dtype)
    off = np.abs(right.astype(np.float64) - result.x)
    assert (off <= result.err).all() and (result.err < 0.05 * np.abs(result.x).max() + 0.05).all()
    assert (np.abs(right.astype(np.float64) * 1.1 - result.x) > result.err).any()


def _norm(x):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(1e-5))


PLAIN = {
    "ops.matmul": lambda d: (
        Call("ops.matmul", (("a", Laid((9, 300), d)), ("b", Laid((300, 7), d)))),
        lambda a, b: a @ b,
    ),
    "ops.softmax": lambda d: (
        Call("ops.softmax", (("x", Laid((9, 300), d)),)),
        lambda x: np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True),
    ),
    "ops.rms_norm": lambda d: (Call("ops.rms_norm", (("x", Laid((9, 300), d)),)), _norm),
    "ops.layer_norm": lambda d: (
        Call("ops.layer_norm", (("x", Laid((9, 300), d)),)),
        lambda x: _norm(x - x.mean(axis=-1, keepdims=True)),
    ),
    "kernels.cumsum": lambda d: (
        Call("kernels.cumsum", (("x", Laid((9, 300), d)), ("y", Laid((9, 300), d, "poison")))),
        lambda x: np.cumsum(x, axis=-1),
    ),
}


# -- findings --------------------------------------------------------------------------------------------------------


def test_references_round_f64_once():
    """0.70507813838 is above the middle of two bf16 numbers, and is the middle when rounded to f32 first."""
    assert rounded(np.array([0.7050781383807856, -0.7050781383807856, 0.705078125]), "bf16").tolist() == [
        0.70703125,
        -0.70703125,
        0.703125,
    ]


def test_a_call_shrinks_to_what_matters():
    seed = next(s for s in range(5 * RUN, 6 * RUN) if _has_spaced_out(make_call(s, "cpu")))
    small = shrink_call(make_call(seed, "cpu"), _has_spaced_out)
    out = small.get("out")
    assert [name for name, _ in small.arguments] == ["out"] and isinstance(out, Laid)
    assert set(out.shape) <= {1} and out.layout and len(out.shape) <= 2


def _has_spaced_out(call: Call) -> bool:
    out = call.get("out")
    return isinstance(out, Laid) and out.layout is not None


@pytest.mark.parametrize(("library", "device"), [("numpy", "cpu"), ("torch", "cpu"), ("torch", "cpu:0")])
def test_a_reproduction_runs_alone_and_fails_where_the_call_is_wrong(library, device, tmp_path):
    if library == "torch":
        pytest.importorskip("torch")
    call = Call("kernels.softmax", (("x", X), ("y", replace(OUT, layout=None))), library)
    path = tmp_path / "found.py"
    path.write_text(call_source(call, device, Outcome("wrong numbers in y", "kernels.softmax", "so and so")))
    runpy.run_path(str(path))["check"]()
    wrong = path.read_text().replace("kernels.softmax(x=", "kernels.log_softmax(x=")
    path.write_text(wrong)
    with pytest.raises(AssertionError, match="y is"):
        runpy.run_path(str(path))["check"]()


def test_a_reproduction_of_what_must_be_refused_fails_where_it_is_taken(tmp_path):
    call = SOFTMAX.having(out=replace(OUT, flaw="read-only"))
    path = tmp_path / "found.py"
    path.write_text(call_source(call, "cpu", Outcome("taken, though out is read-only", "ops.softmax")))
    names = runpy.run_path(str(path))
    names["check"]()
    path.write_text(path.read_text().replace("ops.softmax(x=x, out=out)", "x"))
    with pytest.raises(AssertionError, match="taken, though out is read-only"):
        runpy.run_path(str(path))["check"]()
