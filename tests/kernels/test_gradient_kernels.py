"""Backward passes on rows and of activations: in the interpreter, on lanes of GPUs, and emulated, against float64."""

import numpy as np
import pytest
from row_kernels import close

from tilewave import *
from tilewave.kernels import ACTIVATIONS, Rows, layer_norm_kernel, rms_norm_kernel
from tilewave.kernels.column_sums import activation_gradients_kernel
from tilewave.kernels.gradients import (
    activation_backward_kernel,
    layer_norm_backward_kernel,
    layer_norm_weights_kernel,
    rms_norm_backward_kernel,
    rms_norm_weights_kernel,
    softmax_backward_kernel,
)

B, M, N = sym.B, sym.M, sym.N
ROWS, COLUMNS, EPS = 5, 37, 1e-5
WAYS = ["numpy", "lanes of gfx942", "lanes of sm_90a", "gfx942"]
HELD, WALKED = Rows(2), Rows(2, 16)
ROUNDINGS = 40
"""Roundings of a sum of 37 numbers, of its divisor, and of the operations after it, in units of f32."""
ways = pytest.mark.parametrize("way", WAYS)
either = pytest.mark.parametrize("rows", [HELD, WALKED], ids=["held", "walked"])


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(kernel, way, *arrays, more=None):
    target = way.removeprefix("lanes of ")
    compiled = kernel.compile(target=target, subs={M: ROWS, N: COLUMNS, **(more or {})})
    if way == "numpy":
        compiled.interpret(*arrays)
    elif way.startswith("lanes"):
        compiled.interpret(*arrays, level="lane")
    else:
        compiled.emulate(*arrays)


def near(found, want, what):
    close(found, want, ROUNDINGS * 2.0**-24 * np.abs(want).max(), what)


def wide(*arrays):
    return [x.astype(np.float64) for x in arrays]


@ways
@either
def test_of_softmax(way, rows):
    x, grad = numbers(ROWS, COLUMNS), numbers(ROWS, COLUMNS, seed=1)
    y = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    found = np.full_like(x, np.nan)
    run(softmax_backward_kernel(rows, f32, f32, f32), way, y, grad, found)
    y, grad = wide(y, grad)
    near(found, y * (grad - (y * grad).sum(1, keepdims=True)), "softmax")


@ways
@either
def test_of_rms_norm(way, rows):
    x, grad, weight = numbers(ROWS, COLUMNS), numbers(ROWS, COLUMNS, seed=1), numbers(COLUMNS, seed=2)
    found, y, scale = np.full_like(x, np.nan), np.full_like(x, np.nan), np.full(ROWS, np.nan, np.float32)
    run(rms_norm_kernel(rows, f32, f32, scale_dtype=f32), way, x, y, scale, EPS)
    run(rms_norm_backward_kernel(rows, *[f32] * 5), way, x, grad, weight, scale, found)
    of_weight = np.full(COLUMNS, np.nan, np.float32)
    run(rms_norm_weights_kernel(f32, f32, f32, f32), way, x, grad, scale, of_weight)
    x, grad, weight = wide(x, grad, weight)
    s, g = 1 / np.sqrt((x * x).mean(1, keepdims=True) + EPS), grad * weight
    near(scale, s[:, 0], "scale")
    near(found, s * (g - x * s * s * (g * x).mean(1, keepdims=True)), "rms_norm")
    near(of_weight, (grad * x * s).sum(0), "weights of rms_norm")


@pytest.mark.share(4)
@ways
@either
def test_of_layer_norm(way, rows):
    x, grad, weight = numbers(ROWS, COLUMNS) + 3, numbers(ROWS, COLUMNS, seed=1), numbers(COLUMNS, seed=2)
    found, y, mean, scale = *np.full((2, *x.shape), np.nan, np.float32), *np.full((2, ROWS), np.nan, np.float32)
    run(layer_norm_kernel(rows, f32, f32, mean_dtype=f32, scale_dtype=f32), way, x, y, mean, scale, EPS)
    run(layer_norm_backward_kernel(rows, *[f32] * 5), way, x, grad, weight, mean, scale, found)
    of_weight, of_bias = np.full((2, COLUMNS), np.nan, np.float32)
    run(layer_norm_weights_kernel(f32, f32, f32, f32, f32), way, x, grad, mean, scale, of_weight, of_bias)
    x, grad, weight = wide(x, grad, weight)
    s, g = 1 / np.sqrt(x.var(1, keepdims=True) + EPS), grad * weight
    normed = (x - x.mean(1, keepdims=True)) * s
    want = s * (g - g.mean(1, keepdims=True) - normed * (g * normed).mean(1, keepdims=True))
    near(y, normed, "the norm")
    near(mean, x.mean(1), "mean")
    near(scale, s[:, 0], "scale")
    near(found, want, "layer_norm")
    near(of_weight, (grad * normed).sum(0), "weights of layer_norm")
    near(of_bias, grad.sum(0), "bias of layer_norm")


@pytest.mark.share(8)
@ways
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_of_activations(way, activation):
    """The slope is held against a quotient of differences, in float64 by the interpreter."""
    x, grad = numbers(ROWS, COLUMNS) * 3, numbers(ROWS, COLUMNS, seed=1)
    x[0, :5] = 0, 100, -100, np.inf, 1e-30
    found = np.full_like(x, np.nan)
    run(activation_backward_kernel(activation, f32, f32, f32), way, x, grad, found)
    exact = np.full((ROWS, COLUMNS), np.nan)
    run(activation_backward_kernel(activation, f64, f64, f64), "numpy", *wide(x, grad), exact)
    same = np.isfinite(exact)
    assert (np.isfinite(found) == same).all()
    near(found[same], exact[same], activation)


@ways
def test_of_activations_and_their_bias(way):
    x, grad = numbers(ROWS, COLUMNS), numbers(ROWS, COLUMNS, seed=1)
    found, sums = np.full_like(x, np.nan), np.full((1, COLUMNS), np.nan, np.float32)
    run(activation_gradients_kernel("silu", f32, f32, f32, f32), way, x, grad, found, sums, more={B: 1})
    exact = np.full((ROWS, COLUMNS), np.nan)
    run(activation_backward_kernel("silu", f64, f64, f64), "numpy", *wide(x, grad), exact)
    near(found, exact, "rows")
    near(sums[0], exact.sum(0), "bias")
