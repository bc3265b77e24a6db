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
    """An elementwise function of a tile, and its derivative."""

    name: str
    value: Callable[[Any, DType], Any]
    """Computes the function of a tile, with no more precision than the dtype that the result is rounded to."""
    slope: Callable[[Any], Any]
    takes_integers: bool = False
    """Whether its value is defined on tiles of integers as well."""


def gelu(x: Any, rounded_to: DType = F32) -> Any:
    """x · Φ(x), in f32 computed as max(x, 0) - |x| · (1 - Φ(|x|)).

    The tail takes less than half of the error function's work, and is exact where the result is small: 1 + erf is not.
    """
    if x.dtype != F32:
        return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))
    size = minimum(abs_(x), FARTHEST)
    tail = _upper_tail(size, UPPER_TAIL if rounded_to.bits > 16 else UPPER_TAIL_OF_HALVES)
    return fma(-size, tail, maximum(x, 0.0))


def _upper_tail(size: Any, coefficients: tuple[float, ...]) -> Any:
    """Return 1 - Φ(size) of sizes from 0 to `FARTHEST`."""
    *lower, highest = coefficients
    power: Any = highest
    for coefficient in reversed(lower):
        power = fma(power, size, coefficient)
    return exp2(power, flush=True)


def _gelu_slope(x: Any) -> Any:
    """Φ(x) + x · φ(x)."""
    density = exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    if x.dtype != F32:
        return 0.5 * (1.0 + erf(x * math.sqrt(0.5))) + x * density
    tail = _upper_tail(minimum(abs_(x), FARTHEST), UPPER_TAIL)
    return fma(x, density, select(x > 0.0, 1.0 - tail, tail))


def _gelu_tanh(x: Any) -> Any:
    """x / 2 · (1 + tanh(u)), computed as x · sigmoid(2 · u), whose small results keep their digits."""
    return x * _sigmoid((x + x * x * x * TANH_CUBE) * (2 * TANH_SCALE))


def _gelu_tanh_slope(x: Any) -> Any:
    s, slope = _sigmoid_and_slope((x + x * x * x * TANH_CUBE) * (2 * TANH_SCALE))
    return s + x * slope * ((1.0 + x * x * (3 * TANH_CUBE)) * (2 * TANH_SCALE))


def _sigmoid(x: Any) -> Any:
    return reciprocal(1.0 + exp(-x))


def _sigmoid_and_slope(x: Any) -> tuple[Any, Any]:
    """Return sigmoid(x) and its derivative, whose 1 - sigmoid(x) would have no digits where x is large."""
    power = exp(-abs_(x))
    share = reciprocal(1.0 + power)
    return select(x > 0.0, share, power * share), power * share * share


def _silu_slope(x: Any) -> Any:
    s, slope = _sigmoid_and_slope(x)
    return s + x * slope


ACTIVATIONS = {
    one.name: one
    for one in (
        Activation("gelu", gelu, _gelu_slope),
        Activation("gelu_tanh", lambda x, _: _gelu_tanh(x), _gelu_tanh_slope),
        Activation("relu", lambda x, _: maximum(x, 0.0), lambda x: cast(x > 0.0, x.dtype), takes_integers=True),
        Activation("silu", lambda x, _: x * _sigmoid(x), _silu_slope),
    )
}


def activation_named(caller: str, name: str) -> Activation:
    """Return the activation of that name; an error lists the known ones."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        what = f"{caller}: no activation is called {name!r}"
        raise CallError(what, loc=here(), remedy=f"write one of {', '.join(map(repr, ACTIVATIONS))}, or None")
    return ACTIVATIONS[name]
