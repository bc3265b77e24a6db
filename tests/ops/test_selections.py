"""`ops.topk`, `ops.argmax` and the routing of tokens to experts."""

import numpy as np
import pytest
from hostile_indices import TARGETS, run

from tilewave import f32, i32, kernels, ops
from tilewave.errors import CallError
from tilewave.kernels.rows import Rows
from tilewave.kernels.selections import route_tokens_kernel


def numbers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype)


def order_of(x, axis=-1):
    return np.argsort(-x.astype(np.float64), axis=axis, kind="stable")


@pytest.mark.parametrize("shape", [(1,), (300,), (5, 37), (2, 20, 3), (0, 4)], ids=str)
def test_the_largest_along_any_axis(shape):
    x = numbers(*shape)
    for dim in range(-len(shape), len(shape)):
        if not shape[dim]:
            continue
        k = min(3, shape[dim])
        values, indices = ops.topk(x, k, dim)
        want = np.take(order_of(x, dim), np.arange(k), dim)
        np.testing.assert_array_equal(indices, want)
        np.testing.assert_array_equal(values, np.take_along_axis(x, want, dim))
        assert indices.dtype == np.int64 and values.dtype == x.dtype
        np.testing.assert_array_equal(ops.argmax(x, dim), x.argmax(dim))


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "int64", "uint8"])
def test_dtypes_and_layouts(dtype):
    x = numbers(40, 30).astype(dtype).T[::2]
    values, indices = ops.topk(x, 5)
    np.testing.assert_array_equal(indices, order_of(x)[:, :5])
    np.testing.assert_array_equal(values, np.take_along_axis(x, indices, 1))
    assert ops.topk.kernel(x, 5).name == "topk" and ops.argmax.kernel(numbers(3, 4)).name == "argmax"


def test_nan_is_the_largest():
    x = np.array([[1, np.nan, np.inf, np.nan]], np.float32)
    values, indices = ops.topk(x, 3)
    assert indices.tolist() == [[1, 3, 2]] and np.isnan(values[0, :2]).all() and values[0, 2] == np.inf
    assert ops.argmax(x).tolist() == [1]


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: ops.topk(numbers(3, 5), 6), "topk: 6 of each row are wanted, and rows have 5 numbers"),
        (lambda: ops.topk(numbers(3, 5), 0), "topk: 0 of each row are wanted"),
        (lambda: ops.topk(numbers(3, 5), 2.5), "topk: k is 2.5"),
        (lambda: ops.topk(numbers(3, 500), 129), "at most 128"),
        (lambda: ops.topk(np.zeros((3, 0), np.float32), 1), "rows have no numbers"),
        (lambda: ops.argmax(np.zeros((3, 0), np.float32)), "rows have no numbers"),
        (lambda: ops.topk(np.array(1, np.float32), 1), "x is a single number"),
        (lambda: kernels.topk(numbers(3, 5), numbers(3, 6), numbers(3, 6, dtype=np.int32)), "rows have 5 numbers"),
    ],
)
def test_what_is_refused(call, what):
    with pytest.raises(CallError) as caught:
        call()
    assert what in caught.value.what


@pytest.mark.parametrize("target", TARGETS)
def test_tokens_are_routed(target):
    x = np.random.default_rng(1).standard_normal((7, 60)).astype(np.float32)
    x[0, 1:] = -np.inf
    weights, experts = np.zeros((7, 4), np.float32), np.zeros((7, 4), np.int32)
    run(route_tokens_kernel(Rows(4), f32, f32, i32, 4), target, x, weights, experts, N=60)
    want = order_of(x)[:, :4]
    np.testing.assert_array_equal(experts, want)
    logits = np.take_along_axis(x.astype(np.float64), want, 1)
    powers = np.exp(logits - logits[:, :1])
    np.testing.assert_allclose(weights, powers / powers.sum(1, keepdims=True), rtol=2.0**-20, atol=0)


def test_routed_tokens_go_to_their_experts_and_come_back():
    rng = np.random.default_rng(2)
    x, logits = rng.standard_normal((9, 16)).astype(np.float32), rng.standard_normal((9, 5)).astype(np.float32)
    weights, experts = np.zeros((9, 2), np.float32), np.zeros((9, 2), np.int64)
    kernels.route_tokens(logits, weights, experts)
    slots = np.argsort(np.argsort(experts.reshape(-1), kind="stable")).reshape(9, 2).astype(np.int64)
    grouped, y = np.zeros((18, 16), np.float32), np.zeros_like(x)
    kernels.permute_rows(x, slots, grouped)
    kernels.unpermute_rows(grouped, slots, y, weights)
    np.testing.assert_allclose(y, x, rtol=1e-6, atol=1e-6)  # weights of a token add up to 1
