"""`ops.cumsum` along any axis, of every dtype."""

import numpy as np
import pytest

from tilewave import ops
from tilewave.errors import CallError


@pytest.mark.parametrize("shape", [(1,), (1000,), (3, 300), (2, 3, 70), (0, 4), (4, 0)], ids=str)
def test_along_any_axis(shape):
    x = np.random.default_rng(0).integers(-9, 10, shape).astype(np.float32)
    for dim in range(-len(shape), len(shape)):
        found = ops.cumsum(x, dim)
        np.testing.assert_array_equal(found, np.cumsum(x, axis=dim))
        assert found.dtype == np.float32


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "int32", "int64", "uint8", "uint32", "bool"])
def test_sums_of_integers_are_i64(dtype):
    x = np.random.default_rng(1).integers(0, 3, (5, 90)).astype(dtype)
    found = ops.cumsum(x)
    assert found.dtype == (dtype if dtype.startswith("float") else np.int64)
    np.testing.assert_array_equal(found, np.cumsum(x.astype(np.float64), axis=1))


def test_sums_of_16_bits_are_added_in_f32():
    assert ops.cumsum(np.ones(4096, np.float16))[-1] == 4096  # f16 alone stops at 2048


def test_out():
    x, out = np.ones((4, 6), np.int32), np.zeros((6, 8), np.int32).T[::2]
    assert ops.cumsum(x, 0, out=out) is out
    np.testing.assert_array_equal(out, np.cumsum(x, axis=0))
    assert ops.cumsum.kernel(x).name == "cumsum"


def test_what_is_refused():
    with pytest.raises(CallError, match="cumsum: x is a single number"):
        ops.cumsum(np.array(1, np.float32))
    with pytest.raises(CallError, match="cumsum: dim is 2, but x has 2 axes"):
        ops.cumsum(np.ones((2, 2), np.float32), 2)
