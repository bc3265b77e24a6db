"""An event model of one compute unit whose waves run a loop.

Time goes in slots of 4 cycles. In a slot each SIMD looks at its waves, by priority, then age, and issues at most one
instruction of a wave and at most one of each kind: matrix or vector, scalar, LDS, global memory; waits, barriers, nops
and branches are each wave's own. A wave issues in order. Whatever cannot be issued stalls its wave, for a reason, until
a time that is known, so only slots in which something may happen are looked at.

The model ends when a state of the compute unit repeats: from then on every period is the same, exactly.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import field
from math import ceil
from typing import Literal

from tilewave.cycles.facts import SLOT_CYCLES, ComputeUnit
from tilewave.cycles.instructions import Kind, TimedInstruction
from tilewave.emulator.chips import UNITS
from tilewave.emulator.waits import MOST_OTHER, MOST_VECTOR
from tilewave.records import dataclass

Reason = Literal[
    "vmcnt", "lgkmcnt", "barrier", "matrix unit", "vector unit", "issue port", "register", "LDS queue",
    "global queue", "nop", "branch",
]  # fmt: skip
"""Why a wave stalls: a counter of s_waitcnt, a unit that is busy, a result that is not there, a full queue."""
PORTS: dict[Kind, str] = {"matrix": "vector", "vector": "vector", "scalar": "scalar", "shared": "LDS", "global": "VMEM"}
"""Kinds of which a SIMD issues one per slot; matrix and vector instructions share a port."""
NEVER = 1 << 60
MOST_ITERATIONS, FEWEST_ITERATIONS, MOST_EVENTS = 48, 12, 100_000
"""When the model stops without a state that repeats: after so many iterations, or so many events if they are long."""

Stalled = tuple[Reason, int]
"""Why an instruction is not issued in a slot, and the first slot in which to look again."""
State = tuple[object, ...]


class RunningWave:
    """A wave: where it is in the loop, and what it has issued and not waited for."""

    __slots__ = ("at", "chain", "iterations", "next", "number", "other", "priority", "ready", "since", "unit", "vector",
                 "workgroup")  # fmt: skip

    def __init__(self, number: int, workgroup: int, length: int) -> None:
        self.number, self.workgroup, self.unit = number, workgroup, number % UNITS
        self.at = self.next = self.priority = self.iterations = self.since = 0
        self.vector: deque[float] = deque()
        self.other: deque[float] = deque()
        self.ready, self.chain = [0] * length, [0] * length

    def state(self, slot: int) -> State:
        """Return what decides the wave's future, relative to a slot."""
        now = slot * SLOT_CYCLES
        return (
            self.at,
            self.priority,
            -1 if self.next == NEVER else max(0, self.next - slot),
            tuple(round(back - now, 6) for back in self.vector if back > now),
            tuple(round(back - now, 6) for back in self.other if back > now),
            tuple((at, until - slot) for at, until in enumerate(self.ready) if until > slot),
            tuple((at, until - slot) for at, until in enumerate(self.chain) if until > slot),
        )


@dataclass(frozen=True)
class Mark:
    """A moment: when it was, how far each wave was, and what had stalled until then."""

    slot: int
    iterations: tuple[int, ...]
    stalls: Counter[tuple[int, Reason]]


@dataclass(frozen=True)
class WaveSpan:
    """Slots of a wave in which it issues an instruction, or in which the instruction stalls it for a reason."""

    wave: int
    first: int
    after: int
    position: int
    reason: Reason | None = None


