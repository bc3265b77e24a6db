"""Functions that layers end with, and their slopes, on tiles of floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewave.errors import CallError, here
from tilewave.lang.functions import reciprocal
from tilewave.lang.ops import cast, erf, exp, maximum, tanh

TANH_SCALE, TANH_CUBE = math.sqrt(2 / math.pi), 0.044715
"""Of gelu's approximation by a hyperbolic tangent."""


@dataclass(frozen=True)
class Activation:
    """A function of a tile, element by element, and its derivative."""

    name: str
    value: Callable[[Any], Any]
    slope: Callable[[Any], Any]


def gelu(x: Any) -> Any:
    """x · Φ(x), by the error function."""
    return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))


def _gelu_slope(x: Any) -> Any:
    """Φ(x) + x · φ(x)."""
    return 0.5 * (1.0 + erf(x * math.sqrt(0.5))) + x * exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1.0 + tanh((x + x * x * x * TANH_CUBE) * TANH_SCALE))


def _gelu_tanh_slope(x: Any) -> Any:
    t = tanh((x + x * x * x * TANH_CUBE) * TANH_SCALE)
    inner = (1.0 + x * x * (3 * TANH_CUBE)) * TANH_SCALE
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner


def _sigmoid(x: Any) -> Any:
    return reciprocal(1.0 + exp(-x))


def _silu_slope(x: Any) -> Any:
    s = _sigmoid(x)
    return s * (1.0 + x * (1.0 - s))


ACTIVATIONS = {
    one.name: one
    for one in (
        Activation("gelu", gelu, _gelu_slope),
        Activation("gelu_tanh", _gelu_tanh, _gelu_tanh_slope),
        Activation("relu", lambda x: maximum(x, 0.0), lambda x: cast(x > 0.0, x.dtype)),
        Activation("silu", lambda x: x * _sigmoid(x), _silu_slope),
    )
}


def activation_named(caller: str, name: str) -> Activation:
    """The one of that name, or an error with those that there are."""
    if name not in ACTIVATIONS:
        what = f"{caller}: no activation is called {name!r}"
        raise CallError(what, loc=here(), remedy=f"write one of {', '.join(map(repr, ACTIVATIONS))}, or None")
    return ACTIVATIONS[name]
