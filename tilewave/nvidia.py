"""A kernel on whole tiles → what each lane does on an NVIDIA chip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tilewave.ir.core import Kernel
from tilewave.ir.lane_loads import LaneLoads, loads_per_lane
from tilewave.ir.ops import Allocate, CopyIn, CopyTogether, Mma
from tilewave.ir.placements import elements
from tilewave.ir.places import Places
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory
from tilewave.machine.lanes import SM_90A, LaneMachine
from tilewave.passes import pipelines
from tilewave.passes.runner import Pass, Step, run

if TYPE_CHECKING:
    from tilewave.nvidia_program import NvidiaProgram
    from tilewave.targets.ptxas import Assembled

DEFAULT_STAGES = 4
"""Steps that the copy engine is ahead at most; three cost one percent on the shapes measured, two a third."""

PROCESSORS = 132
"""Of an H100 or H200 in its SXM form (NVIDIA, "H100 Tensor Core GPU Architecture"); one workgroup keeps one busy."""


@dataclass(frozen=True)
class NvidiaResources:
    """What a workgroup takes of its machine, and what each lane loads in a step."""

    machine: str
    waves: tuple[int, ...]
    """Taken, which need not be the ones wished for: groups of four compute together."""
    lanes: int
    """Of one wave."""
    instructions: tuple[str, ...]
    shared_bytes: int
    loads: tuple[LaneLoads, ...]
    assemble: Callable[[], Assembled | None] = field(repr=False, compare=False)

    @property
    def assembled(self) -> Assembled | None:
        """Registers, spills and the assembler's words; None where this machine has no assembler."""
        return self.assemble()


@dataclass(frozen=True, eq=False)
class NvidiaBuild:
    """A kernel for one chip; every step of its making is kept."""

    tiles: Kernel
    machine: LaneMachine
    lanes: Kernel
    steps: tuple[Step, ...]
    otherwise: Callable[[], NvidiaBuild] | None = None
    """How the kernel is built for arrays that the copy engine cannot take; None where this is that build."""

    @cached_property
    def plain(self) -> NvidiaBuild:
        """For arrays of any strides."""
        return self.otherwise() if self.otherwise else self

    @cached_property
    def program(self) -> NvidiaProgram:
        from tilewave.nvidia_program import NvidiaProgram  # noqa: PLC0415  LLVM is heavy, and looking needs none of it

        return NvidiaProgram(self.lanes, (lambda: self.plain.lanes) if self.otherwise else None)

    @property
    def llvm_ir(self) -> str:
        return self.program.llvm_ir

    @property
    def asm(self) -> str:
        return self.program.ptx

    @property
    def code(self) -> bytes:
        """PTX, which the driver assembles."""
        return self.program.ptx.encode()

    @cached_property
    def resources(self) -> NvidiaResources:
        after = {step.name: step.after for step in self.steps}
        allocated = [op.result.type for op in walk(self.lanes.body) if isinstance(op, Allocate)]
        products = [op.instruction for op in walk(after["choose_instructions"].body) if isinstance(op, Mma)]
        return NvidiaResources(
            self.machine.name,
            self.lanes.waves,
            self.lanes.lanes,
            tuple(dict.fromkeys(products)),
            sum(elements(m) * m.dtype.bytes for m in allocated if isinstance(m, Memory)),
            loads_per_lane(after["guard_edges"]),
            lambda: self.program.assembled,
        )


def build_nvidia(
    tiles: Kernel, places: Places, pipelining: tuple[Pass, ...], stages: int = DEFAULT_STAGES
) -> NvidiaBuild:
    """The kernel for each lane; an error at the author's constraint where the chip cannot do as asked.

    Where the copy engine cannot bring its tiles, lanes load them, and `pipelining` says how far ahead.
    """
    built = build_copying(tiles, places, stages, PROCESSORS)
    if not any(isinstance(op, (CopyIn, CopyTogether)) for op in walk(built.lanes.body)):
        return build_plain(tiles, places, pipelining)
    alone = built.resources.shared_bytes > SM_90A.shared.bytes // 2  # no two workgroups fit on one processor
    if not alone and built.lanes.workgroups != tiles.workgroups:
        built = build_copying(tiles, places, stages, tiles.workgroups)
    return replace(built, otherwise=lambda: build_plain(tiles, places, pipelining))


def build_copying(tiles: Kernel, places: Places, stages: int, workgroups: int) -> NvidiaBuild:
    """The kernel whose tiles the copy engine brings, where it can; `workgroups` run at once."""
    lanes, steps = run(tiles, pipelines.hopper(SM_90A, places, stages, workgroups))
    return NvidiaBuild(tiles, SM_90A, lanes, steps)


def build_plain(tiles: Kernel, places: Places, pipelining: tuple[Pass, ...]) -> NvidiaBuild:
    """The kernel whose lanes load its tiles, from arrays of any strides."""
    lanes, steps = run(tiles, pipelines.hopper_plain(SM_90A, places, pipelining))
    return NvidiaBuild(tiles, SM_90A, lanes, steps)
