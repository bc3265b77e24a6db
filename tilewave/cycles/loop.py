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

from tilewave.cycles.compute_unit import ComputeUnitRun, Mark, Reason
from tilewave.cycles.facts import COMPUTE_UNITS, SLOT_CYCLES, ComputeUnit
from tilewave.cycles.instructions import Kind, TimedInstruction, timed
from tilewave.emulator.assembly import MachineCode
from tilewave.emulator.chips import MOST_WAVES, UNITS, ChipName
from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.instruction import Instruction
from tilewave.emulator.kernel import LoadedKernel
from tilewave.emulator.machine import LANES
from tilewave.emulator.statistics import find_loop

LATENCIES = (500, 1000, 1500)
"""Latencies of global loads for which a loop is shown, in cycles: from L2, and from memory under load."""


@dataclass(frozen=True)
class Stall:
    """What an instruction of the loop costs each wave: cycles per iteration in which it is not issued."""

    reason: Reason
    cycles: float
    instruction: Instruction


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

    def stalls_by_reason(self) -> dict[Reason, float]:
        """Return each reason's cycles, largest first."""
        found: Counter[Reason] = Counter()
        for stall in self.stalls:
            found[stall.reason] += stall.cycles  # type: ignore[assignment]  # counts may be fractions
        return dict(found.most_common())


def loop_cycles(
    code: MachineCode,
    kernel: str | None = None,
    latency: float | None = None,
    workgroups: int = 1,
    unit: ComputeUnit | None = None,
) -> LoopCycles:
    """Return the cycles of a kernel's K loop with so many workgroups on a compute unit.

    `latency` is that of global loads, in cycles; without it the chip's in `unit` counts, by default `COMPUTE_UNITS`.
    """
    return cycles_by_latency(code, kernel, [latency], workgroups, unit)[0]


def cycles_by_latency(
    code: MachineCode,
    kernel: str | None = None,
    latencies: Sequence[float | None] = LATENCIES,
    workgroups: int = 1,
    unit: ComputeUnit | None = None,
) -> tuple[LoopCycles, ...]:
    """Return the cycles of a kernel's K loop for each latency of global loads; the code is read once."""
    found = named_kernel(code, kernel)
    unit = unit or COMPUTE_UNITS[code.chip]
    body = timed([code.instructions[at] for at in find_loop(code, found).body], unit)
    units = [unit if latency is None else replace(unit, load_latency_cycles=latency) for latency in latencies]
    return tuple(_cycles(found, body, one, workgroups) for one in units)


def named_kernel(code: MachineCode, name: str | None) -> LoadedKernel:
    """Return a kernel by its name; without one, the only kernel."""
    known = ", ".join(code.kernels) or "none"
    if name is None and len(code.kernels) == 1:
        return next(iter(code.kernels.values()))
    if name is None:
        raise UnsupportedCode(f"the code has {len(code.kernels)} kernels", remedy=f"name one of them: {known}")
    if name not in code.kernels:
        raise UnsupportedCode(f"no kernel is called {name!r}", remedy=f"there are: {known}")
    return code.kernels[name]


def waves_of(kernel: LoadedKernel) -> int:
    """Return the waves of a workgroup, as the kernel's metadata says."""
    return max(1, min(MOST_WAVES * UNITS, kernel.resources.largest_workgroup // LANES))


def takes_turns(body: Sequence[TimedInstruction], waves: int) -> bool:
    """Whether a loop is one in which two waves of a SIMD alternate: one multiplies while the other loads.

    Such loops raise the priority of the wave that multiplies and have a barrier at both ends of each part; a barrier
    before the loop, for every second wave of a SIMD, puts the two apart.
    """
    counts = Counter(one.kind for one in body)
    return waves == 2 * UNITS and counts["priority"] > 0 and counts["barrier"] >= 4


def _cycles(kernel: LoadedKernel, body: Sequence[TimedInstruction], unit: ComputeUnit, workgroups: int) -> LoopCycles:
    waves = waves_of(kernel)
    turns = takes_turns(body, waves)
    first, last, is_periodic = ComputeUnitRun(body, unit, waves, workgroups, turns).steady()
    passes = sum(one.slots for one in body if one.kind == "matrix")
    iterations = sum(last.iterations) - sum(first.iterations)
    return LoopCycles(
        kernel=kernel.name,
        chip=unit.chip,
        waves=waves,
        workgroups=workgroups,
        latency_cycles=unit.load_latency_cycles,
        cycles=SLOT_CYCLES * (last.slot - first.slot) * waves * workgroups / iterations,
        matrix_cycles=SLOT_CYCLES * passes * waves * workgroups / UNITS,
        counts=dict(Counter(one.kind for one in body).most_common()),
        stalls=_stalls(body, first, last, iterations),
        is_periodic=is_periodic,
        takes_turns=turns,
    )


def _stalls(body: Sequence[TimedInstruction], first: Mark, last: Mark, iterations: int) -> tuple[Stall, ...]:
    found = last.stalls - first.stalls
    each = [
        Stall(reason, SLOT_CYCLES * slots / iterations, body[at].instruction) for (at, reason), slots in found.items()
    ]
    return tuple(sorted(each, key=lambda stall: (-stall.cycles, stall.instruction.line)))
