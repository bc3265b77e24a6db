"""`out=` and other arguments of `tilewave.ops` with torch's tensors: past the dispatcher, through it, and compiled."""

from contextlib import nullcontext
from math import nan

import numpy as np
import pytest

from tilewave import ops
from tilewave.errors import CallError

torch = pytest.importorskip("torch", reason="these operators are torch's; it is not installed")
POISON = -7.0
SHAPE = (2, 3, 5, 6)


def floats(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


A, B = floats(2, 3, 5, 7), floats(2, 3, 7, 6, seed=1)
X, W, V = floats(2, 3, 5, 6), floats(6, 6, seed=1), floats(6, seed=2)
CALLS = {
    "matmul": lambda **out: ops.matmul(A, B, **out),
    "linear": lambda **out: ops.linear(X, W, V, activation="relu", residual=X, **out),
    "softmax": lambda **out: ops.softmax(X, **out),
    "softmax of axis 1": lambda **out: ops.softmax(X, 1, **out),
    "rms_norm": lambda **out: ops.rms_norm(X, V, **out),
    "rms_norm with a residual": lambda **out: ops.rms_norm(X, V, residual=X, **out)[0],
    "layer_norm": lambda **out: ops.layer_norm(X, V, V, **out),
    "attention": lambda **out: ops.attention(X, X, X, causal=True, **out),
}
calls = pytest.mark.parametrize("name", CALLS)
ROADS = {
    "free": nullcontext,
    "watched": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True),
}
roads = pytest.mark.parametrize("road", ROADS)
LAYOUTS = {
    "rows": lambda: torch.full(SHAPE, POISON),
    "padded rows": lambda: torch.full((2, 3, 7, 6), POISON)[:, :, 2:],
    "padded columns": lambda: torch.full((2, 3, 5, 9), POISON)[..., 3:],
    "batches exchanged": lambda: torch.full((3, 2, 5, 6), POISON).transpose(0, 1),
    "heads inside": lambda: torch.full((2, 5, 3, 6), POISON).transpose(1, 2),
    "rows and columns exchanged": lambda: torch.full((2, 3, 6, 5), POISON).mT,
}


@calls
@roads
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_out_of_any_strides_is_written_in_place_and_torch_knows(name, road, layout):
    want, out = CALLS[name](), LAYOUTS[layout]()
    version = out._version
    with ROADS[road]():
        assert CALLS[name](out=out) is out
    assert torch.equal(out, want) and out._version > version
    whole = out._base
    assert whole is None or (whole == POISON).sum() == whole.numel() - out.numel(), "nothing beside it is written"


@calls
def test_an_out_that_asks_for_gradients(name):
    out = torch.full(SHAPE, POISON, requires_grad=True)
    with pytest.raises(CallError, match="out= has no gradient, and an argument requires one") as raised:
        CALLS[name](out=out)
    assert (out == POISON).all() and raised.value.loc.file == __file__
    with torch.no_grad():
        assert CALLS[name](out=out) is out
    assert torch.equal(out.detach(), CALLS[name]())


@calls
def test_an_out_made_in_inference_mode(name):
    with torch.inference_mode():
        out = torch.full(SHAPE, POISON)
        assert CALLS[name](out=out) is out
    assert torch.equal(out, CALLS[name]())


REFUSED = {
    "expanded": (lambda: torch.full((2, 3, 5, 1), POISON).expand(SHAPE), "out has several elements at one address"),
    "overlapping rows": (
        lambda: torch.full((500,), POISON).as_strided(SHAPE, (90, 30, 3, 1)),
        "out has several elements at one address",
    ),
    "other shape": (lambda: torch.full((3, 2, 5, 6), POISON), "out is 3x2x5x6, but the result is 2x3x5x6"),
    "a shape to broadcast to": (lambda: torch.full((4, *SHAPE), POISON), "out is 4x2x3x5x6, but the result is"),
    "a number": (lambda: torch.tensor(POISON), "out is one number, but the result is 2x3x5x6"),
    "integers": (
        lambda: torch.full(SHAPE, -7, dtype=torch.int32),
        "out is (i32|int32), but the result is (f32|float32)",
    ),
    "bools": (lambda: torch.zeros(SHAPE, dtype=torch.bool), "out is bool, but the result is (f32|float32)"),
    "complex": (lambda: torch.zeros(SHAPE, dtype=torch.complex64), "out is complex64, "),
    "numpy's": (lambda: np.full(SHAPE, POISON, np.float32), "out is no tensor of torch's"),
    "a list": (lambda: [POISON], "out is no tensor of torch's"),
}


