"""Outstanding accesses of global memory: when each was issued, and when its wave knows that it has completed.

An access may happen at any time between its issue and the s_waitcnt that waits for it. If the wave has passed
barriers in between, those barriers do not order it: the access is checked twice, with the stamp of either end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import Protocol

import numpy as np

from tilewave.emulator.findings import Kind
from tilewave.emulator.instruction import Instruction
from tilewave.emulator.numbers import I64, Array
from tilewave.emulator.races import Races, Touch, given, stamps_of
from tilewave.emulator.shared_state import SharedState
from tilewave.emulator.wait_counters import SCALAR, VECTOR
from tilewave.records import dataclass

MOST_OUTSTANDING = 63
"""What vmcnt can count: six bits."""


@dataclass(eq=False)
class Underway:
    """One instruction's access, by the lanes of some waves."""

    instruction: Instruction
    kind: Touch
    offsets: Array
    size: int
    waves: Array
    stamps: Array
    """When each lane's access was issued."""
    members: int
    over: list[int] = field(default_factory=list)


class Issuers(Protocol):
    """Waves at the same instruction; `Convoy` is the class of them."""

    members: list[int]
    """The numbers of the waves."""
    count: int
    sel: slice | Array
    """Where the waves stand in an array with an element for each wave."""


class Waves(Protocol):
    """All waves that run at a time, with what they access; `MachineState` is the class of them."""

    launched: Sequence[tuple[int, int, int]]
    count: int
    shared: SharedState
    races: Races
    wave_of: Array
    workgroup_of: Array

    def report(self, kind: Kind, instruction: Instruction, index: int, what: str, remedy: str) -> None:
        """Report a finding of the wave with this number."""


class Flight:
    """The operations of each wave, counted, and those among them that are not over."""

    def __init__(self, machine: Waves, first_workgroup: int) -> None:
        self.machine, self.epoch = machine, machine.shared.epoch
        self.counters = machine.shared.counters
        self._workgroups = machine.workgroup_of.astype(I64) + first_workgroup
        self._logs: list[list[deque[tuple[int, Underway]]]] = [[deque() for _ in range(machine.count)] for _ in (0, 1)]

    def issue(self, c: Issuers, queue: int) -> None:
        self.counters.issued[queue, c.sel] += 1

    def touch(
        self, c: Issuers, instruction: Instruction, kind: Touch, offsets: Array, waves: Array, size: int,
        queue: int = VECTOR,
    ) -> None:  # fmt: skip
        """Lanes of these waves touch `size` bytes each, from now until their wave has waited."""
        if not len(offsets):
            return
        stamps = self._stamps()[waves]
        access = Underway(instruction, kind, offsets, size, waves, stamps, c.count)
        self._look(access, stamps, slice(None))
        logs, numbers = self._logs[queue], self.counters.issued[queue].tolist()
        for wave in c.members:
            log = logs[wave]
            log.append((numbers[wave], access))
            if len(log) > MOST_OUTSTANDING and queue == VECTOR:
                self._land([wave], queue, numbers[wave] - MOST_OUTSTANDING)

    def wait(self, c: Issuers, outstanding: tuple[int | None, int | None]) -> None:
        """Complete all vector operations but the last few, and the scalar loads if none may be outstanding."""
        vector, scalar = outstanding
        if vector is not None:
            self._wait(c.members, c.sel, VECTOR, vector)
        if scalar == 0:
            self._wait(c.members, c.sel, SCALAR, 0)

    def end(self, c: Issuers) -> None:
        """A wave that ends leaves nothing under way."""
        for queue in (VECTOR, SCALAR):
            self._wait(c.members, c.sel, queue, 0)

    def _wait(self, members: Sequence[int], sel: slice | Array, queue: int, outstanding: int) -> None:
        issued, done = self.counters.issued[queue], self.counters.done[queue]
        done[sel] = np.maximum(done[sel], issued[sel] - outstanding)
        logs = self._logs[queue]
        if any(logs[wave] for wave in members):
            self._land(members, queue, None)

    def _land(self, members: Sequence[int], queue: int, until: int | None) -> None:
        """What these waves know to be over: all that their counters say, or up to a number."""
        found: list[Underway] = []
        done = self.counters.done[queue].tolist()
        for wave in members:
            log, last = self._logs[queue][wave], done[wave] if until is None else until
            while log and log[0][0] <= last:
                access = log.popleft()[1]
                if not access.over:
                    found.append(access)
                access.over.append(wave)
        for access in found:
            self._look_again(access)

    def _look_again(self, access: Underway) -> None:
        over, access.over = access.over, []
        now = self._stamps()[access.waves]
        moved = now != access.stamps
        if len(over) < access.members:
            moved &= np.isin(access.waves, over)
        if moved.all():
            self._look(access, now, slice(None))
        elif moved.any():
            self._look(access, now, np.flatnonzero(moved))

    def _stamps(self) -> Array:
        return stamps_of(self._workgroups, self.epoch, self.machine.wave_of)

    def _look(self, access: Underway, now: Array, lanes: slice | Array) -> None:
        races, began = self.machine.races, access.stamps[lanes]
        met = races.touch(access.kind, access.offsets[lanes], access.size, began, now[lanes])
        if met is not None:
            what, remedy = given(access.kind, met, int(began[met.lane]), self.machine.launched)
            self.machine.report(
                "global-memory race", access.instruction, int(access.waves[lanes][met.lane]), what, remedy
            )
