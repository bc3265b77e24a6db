"""What was found of a kernel's sizes, and kept: who computes what, and that nothing is lost, twice or exchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tilewave.analysis.every_size import EverySize
from tilewave.analysis.reads import judged_schedule, reads_depend_on
from tilewave.analysis.schedule import Schedule, checked_schedule
from tilewave.errors import AccessError, CoverageError
from tilewave.forks import cached_property
from tilewave.ir.core import Kernel
from tilewave.ir.launch import HostLaunch, bind, numbers_of, open_sizes
from tilewave.ir.types import INDEX_SCALAR

KEPT_VERDICTS = 4096
"""Sets of sizes that were found right; more than that in turn, and it starts afresh."""
KEPT_SCHEDULES = 16
"""A schedule holds 8 bytes a tile, so few are kept; the oldest is forgotten first."""

Key = tuple[int, ...]
"""The numbers of a call that decide who computes what, and what is read, as words."""
Values = Mapping[str, Any]


class Shaped(Protocol):
    """An array of a call."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class Verdicts:
    """A kernel is looked at once for each set of sizes, or never, where it is right for all of them."""

    def __init__(self, kernel: Kernel, proof: EverySize, remedy: str) -> None:
        self.kernel, self.proof, self.remedy = kernel, proof, remedy
        self._right: set[Key] = set()
        self._schedules: dict[Key, Schedule] = {}
        self.looked_at = 0
        """How often a schedule was made and judged."""

    def want(self, key: Key, values: Values, arrays: Sequence[Shaped]) -> None:
        """Raise unless the kernel is right for these sizes and symbols."""
        if key in self._right:
            return
        shapes = {array.name: array.shape for array in arrays}
        if not self.proof.holds or not self.proof.holds_at(shapes, values, self._workgroups(values)):
            self.schedule(key, values)
        if len(self._right) >= KEPT_VERDICTS:
            self._right.clear()
        self._right.add(key)

    def schedule(self, key: Key, values: Values) -> Schedule:
        """Who computes what for these, judged."""
        found = self._schedules.get(key)
        if found is None:
            found = self._judged(values)
            if len(self._schedules) >= KEPT_SCHEDULES:
                self._schedules.pop(next(iter(self._schedules)))
            self._schedules[key] = found
        return found

    def first(self, values: Values) -> Schedule:
        """That of a kernel whose order no symbol decides; what one decides to read is judged at the call."""
        if reads_depend_on(self.kernel):
            return checked_schedule(self.kernel, values, self.remedy)
        return self.schedule((), values)

    def _judged(self, values: Values) -> Schedule:
        self.looked_at += 1
        try:
            return judged_schedule(bind(self.kernel, values), values, self.remedy)
        except (CoverageError, AccessError) as error:
            if not open_sizes(self.kernel):
                raise
            what = f"with {self._said(values)}, {error.what}"
            raise type(error)(what, loc=error.loc, remedy=error.remedy) from None

    def _workgroups(self, values: Values) -> int:
        return HostLaunch.of(self.kernel)([values[name] for name in self._names]).workgroups

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(v.name for v in numbers_of(self.kernel))

    def _said(self, values: Values) -> str:
        indices = [v.name for v in numbers_of(self.kernel) if v.type == INDEX_SCALAR]
        return ", ".join(f"{name} = {values[name]}" for name in indices)
