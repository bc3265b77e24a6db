"""The nets: each runs one case from a seed and says what it found, or None."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import kernels
from .judge import TARGETS, Outcome

Net = Callable[[int], "str | None"]


@dataclass(frozen=True)
class Targeted:
    """A net whose cases run on one target each."""

    case: Callable[[int, str], Outcome]
    targets: tuple[str, ...]


TARGETED: dict[str, Targeted] = {"kernels": Targeted(kernels.case_on, TARGETS)}

NETS: dict[str, Net] = {"kernels": kernels.case}
