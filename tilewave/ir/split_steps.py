"""Split-K steps: the steps of a loop in equal parts; the last parts may have fewer steps, or none."""

from __future__ import annotations

from typing import Any


def steps_of_a_split(steps: Any, parts: int) -> Any:
    """Return the steps of the first part, which has the most; `steps` may be a number of any kind."""
    return (steps + (parts - 1)) // parts


def splits_with_steps(steps: int, parts: int) -> int:
    """Return how many parts are not empty; the sums of the others are 0."""
    each = int(steps_of_a_split(steps, parts))
    return max(1, -(-steps // max(1, each)))
