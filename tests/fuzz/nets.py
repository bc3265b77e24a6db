"""The nets: each runs one case from a seed and says what it found, or None."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import arithmetic, arrays, cache_files, code_objects, kernels, machine_files, saved_files, texts
from .judge import TARGETS, Outcome

Net = Callable[[int], "str | None"]


@dataclass(frozen=True)
class Targeted:
    """A net whose cases run on one target each."""

    case: Callable[[int, str], Outcome]
    targets: tuple[str, ...]


TARGETED: dict[str, Targeted] = {"kernels": Targeted(kernels.case_on, TARGETS)}

NETS: dict[str, Net] = {
    "kernels": kernels.case,
    "arithmetic": arithmetic.case,
    "arrays": arrays.case,
    "texts": texts.case,
    "saved_files": saved_files.case,
    "cache_files": cache_files.case,
    "machine_files": machine_files.case,
    "code_objects": code_objects.case,
}
