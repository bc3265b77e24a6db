"""Activation functions and their derivatives, on tiles of floats, and of integers where these have one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewave.errors import CallError, here
from tilewave.ir.types import F32, DType
from tilewave.lang.functions import reciprocal
from tilewave.lang.ops import abs_, cast, erf, exp, exp2, fma, maximum, minimum, select
from tilewave.records import dataclass

LOG2_E = math.log2(math.e)
DENSITY = 1 / math.sqrt(2 * math.pi)
"""The density of the normal distribution at 0."""
TANH_SCALE, TANH_CUBE = math.sqrt(2 / math.pi), 0.044715
"""Constants of gelu's tanh approximation."""

UPPER_TAIL = (
    -0.9999998798210212,
    -1.1511116011864753,
    -0.45915076712681385,
    -0.05268430013708065,
    0.0073514749410684005,
    -0.000365117382557733,
    -9.051177583615968e-05,
    1.9340068432407447e-05,
    -1.1909672264115693e-06,
)
"""log2(1 - Φ(x)) for x from 0 to 4.6, by a polynomial: off by at most 1.2e-7 / (1 - Φ(x)) up to there, and 1e-5. Beyond
4.6 it keeps falling, and 2 to its power times x is below 1e-6, as it should be."""
UPPER_TAIL_OF_HALVES = (
    -1.0001231062194824,
    -1.1491653297924669,
    -0.4641344038088528,
    -0.04823015544372397,
    0.005825651425567612,
    -0.0003203738712875115,
)
"""The polynomial for 16-bit results: off by at most 2 ** -13.5 of 1 - Φ(x), or 2 ** -27 after multiplication by x."""
FARTHEST = 64.0
"""Larger |x| are clamped to it: the power is 0 there, and infinity times 0 would be NaN."""


@dataclass(frozen=True)
class Activation:
    """An elementwise function of a tile, and its derivative, with no more precision than the dtype that results are
    rounded to."""

    name: str
    value: Callable[[Any, DType], Any]
    both: Callable[[Any, DType], tuple[Any, Any]]
    """Computes the function and its derivative."""
    takes_integers: bool = False
    """Whether its value is defined on tiles of integers as well."""

    def slope(self, x: Any, rounded_to: DType) -> Any:
        """Return the derivative at a tile."""
        return self.both(x, rounded_to)[1]


def gelu(x: Any, rounded_to: DType = F32) -> Any:
    """x · Φ(x), in f32 computed as max(x, 0) - |x| · (1 - Φ(|x|)).

    The tail takes less than half of the error function's work, and is exact where the result is small: 1 + erf is not.
    """
    if x.dtype != F32:
        return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))
    size = minimum(abs_(x), FARTHEST)
    return fma(-size, _upper_tail(size, rounded_to), maximum(x, 0.0))


def _upper_tail(size: Any, rounded_to: DType) -> Any:
    """Return 1 - Φ(size) of sizes from 0 to `FARTHEST`."""
    *lower, highest = UPPER_TAIL if rounded_to.bits > 16 else UPPER_TAIL_OF_HALVES
    power: Any = highest
    for coefficient in reversed(lower):
        power = fma(power, size, coefficient)
    return exp2(power, flush=True)


def _gelu_and_slope(x: Any, rounded_to: DType) -> tuple[Any, Any]:
    """Return gelu, and Φ(x) + x · φ(x)."""
    if x.dtype != F32:
        share = 0.5 * (1.0 + erf(x * math.sqrt(0.5)))
        return x * share, share + x * (exp(x * x * -0.5) * DENSITY)
    size = minimum(abs_(x), FARTHEST)
    tail = _upper_tail(size, rounded_to)
    density = exp2(x * x * (-0.5 * LOG2_E), flush=True)
    slope = fma(x * DENSITY, density, select(x > 0.0, 1.0 - tail, tail))
    return fma(-size, tail, maximum(x, 0.0)), slope


def _gelu_tanh(x: Any, rounded_to: DType) -> Any:
    """x / 2 · (1 + tanh(u)), computed as x · sigmoid(2 · u), whose small results keep their digits."""
    return x * _sigmoid(_tanh_argument(x), rounded_to)


def _gelu_tanh_and_slope(x: Any, rounded_to: DType) -> tuple[Any, Any]:
    s, slope = _sigmoid_and_slope(_tanh_argument(x), rounded_to)
    return x * s, s + x * slope * ((1.0 + x * x * (3 * TANH_CUBE)) * (2 * TANH_SCALE))


def _tanh_argument(x: Any) -> Any:
    return (x + x * x * x * TANH_CUBE) * (2 * TANH_SCALE)


def _silu_and_slope(x: Any, rounded_to: DType) -> tuple[Any, Any]:
    s, slope = _sigmoid_and_slope(x, rounded_to)
    return x * s, s + x * slope


def _sigmoid(x: Any, rounded_to: DType) -> Any:
    if x.dtype == F32 and rounded_to.bits <= 16:
        return reciprocal(1.0 + exp2(x * -LOG2_E, flush=True), flush=True)
    return reciprocal(1.0 + exp(-x))


def _sigmoid_and_slope(x: Any, rounded_to: DType) -> tuple[Any, Any]:
    """Return sigmoid(x) and its derivative.

    Where x is large, 1 - sigmoid(x) has no digits of f32. That is enough for 16-bit results, which are sums of 1 and
    the derivative.
    """
    if x.dtype == F32 and rounded_to.bits <= 16:
        share = _sigmoid(x, rounded_to)
        return share, share * (1.0 - share)
    power = exp(-abs_(x))
    share = reciprocal(1.0 + power)
    return select(x > 0.0, share, power * share), power * share * share


def _relu(x: Any, rounded_to: DType) -> Any:
    return maximum(x, 0.0)


ACTIVATIONS = {
    one.name: one
    for one in (
        Activation("gelu", gelu, _gelu_and_slope),
        Activation("gelu_tanh", _gelu_tanh, _gelu_tanh_and_slope),
        Activation("relu", _relu, lambda x, of: (_relu(x, of), cast(x > 0.0, x.dtype)), takes_integers=True),
        Activation("silu", lambda x, of: x * _sigmoid(x, of), _silu_and_slope),
    )
}


def activation_named(caller: str, name: str) -> Activation:
    """Return the activation of that name; an error lists the known ones."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        what = f"{caller}: no activation is called {name!r}"
        raise CallError(what, loc=here(), remedy=f"write one of {', '.join(map(repr, ACTIVATIONS))}, or None")
    return ACTIVATIONS[name]
