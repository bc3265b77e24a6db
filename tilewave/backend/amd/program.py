"""Machine code of a kernel for an AMD chip, compiled or from the cache, run by the emulator or on a card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilewave.backend.amd.code import AmdCode, keep, kept
from tilewave.backend.amd.code_object_metadata import kernels
from tilewave.errors import NOWHERE, SpillWarning, TargetError, here, warn_of_code
from tilewave.forks import IMPORTING, cached_property
from tilewave.ir.core import Kernel
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.types import Memory
from tilewave.lower.launch_arguments import KernelArgument
from tilewave.machine.chips import Chip
from tilewave.records import dataclass
from tilewave.runtime.arrays import ArrayView, Parameter
from tilewave.runtime.call_checks import check_call
from tilewave.runtime.gpu_launch import Address, GpuLaunch, Slot, Stride, SymbolArgument
from tilewave.runtime.hip import HipCode, HipProgram, hip_driver

if TYPE_CHECKING:
    from tilewave.cycles import LoopCycles
    from tilewave.emulator import EmulationReport, LoopStatistics
    from tilewave.emulator.assembly import MachineCode
    from tilewave.emulator.findings import Check
    from tilewave.emulator.run import Order

Make = Callable[[frozenset[str]], AmdCode]
"""Returns code for arrays of which the named ones may have any strides."""

NOT_IN_ROWS = RemarkKind(
    "{array} is not contiguous, or its base is unaligned, so lanes load and store single elements",
    "make it contiguous",
)


@dataclass(frozen=True, eq=False)
class AmdProgram:
    """One kernel for one chip; arrays without contiguous rows need separate code."""

    tiles: Kernel
    """The kernel on tiles, with the name and the parameters."""
    chip: Chip
    lanes: Callable[[], Kernel]
    make: Make | None
    """None where a file has the code: for arrays with contiguous rows, and for arrays of any strides."""
    _codes: dict[frozenset[str], AmdCode] = field(default_factory=dict)
    _loaded: dict[frozenset[str], HipProgram] = field(default_factory=dict)

    @property
    def llvm_ir(self) -> str | None:
        """The LLVM IR, where the kernel is compiled here."""
        ir: str | None = _compiler().llvm_ir_of(self.lanes(), self.chip) if self.make else None
        return ir

    @property
    def code(self) -> AmdCode:
        """The code for arrays with contiguous rows."""
        return self.code_for(frozenset())

    @cached_property
    def registers(self) -> tuple[int, int, int, int]:
        """Registers of a lane, AGPRs among them, spills, and waves per SIMD unit."""
        with IMPORTING:
            from tilewave.emulator.statistics import waves_per_unit  # noqa: PLC0415  as in _emulator

        emulator = _emulator().Emulator.from_assembly(self.code.asm, self.chip.cpu)  # not kept: every compile asks
        kernel = emulator.kernel(self.tiles.name)
        found = kernel.resources
        if found.spills:
            what = f"{self.tiles.name}: {found.spills} registers are spilled on {self.chip.name}"
            warn_of_code(f"{what}; smaller tiles need fewer", SpillWarning)
        waves = waves_per_unit(emulator.chip, kernel, prod(self.lanes().waves))
        return found.vector_registers, found.accumulation_registers, found.spills, waves

    @cached_property
    def statistics(self) -> LoopStatistics:
        """Instruction counts of the K loop."""
        with IMPORTING:
            from tilewave.emulator.statistics import module_statistics  # noqa: PLC0415  as in _emulator

        return module_statistics(self.machine_code, self.tiles.name, self.conflicts)

    def cycles(self, latencies: Sequence[float] | None, workgroups: int | None) -> tuple[LoopCycles, ...]:
        """Cycles of the K loop for each latency of global loads, with as many workgroups on a compute unit as fit."""
        with IMPORTING:
            from tilewave.cycles import LATENCIES, loop_model  # noqa: PLC0415  as in _emulator

        model = loop_model(self.machine_code, self.tiles.name, conflicts=self.conflicts)
        return tuple(model.cycles(cycles, workgroups or model.fitting) for cycles in latencies or LATENCIES)

    @cached_property
    def machine_code(self) -> MachineCode:
        """The decoded code for arrays with contiguous rows."""
        module: MachineCode = _emulator().Emulator.from_assembly(self.code.asm, self.chip.cpu).module
        return module

    @cached_property
    def conflicts(self) -> dict[int, float]:
        """Cycles that the K loop loses to bank conflicts, by an instruction's position."""
        with IMPORTING:
            from tilewave.cycles import conflicts_of  # noqa: PLC0415  as in _emulator

        return conflicts_of(self.machine_code, self.tiles.name)

    def emulate(
        self,
        views: Sequence[ArrayView],
        numbers: Sequence[int],
        order: Order,
        seed: int,
        check: Check,
        limit: int | None,
    ) -> EmulationReport:
        """Run the machine code in the emulator; the arrays hold its results unless the emulator reports a finding."""
        arrays = [v.numpy() for v in views]
        code = self.code_for(self._any_strides(views))
        workgroups, symbols = code.launches.of(self._symbols(numbers))
        report: EmulationReport
        if not workgroups:  # nothing is launched
            report = _emulator().EmulationReport(self.tiles.name, self.chip.cpu, order, seed, 0, 0, 0, 0.0, ())
            return report
        emulator = _emulator().Emulator.from_assembly(code.asm, self.chip.cpu)
        given = launch_arguments(code.arguments, [v.name for v in self._memories()], arrays, symbols)
        grid, block = (workgroups, 1, 1), (code.workgroup_size, 1, 1)
        options = {"order": order, "seed": seed, "check": check, "limit": limit}
        report = emulator.launch(self.tiles.name, grid, block, given, **options)
        return report

    def run(self, arrays: Sequence[Any], numbers: Sequence[int], parameters: tuple[Parameter, ...]) -> None:
        """Run the kernel on the card, by HIP."""
        try:
            hip_driver(self.tiles.name)
        except TargetError as error:
            here_too = f"{self.tiles.name}.emulate(…) runs its machine code on this CPU"
            raise TargetError(error.what, loc=here(), remedy=f"{error.remedy}\n{here_too}") from None
        views = check_call(self.tiles.name, parameters, arrays, "rocm", here())
        any_strides = self._any_strides(views)
        workgroups, symbols = self.code_for(any_strides).launches.of(self._symbols(numbers))
        if workgroups:
            self._on_card(any_strides, workgroups, list(symbols), parameters)(arrays, list(symbols.values()))

    def _on_card(
        self, any_strides: frozenset[str], workgroups: int, symbols: Sequence[str], parameters: tuple[Parameter, ...]
    ) -> HipProgram:
        """Return the program for these `any_strides`, to be launched with these parameters."""
        grid = workgroups, 1, 1
        if any_strides not in self._loaded:
            code = self.code_for(any_strides)
            names = [v.name for v in self._memories()]
            slots = tuple(_slot(a, names, symbols) for a in code.arguments)
            launch = GpuLaunch(slots, grid, (code.workgroup_size, 1, 1))
            fields = kernels(code.code_object)[0].fields
            made = HipCode(self.tiles.name, self.chip.cpu, code.code_object, launch, parameters, fields)
            self._loaded[any_strides] = HipProgram(made)
        return self._loaded[any_strides].sized(grid, parameters)

    def want_launch(self, code: AmdCode) -> None:
        """Raise an exception where code cannot be launched with the kernel's arrays: a file may have any contents."""
        memories = {v.name: v.type for v in self._memories()}
        given = [v.name for v in self.tiles.body.args if v.name not in memories]
        symbols = [a.name for a in code.arguments if a.kind == "symbol"]
        code.launches.steps(given, symbols)  # raises where a symbol is unknown
        for argument in code.arguments:
            _slot(argument, list(memories), symbols)
            if argument.kind == "stride" and not 0 <= argument.axis < memories[argument.name].rank:
                raise ValueError(f"{argument.name} has no axis {argument.axis}")
        for reach in code.reaches:
            kind = memories[reach.name]
            lengths = {len(reach.steps), len(reach.beyond) or kind.rank}
            if lengths != {kind.rank} or reach.bytes != kind.dtype.bytes or min(reach.grain, reach.whole) < 1:
                raise ValueError(f"{reach.name} is reached in other steps")
        if not code.launch and code.workgroups != self.tiles.workgroups:
            raise ValueError(f"{code.workgroups} workgroups")
        if code.workgroup_size != prod(self.lanes().waves) * self.chip.lanes:
            raise ValueError(f"{code.workgroup_size} lanes in a workgroup")

    def code_for(self, any_strides: frozenset[str]) -> AmdCode:
        if any_strides not in self._codes:
            self._codes[any_strides] = self.make(any_strides) if self.make else self._fitting(any_strides)
        return self._codes[any_strides]

    def _fitting(self, any_strides: frozenset[str]) -> AmdCode:
        return self._codes[min((names for names in self._codes if names >= any_strides), key=len)]

    def _any_strides(self, views: Sequence[ArrayView]) -> frozenset[str]:
        """Return the arrays that windows cannot reach."""
        steps = ([s // v.dtype.bytes for s in v.strides] for v in views)
        strides = dict(zip((v.name for v in self._memories()), steps, strict=True))
        where = dict(zip(strides, ((v.pointer, v.shape) for v in views), strict=True))
        return frozenset(r.name for r in self.code.reaches if not r.allows(strides[r.name], *where[r.name]))

    def remarks_for(self, arrays: Sequence[Any], parameters: tuple[Parameter, ...]) -> tuple[Remark, ...]:
        """Return remarks on what these arrays keep the code from."""
        return self.remarks(check_call(self.tiles.name, parameters, arrays, "rocm", here()))

    def remarks(self, views: Sequence[ArrayView]) -> tuple[Remark, ...]:
        return tuple(NOT_IN_ROWS.at(NOWHERE, array=name) for name in sorted(self._any_strides(views)))

    def _memories(self) -> list[Any]:
        return [v for v in self.tiles.body.args if isinstance(v.type, Memory)]

    def _symbols(self, numbers: Sequence[int]) -> dict[str, int]:
        open_ones = [v.name for v in self.tiles.body.args if not isinstance(v.type, Memory)]
        return dict(zip(open_ones, numbers, strict=True))


def maker(key: str, chip: Chip, lanes: Callable[[], Kernel]) -> Make:
    """Return a `Make` that reads code from the cache, or compiles and stores it; passes run on a cache miss only."""

    def make(any_strides: frozenset[str]) -> AmdCode:
        code = kept(key, any_strides)
        if code is None:
            code = _compiler().code_of(lanes(), chip, any_strides)
            keep(key, any_strides, code)
        return code

    return make


def _compiler() -> ModuleType:
    with IMPORTING:
        from tilewave.backend.amd import compiler as amd_object  # noqa: PLC0415  LLVM is heavy, and code from the cache needs none of it

    return amd_object


def _emulator() -> ModuleType:
    with IMPORTING:
        from tilewave import emulator  # noqa: PLC0415  it is large, and a card needs none of it

    return emulator


def launch_arguments(
    arguments: Sequence[KernelArgument], names: Sequence[str], arrays: Sequence[Any], symbols: Mapping[str, int]
) -> list[Any]:
    """Return the launch arguments in the kernel's order: arrays for pointers, strides in elements, scalars."""
    named = dict(zip(names, arrays, strict=True))
    found: list[Any] = []
    for a in arguments:
        match a.kind:
            case "pointer":
                found.append(named[a.name])
            case "stride":
                found.append(named[a.name].strides[a.axis] // named[a.name].itemsize)
            case "symbol":
                found.append(symbols[a.name])
            case _:
                raise NotImplementedError(f"a launch cannot provide a {a.kind}")
    return found


def _slot(argument: KernelArgument, names: Sequence[str], symbols: Sequence[str]) -> Slot:
    match argument.kind:
        case "pointer":
            return Address(names.index(argument.name))
        case "stride":
            return Stride(names.index(argument.name), argument.axis)
        case "symbol":
            return SymbolArgument(symbols.index(argument.name))
    raise NotImplementedError(f"a launch cannot provide a {argument.kind}")
