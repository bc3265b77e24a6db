"""A kernel on whole tiles → what each lane does on an AMD chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewave.analysis.loads import LaneLoads, loads_per_lane
from tilewave.analysis.wishes import not_as_asked
from tilewave.backend.amd.code import AmdCode, kept
from tilewave.forks import IMPORTING, cached_property
from tilewave.ir.core import Kernel
from tilewave.ir.ops import Allocate, Mma
from tilewave.ir.placements import elements
from tilewave.ir.places import Places
from tilewave.ir.rewrite import unnamed, walk
from tilewave.ir.types import Memory
from tilewave.pipeline.runner import Step, after, last_on_tiles, run
from tilewave.runtime.cache import compile_key

if TYPE_CHECKING:
    from tilewave.backend.amd.program import AmdProgram


Passed = tuple[Kernel, tuple[Step, ...]]
"""What each lane does, and how passes came to it."""


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
    not_as_asked: tuple[str, ...] = ()
    """What the author wished and did not get, and why."""


@dataclass(frozen=True, eq=False)
class AmdBuild:
    """A kernel for one chip; where the cache has its code, passes run when somebody asks what they did."""

    tiles: Kernel
    chip: str
    key: str
    """Of its code, in the cache."""
    passing: Callable[[], Passed]
    codes: Mapping[frozenset[str], AmdCode] = field(default_factory=dict)
    """Known from the beginning."""

    @cached_property
    def passed(self) -> Passed:
        return self.passing()

    @property
    def lanes(self) -> Kernel:
        return self.passed[0]

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.passed[1]

    @cached_property
    def program(self) -> AmdProgram:
        with IMPORTING:
            from tilewave.backend.amd.program import AmdProgram  # noqa: PLC0415  LLVM is heavy; the lane level does not need it

        return AmdProgram(self.tiles, self.chip, self.key, lambda: self.lanes, dict(self.codes))

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
        whole = last_on_tiles(self.steps, self.tiles)
        staged = after(self.steps, "stage_shared", self.tiles)
        chosen = after(self.steps, "choose_instructions", self.tiles)
        allocated = [op.result.type for op in walk(whole.body) if isinstance(op, Allocate)]
        products = tuple(dict.fromkeys(op.instruction for op in walk(whole.body) if isinstance(op, Mma)))
        return LaneResources(
            self.chip,
            self.lanes.waves,
            self.lanes.lanes,
            products,
            sum(elements(m) * m.dtype.bytes for m in allocated if isinstance(m, Memory)),
            loads_per_lane(staged),
            loads_per_lane(after(self.steps, "minimize_global_loads", staged)),
            *self.program.registers,
            not_as_asked(self.tiles, chosen, self.lanes, products, self.chip),
        )


def build_amd(tiles: Kernel, chip: str, places: Places, prefetched: int) -> AmdBuild:
    """The kernel for each lane, `prefetched` steps ahead; an error at the author's constraint where that cannot be."""
    lines = " ".join(str(op.loc) for op in walk(tiles.body))  # findings name the author's lines
    key = compile_key("amd", chip, repr(places), str(prefetched), lines, unnamed(tiles))

    def passing() -> Passed:
        with IMPORTING:
            from tilewave.machine.lanes import LANE_MACHINES  # noqa: PLC0415  as below
        with IMPORTING:
            from tilewave.pipeline import lists  # noqa: PLC0415  all passes; code from the cache needs none of them

        pipelining = lists.prefetch(prefetched) if prefetched else ()
        return run(tiles, lists.lanes(LANE_MACHINES[chip], places, pipelining))

    code = kept(key, ())
    if code is not None:
        return AmdBuild(tiles, chip, key, passing, {frozenset(): code})
    passed = passing()
    return AmdBuild(tiles, chip, key, lambda: passed)
