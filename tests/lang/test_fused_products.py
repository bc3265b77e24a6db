"""fma(a, b, c): a · b + c of f32, rounded once on every target."""

from fractions import Fraction

import numpy as np
import pytest
from kernels import G, K, M

from tilewave import *
from tilewave.errors import DTypeError


@wave([WorkgroupConstraint(M, 64, 0)])
def fused(a: Memory[M, G, f32], b: Memory[M, G, f32], c: Memory[M, G, f32], y: Memory[M, G, f32]):
    write(fma(read(a), read(b), read(c)), y)


def operands(count=512):
    """Random ones, and such as two steps round differently: products that nearly cancel, and halves of units."""
    rng = np.random.default_rng(17)
    a, b = (rng.standard_normal(count).astype(np.float32) for _ in range(2))
    c = (-(a.astype(np.float64) * b)).astype(np.float32)
    c[::3] = rng.standard_normal(len(c[::3])) * np.exp2(rng.integers(-40, 40, len(c[::3])))
    a[:4], b[:4], c[:4] = 1 + 2**-23, 1 + 2**-23, (2**-24, -(2**-24), 2**-60, -(2**-60))
    a[4:8], b[4:8], c[4:8] = 1, (1, 1, -1, -1), (2**-24, 2**-24 + 2**-47, -(2**-24), 2.0**-25)
    return a, b, c


def exactly(a, b, c):
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    return np.array([nearest(x) for x in exact], np.float32)


def nearest(x):
    """The f32 next to a fraction, the even one of two."""
    around = {np.float32(float(x))}
    around |= {np.nextafter(one, np.float32(way)) for one in set(around) for way in (-np.inf, np.inf)}
    return min(around, key=lambda one: (abs(Fraction(float(one)) - x), int(one.view(np.uint32)) & 1))


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942", "gfx950"])
def test_it_is_rounded_once(target):
    a, b, c = operands()
    made = wave_compile(WaveCompileOptions(subs={M: len(a)}, target=target), fused)
    y = np.full_like(a, np.nan)
    (made if target in ("numpy", "cpu") else made.emulate)(a, b, c, y)
    np.testing.assert_array_equal(y, exactly(a, b, c))


def test_hopper_has_an_instruction_for_it():
    made = wave_compile(WaveCompileOptions(subs={M: 64}, target="sm_90a"), fused)
    assert "fma.rn.f32" in made.asm
    a, b, c = (x[:64] for x in operands())
    y = np.full_like(a, np.nan)
    made.interpret(a, b, c, y, level="lane")
    np.testing.assert_array_equal(y, exactly(a, b, c))


def test_numbers_and_tiles_of_fewer_dims_are_repeated():
    @wave([WorkgroupConstraint(M, 8, 0)])
    def scaled(a: Memory[M, K, G, f32], c: Memory[M, G, f32], y: Memory[M, K, G, f32]):
        write(fma(read(a), 0.1, read(c)), y)

    a, c = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32), np.arange(5, dtype=np.float32)
    y = np.full((5, 3), np.nan, np.float32)
    wave_compile(WaveCompileOptions(subs={M: 5, K: 3}, target="numpy"), scaled)(a, c, y)
    want = exactly(a.reshape(-1), np.full(15, 0.1, np.float32), np.repeat(c, 3))
    np.testing.assert_array_equal(y.reshape(-1), want)


def test_other_dtypes_are_refused():
    @wave([WorkgroupConstraint(M, 8, 0)])
    def narrow(a: Memory[M, G, f16], y: Memory[M, G, f16]):
        write(fma(read(a), 2.0, 1.0), y)

    with pytest.raises(DTypeError, match="fma takes f32"):
        wave_compile(WaveCompileOptions(subs={M: 8}, target="numpy"), narrow)
