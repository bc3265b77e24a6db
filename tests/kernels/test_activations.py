"""What layers end with, held against float64."""

import math

import numpy as np
import pytest

from tilewave import *
from tilewave.kernels.activations import ACTIVATIONS

N, G = sym.N, GLOBAL_ADDRESS_SPACE
EPS = float(np.finfo(np.float32).eps)


def gelu_of(x, dtype, rounded_to=f32):
    @wave([WorkgroupConstraint(N, 64, 0)])
    def apply(a: Memory[N, G, dtype], c: Memory[N, G, dtype]):
        write(ACTIVATIONS["gelu"].value(read(a), rounded_to), c)

    c = np.full_like(x, np.nan)
    wave_compile(WaveCompileOptions(subs={N: len(x)}, target="numpy"), apply).interpret(x, c)
    return c


def exact(x):
    return np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.astype(float)])


SPREAD = np.concatenate([np.linspace(-20, 20, 4001), np.geomspace(1e-30, 1, 400), -np.geomspace(1e-30, 1, 400)])


def test_gelu_is_off_by_a_unit_of_its_argument():
    x = SPREAD.astype(np.float32)
    assert (np.abs(gelu_of(x, f32) - exact(x)) <= EPS * np.abs(x)).all()


def test_gelu_keeps_its_digits_where_it_is_small():
    """1 + erf has none of them left at -4: there one unit of 1 is 8 % of the result."""
    x = np.linspace(-4.2, -0.1, 2001).astype(np.float32)
    want = exact(x)
    assert (np.abs(gelu_of(x, f32) - want) <= 1e-5 * np.abs(want)).all()


def test_gelu_far_out():
    x = np.array([-np.inf, -1e30, -64, -14, 14, 64, 1e30, np.inf, np.nan], np.float32)
    found = gelu_of(x, f32)
    np.testing.assert_array_equal(found[:8], np.maximum(x[:8], 0))
    assert np.isnan(found[8])


@pytest.mark.parametrize("rounded_to", [f16, bf16], ids=str)
def test_gelu_that_is_rounded_to_halves_has_few_terms_and_their_digits(rounded_to):
    """Off by a fifth of what rounding to f16 may be off by, which is more than bf16 needs."""
    x = np.concatenate([SPREAD, np.linspace(-6, 6, 5001)]).astype(np.float32)
    want = exact(x)
    off = np.abs(gelu_of(x, f32, rounded_to) - want)
    assert (off <= np.maximum(2.0**-13.4 * np.abs(want), 2.0**-27)).all()
    far = np.array([-np.inf, -1e30, -64, 64, 1e30, np.inf], np.float32)
    np.testing.assert_array_equal(gelu_of(far, f32, rounded_to), np.maximum(far, 0))


@pytest.mark.parametrize(("dtype", "unit"), [(f64, 2.0**-50), (f16, 2.0**-9)], ids=str)
def test_gelu_of_other_dtypes_comes_from_the_error_function(dtype, unit):
    x = np.linspace(-6, 6, 1001).astype(dtype.numpy)
    assert (np.abs(gelu_of(x, dtype) - exact(x)) <= unit * np.maximum(np.abs(x), 1)).all()


SLOPES = {
    "gelu": lambda x: 0.5 * math.erfc(-x / math.sqrt(2)) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "silu": lambda x: _sigmoid(x) * (1 + x * _sigmoid(-x)),
    "gelu_tanh": lambda x: _gelu_tanh_slope(x),
}


def _sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def _gelu_tanh_slope(x):
    u, steep = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3), math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return _sigmoid(2 * u) + 2 * x * steep * _sigmoid(2 * u) * _sigmoid(-2 * u)


@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.parametrize(("rounded_to", "off"), [(f16, 2.0**-14), (bf16, 2.0**-14), (f32, 2.0**-20)], ids=str)
def test_slopes_and_values_are_exact_enough_to_be_rounded(name, rounded_to, off):
    """A unit of f16 in 1 is 2 ** -11; where |x| is large, slopes are 0 and 1."""
    x = np.concatenate([SPREAD, np.linspace(-6, 6, 5001), [-1e4, -90, 90, 1e4]]).astype(np.float32)

    @wave([WorkgroupConstraint(N, 64, 0)])
    def apply(a: Memory[N, G, f32], value: Memory[N, G, f32], slope: Memory[N, G, f32]):
        both = ACTIVATIONS[name].both(read(a), rounded_to)
        write(both[0], value)
        write(both[1], slope)

    value, slope, alone = (np.full_like(x, np.nan) for _ in range(3))
    wave_compile(WaveCompileOptions(subs={N: len(x)}, target="numpy"), apply).interpret(x, value, slope)
    assert np.abs(slope - [SLOPES[name](float(v)) for v in x]).max() <= off

    @wave([WorkgroupConstraint(N, 64, 0)])
    def value_of(a: Memory[N, G, f32], c: Memory[N, G, f32]):
        write(ACTIVATIONS[name].value(read(a), rounded_to), c)

    wave_compile(WaveCompileOptions(subs={N: len(x)}, target="numpy"), value_of).interpret(x, alone)
    np.testing.assert_allclose(value, alone, rtol=2.0**-21, atol=2.0**-100)


@pytest.mark.parametrize("way", ["numpy", "lanes of sm_90a", "cpu", "gfx942"])
def test_flushed_reciprocals_are_within_a_unit_in_the_last_place(way):
    @wave([WorkgroupConstraint(N, 64, 0)])
    def apply(a: Memory[N, G, f32], c: Memory[N, G, f32]):
        write(reciprocal(read(a), flush=True), c)

    x = np.concatenate([np.linspace(-9, -0.1, 100), np.geomspace(2.0**-125, 2.0**126, 154), [2.0**127, np.inf]])
    x = x.astype(np.float32)
    c = np.full_like(x, np.nan)
    compiled = wave_compile(WaveCompileOptions(subs={N: len(x)}, target=way.removeprefix("lanes of ")), apply)
    match way:
        case "numpy":
            compiled.interpret(x, c)
        case "lanes of sm_90a":
            compiled.interpret(x, c, level="lane")
        case "cpu":
            compiled(x, c)
        case _:
            compiled.emulate(x, c)
    want = np.where(np.abs(x) > 2.0**126, 0, 1 / x.astype(np.float64))
    assert (np.abs(c - want) <= 2.0**-23 * np.abs(want)).all()
