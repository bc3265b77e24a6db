"""The state of all waves that run at a time, and a convoy: the waves that are at the same instruction.

Waves are numbered `wave * workgroups + workgroup`: the same wave of all workgroups is one slice, and so is the first
half of every workgroup's waves. numpy then works on views, where other orders would gather and scatter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewave.emulator.findings import Findings, Kind
from tilewave.emulator.flight import Flight
from tilewave.emulator.instruction import EXEC, Instruction
from tilewave.emulator.memory import GlobalMemory
from tilewave.emulator.numbers import F32, I32, U8, U32, U64, Array
from tilewave.emulator.races import Races
from tilewave.emulator.shared_state import SharedState

LANES = 64
SCALARS = 128
POISON = 0x7FC0BEEF
"""A NaN in every float format of 32 and 16 bits: the value of a register that was never written."""

Workgroup = tuple[int, int, int]


class MachineState:
    """Registers, memories and findings of the workgroups that run at a time."""

    def __init__(
        self,
        launched: Sequence[Workgroup],
        running: range,
        waves_each: int,
        vector_rows: int,
        memory: GlobalMemory,
        races: Races,
        shared: SharedState,
        findings: Findings,
        scratch_bytes: int,
    ) -> None:
        """Hold the workgroups in `running`, out of all workgroups that are launched."""
        self.launched, self.waves_each = launched, waves_each
        self.workgroups = tuple(launched[running.start : running.stop])
        self.count = count = waves_each * len(self.workgroups)
        self.memory, self.races, self.shared, self.findings = memory, races, shared, findings
        self.vector = np.full((vector_rows, count, LANES), POISON, U32)
        self.vector_float, self.vector_integer = self.vector.view(F32), self.vector.view(I32)
        self.scalar = np.zeros((SCALARS, count), U32)
        self.scalar_float, self.scalar_integer = self.scalar.view(F32), self.scalar.view(I32)
        self.scc = np.zeros(count, bool)
        self.lanes = np.ones((count, LANES), bool)
        self.mode = 0
        self.clock = 0
        self.scratch = np.zeros((count, LANES, scratch_bytes), U8)
        self.wave_of = np.arange(count) // len(self.workgroups)
        self.workgroup_of = np.arange(count) % len(self.workgroups)
        self.flight = Flight(self, running.start)

    def report(self, kind: Kind, instruction: Instruction, index: int, what: str, remedy: str) -> None:
        """A finding of the wave with this number."""
        workgroup = self.workgroups[int(self.workgroup_of[index])]
        self.findings.report(kind, instruction, workgroup, int(self.wave_of[index]), what, remedy)

    @property
    def checking(self) -> bool:
        return self.findings.check != "off"


class Convoy:
    """Waves that are at the same instruction and execute it together."""

    def __init__(self, machine: MachineState, indices: Array) -> None:
        self.machine, self.indices = machine, indices
        self.count, self.members = len(indices), indices.tolist()
        first = int(indices[0])
        self.contiguous = int(indices[-1]) - first + 1 == self.count
        self.sel: slice | Array = slice(first, first + self.count) if self.contiguous else indices
        self.vu, self.vf, self.vi = machine.vector, machine.vector_float, machine.vector_integer
        self.su, self.sf, self.si = machine.scalar, machine.scalar_float, machine.scalar_integer
        self.refresh()

    def refresh(self) -> None:
        """Look up which lanes are on."""
        self.on: Array = self.machine.lanes[self.sel]
        self.full = bool(self.on.all())

    # -- vector registers --------------------------------------------------------------------------------------------

    def put(self, view: Array, row: int, value: Array, where: Array | None = None) -> None:
        """Write a row of the given view of the vector registers, in lanes that are on."""
        if where is None and self.full:
            view[row, self.sel] = value
            return
        on = self.on if where is None else self.on & where
        if self.contiguous:
            np.copyto(view[row, self.sel], value, where=on, casting="unsafe")
        else:
            view[row, self.sel] = np.where(on, value, view[row, self.sel])

    def active(self, values: Array) -> Array:
        """The values of the lanes that are on, in one dimension."""
        wide = np.broadcast_to(values, (self.count, LANES))
        flat: Array = wide.reshape(-1) if self.full else wide[self.on]
        return flat

    def active_rows(self, first: int, count: int) -> Array:
        """Some vector registers of the lanes that are on: [lanes, count]."""
        rows = self.vu[first : first + count, self.sel]
        flat = rows.reshape(count, -1) if self.full else rows[:, self.on]
        return np.ascontiguousarray(flat.T)

    def put_active(self, row: int, values: Array) -> None:
        """Write what `active` would read."""
        if self.full:
            self.vu[row, self.sel] = values.reshape(self.count, LANES)
            return
        whole = self.vu[row, self.sel].copy()
        whole[self.on] = values
        self.vu[row, self.sel] = whole

    @property
    def active_waves(self) -> Array:
        """The wave number of each lane that is on."""
        return self.active(self.indices[:, None])

    # -- scalar registers --------------------------------------------------------------------------------------------

    def scalar32(self, row: int) -> Array:
        return self.su[row, self.sel].astype(U64)

    def scalar64(self, row: int) -> Array:
        low, high = self.su[row, self.sel].astype(U64), self.su[row + 1, self.sel].astype(U64)
        combined: Array = low | (high << U64(32))
        return combined

    def put_scalar32(self, row: int, value: Array) -> None:
        self.su[row, self.sel] = value.astype(U32)
        if row >= EXEC:
            self._exec_changed()

    def put_scalar64(self, row: int, value: Array) -> None:
        self.su[row, self.sel] = value.astype(U32)
        self.su[row + 1, self.sel] = (value >> U64(32)).astype(U32)
        if row == EXEC:
            self._exec_changed()

    def _exec_changed(self) -> None:
        self.machine.lanes[self.sel] = lanes_of(self.scalar64(EXEC))
        self.refresh()

    @property
    def any_on(self) -> Array:
        """Whether a wave has any lane that is on."""
        result: Array = np.logical_or.reduce(self.on, axis=1)
        return result

    @property
    def scc(self) -> Array:
        return self.machine.scc[self.sel]

    def put_scc(self, value: Array) -> None:
        self.machine.scc[self.sel] = value

    def report(self, kind: Kind, instruction: Instruction, index: int, what: str, remedy: str) -> None:
        self.machine.report(kind, instruction, index, what, remedy)


def lanes_of(masks: Array) -> Array:
    """64-bit masks as booleans per lane."""
    octets = np.ascontiguousarray(masks).view(U8).reshape(-1, 8)
    return np.unpackbits(octets, axis=1, bitorder="little").view(bool)


def mask_of(lanes: Array) -> Array:
    """Booleans per lane as 64-bit masks."""
    packed = np.packbits(np.ascontiguousarray(lanes), axis=1, bitorder="little")
    return packed.view(U64)[:, 0]
