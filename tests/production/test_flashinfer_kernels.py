"""Kernels that FlashInfer ships in CUDA, written in this language."""

import numpy as np
import pytest
from production_runs import run

from tilewave import *

pytestmark = pytest.mark.share(4)
G = GLOBAL_ADDRESS_SPACE
T, D = sym.T, sym.D
TARGETS = ("tile", "cpu", "gfx942")


@wave([WorkgroupConstraint(T, 4, 0)])
def residual_rms_norm(
    x: Memory[T, D, G, f16], bias: Memory[D, G, f16], residual: Memory[T, D, G, f16], w: Memory[D, G, f16],
    y: Memory[T, D, G, f16], eps: f32,
):  # fmt: skip
    """What comes of an all-reduce: bias and residual are added, kept in x, and normed."""
    h = cast(cast(read(x), f32) + cast(read(bias), f32) + cast(read(residual), f32), f16)
    write(h, x)
    v = cast(h, f32)
    scale = rsqrt((v * v).sum(dim=D) / cast(scalar(D), f32) + eps)
    write(cast(v * scale * cast(read(w), f32), f16), y)


@wave([WorkgroupConstraint(T, 4, 0)])
def norm_before_and_after(
    x: Memory[T, D, G, f16], residual: Memory[T, D, G, f16], before: Memory[D, G, f16], w: Memory[D, G, f16],
    y: Memory[T, D, G, f16], eps: f32,
):  # fmt: skip
    def normed(v, weight):
        scale = rsqrt((v * v).sum(dim=D) / cast(scalar(D), f32) + eps)
        return cast(v * scale * cast(read(weight), f32), f16)

    h = cast(cast(normed(cast(read(x), f32), before), f32) + cast(read(residual), f32), f16)
    write(h, x)
    write(normed(cast(h, f32), w), y)


def norm(v, weight):
    return v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-6) * weight.astype(float)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [residual_rms_norm, norm_before_and_after], ids=lambda k: k.name)
def test_norms_after_an_all_reduce(kernel, target):
    rng = np.random.default_rng(1)
    x, residual, y = (rng.standard_normal((7, 96)).astype(np.float16) for _ in range(3))
    bias, w = (rng.standard_normal(96).astype(np.float16) for _ in range(2))
    given, kept = x.astype(float), x.copy()
    if kernel is residual_rms_norm:
        run(kernel, target, kept, bias, residual, w, y, 1e-6, D=96)
        h = given + bias.astype(float) + residual.astype(float)
    else:
        run(kernel, target, kept, residual, bias, w, y, 1e-6, D=96)
        h = norm(given, bias) + residual.astype(float)
    assert (np.abs(kept - h) <= 2.0**-10 * (np.abs(h) + np.abs(norm(given, bias)))).all()  # h is rounded to f16
    wanted = norm(kept.astype(float), w)
    assert (np.abs(y - wanted) <= 2.0**-10 * np.abs(wanted) + 2.0**-24).all()
