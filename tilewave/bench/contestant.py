"""Who takes part in a measurement, and who does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewave.ir.types import DType
from tilewave.records import dataclass

Launch = Callable[[], object]
Advance = Callable[[], object]
"""Called after each piece of work, to show progress."""


@dataclass(frozen=True, eq=False)
class Contestant:
    """Something that computes one thing on given arrays: what launches it, and the arrays that it writes."""

    name: str
    launch: Launch
    output: Any
    writes: DType
    is_ours: bool
    note: str = ""
    kernels: int = 1
    """The number of kernels of a launch; each writes its result in a narrow dtype."""
    prepare: Launch = tuple
    """Makes its code, if that can be done ahead."""
    version: str = ""
    """The version of the contestant's library."""


@dataclass(frozen=True)
class LeftOut:
    """A contestant that could not take part, and why."""

    contestant: str
    why: str
    is_ours: bool


def first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
