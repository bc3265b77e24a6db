"""Round numbers along an axis."""

from __future__ import annotations

import math


def round_up(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= step * (1 - 1e-9))


def ticks(most: float, wanted: int) -> list[float]:
    """0 and about as many round steps up to what holds `most`."""
    step = round_up(most / wanted)
    return [at * step for at in range(math.ceil(most / step - 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """The powers of ten from the one below `low` to the one above `high`."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]
