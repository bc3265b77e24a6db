"""Checked size classes of a kernel, cached: the schedule, and that no tile is missing, computed twice or exchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewave.analysis.coverage import checked_schedule
from tilewave.analysis.every_size import EverySize
from tilewave.analysis.group_orders import row_by_row
from tilewave.analysis.reads import judged_schedule, reads_depend_on
from tilewave.analysis.schedule import Correction, Schedule
from tilewave.analysis.size_classes import Key, SeenSizes
from tilewave.errors import AccessError, CoverageError
from tilewave.forks import cached_property
from tilewave.ir.core import Kernel
from tilewave.ir.host_program import Number
from tilewave.ir.launch import HostLaunch, Picked, bind, numbers_of, open_sizes, picked
from tilewave.ir.types import INDEX_SCALAR, Memory

KEPT_VERDICTS = 4096
"""The most size classes that are remembered as correct; then the cache is cleared."""
KEPT_SCHEDULES = 16
"""The most schedules that are cached, because each has 8 bytes per tile; the oldest is dropped first."""

Values = Mapping[str, Any]
Shapes = Sequence[Sequence[int]]


class Verdicts:
    """Checks a kernel once per size class, or never where it is proven correct for every size."""

    def __init__(self, kernel: Kernel, proof: EverySize, remedy: Correction) -> None:
        self.kernel, self.proof, self.remedy = kernel, proof, remedy
        self.judged = row_by_row(kernel)
        self._right: set[Key] = set()
        self._schedules: dict[Key, Schedule] = {}
        self.looked_at = 0
        """How often a schedule was computed and checked."""

    def knows(self, workgroups: int, numbers: Sequence[int], shapes: Shapes) -> bool:
        """Return whether the kernel is known to be correct for a launch with arrays of these shapes, without a check.

        `numbers` are the scalars that the launch passes on.
        """
        if not self.proof.holds:
            return self._seen.key(workgroups, numbers) in self._right
        written, positive = self._looked_for
        return self.proof.holds_at(written(shapes), positive(numbers), workgroups)

    def surely(self, workgroups: Number, numbers: Sequence[Number], shapes: Sequence[Sequence[Number]]) -> list[Number]:
        """Return conditions, recordable, under which a proven kernel is correct."""
        written, positive = self._looked_for
        return self.proof.surely(written(shapes), positive(numbers), workgroups)

    def want(self, numbers: Sequence[Any], values: Values, shapes: Shapes) -> None:
        """Raise unless the kernel is correct for a call's scalar arguments, which `values` has by name."""
        launched = HostLaunch.of(self.kernel)(numbers)
        if self.knows(*launched, shapes):
            return
        self.schedule(numbers, values)
        if len(self._right) >= KEPT_VERDICTS:
            self._right.clear()
        self._right.add(self._seen.key(*launched))

    @cached_property
    def _looked_for(self) -> tuple[Picked, Picked]:
        """Functions that pick the proof's arrays among all arrays, and its symbols among the scalar arguments."""
        arrays = [v.name for v in self.kernel.body.args if isinstance(v.type, Memory)]
        written = [arrays.index(w.array) for w in self.proof.windows]
        return picked(written), picked([self._names.index(name) for name in self.proof.positive])

    @cached_property
    def _seen(self) -> SeenSizes:
        return SeenSizes(self.judged)

    def schedule(self, numbers: Sequence[Any], values: Values) -> Schedule:
        """Return the checked schedule for these scalar arguments."""
        key = self._seen.key(*HostLaunch.of(self.kernel)(numbers))
        found = self._schedules.get(key)
        if found is None:
            found = self._judged(values)
            if len(self._schedules) >= KEPT_SCHEDULES:
                self._schedules.pop(next(iter(self._schedules)))
            self._schedules[key] = found
        return found

    def first(self, values: Values) -> Schedule:
        """Return the schedule of a kernel of static tile order; size-dependent reads are checked at the call."""
        if reads_depend_on(self.judged):
            return checked_schedule(self.judged, values, self.remedy)
        return self.schedule([values.get(name, 0) for name in self._names], values)

    def _judged(self, values: Values) -> Schedule:
        self.looked_at += 1
        try:
            return judged_schedule(bind(self.judged, values), values, self.remedy)
        except (CoverageError, AccessError) as error:
            if not open_sizes(self.kernel):
                raise
            what = f"with {self._said(values)}, {error.what}"
            raise type(error)(what, loc=error.loc, remedy=error.remedy) from None

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(v.name for v in numbers_of(self.kernel))

    def _said(self, values: Values) -> str:
        indices = [v.name for v in numbers_of(self.kernel) if v.type == INDEX_SCALAR]
        return ", ".join(f"{name} = {values[name]}" for name in indices)