def held(out):
    return out.tolist() if hasattr(out, "tolist") else list(out)


@calls
@roads
@pytest.mark.parametrize("why", REFUSED)
def test_an_out_that_cannot_be_written_is_refused_and_left_alone(name, road, why):
    make, what = REFUSED[why]
    out = make()
    before = held(out)
    with pytest.raises(CallError, match=what) as raised, ROADS[road]():
        CALLS[name](out=out)
    assert raised.value.loc.file == __file__ and raised.value.remedy
    assert held(out) == before


@roads
def test_an_out_that_overlaps_an_input_is_refused(road):
    x = floats(3, 3, 6, 6)
    before = x.clone()
    for out in (x, x.transpose(0, 1)):
        for call in (
            lambda out: ops.matmul(x, x, out=out),
            lambda out: ops.linear(before, W, residual=x, out=out),
            lambda out: ops.softmax(x, out=out),
            lambda out: ops.softmax(x, 0, out=out),
            lambda out: ops.rms_norm(before, residual=x, out=out),
            lambda out: ops.layer_norm(x, out=out),
            lambda out: ops.attention(before, before, x, out=out),
        ):
            with pytest.raises(CallError, match=r"out (may overlap|overlaps)"), ROADS[road]():
                call(out)
    assert torch.equal(x, before)


@calls
def test_autocast_writes_an_out_of_f32(name):
    out = torch.full(SHAPE, POISON).transpose(0, 1).contiguous().transpose(0, 1)
    with torch.autocast("cpu", torch.bfloat16):
        want = CALLS[name]()
        assert CALLS[name](out=out) is out
    assert torch.equal(out, want.float())


def test_a_compiled_call_writes_its_out():
    compiled = torch.compile(lambda x, out: ops.rms_norm(x, V, out=out), backend="aot_eager", fullgraph=True)
    out = torch.full(SHAPE, POISON)
    compiled(X, out)
    assert torch.equal(out, CALLS["rms_norm"]())


def test_the_sum_of_a_norm_with_a_residual_is_new():
    out = torch.full(SHAPE, POISON)
    y, total = ops.rms_norm(X, V, residual=X, out=out)
    assert y is out and torch.equal(total, X + X) and total.data_ptr() != out.data_ptr()


# other arguments ----------------------------------------------------------------------------------------------------


@roads
@pytest.mark.parametrize(
    "call, what",
    [
        (lambda: ops.softmax(X, 7), "dim is 7, but x has 4 axes"),
        (lambda: ops.softmax(X, None), "dim is None, not an integer"),
        (lambda: ops.softmax(X, -1.0), "dim is -1.0, not an integer"),
        (lambda: ops.softmax(X, True), "dim is True, not an integer"),
        (lambda: ops.softmax(torch.tensor(1.0)), "x is a single number"),
        (lambda: ops.rms_norm(X, eps="x"), "eps is 'x', not a number"),
        (lambda: ops.rms_norm(X, eps=-1.0), "eps is -1.0, and the root"),
        (lambda: ops.layer_norm(X, eps=nan), "eps is nan, not a finite number"),
        (lambda: ops.attention(X, X, X, window="x"), "window is 'x', not an integer"),
        (lambda: ops.attention(X, X, X, scale=[1.0]), "not a number"),
        (lambda: ops.attention(X, X, X, soft_cap=0.0), "a soft cap of 0.0"),
        (lambda: ops.attention(X, X, X, causal="x"), "causal is 'x'"),
        (lambda: ops.attention(X, X, X, bias=V[:4]), "bias is 4, and cannot be broadcast to 2x3x5x5"),
        (lambda: ops.linear(X, W, residual=floats(4)), "residual is 4, and cannot be broadcast to 2x3x5x6"),
        (lambda: ops.linear(X, W, activation=["relu"]), "no activation is called"),
        (lambda: ops.matmul(None, B), "a is None, not an array"),
        (lambda: ops.matmul(A, None), "b is None, not an array"),
        (lambda: ops.linear(X, None), "weight is None, not an array"),
        (lambda: ops.attention(X, None, X), "k is None, not an array"),
        (lambda: ops.matmul.kernel(A, None), "b is None, not an array"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_arguments_that_no_operation_can_use(road, call, what):
    with pytest.raises(CallError) as raised, ROADS[road]():
        call()
    assert what in raised.value.what and raised.value.remedy and raised.value.loc.file == __file__


def test_a_window_wider_than_any_number_of_torch_s_is_all_keys():
    with ROADS["watched"]():
        found = ops.attention(X, X, X, window=10**30)
    assert torch.equal(found, ops.attention(X, X, X))
