"""`ops.attention` on arrays of any number of axes; its kernel is tested separately."""

import numpy as np
import pytest

from tilewave import kernels, ops
from tilewave.errors import CallError


def numbers(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def of_kernel(q, k, v, **asked):
    y = np.empty((*q.shape[:-1], v.shape[-1]), np.float32)
    kernels.attention(q, k, v, y, **asked)
    return y


def test_batches_and_heads_may_be_missing_or_several():
    q, k, v = numbers(2, 3, 9, 16), numbers(2, 3, 11, 16), numbers(2, 3, 11, 8)
    want = of_kernel(q, k, v, causal=True)
    assert np.array_equal(ops.attention(q, k, v, causal=True), want)
    assert np.array_equal(ops.attention(q[0], k[0], v[0], causal=True), want[0])
    assert np.array_equal(ops.attention(q[0, 0], k[0, 0], v[0, 0], causal=True), want[0, 0])
    many = [x.reshape(2, 1, *x.shape[1:]) for x in (q, k, v)]
    assert np.array_equal(ops.attention(*many, causal=True)[:, 0], want)


def test_a_bias_is_broadcast_and_out_is_written():
    q, k, v, bias = numbers(2, 3, 9, 16), numbers(2, 3, 11, 16), numbers(2, 3, 11, 8), numbers(9, 11)
    out = np.empty((2, 3, 9, 8), np.float32)
    assert ops.attention(q, k, v, bias=bias, out=out) is out
    assert np.array_equal(out, of_kernel(q, k, v, bias=np.broadcast_to(bias, (2, 3, 9, 11))))


def test_no_queries_and_no_keys():
    q, k, v = numbers(2, 3, 9, 16), numbers(2, 3, 11, 16), numbers(2, 3, 11, 8)
    assert ops.attention(q[:, :, :0], k, v).shape == (2, 3, 0, 8)
    assert ops.attention(q[:0], k[:0], v[:0]).shape == (0, 3, 9, 8)
    assert not ops.attention(q, k[:, :, :0], v[:, :, :0]).any()


def test_its_kernel_is_the_one_that_comes_along():
    q = numbers(2, 3, 9, 16)
    assert ops.attention.kernel(q, q, q, causal=True).name == "attention"


@pytest.mark.parametrize(
    "shapes, what",
    [
        ([(2, 9, 16), (9, 16), (2, 9, 16)], "q is 2x9x16, and k is 9x16"),
        ([(16,), (16,), (16,)], "q is 16, and k is 16"),
        ([(2, 9, 16), (2, 9, 8), (2, 9, 8)], "q is 2x9x16, k is 2x9x8"),
        ([(2, 9, 16), (2, 9, 16), (2, 8, 16)], "v is 2x8x16"),
        ([(3, 9, 16), (2, 9, 16), (2, 9, 16)], "3 heads of q cannot share 2 heads of k"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_author_s_line(shapes, what):
    with pytest.raises(CallError, match=what) as raised:
        ops.attention(*(numbers(*shape) for shape in shapes))
    assert raised.value.loc.file == __file__
