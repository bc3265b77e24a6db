"""Kernels that Liger ships in Triton, written in this language."""

import numpy as np
import pytest
from production_runs import check, run

from tilewave import *

pytestmark = pytest.mark.share(4)
G = GLOBAL_ADDRESS_SPACE
M, N, P = sym.M, sym.N, sym.P
TARGETS = ("tile", "cpu", "gfx942")
IGNORED = -100


@wave([WorkgroupConstraint(M, 4, 0), TilingConstraint(N, 64)])
def tv_distance(
    p: Memory[M, N, G, f32], q: Memory[M, N, G, f32], label: Memory[M, G, i32],
    loss: Memory[M, G, f32], grad: Memory[M, N, G, f32],
):  # fmt: skip
    counts = read(label) != IGNORED

    @iterate(N, init_args=[Register[M, f32](0.0)])
    def total(acc):
        a, b = read(p), read(q)
        write(select(counts, select(a > b, 0.5, -0.5), 0.0), grad)
        return acc + (0.5 * abs(a - b)).sum(dim=N)

    write(select(counts, total, 0.0), loss)


@wave([WorkgroupConstraint(M, 4, 0)])
def poly_norm(
    x: Memory[M, N, G, f32], w: Memory[P, G, f32], bias: Memory[P, G, f32], y: Memory[M, N, G, f32], eps: f32
):
    v = read(x)
    total = read(bias, at={P: 0})
    for i, power in enumerate((v * v * v, v * v, v)):
        scale = rsqrt((power * power).sum(dim=N) / cast(scalar(N), f32) + eps)
        total = power * scale * read(w, at={P: i}) + total
    write(total, y)


@wave([WorkgroupConstraint(N, 64, 0), TilingConstraint(M, 8)])
def dyt_bwd(
    dy: Memory[M, N, G, f32], x: Memory[M, N, G, f32], gamma: Memory[N, G, f32],
    dx: Memory[M, N, G, f32], dgamma: Memory[N, G, f32], dalpha: Memory[P, G, f32], alpha: f32,
):  # fmt: skip
    """The gradients of gamma · tanh(alpha · x); that of alpha is added by atomics."""
    zeros = Register[N, f32](0.0)

    @iterate(M, init_args=[zeros, zeros])
    def sums(of_gamma, of_alpha):
        v, g = read(x), read(dy)
        t = tanh(alpha * v)
        through = (1.0 - t * t) * g * read(gamma)
        write(alpha * through, dx)
        return of_gamma + (g * t).sum(dim=M), of_alpha + (v * through).sum(dim=M)

    of_gamma, of_alpha = sums
    write(of_gamma, dgamma)
    atomic_add(Register[P, f32](1.0) * of_alpha.sum(dim=N), dalpha)


@pytest.mark.parametrize("target", TARGETS)
def test_tv_distance(target):
    rng = np.random.default_rng(1)
    p, q = (rng.random((9, 150)).astype(np.float32) for _ in range(2))
    label = rng.integers(0, 150, 9).astype(np.int32)
    label[[2, 7]] = IGNORED
    loss, grad = np.full(9, np.nan, np.float32), np.full((9, 150), np.nan, np.float32)
    run(tv_distance, target, p, q, label, loss, grad)
    kept = label != IGNORED
    check(loss, np.where(kept, 0.5 * np.abs(p.astype(float) - q).sum(1), 0), 150)
    np.testing.assert_array_equal(grad, np.where(kept[:, None], np.where(p > q, 0.5, -0.5), 0))


@pytest.mark.parametrize("target", TARGETS)
def test_poly_norm(target):
    rng = np.random.default_rng(2)
    x, w, bias = (rng.standard_normal(s).astype(np.float32) for s in ((7, 96), (3,), (3,)))
    y = np.zeros((7, 96), np.float32)
    run(poly_norm, target, x, w, bias, y, 1e-6, N=96, P=3)
    v, wanted = x.astype(float), float(bias[0])
    for i, power in enumerate((v**3, v**2, v)):
        wanted = wanted + w[i].astype(float) * power / np.sqrt((power * power).mean(1, keepdims=True) + 1e-6)
    check(y, wanted, 120)


@pytest.mark.parametrize("target", TARGETS)
def test_dyt_bwd(target):
    rng = np.random.default_rng(3)
    dy, x, gamma = (rng.standard_normal(s).astype(np.float32) for s in ((19, 100), (19, 100), (100,)))
    dx, dgamma, dalpha = np.zeros((19, 100), np.float32), np.zeros(100, np.float32), np.zeros(1, np.float32)
    run(dyt_bwd, target, dy, x, gamma, dx, dgamma, dalpha, 0.7, P=1)
    t = np.tanh(0.7 * x.astype(float))
    through = (1 - t * t) * dy * gamma
    check(dx, 0.7 * through, 16)
    check(dgamma, (dy * t).sum(0), 60)
    check(dalpha, (x * through).sum()[None], 100, size=np.abs(x * through).sum())