@dataclass
class ComputeUnitRun:
    """The waves of some workgroups in a loop, from its first iteration until their state repeats."""

    body: Sequence[TimedInstruction]
    unit: ComputeUnit
    waves_each: int
    workgroups: int = 1
    takes_turns: bool = False
    """Whether every second wave of a SIMD starts one barrier later."""
    spans: list[WaveSpan] | None = None
    """What each wave does in each slot, if asked for."""
    events: int = 0
    stalls: Counter[tuple[int, Reason]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        count = self.waves_each * self.workgroups
        self.waves = [RunningWave(n, n // self.waves_each, len(self.body)) for n in range(count)]
        self.by_unit = [[wave for wave in self.waves if wave.unit == unit] for unit in range(UNITS)]
        self.matrix_free, self.vector_free = [0] * UNITS, [0] * UNITS
        self.shared_free = self.global_free = self.loaded_free = 0.0
        self.arriving: deque[tuple[float, float]] = deque()
        self.arrived = [0] * self.workgroups
        self.units_to_sort: set[int] = set()
        self.iterated = False
        self._try: dict[Kind, Callable[[RunningWave, TimedInstruction, int], Stalled | None]] = {
            "matrix": self._matrix,
            "vector": self._vector,
            "shared": self._shared,
            "global": self._global,
            "wait": self._wait,
            "barrier": self._barrier,
            "priority": self._priority,
            "scalar": self._scalar,
            "nop": lambda wave, one, slot: None,
            "branch": lambda wave, one, slot: None,
        }
        if self.takes_turns:
            for wave in self.waves:
                if wave.number % self.waves_each // UNITS % 2:
                    self._arrive(wave, 0)

    def steady(self) -> tuple[Mark, Mark, bool]:
        """Run until a state repeats, and return both moments; or two moments far apart, and that none repeated."""
        marks: list[Mark] = []
        seen: dict[State, Mark] = {}
        slot = 0
        while slot < NEVER:
            self._step(slot)
            if self.iterated:
                self.iterated = False
                marks.append(self._mark(slot))
                if (state := self._state(slot)) in seen:
                    return seen[state], marks[-1], True
                seen[state] = marks[-1]
                if len(marks) >= MOST_ITERATIONS or (self.events > MOST_EVENTS and len(marks) >= FEWEST_ITERATIONS):
                    break
            slot = min(wave.next for wave in self.waves)
        return marks[len(marks) // 2 - 1], marks[-1], False

    def _step(self, slot: int) -> None:
        """Look at all SIMDs once."""
        for unit, waves in enumerate(self.by_unit):
            used: set[str] = set()
            for wave in waves:
                if wave.next <= slot:
                    self._look(wave, slot, used)
            if unit in self.units_to_sort:
                waves.sort(key=lambda wave: (-wave.priority, wave.number))
        self.units_to_sort.clear()

    def _look(self, wave: RunningWave, slot: int, used: set[str]) -> None:
        """Issue the wave's next instruction, or say until when it stalls."""
        self.events += 1
        at = wave.at
        one = self.body[at]
        port = PORTS.get(one.kind, "")
        stalled = self._not_ready(wave, one, slot)
        if stalled is None:
            stalled = ("issue port", slot + 1) if port in used else self._try[one.kind](wave, one, slot)
        if stalled is not None:
            reason, wave.next = stalled
            self._stall(wave, at, reason, slot, wave.next)
            return
        if port:
            used.add(port)
        if self.spans is not None:
            self.spans.append(WaveSpan(wave.number, slot, slot + 1, at))
        self._advance(wave, one, slot)

    def _stall(self, wave: RunningWave, at: int, reason: Reason, first: int, after: int) -> None:
        """Note the slots in which the instruction at a position stalls a wave."""
        if after > first:
            self.stalls[at, reason] += after - first
            if self.spans is not None:
                self.spans.append(WaveSpan(wave.number, first, after, at, reason))

    def _not_ready(self, wave: RunningWave, one: TimedInstruction, slot: int) -> Stalled | None:
        until = slot
        for at in one.producers:
            until = max(until, wave.ready[at])
        for at in one.chained:
            until = max(until, wave.chain[at])
        return ("register", until) if until > slot else None

    def _advance(self, wave: RunningWave, one: TimedInstruction, slot: int) -> None:
        """Go to the wave's next instruction."""
        last = wave.at == len(self.body) - 1
        after = slot + 1
        if one.kind == "nop":
            after = slot + one.slots
            self._stall(wave, wave.at, "nop", slot + 1, after)
        elif one.kind == "branch" and last:
            after = slot + self.unit.branch_slots
            self._stall(wave, wave.at, "branch", slot + 1, after)
        if wave.next != NEVER:
            wave.next = max(wave.next, after)
        wave.at += 1
        if last:
            wave.at = 0
            wave.iterations += 1
            self.iterated |= wave.number == 0

    # -- one kind of instruction each: None where it is issued, and otherwise why not ------------------------------

    def _matrix(self, wave: RunningWave, one: TimedInstruction, slot: int) -> Stalled | None:
        free = max(self.matrix_free[wave.unit], self.vector_free[wave.unit])
        if free > slot:
            return "matrix unit", free
        end = self.matrix_free[wave.unit] = slot + one.slots
        wave.chain[wave.at] = end + self.unit.matrix_chain_slots
        wave.ready[wave.at] = end + self.unit.matrix_to_vector_slots
        return None

    def _vector(self, wave: RunningWave, one: TimedInstruction, slot: int) -> Stalled | None:
        if self.vector_free[wave.unit] > slot:
            return "vector unit", self.vector_free[wave.unit]
        end = self.vector_free[wave.unit] = slot + one.slots
        if one.slots > 1:
            wave.ready[wave.at] = wave.chain[wave.at] = end + 1
        return None

    def _shared(self, wave: RunningWave, one: TimedInstruction, slot: int) -> Stalled | None:
        now, room = slot * SLOT_CYCLES, self.unit.shared_queue_slots * SLOT_CYCLES
        self._write_arrived(now)
        free = max(self.shared_free - room, _completed_at(wave.other, MOST_OTHER - 1, now))
        if free > now:
            return "LDS queue", ceil(free / SLOT_CYCLES)
        self.shared_free = max(self.shared_free, now) + one.cycles
        latency = self.unit.shared_write_latency_cycles if one.is_write else self.unit.shared_latency_cycles
        _outstanding(wave.other, self.shared_free + latency)
        return None

    def _global(self, wave: RunningWave, one: TimedInstruction, slot: int) -> Stalled | None:
        now, room = slot * SLOT_CYCLES, self.unit.global_queue_slots * SLOT_CYCLES
        free = max(self.global_free - room, _completed_at(wave.vector, MOST_VECTOR - 1, now))
        if free > now:
            return "global queue", ceil(free / SLOT_CYCLES)
        self.global_free = max(self.global_free, now) + one.cycles
        if one.is_write:
            _outstanding(wave.vector, self.global_free + self.unit.store_latency_cycles)
            return None
        arrived = self.global_free + self.unit.load_latency_cycles
        self.loaded_free = max(self.loaded_free + one.loaded_cycles, arrived)
        _outstanding(wave.vector, self.loaded_free)
        if one.direct_cycles:
            self.arriving.append((self.loaded_free, one.direct_cycles))
        return None

    def _write_arrived(self, now: float) -> None:
        """Write the data of direct loads that have arrived to LDS."""
        while self.arriving and self.arriving[0][0] <= now:
            arrived, cycles = self.arriving.popleft()
            self.shared_free = max(self.shared_free, arrived) + cycles

    def _wait(self, wave: RunningWave, one: TimedInstruction, slot: int) -> Stalled | None:
        now = slot * SLOT_CYCLES
        vector = _completed_at(wave.vector, one.vector_count, now)
        other = _completed_at(wave.other, one.other_count, now)
        if vector <= now and other <= now:
            return None
        return ("vmcnt" if vector >= other else "lgkmcnt"), ceil(max(vector, other) / SLOT_CYCLES)

    def _barrier(self, wave: RunningWave, one: TimedInstruction, slot: int) -> Stalled | None:
        self._arrive(wave, slot)
        return None

    def _arrive(self, wave: RunningWave, slot: int) -> None:
        """Stop a wave at a barrier; the last of its workgroup lets all go on."""
        workgroup = wave.workgroup
        self.arrived[workgroup] += 1
        wave.next, wave.since = NEVER, slot + 1
        if self.arrived[workgroup] < self.waves_each:
            return
        self.arrived[workgroup] = 0
        for other in self.waves:
            if other.workgroup == workgroup:
                self._note_barrier(other, slot + 1)
                other.next = slot + 1

    def _note_barrier(self, wave: RunningWave, slot: int) -> None:
        self._stall(wave, (wave.at - 1) % len(self.body), "barrier", wave.since, slot)
        wave.since = max(wave.since, slot)

    def _priority(self, wave: RunningWave, one: TimedInstruction, slot: int) -> Stalled | None:
        wave.priority = one.priority
        self.units_to_sort.add(wave.unit)
        return None

    def _scalar(self, wave: RunningWave, one: TimedInstruction, slot: int) -> Stalled | None:
        if one.loads_scalars:
            wave.other.append(slot * SLOT_CYCLES + self.unit.scalar_load_latency_cycles)
        return None

    # -- states -------------------------------------------------------------------------------------------------------

    def _mark(self, slot: int) -> Mark:
        for wave in self.waves:
            if wave.next == NEVER:
                self._note_barrier(wave, slot)
        return Mark(slot, tuple(wave.iterations for wave in self.waves), Counter(self.stalls))

    def _state(self, slot: int) -> State:
        """Return what decides the future of the compute unit, relative to a slot."""
        now = slot * SLOT_CYCLES
        self._write_arrived(now)
        return (
            *(wave.state(slot) for wave in self.waves),
            *(max(0, free - slot) for free in (*self.matrix_free, *self.vector_free)),
            *(round(max(0.0, free - now), 6) for free in (self.shared_free, self.global_free, self.loaded_free)),
            *((round(arrived - now, 6), cycles) for arrived, cycles in self.arriving),
            *self.arrived,
        )


def _outstanding(queue: deque[float], back: float) -> None:
    """Queue an operation that completes in order."""
    queue.append(max(back, queue[-1]) if queue else back)


def _completed_at(queue: deque[float], allowed: int | None, now: float) -> float:
    """Return when at most `allowed` operations are outstanding, in cycles."""
    while queue and queue[0] <= now:
        queue.popleft()
    return now if allowed is None or len(queue) <= allowed else queue[len(queue) - allowed - 1]
