"""Arguments that no operation can use: each is refused as a CallError that says what to pass, and the advice works."""

from math import inf, nan

import numpy as np
import pytest

from tilewave import kernels, ops
from tilewave.errors import CallError, TilewaveError


def floats(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


X, Q, K = floats(3, 4), floats(3, 4), floats(5, 4)
HUGE = 10**400


def attention(**asked):
    return ops.attention(Q, K, K, **asked)


def norms(eps):
    return [
        lambda: ops.rms_norm(X, eps=eps),
        lambda: ops.rms_norm(X, residual=X, eps=eps),
        lambda: ops.layer_norm(X, eps=eps),
    ]


def kernel_norms(eps):
    y = np.empty_like(X)
    return [lambda: kernels.rms_norm(X, y, eps=eps), lambda: kernels.layer_norm(X, y, eps=eps)]


def refused(call, what, remedy=""):
    with pytest.raises(CallError) as raised:
        call()
    assert what in raised.value.what and remedy in raised.value.remedy and raised.value.remedy
    assert raised.value.loc.file == __file__


@pytest.mark.parametrize(
    "eps, what",
    [
        ("x", "eps is 'x', not a number"),
        (None, "eps is None, not a number"),
        ([1e-5], "eps is [1e-05], not a number"),
        (True, "eps is True, not a number"),
        (1j, "eps is 1j, not a number"),
        (nan, "eps is nan, not a finite number"),
        (inf, "eps is inf, not a finite number"),
        (HUGE, "not a finite number"),
        (10**5000, "an integer of thousands of digits, not a finite number"),
        (-1e-5, "eps is -1e-05, and the root"),
        (np.ones(2), "not a number"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_eps(eps, what):
    for call in (*norms(eps), *kernel_norms(eps)):
        refused(call, what, "pass eps=1e-5")


@pytest.mark.parametrize("eps", [1e-5, 0, 1, np.float32(0.5), np.float64(0.5), np.int64(1), np.array(0.5)], ids=repr)
def test_any_number_may_be_eps(eps):
    want = X / np.sqrt((X.astype(float) ** 2).mean(-1, keepdims=True) + float(eps))
    assert np.allclose(ops.rms_norm(X, eps=eps), want, atol=1e-5, rtol=0)
    assert np.array_equal(ops.rms_norm(X, eps=eps), ops.rms_norm(X, eps=float(eps)))


@pytest.mark.parametrize("dim", [2, -3, 7, HUGE, None, "x", 1.0, True, False, (0,), nan], ids=lambda x: str(x)[:9])
def test_dim(dim):
    refused(lambda: ops.softmax(X, dim), "softmax: dim is ", "pass ")
    refused(lambda: ops.softmax(X, dim, out=np.empty_like(X)), "softmax: dim is ", "pass ")
    assert np.array_equal(ops.softmax(X, np.int64(-2)), ops.softmax(X, 0))


@pytest.mark.parametrize(
    "asked, what",
    [
        ({"window": "x"}, "window is 'x', not an integer"),
        ({"window": 2.0}, "window is 2.0, not an integer"),
        ({"window": True}, "window is True, not an integer"),
        ({"window": [3]}, "window is [3], not an integer"),
        ({"window": 0}, "a window of 0 has no keys"),
        ({"window": -3}, "a window of -3 has no keys"),
        ({"scale": "x"}, "scale is 'x', not a number"),
        ({"scale": [1.0]}, "scale is [1.0], not a number"),
        ({"scale": True}, "scale is True, not a number"),
        ({"scale": nan}, "scale is nan, not a finite number"),
        ({"scale": -inf}, "scale is -inf, not a finite number"),
        ({"scale": HUGE}, "not a finite number"),
        ({"soft_cap": "x"}, "soft_cap is 'x', not a number"),
        ({"soft_cap": 0}, "scores cannot be kept within a soft cap of 0"),
        ({"soft_cap": -2.0}, "scores cannot be kept within a soft cap of -2.0"),
        ({"soft_cap": nan}, "soft_cap is nan, not a finite number"),
        ({"soft_cap": inf}, "soft_cap is inf, not a finite number"),
        ({"causal": "no"}, "causal is 'no'"),
        ({"causal": None}, "causal is None"),
        ({"causal": 2}, "causal is 2"),
        ({"causal": np.ones(3)}, "causal is array"),
    ],
    ids=str,
)
def test_attention(asked, what):
    refused(lambda: attention(**asked), what, "pass ")
    heads = [x[None, None] for x in (Q, K, K)]
    for kernel in (kernels.attention, kernels.attention_decode):
        refused(lambda kernel=kernel: kernel(*heads, np.empty((1, 1, 3, 4), np.float32), **asked), what, "pass ")


def test_arguments_of_attention_that_are_strange_and_right():
    assert np.array_equal(attention(window=10**30), attention())
    assert np.array_equal(attention(window=np.int32(2), causal=np.True_), attention(window=2, causal=1))
    assert np.array_equal(attention(scale=np.float32(0.5)), attention(scale=0.5))
    even = attention(scale=0)
    assert np.allclose(even, K.mean(0), atol=1e-6)
    assert np.array_equal(attention(scale=2, soft_cap=3), attention(scale=2.0, soft_cap=3.0))


@pytest.mark.parametrize(
    "asked", [{"scale": 1e300}, {"scale": -3e38}, {"soft_cap": 1e-45}, {"soft_cap": 1e300}], ids=str
)
def test_factors_that_f32_does_not_have(asked):
    refused(lambda: attention(**asked), "f32 does not have the factors", "or arrays of f64")
    wide = [x.astype(np.float64) for x in (Q, K, K)]
    assert np.isfinite(ops.attention(*wide, **asked)).all()


@pytest.mark.parametrize("activation", ["mish", "", ["relu"], 3, True, np.tanh, b"relu"], ids=str)
def test_activation(activation):
    weight = floats(5, 4)
    refused(lambda: ops.linear(X, weight, activation=activation), "no activation is called", "write one of 'gelu'")
    refused(lambda: ops.linear.kernel(X, weight, activation=activation), "no activation is called")


# arrays -------------------------------------------------------------------------------------------------------------


def test_arrays_beside_that_do_not_fit():
    weight = floats(5, 4)
    refused(lambda: ops.linear(X, weight, residual=floats(3, 6)), "residual is 3x6, and cannot be broadcast to 3x5")
    refused(
        lambda: ops.linear(X, weight, residual=floats(1, 3, 5)), "residual is 1x3x5, and cannot be broadcast to 3x5"
    )
    refused(lambda: ops.linear.kernel(X, weight, residual=floats(3, 6)), "residual is 3x6, and cannot")
    refused(lambda: attention(bias=floats(3, 6)), "bias is 3x6, and cannot be broadcast to 3x5")
    refused(lambda: attention(bias=floats(0, 5)), "bias is 0x5, and cannot be broadcast to 3x5")
    refused(lambda: ops.linear(X[:0], weight, residual=floats(3, 5)), "residual is 3x5, and cannot be broadcast to 0x5")
    for residual in (floats(3, 5), floats(1, 5), floats(3, 1), floats(5), floats(1), floats()):
        found = ops.linear(X, weight, residual=residual)
        assert np.array_equal(found, ops.linear(X, weight) + residual)


NOTHING = {
    "matmul": [lambda x: ops.matmul(x, X), lambda x: ops.matmul(X, x)],
    "linear": [lambda x: ops.linear(x, X), lambda x: ops.linear(X, x)],
    "softmax": [lambda x: ops.softmax(x), lambda x: ops.softmax(x, 0)],
    "norms": [lambda x: ops.rms_norm(x), lambda x: ops.rms_norm(x, residual=X), lambda x: ops.layer_norm(x)],
    "attention": [lambda x: ops.attention(x, K, K), lambda x: ops.attention(Q, x, K), lambda x: ops.attention(Q, K, x)],
    "kernels": [
        lambda x: ops.matmul.kernel(x, X),
        lambda x: ops.linear.kernel(X, x),
        lambda x: ops.softmax.kernel(x),
        lambda x: ops.rms_norm.kernel(x),
        lambda x: ops.layer_norm.kernel(x),
        lambda x: ops.attention.kernel(Q, K, x),
    ],
}


@pytest.mark.parametrize("name", NOTHING)
@pytest.mark.parametrize(
    "given, what",
    [
        (None, "is None, not an array"),
        ([[1.0]], "is a list, not an array"),
        (3.0, "is a float, not an array"),
        ("x", "is a str, not an array"),
        (np.float32(3), "not an array"),
    ],
    ids=str,
)
def test_what_is_no_array(name, given, what):
    for call in NOTHING[name]:
        refused(lambda call=call: call(given), what)


@pytest.mark.parametrize("name", NOTHING)
@pytest.mark.parametrize(
    "given",
    [
        np.ones((), np.float32),
        np.ones((3, 4), ">f4"),
        np.ones((3, 4), object),
        np.ones((3, 4), np.complex64),
        np.ones((3, 4), "U1"),
        np.ones((3, 4), bool),
        np.ones((3, 4), np.int64),
        np.ma.ones((3, 4), np.float32),
        np.ones(3, [("a", "f4")]),
    ],
    ids=lambda x: f"{type(x).__name__} {x.shape} {x.dtype}",
)
def test_arrays_that_no_operation_takes(name, given):
    for call in NOTHING[name]:
        with pytest.raises(TilewaveError) as raised:
            call(given)
        assert raised.value.loc.file == __file__ and raised.value.remedy
