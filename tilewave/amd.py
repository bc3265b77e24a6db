"""A kernel on whole tiles → what each lane does on an AMD chip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tilewave.ir.core import Kernel
from tilewave.ir.lane_loads import LaneLoads, loads_per_lane
from tilewave.ir.ops import Allocate, Mma
from tilewave.ir.placements import elements
from tilewave.ir.places import Places
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory
from tilewave.machine.lanes import LANE_MACHINES, LaneMachine
from tilewave.passes import pipelines
from tilewave.passes.runner import Pass, Step, run

if TYPE_CHECKING:
    from tilewave.amd_program import AmdProgram


@dataclass(frozen=True)
class LaneResources:
    """What a workgroup takes of its machine, and what each lane loads in a step."""

    machine: str
    waves: tuple[int, ...]
    lanes: int
    """Of one wave."""
    instructions: tuple[str, ...]
    """The matrix instructions that were taken, which need not be the ones wished for."""
    shared_bytes: int
    loads_before: tuple[LaneLoads, ...]
    """As the matrix instruction would have them."""
    loads: tuple[LaneLoads, ...]
    registers: int
    """Of a lane, accumulation registers included."""
    accumulation_registers: int
    spills: int
    waves_per_unit: int
    """How many waves share a matrix unit: registers and shared memory decide."""


@dataclass(frozen=True, eq=False)
class AmdBuild:
    """A kernel for one chip; every step of its making is kept."""

    tiles: Kernel
    machine: LaneMachine
    lanes: Kernel
    steps: tuple[Step, ...]

    @cached_property
    def program(self) -> AmdProgram:
        from tilewave.amd_program import AmdProgram  # noqa: PLC0415  LLVM is heavy; the lane level does not need it

        return AmdProgram(self.lanes, self.machine.name)

    @property
    def llvm_ir(self) -> str:
        return self.program.llvm_ir

    @property
    def asm(self) -> str:
        return self.program.code.asm

    @property
    def code(self) -> bytes:
        """A code object that the driver loads."""
        return self.program.code.code_object

    @cached_property
    def resources(self) -> LaneResources:
        after = {step.name: step.after for step in self.steps}
        whole = after["guard_edges"]
        allocated = [op.result.type for op in walk(whole.body) if isinstance(op, Allocate)]
        products = [op.instruction for op in walk(whole.body) if isinstance(op, Mma)]
        return LaneResources(
            self.machine.name,
            self.lanes.waves,
            self.lanes.lanes,
            tuple(dict.fromkeys(products)),
            sum(elements(m) * m.dtype.bytes for m in allocated if isinstance(m, Memory)),
            loads_per_lane(after["stage_shared"]),
            loads_per_lane(after["minimize_global_loads"]),
            *self.program.registers,
        )


def build_amd(tiles: Kernel, chip: str, places: Places, pipelining: tuple[Pass, ...]) -> AmdBuild:
    """The kernel for each lane; an error at the author's constraint where the chip cannot do as asked."""
    machine = LANE_MACHINES[chip]
    lanes, steps = run(tiles, pipelines.lanes(machine, places, pipelining))
    return AmdBuild(tiles, machine, lanes, steps)
