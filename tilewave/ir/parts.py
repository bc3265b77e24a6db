"""The steps of a loop, cut into parts: as many for each as for the first; the last ones may have fewer, or none."""

from __future__ import annotations

from typing import Any


def steps_of_a_part(steps: Any, parts: int) -> Any:
    """Return the steps of the first part, which has the most; `steps` may be a number of any kind."""
    return (steps + (parts - 1)) // parts


def parts_with_steps(steps: int, parts: int) -> int:
    """How many of them are not empty; what is added up in the others is 0."""
    each = int(steps_of_a_part(steps, parts))
    return max(1, -(-steps // max(1, each)))
