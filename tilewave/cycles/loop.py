"""Cycles of a kernel's K loop, once it is steady: how long an iteration takes, and how busy its matrix units are.

    loop_cycles(read_assembly(text), latency=1000).utilization

What is modelled is in `compute_unit.py`, with what numbers in `facts.py`. The loop is the innermost one around the most
matrix instructions (`emulator/statistics.py`), with all that may run in an iteration. The clock is not part of it, nor
what other compute units do to memory: that is the latency, which is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from tilewave.emulator.statistics import find_loop, waves_per_unit
from tilewave.records import dataclass

LATENCIES = (500, 1000, 1500)
"""Latencies of global loads for which a loop is shown, in cycles: from L2, and from memory under load."""
SCALE = (
    "A model, not a measurement: by published launch times, cycles are within ±15 % at a known clock; "
    "ratios between kernels are closer"
)
"""What is not known of every loop; the next are for loops of some kinds."""
TURNS = "8 waves take turns here: no kernel that does so is among the published times"
EXPONENTIALS = "The loop has exponentials or the like: attention comes out 8 to 22 % too slow"
AVERAGE = "Iterations differ: the cycles are an average"
MOST_WORKGROUP_WAVES = LARGEST_WORKGROUP // LANES


@dataclass(frozen=True)
class LoopCycles:
    """A K loop in the model of one compute unit; cycles are per iteration of all its waves."""

    kernel: str
    chip: ChipName
    waves: int
    """The number of waves of one workgroup."""
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
    transcendentals: int
    """Exponentials, logarithms, roots and reciprocals of a wave."""

    @property
    def utilization(self) -> float:
        """The part of the cycles in which the matrix units multiply."""
        return self.matrix_cycles / self.cycles

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not modelled or not known, for display beside the numbers."""
        kinds = {
            TURNS: self.takes_turns,
            EXPONENTIALS: self.transcendentals > 0,
            AVERAGE: not self.is_periodic,
        }
        return (SCALE, *(note for note, holds in kinds.items() if holds))

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
    return loop_model(code, kernel, waves, conflicts, unit).cycles(latency, workgroups)


def cycles_by_latency(
    code: MachineCode,
    kernel: str | None = None,
    latencies: Sequence[float] = LATENCIES,
    workgroups: int = 1,
    *,
    waves: int | None = None,
    conflicts: Mapping[int, float] | None = None,
    unit: ComputeUnit | None = None,
) -> tuple[LoopCycles, ...]:
    """Return the cycles of a kernel's K loop for each latency of global loads; the loop is looked for once."""
    what = loop_model(code, kernel, waves, conflicts, unit)
    return tuple(what.cycles(latency, workgroups) for latency in latencies)


def conflicts_of(code: MachineCode, kernel: str | None = None) -> dict[int, float]:
    """Return the cycles that a kernel's K loop loses to bank conflicts, by an instruction's position in the code.

    An iteration is run in the emulator for the addresses, with large numbers as arguments: what the loop does must not
    depend on them, as it does in code objects whose arguments are packed into structures.
    """
    found = code.kernel(kernel)
    return bank_conflicts(code, found, find_loop(code, found))


@dataclass(frozen=True)
class LoopModel:
    """A kernel's K loop, ready for the model of a compute unit."""

    kernel: str
    body: tuple[TimedInstruction, ...]
    waves: int
    """The number of waves of one workgroup."""
    fitting: int
    """How many workgroups fit on a compute unit, by registers and LDS."""
    starts_apart: bool
    """Whether some waves pass one barrier more than others before the loop."""
    unit: ComputeUnit

    @property
    def takes_turns(self) -> bool:
        """Whether two waves of a SIMD alternate: one multiplies while the other loads.

        Such loops raise the priority of the wave that multiplies and have barriers between their parts; a barrier
        before the loop, for every second wave of a SIMD, puts the two apart.
        """
        kinds = {one.kind for one in self.body}
        return self.waves == 2 * UNITS and self.starts_apart and {"priority", "barrier"} <= kinds

    def run(self, latency: float | None, workgroups: int) -> ComputeUnitRun:
        """Return the compute unit before the loop; `latency` replaces the unit's own."""
        unit = self.unit if latency is None else replace(self.unit, load_latency_cycles=latency)
        return ComputeUnitRun(self.body, unit, self.waves, workgroups, self.takes_turns)

    def cycles(self, latency: float | None, workgroups: int) -> LoopCycles:
        """Run the loop until it is steady."""
        run = self.run(latency, workgroups)
        first, last, is_periodic = run.steady()
        passes = sum(one.slots for one in self.body if one.kind == "matrix")
        waves = self.waves * workgroups
        iterations = sum(last.iterations) - sum(first.iterations)
        return LoopCycles(
            kernel=self.kernel,
            chip=self.unit.chip,
            waves=self.waves,
            workgroups=workgroups,
            latency_cycles=run.unit.load_latency_cycles,
            cycles=SLOT_CYCLES * (last.slot - first.slot) * waves / iterations,
            matrix_cycles=SLOT_CYCLES * passes * waves / UNITS,
            counts=dict(Counter(one.kind for one in self.body).most_common()),
            stalls=stalls_between(self.body, first, last),
            is_periodic=is_periodic,
            takes_turns=self.takes_turns,
            transcendentals=sum(one.is_transcendental for one in self.body),
        )


def loop_model(
    code: MachineCode,
    kernel: str | None = None,
    waves: int | None = None,
    conflicts: Mapping[int, float] | None = None,
    unit: ComputeUnit | None = None,
) -> LoopModel:
    """Find a kernel's K loop and what its instructions occupy."""
    found, lost = code.kernel(kernel), conflicts or {}
    unit = unit or COMPUTE_UNITS[code.chip]
    at = find_loop(code, found).body
    slower = {place: lost[position] for place, position in enumerate(at) if position in lost}
    body = timed([code.instructions[position] for position in at], unit, slower)
    each = waves or waves_of(found)
    fitting = waves_per_unit(code.chip, found, each) // max(1, each // UNITS)
    apart = _some_waves_pass_a_barrier(code, range(found.entry, min(at)))
    return LoopModel(found.name, body, each, max(1, fitting), apart, unit)


def _some_waves_pass_a_barrier(code: MachineCode, before_loop: range) -> bool:
    """Whether a conditional branch decides if a wave waits at a barrier."""
    instructions = code.instructions
    branches = [at for at in before_loop if instructions[at].mnemonic.startswith("s_cbranch")]
    sides = [side for at in branches for side in (at + 1, instructions[at].target) if side is not None]
    return any(instructions[side].mnemonic == "s_barrier" for side in sides if side < len(instructions))


def waves_of(kernel: LoadedKernel) -> int:
    """Return the waves of a workgroup, as the kernel's metadata says."""
    return max(1, min(MOST_WORKGROUP_WAVES, kernel.resources.largest_workgroup // LANES))
