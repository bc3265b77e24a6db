"""Kernels that flash-linear-attention ships in Triton, written in this language."""

import numpy as np
import pytest
from production_runs import check, run, sigmoid

from tilewave import *

pytestmark = pytest.mark.share(4)
G = GLOBAL_ADDRESS_SPACE
T, D, N, B = sym.T, sym.D, sym.N, sym.B
TARGETS = ("tile", "cpu", "gfx942")
ELEMENTS = [WorkgroupConstraint(N, 256, 0)]


@wave(ELEMENTS)
def logsigmoid_fwd(x: Memory[N, G, f16], y: Memory[N, G, f16], temperature: f32):
    v = cast(read(x), f32)
    write(cast((minimum(v, 0.0) - log(1.0 + exp(-abs(v)))) / temperature, f16), y)


@wave(ELEMENTS)
def beta_sigmoid_bwd(x: Memory[N, G, f16], dy: Memory[N, G, f16], dx: Memory[N, G, f16], scale: f32):
    y = reciprocal(1.0 + exp(-cast(read(x), f32)))
    write(cast(cast(read(dy), f32) * scale * y * (1.0 - y), f16), dx)


@wave([WorkgroupConstraint(T, 4, 0)])
def l2norm_fwd(x: Memory[T, D, G, f16], y: Memory[T, D, G, f16], rstd: Memory[T, G, f32], eps: f32):
    v = cast(read(x), f32)
    scale = rsqrt((v * v).sum(dim=D) + eps)
    write(cast(v * scale, f16), y)
    write(scale, rstd)


@wave([WorkgroupConstraint(B, 1, 0), WorkgroupConstraint(T, 16, 1), WorkgroupConstraint(D, 64, 2)])
def addcmul_fwd(
    h: Memory[B, T, D, G, f16], delta: Memory[B, T, D, G, f16], r: Memory[D, G, f16], w: Memory[D, G, f16],
    out_r: Memory[B, T, D, G, f16], out_w: Memory[B, T, D, G, f16],
):  # fmt: skip
    """Two of the six mixes; the others are more lines of the kind."""
    a, b = cast(read(h), f32), cast(read(delta), f32)
    for factor, out in ((r, out_r), (w, out_w)):
        write(cast(fma(b, cast(read(factor), f32), a), f16), out)


@wave([WorkgroupConstraint(B, 1, 0), WorkgroupConstraint(D, 32, 1), TilingConstraint(T, 16)])
def logcumsumexp_fwd(s: Memory[B, T, D, G, f32], z: Memory[B, T, D, G, f32]):
    """log Σ exp of all rows up to each, with the largest so far taken out."""
    lowest = Register[B, D, f32](-1e30)

    @iterate(T, init_args=[lowest, Register[B, D, f32](0.0)])
    def step(largest, total):
        x = select(self_index(T) < scalar(T), read(s), -1e30)
        new = maximum(largest, x.max(dim=T))
        e = exp(x - new)
        before = total * exp(largest - new)
        write(log(cumsum(e, dim=T) + before) + new, z)
        return new, before + e.sum(dim=T)


@wave([WorkgroupConstraint(T, 4, 0)])
def softmax_fwd(x: Memory[T, D, G, f16], p: Memory[T, D, G, f16]):
    v = cast(read(x), f32)
    e = exp(v - v.max(dim=D))
    write(cast(e / e.sum(dim=D), f16), p)


@pytest.mark.parametrize("target", TARGETS)
def test_elementwise(target):
    rng = np.random.default_rng(1)
    x, dy = (rng.standard_normal(1000).astype(np.float16) * 3 for _ in range(2))
    y, dx = np.zeros(1000, np.float16), np.zeros(1000, np.float16)
    run(logsigmoid_fwd, target, x, y, 2.0)
    run(beta_sigmoid_bwd, target, x, dy, dx, 0.5)
    v = x.astype(float)
    check(y, -np.log1p(np.exp(-v)) / 2, 8, "f16")
    check(dx, dy.astype(float) * 0.5 * sigmoid(v) * (1 - sigmoid(v)), 8, "f16")


@pytest.mark.parametrize("target", TARGETS)
def test_norm_and_softmax_of_rows(target):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((10, 80)).astype(np.float16)
    y, p, rstd = np.zeros((10, 80), np.float16), np.zeros((10, 80), np.float16), np.zeros(10, np.float32)
    run(l2norm_fwd, target, x, y, rstd, 1e-6, D=80)
    run(softmax_fwd, target, x, p, D=80)
    v = x.astype(float)
    scale = 1 / np.sqrt((v * v).sum(1) + 1e-6)
    check(rstd, scale, 80)
    check(y, v * scale[:, None], 80, "f16")
    e = np.exp(v - v.max(1, keepdims=True))
    check(p, e / e.sum(1, keepdims=True), 84, "f16")


@pytest.mark.parametrize("target", TARGETS)
def test_addcmul_fwd(target):
    rng = np.random.default_rng(3)
    h, delta = (rng.standard_normal((2, 21, 72)).astype(np.float16) for _ in range(2))
    r, w = (rng.standard_normal(72).astype(np.float16) for _ in range(2))
    out_r, out_w = np.zeros_like(h), np.zeros_like(h)
    run(addcmul_fwd, target, h, delta, r, w, out_r, out_w)
    for factor, out in ((r, out_r), (w, out_w)):
        check(out, delta.astype(float) * factor.astype(float) + h.astype(float), 1, "f16")


@pytest.mark.parametrize("target", [*TARGETS, "sm_90a"])
def test_logcumsumexp_fwd(target):
    s = np.random.default_rng(4).standard_normal((2, 37, 40)).astype(np.float32) * 8
    z = np.zeros_like(s)
    run(logcumsumexp_fwd, target, s, z)
    check(z, np.logaddexp.accumulate(s.astype(float), axis=1), 60)
