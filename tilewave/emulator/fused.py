"""A fused multiply-add: a·b + c, exact, times a power of two, and only then rounded.

float16 and float32 are computed in float64, which holds their products. Where their sum does not fit, its last bit is
made odd: then it is no tie that was none before, and rounding it once more is as good as rounding once.

float64 has no wider type at hand. A product of fractions is split in two numbers, a sum in its value and what was lost
(Dekker, Knuth), and what is left over is added with an odd last bit, as above (Boldo and Melquiond). Denormal results
have fewer digits; they are left to integers, lane by lane.
"""

from __future__ import annotations

import numpy as np

from tilewave.emulator.numbers import F64, I32, I64, Array

SPLIT = 2.0**27 + 1
"""Times this, a float64 falls into two halves whose products are exact."""
FARTHEST = 200
"""Powers of two between a product and a third number beyond which only the sign of the smaller one counts."""
SAFE_EXPONENT = -1020
"""Results of float64 with a smaller exponent may be denormal."""


def fma(a: Array, b: Array, c: Array) -> Array:
    """a·b + c, rounded once."""
    if a.dtype == F64:
        return _double(a, b, c, np.zeros((1, 1), I32))
    return sum_to_odd(a.astype(F64) * b.astype(F64), c.astype(F64)).astype(a.dtype)


def scaled_fma(a: Array, b: Array, c: Array, power: Array) -> Array:
    """(a·b + c)·2^power, rounded once."""
    if a.dtype == F64:
        return _double(a, b, c, power)
    return np.ldexp(sum_to_odd(a.astype(F64) * b.astype(F64), c.astype(F64)), power).astype(a.dtype)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """A sum as float64 has it, and what it lost."""
    total = np.asarray(a + b)
    part = total - a
    return total, (a - (total - part)) + (b - part)


def sum_to_odd(a: Array, b: Array) -> Array:
    """A sum of float64, its last digit odd where some are lost: rounded to fewer digits it is as if rounded once."""
    total, lost = two_sum(a, b)
    bits = total.view(I64)
    odd = np.where(np.signbit(lost) == np.signbit(total), bits + 1, bits - 1)
    inexact = np.isfinite(total) & (lost != 0) & (bits % 2 == 0)
    return np.where(inexact, odd, bits).view(F64)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """A product of fractions and what it lost."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(x: Array) -> tuple[Array, Array]:
    high = x * SPLIT - (x * SPLIT - x)
    return high, x - high


def _double(a: Array, b: Array, c: Array, power: Array) -> Array:
    a, b, c, power = np.broadcast_arrays(a, b, c, power)
    finite = np.isfinite(a) & np.isfinite(b)
    usual = finite & np.isfinite(c) & (a != 0) & (b != 0)
    plain = np.where(finite & np.isinf(c), c, a * b + c)  # no product of numbers is as large as what has no end
    total, exponent = _fraction_and_exponent(a, b, c)
    exponent = exponent + power
    result = np.where(usual, np.ldexp(total, exponent), np.ldexp(plain, power))
    small = usual & (total != 0) & (np.frexp(total)[1] + exponent < SAFE_EXPONENT)
    for at in zip(*np.nonzero(small), strict=True):
        result[at] = _by_integers(float(a[at]), float(b[at]), float(c[at]), int(power[at]))
    return result


def _fraction_and_exponent(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """a·b + c to 53 digits, whatever its size: times two to the second result."""
    (fraction_a, exponent_a), (fraction_b, exponent_b), (fraction_c, exponent_c) = map(np.frexp, (a, b, c))
    exponent = exponent_a + exponent_b
    distance = np.where(c == 0, 0, exponent_c - exponent)
    near = np.clip(distance, -FARTHEST, FARTHEST)
    high, low = _two_product(fraction_a, fraction_b)
    third, third_rest = two_sum(np.ldexp(fraction_c, near), low)
    total, rest = two_sum(high, third)
    # A larger third number was scaled down to the product; scale it back.
    return total + sum_to_odd(third_rest, rest), exponent + np.maximum(distance - near, 0)


def _by_integers(a: float, b: float, c: float, power: int) -> float:
    """(a·b + c)·2^power of three numbers; a quotient of integers is rounded once, also where it is denormal."""
    (a_top, a_bottom), (b_top, b_bottom), (c_top, c_bottom) = (x.as_integer_ratio() for x in (a, b, c))
    top, bottom = a_top * b_top * c_bottom + c_top * a_bottom * b_bottom, a_bottom * b_bottom * c_bottom
    return (top << max(power, 0)) / (bottom << max(-power, 0))
