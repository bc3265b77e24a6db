"""Cycles of a kernel's K loop, once it is steady: how long an iteration takes, and how busy its matrix units are.

    loop_cycles(read_assembly(text), latency=1000).utilization

What is modelled is in `compute_unit.py`, with what numbers in `facts.py`. The loop is the innermost one around the most
matrix instructions (`emulator/statistics.py`), with all that may run in an iteration. The clock is not part of it, nor
what other compute units do to memory: that is the latency, which is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewave.cycles.compute_unit import ComputeUnitRun
from tilewave.cycles.facts import COMPUTE_UNITS, SLOT_CYCLES, ComputeUnit
from tilewave.cycles.instructions import Kind, TimedInstruction, timed
from tilewave.cycles.stalls import Stall, stalls_between
from tilewave.emulator.assembly import MachineCode
from tilewave.emulator.chips import UNITS, ChipName
from tilewave.emulator.emulator import LARGEST_WORKGROUP
from tilewave.emulator.kernel import LoadedKernel
from tilewave.emulator.machine import LANES
from tilewave.emulator.probe import bank_conflicts
from tilewave.emulator.statistics import find_loop

LATENCIES = (500, 1000, 1500)
"""Latencies of global loads for which a loop is shown, in cycles: from L2, and from memory under load."""
MOST_WORKGROUP_WAVES = LARGEST_WORKGROUP // LANES


@dataclass(frozen=True)
class LoopCycles:
    """A K loop in the model of one compute unit; cycles are per iteration of all its waves."""

    kernel: str
    chip: ChipName
    waves: int
    """Of one workgroup."""
    workgroups: int
    latency_cycles: float
    cycles: float
    matrix_cycles: float
    """Cycles in which the matrix units multiply, on average over the four."""
    counts: Mapping[Kind, int]
    """Instructions of a wave."""
    stalls: tuple[Stall, ...]
    """Largest first. A wave's instructions, a slot each, and these make up the cycles."""
    is_periodic: bool
    """Whether the steady state repeats exactly; otherwise the cycles are an average of many iterations."""
    takes_turns: bool
    """Whether the waves of a SIMD are taken to be one barrier apart."""

    @property
    def utilization(self) -> float:
        """The part of the cycles in which the matrix units multiply."""
        return self.matrix_cycles / self.cycles

    @property
    def instructions(self) -> int:
        return sum(self.counts.values())


def loop_cycles(
    code: MachineCode,
    kernel: str | None = None,
    latency: float | None = None,
    workgroups: int = 1,
    *,
    waves: int | None = None,
    conflicts: Mapping[int, float] | None = None,
    unit: ComputeUnit | None = None,
) -> LoopCycles:
    """Return the cycles of a kernel's K loop with so many workgroups on a compute unit.

    `latency` is that of global loads, in cycles; without it that of the chip in `COMPUTE_UNITS`. `waves` are those of a
    workgroup; without them, as many as the kernel's metadata says. `conflicts` are cycles that are lost to bank
    conflicts, as `conflicts_of` returns them; without them there are none.
    """
    return cycles_by_latency(code, kernel, [latency], workgroups, waves=waves, conflicts=conflicts, unit=unit)[0]


def cycles_by_latency(
    code: MachineCode,
    kernel: str | None = None,
    latencies: Sequence[float | None] = LATENCIES,
    workgroups: int = 1,
    *,
    waves: int | None = None,
    conflicts: Mapping[int, float] | None = None,
    unit: ComputeUnit | None = None,
) -> tuple[LoopCycles, ...]:
    """Return the cycles of a kernel's K loop for each latency of global loads; the loop is looked for once."""
    found = code.kernel(kernel)
    unit = unit or COMPUTE_UNITS[code.chip]
    at = find_loop(code, found).body
    lost = (
        {place: conflicts[position] for place, position in enumerate(at) if position in conflicts} if conflicts else {}
    )
    body = timed([code.instructions[position] for position in at], unit, lost)
    units = [unit if latency is None else replace(unit, load_latency_cycles=latency) for latency in latencies]
    return tuple(_cycles(found.name, body, one, waves or waves_of(found), workgroups) for one in units)


def conflicts_of(code: MachineCode, kernel: str | None = None) -> dict[int, float]:
    """Return the cycles that a kernel's K loop loses to bank conflicts, by an instruction's position in the code.

    An iteration is run in the emulator for the addresses, with large numbers as arguments: what the loop does must not
    depend on them, as it does in code objects whose arguments are packed into structures.
    """
    found = code.kernel(kernel)
    return bank_conflicts(code, found, find_loop(code, found))


def waves_of(kernel: LoadedKernel) -> int:
    """Return the waves of a workgroup, as the kernel's metadata says."""
    return max(1, min(MOST_WORKGROUP_WAVES, kernel.resources.largest_workgroup // LANES))


def takes_turns(body: Sequence[TimedInstruction], waves: int) -> bool:
    """Whether a loop is one in which two waves of a SIMD alternate: one multiplies while the other loads.

    Such loops raise the priority of the wave that multiplies and have a barrier at both ends of each part; a barrier
    before the loop, for every second wave of a SIMD, puts the two apart.
    """
    counts = Counter(one.kind for one in body)
    return waves == 2 * UNITS and counts["priority"] > 0 and counts["barrier"] >= 4


def _cycles(
    kernel: str, body: Sequence[TimedInstruction], unit: ComputeUnit, waves: int, workgroups: int
) -> LoopCycles:
    turns = takes_turns(body, waves)
    first, last, is_periodic = ComputeUnitRun(body, unit, waves, workgroups, turns).steady()
    passes = sum(one.slots for one in body if one.kind == "matrix")
    iterations = sum(last.iterations) - sum(first.iterations)
    return LoopCycles(
        kernel=kernel,
        chip=unit.chip,
        waves=waves,
        workgroups=workgroups,
        latency_cycles=unit.load_latency_cycles,
        cycles=SLOT_CYCLES * (last.slot - first.slot) * waves * workgroups / iterations,
        matrix_cycles=SLOT_CYCLES * passes * waves * workgroups / UNITS,
        counts=dict(Counter(one.kind for one in body).most_common()),
        stalls=stalls_between(body, first, last),
        is_periodic=is_periodic,
        takes_turns=turns,
    )
