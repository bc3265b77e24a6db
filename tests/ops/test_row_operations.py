"""`ops.softmax`, `ops.rms_norm` and `ops.layer_norm` on arrays of any number of axes."""

import numpy as np
import pytest

from tilewave import *
from tilewave import kernels, ops
from tilewave.errors import CallError, DTypeError


def numbers(*shape, dtype=np.float32):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


CALLS = {
    "softmax": lambda x, **more: ops.softmax(x, **more),
    "rms_norm": lambda x, **more: ops.rms_norm(x, **more),
    "layer_norm": lambda x, **more: ops.layer_norm(x, **more),
}
calls = pytest.mark.parametrize("name", CALLS)


def of_rows(name, x):
    """What the kernel on rows gives, which its own tests hold against references."""
    y = np.empty_like(x)
    getattr(kernels, name)(x, y)
    return y


@pytest.mark.share(6)
@calls
@pytest.mark.parametrize("shape", [(1,), (37,), (3, 1), (3, 37), (2, 3, 37), (2, 1, 3, 5)], ids=str)
def test_rows_of_any_number_of_axes(name, shape):
    x = numbers(*shape)
    found = CALLS[name](x)
    assert found.shape == x.shape and found.dtype == x.dtype
    assert np.array_equal(found.reshape(-1, shape[-1]), of_rows(name, x.reshape(-1, shape[-1])))


@calls
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 5)], ids=str)
def test_nothing_gives_nothing(name, shape):
    assert CALLS[name](numbers(*shape)).shape == shape


@calls
def test_arrays_that_do_not_lie_row_after_row(name):
    x = numbers(4, 3, 37)
    want = CALLS[name](x)
    assert np.array_equal(CALLS[name](np.asfortranarray(x)), want)
    assert np.array_equal(CALLS[name](x[::2, ::-1]), want[::2, ::-1])


@calls
def test_out_is_written(name):
    x = numbers(4, 37)
    wide = np.full((4, 74), np.nan, np.float32)
    found = CALLS[name](x, out=wide[:, ::2])
    assert found.base is wide and np.isnan(wide[:, 1::2]).all()
    assert np.array_equal(found, CALLS[name](x))


@pytest.mark.parametrize("dim", [0, 1, -2, 2, -1])
def test_softmax_along_any_axis(dim):
    x = numbers(3, 5, 7)
    found = ops.softmax(x, dim)
    last = np.moveaxis(x, dim, -1).copy()
    assert np.array_equal(
        np.moveaxis(found, dim, -1).reshape(-1, last.shape[-1]), of_rows("softmax", last.reshape(-1, last.shape[-1]))
    )


def test_a_residual_is_added_on_the_way():
    x, residual, weight = numbers(2, 3, 37), numbers(2, 3, 37) + 1, numbers(37)
    y, total = ops.rms_norm(x, weight, residual=residual)
    assert np.array_equal(total, x + residual) and np.array_equal(y, ops.rms_norm(total, weight))


def test_the_kernel_of_a_call_is_the_one_that_comes_along():
    x = numbers(4, 37)
    assert ops.softmax.kernel(x) is kernels.kernel_for(kernels.softmax_kernel, x=x, y=x)
    assert ops.rms_norm.kernel(x, numbers(37)).name == "rms_norm"
    assert ops.layer_norm.kernel(x).name == "layer_norm"


@pytest.mark.parametrize(
    "call, error, what",
    [
        (lambda: ops.softmax(np.ones((), np.float32)), CallError, "x is a single number"),
        (lambda: ops.softmax(np.ones((3, 3), np.int32)), DTypeError, "takes floats"),
        (lambda: ops.rms_norm(numbers(3, 5), numbers(3)), CallError, r"weight is \(3,\), but x has 5 columns"),
        (
            lambda: ops.layer_norm(numbers(3, 5), numbers(5), numbers(1)),
            CallError,
            r"bias is \(1,\), but x has 5 columns",
        ),
        (lambda: ops.layer_norm(numbers(3, 5), bias=numbers(5)), CallError, "a bias, but no weight"),
        (lambda: ops.rms_norm(numbers(3, 5), residual=numbers(5)), CallError, r"residual is \(5,\), but x is \(3, 5\)"),
        (lambda: ops.softmax(numbers(3, 5), out=numbers(5, 3)), CallError, "out is 5x3"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_does_not_fit_is_refused_with_the_author_s_line(call, error, what):
    with pytest.raises(error, match=what) as raised:
        call()
    assert raised.value.loc.file == __file__
