"""From a tile-level kernel to the lane-level kernel of an AMD chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from tilewave.analysis.launch_counts import Count, workgroups_of
from tilewave.analysis.loads import LaneLoads, loads_per_lane
from tilewave.analysis.wishes import not_as_asked
from tilewave.backend.amd.code import AmdCode, kept
from tilewave.backend.protocol import ASSEMBLED, Build, BuildOptions, CountedLoop, metrics_of, occupancy_of
from tilewave.forks import IMPORTING, cached_property
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import Kernel
from tilewave.ir.ops import Allocate, Mma
from tilewave.ir.placements import elements
from tilewave.ir.remarks import Remark
from tilewave.ir.rewrite import unnamed, walk
from tilewave.ir.types import Memory
from tilewave.machine.chips import CHIPS, Chip
from tilewave.pipeline.runner import Pass, Step, after, last_on_tiles, run
from tilewave.records import dataclass
from tilewave.runtime.arrays import Parameter
from tilewave.runtime.cache import compile_key

if TYPE_CHECKING:
    from tilewave.backend.amd.program import AmdProgram
    from tilewave.cycles import LoopCycles


REGISTER_BYTES = 4
Passed = tuple[Kernel, tuple[Step, ...]]
"""The lane-level kernel, and the steps of the passes."""


@dataclass(frozen=True)
class LaneResources:
    """The resources of a workgroup, and the loads of each lane per step."""

    machine: str
    waves: tuple[int, ...]
    lanes: int
    """Lanes of one wave."""
    instructions: tuple[str, ...]
    """The matrix instructions used, which may differ from those requested."""
    shared_bytes: int
    loads_before: tuple[LaneLoads, ...]
    """The loads in the layout of the matrix instruction, before coalescing."""
    loads: tuple[LaneLoads, ...]
    registers: int
    """Registers of a lane, including AGPRs."""
    accumulation_registers: int
    spills: int
    waves_per_unit: int
    """Waves per SIMD unit, limited by registers and shared memory."""
    not_as_asked: tuple[str, ...] = ()
    """Requests that were not met, and why."""

    @property
    def spilled_bytes(self) -> int:
        """Bytes of one lane that do not fit in registers: four for each of the `spills`."""
        return REGISTER_BYTES * self.spills

    @property
    def resident_waves(self) -> int:
        """Waves of the kernel that share a CU."""
        return self.waves_per_unit * CHIPS[self.machine].matrix_units.count

    @property
    def most_resident_waves(self) -> int:
        """Waves that a CU has room for."""
        return CHIPS[self.machine].resident_waves

    @property
    def occupancy(self) -> float | None:
        """`resident_waves` as a fraction of `most_resident_waves`."""
        return occupancy_of(self.resident_waves, self.most_resident_waves)


@dataclass(frozen=True, eq=False)
class AmdBuild(Build):
    """A kernel for one chip; where the cache has its code, passes run on demand only."""

    tiles: Kernel
    chip: Chip
    key: str | None
    """The cache key of its code; None where a file has all the code that the kernel may need."""
    passing: Callable[[], Passed]
    codes: Mapping[frozenset[str], AmdCode] = field(default_factory=dict)
    """Code that is known without compiling."""
    counted: LaneResources | None = None
    """Resources read from a file."""

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
            from tilewave.backend.amd.program import AmdProgram, maker  # noqa: PLC0415  LLVM is heavy; the lane level does not need it

        make = None if self.key is None else maker(self.key, self.chip, lambda: self.lanes)
        return AmdProgram(self.tiles, self.chip, lambda: self.lanes, make, dict(self.codes))

    def run(self, arrays: Sequence[Any], numbers: Sequence[int], parameters: tuple[Parameter, ...]) -> None:
        self.program.run(arrays, numbers, parameters)

    def remarks_for(self, arrays: Sequence[Any], parameters: tuple[Parameter, ...]) -> tuple[Remark, ...]:
        return self.program.remarks_for(arrays, parameters)

    def files(self) -> Mapping[str, bytes]:
        text = {} if self.llvm_ir is None else {"ll": self.llvm_ir.encode()}
        return {"s": self.asm.encode(), "hsaco": self.code, **text}

    @property
    def metrics(self) -> Mapping[str, Any]:
        return metrics_of(self.resources)

    @property
    def assembled_metrics(self) -> Mapping[str, Any]:
        """The attributes `ASSEMBLED` of the resources; here the code is at hand."""
        return {name: getattr(self.resources, name) for name in ASSEMBLED}

    @property
    def workgroups(self) -> Count:
        code = self.codes.get(frozenset())
        return code.workgroups if code and isinstance(code.workgroups, int) else workgroups_of(self.lanes)

    @property
    def llvm_ir(self) -> str | None:
        return self.program.llvm_ir

    @property
    def asm(self) -> str:
        return self.program.code.asm

    @property
    def code(self) -> bytes:
        """The code object that the driver loads."""
        return self.program.code.code_object

    @property
    def emulated(self) -> AmdProgram:
        return self.program

    @property
    def loop(self) -> CountedLoop:
        return self.program.statistics

    def cycles(self, latencies: Sequence[float] | None, workgroups: int | None) -> tuple[LoopCycles, ...]:
        return self.program.cycles(latencies, workgroups)

    @cached_property
    def resources(self) -> LaneResources:
        if self.counted is not None:
            return self.counted
        whole = last_on_tiles(self.steps, self.tiles)
        staged = after(self.steps, "stage_shared", self.tiles)
        chosen = after(self.steps, "select_mma", self.tiles)
        allocated = [op.result.type for op in walk(whole.body) if isinstance(op, Allocate)]
        products = tuple(dict.fromkeys(op.instruction for op in walk(whole.body) if isinstance(op, Mma)))
        return LaneResources(
            self.chip.name,
            self.lanes.waves,
            self.lanes.lanes,
            products,
            sum(elements(m) * m.dtype.bytes for m in allocated if isinstance(m, Memory)),
            loads_per_lane(staged),
            loads_per_lane(after(self.steps, "coalesce_loads", staged)),
            *self.program.registers,
            not_as_asked(self.tiles, chosen, self.lanes, products, self.chip.name),
        )


def steps_ahead(tiles: Kernel, options: BuildOptions) -> int:
    """Return the loop steps by which loads are ahead: as asked, else as many stages as asked in loops that multiply."""
    if options.prefetched is not None:
        return options.prefetched
    multiplies = any(isinstance(op, Mma) for op in walk(tiles.body))
    return (options.num_stages or 1) if multiplies else 0


def build_amd(tiles: Kernel, chip: Chip, places: Places, prefetched: int) -> AmdBuild:
    """Build the lane-level kernel, with loads `prefetched` steps ahead; raise an error at an unmet constraint."""
    lines = " ".join(str(op.loc) for op in walk(tiles.body))  # in the key, as findings name source lines
    key = compile_key(chip.name, repr(chip), repr(places), str(prefetched), lines, unnamed(tiles))

    def passing() -> Passed:
        return run(tiles, passes_for(chip, places, prefetched))

    code = kept(key, ())
    if code is not None:
        return AmdBuild(tiles, chip, key, passing, {frozenset(): code})
    passed = passing()
    return AmdBuild(tiles, chip, key, lambda: passed)


def passes_for(chip: Chip, places: Places, prefetched: int) -> tuple[Pass, ...]:
    """Return the passes from the tile level to the lane level, with loads `prefetched` steps ahead."""
    with IMPORTING:
        from tilewave.pipeline import lists  # noqa: PLC0415  all passes; code from the cache needs none of them

    return lists.lanes(chip, places, lists.prefetch(prefetched, chip) if prefetched else ())
