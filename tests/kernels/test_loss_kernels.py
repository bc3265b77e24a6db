"""Cross entropy with logarithms of sums and an ignored label, its mean and its gradient, on every target."""

import numpy as np
import pytest
from hostile_indices import TARGETS, inside, table_of

from tilewave import *
from tilewave.errors import DTypeError
from tilewave.kernels import Rows
from tilewave.kernels.losses import (
    cross_entropy_backward_kernel,
    cross_entropy_kernel,
    gradient_columns,
    mean_loss_kernel,
)

pytestmark = pytest.mark.share(4)
targets = pytest.mark.parametrize("target", TARGETS)
either = pytest.mark.parametrize("rows", [Rows(2), Rows(2, 32)], ids=["held", "walked"])
ROWS, COLUMNS, IGNORED = 9, 70, 7
OFF = 80 * 2.0**-24
"""Roundings of a sum of 70 powers, of these, and of the operations after it."""


def run(kernel, target, *arrays):
    made = kernel.compile(target="cpu" if target == "numpy" else target, max_sizes={sym.N: 96})
    if target == "cpu":
        made(*arrays)
    elif target == "sm_90a":
        made.interpret(*arrays, level="lane")
    else:
        (made.interpret if target == "numpy" else made.emulate)(*arrays)


def problem(dtype=np.float32):
    rng = np.random.default_rng(1)
    x, labels = rng.standard_normal((ROWS, COLUMNS)).astype(dtype), table_of(rng, ROWS, COLUMNS, np.int64)
    labels[3:6] = IGNORED, COLUMNS - 1, 2**32 + 3
    return x, labels, inside(labels, COLUMNS) & (labels != IGNORED)


def losses(x, labels, asked):
    wide = x.astype(np.float64)
    lse = np.log(np.exp(wide).sum(axis=1))
    return lse, np.where(asked, lse - wide[np.arange(ROWS), np.where(asked, labels, 0)], 0)


@targets
@either
def test_losses_with_their_logarithms(target, rows):
    x, labels, asked = problem(np.float16)
    y, lse = np.full((2, ROWS), np.nan, np.float32)
    run(cross_entropy_kernel(rows, f16, i64, f32, f32, i64), target, x, labels, y, lse, IGNORED)
    wide_lse, want = losses(x, labels, asked)
    assert (np.abs(y - want) <= OFF * 8).all() and (y[~asked] == 0).all()
    assert (np.abs(lse - wide_lse) <= OFF * 8).all()


@targets
@either
def test_the_mean_over_labels_that_count(target, rows):
    _, labels, asked = problem()
    loss, y = np.random.default_rng(2).random(ROWS).astype(np.float32) * asked, np.full(1, np.nan, np.float32)
    kernel = mean_loss_kernel(rows, f32, i64, f32)
    run(kernel, target, loss[None], labels[None], y, COLUMNS, IGNORED)
    assert abs(y[0] - loss.astype(np.float64).sum() / asked.sum()) <= 10 * 2.0**-24
    run(kernel, target, 0 * loss[None], np.full((1, ROWS), -100), y, COLUMNS, IGNORED)
    assert np.isnan(y[0])


@targets
@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
def test_gradients(target, dtype):
    x, labels, asked = problem(dtype.numpy)
    lse, _ = losses(x, labels, asked)
    grad, found = np.random.default_rng(3).standard_normal(ROWS).astype(np.float32), np.full_like(x, np.nan)
    kernel = cross_entropy_backward_kernel(32, dtype, i64, f32, f32, dtype)
    run(kernel, target, x, labels, lse.astype(np.float32), grad, found, IGNORED)
    hot = (np.arange(COLUMNS) == labels[:, None]).astype(np.float64)
    want = np.where(asked[:, None], (np.exp(x.astype(np.float64) - lse[:, None]) - hot) * grad[:, None], 0)
    eps = 2.0**-11 if dtype == f16 else 0
    assert (np.abs(found - want) <= OFF * np.abs(grad[:, None]) + eps * np.abs(want) + 2.0**-25).all()
    assert (found[~asked] == 0).all()


def test_a_workgroup_of_the_gradient_takes_4_kib():
    assert [gradient_columns(n, f16) for n in (10, 1000, 262144)] == [16, 1024, 2048]


def test_labels_are_integers():
    with pytest.raises(DTypeError, match="target is f32, but it names columns"):
        cross_entropy_backward_kernel(32, f32, f32, f32, f32, f32)
