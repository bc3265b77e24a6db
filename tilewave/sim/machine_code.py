"""What a compiled kernel's machine code says of its loop: how busy the matrix units are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tilewave.cost.parameters import CLOCKED
from tilewave.cycles import LoopCycles
from tilewave.errors import TilewaveError
from tilewave.machine import Machine
from tilewave.machine.chips import CHIPS
from tilewave.sim.dispatch import Residency


@runtime_checkable
class HasLoopCycles(Protocol):
    """A compiled kernel whose K loop can be run on a model of a compute unit."""

    @property
    def target(self) -> str: ...

    def loop_cycles(self, latencies: Sequence[float] | None = None, workgroups: int = 1) -> tuple[LoopCycles, ...]: ...


def loop_utilization(problem: object, machine: Machine, residency: Residency) -> float | None:
    """Return the matrix utilization of a kernel's loop on a card it was compiled for; None where there is no such code.

    Kernels without a loop of matrix instructions, and those of other targets, are timed by the formula of their tiles.
    """
    chip = CHIPS.get(machine.target)
    parameters = CLOCKED.get(chip.matrix) if chip else None
    if parameters is None or not isinstance(problem, HasLoopCycles) or problem.target != machine.target:
        return None
    try:
        (found,) = problem.loop_cycles([parameters.latency_cycles], residency.occupancy)
    except TilewaveError:
        return None
    return found.utilization or None
