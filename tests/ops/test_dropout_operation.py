"""`ops.dropout` of arrays of any shape and layout."""

import numpy as np
import philox
import pytest

from tilewave import kernels, ops
from tilewave.errors import CallError, DTypeError


def mask(shape, p, seed):
    return philox.uniform(seed, np.arange(np.prod(shape, dtype=int)).reshape(shape)) >= np.float32(p)


@pytest.mark.parametrize("shape", [(), (1,), (1000,), (5, 300), (2, 3, 70), (0, 4)], ids=str)
@pytest.mark.parametrize("p", [0, 0.5, 0.1])
def test_of_any_shape(shape, p):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = ops.dropout(x, p, seed=12)
    np.testing.assert_allclose(found, np.where(mask(shape, p, 12), x / (1 - p), 0), rtol=2.0**-22)
    assert found.dtype == np.float32 and found.shape == shape


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_of_other_dtypes_and_layouts(dtype):
    x = np.random.default_rng(1).standard_normal((40, 60)).astype(dtype)
    for seen in (x.T, x[::-2, ::3], np.broadcast_to(x[:1], (7, 60)), x.reshape(4, 10, 60).swapaxes(0, 1)):
        out = np.full(seen.shape[::-1], 7, dtype).T
        assert ops.dropout(seen, 0.25, seed=2**70 + 1, out=out) is out
        want = np.where(mask(seen.shape, 0.25, 1), seen.astype(np.float64) / 0.75, 0)
        np.testing.assert_allclose(out, want, rtol=float(np.finfo(dtype).eps))


def test_all_or_nothing_is_dropped():
    x = np.array([1, np.inf, np.nan, -0.0], np.float32)
    np.testing.assert_array_equal(ops.dropout(x, 0, seed=3), x)
    np.testing.assert_array_equal(ops.dropout(x, 1, seed=3), np.zeros(4))


def test_replayed_calls_have_their_own_seed_and_probability():
    x = np.ones(500, np.float32)
    for p, seed in ((0.5, 1), (0.5, 2), (0.25, 2), (0.5, 1), (0.5, -1)):
        np.testing.assert_allclose(ops.dropout(x, p, seed=seed), mask(500, p, seed) / (1 - p), rtol=1e-6)


def test_a_kernel_writes_into_an_array():
    x, y = np.ones((3, 90), np.float16), np.zeros((3, 90), np.float64)
    kernels.dropout(x, y, 0.5, 9)
    np.testing.assert_array_equal(y, mask((3, 90), 0.5, 9) * 2)
    assert ops.dropout.kernel(x, 0.5, seed=9).name == "dropout"


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan"), "0.5", None, True])
def test_what_is_no_probability_is_refused(p):
    with pytest.raises(CallError, match="dropout: p is"):
        ops.dropout(np.ones(3, np.float32), p, seed=0)


@pytest.mark.parametrize("seed", [0.5, None, "1", True])
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(CallError, match="dropout: seed is"):
        ops.dropout(np.ones(3, np.float32), 0.5, seed=seed)


def test_integers_are_refused():
    with pytest.raises(DTypeError, match="dropout: x is i32, but it takes floats"):
        ops.dropout(np.ones(3, np.int32), 0.5, seed=0)
