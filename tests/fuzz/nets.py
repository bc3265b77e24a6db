"""The nets: each runs one case from a seed and says what it found, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from . import (
    arithmetic,
    arrays,
    cache_files,
    code_objects,
    commands,
    machine_files,
    passes,
    saved_files,
    texts,
    torch_calls,
)
from .indexed_kernels import INDEXED
from .judge import Outcome
from .kernels import KERNELS
from .surface import PublicCalls

Net = Callable[[int], "str | None"]


class ShrinkingNet(Protocol):
    """A net whose cases are values: they are sent as text, made smaller, and written down as files that run alone."""

    def make(self, seed: int, place: str) -> Any:
        """The case of a seed, for a target or a device."""

    def judged(self, case: Any, place: str, only: str = "") -> Outcome: ...

    def case_on(self, seed: int, place: str) -> Outcome: ...

    def case(self, seed: int) -> str | None: ...

    def text(self, case: Any) -> str: ...

    def of_text(self, text: str) -> Any: ...

    def shrunk(self, case: Any, still_wrong: Callable[[Any], bool]) -> Any: ...

    def reproduction(self, case: Any, place: str, outcome: Outcome) -> str: ...


CALLS = {"calls": PublicCalls()}
SHRINKING: dict[str, ShrinkingNet] = {**KERNELS, **INDEXED, **CALLS}

NETS: dict[str, Net] = {
    **{name: net.case for name, net in SHRINKING.items()},
    "passes": passes.case,
    "arithmetic": arithmetic.case,
    "arrays": arrays.case,
    "texts": texts.case,
    "saved_files": saved_files.case,
    "cache_files": cache_files.case,
    "machine_files": machine_files.case,
    "code_objects": code_objects.case,
    "commands": commands.case,
    "torch_calls": torch_calls.case,
}
