"""A kernel's lanes → machine code of an AMD chip: LLVM, the cache, the emulator, and the card where there is one."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import version
from math import prod
from typing import Any

from tilewave._version import __version__
from tilewave.emulator import EmulationReport, Emulator, LoopStatistics, loop_statistics
from tilewave.emulator.findings import Check
from tilewave.emulator.run import Order
from tilewave.emulator.statistics import waves_per_unit
from tilewave.errors import SpillWarning, TargetError, here
from tilewave.ir.core import Kernel
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory
from tilewave.lower.lane_memory import Reach
from tilewave.lower.lanes import KernelArgument, lower_lanes
from tilewave.runtime.arrays import ArrayView, Parameter, check_call
from tilewave.runtime.cache import default_cache, key_of, sources
from tilewave.runtime.gpu_launch import Address, GpuLaunch, Number, Slot, Stride
from tilewave.runtime.hip import HipCode, HipProgram, hip_driver
from tilewave.targets.amdgcn import AMDGCN
from tilewave.targets.assembler import AssemblyFailed, assemble
from tilewave.targets.code_object import link
from tilewave.targets.code_object_metadata import kernels


@dataclass(frozen=True)
class AmdCode:
    """Machine code, and what its launch must provide."""

    arguments: tuple[KernelArgument, ...]
    reaches: tuple[Reach, ...]
    shared_bytes: int
    workgroup_size: int
    asm: str
    code_object: bytes


@dataclass(frozen=True, eq=False)
class AmdProgram:
    """One kernel for one chip; arrays that do not lie in rows get code of their own."""

    lanes: Kernel
    chip: str
    _codes: dict[frozenset[str], AmdCode] = field(default_factory=dict)
    _loaded: dict[frozenset[str], HipProgram] = field(default_factory=dict)

    @property
    def llvm_ir(self) -> str:
        return lower_lanes(self.lanes, AMDGCN[self.chip]).llvm_ir

    @property
    def code(self) -> AmdCode:
        """For arrays whose last axis has neighbours in memory."""
        return self.code_for(frozenset())

    @cached_property
    def registers(self) -> tuple[int, int, int, int]:
        """Of a lane; those for accumulation among them; how many are spilled; how many waves share a matrix unit."""
        emulator = Emulator.from_assembly(self.code.asm, self.chip)
        kernel = emulator.kernel(self.lanes.name)
        found = kernel.resources
        if found.spills:
            told = f"{self.lanes.name}: {found.spills} registers are spilled on {self.chip}; smaller tiles need fewer"
            warnings.warn(told, SpillWarning, stacklevel=4)
        waves = waves_per_unit(emulator.chip, kernel, prod(self.lanes.waves))
        return found.vector_registers, found.accumulation_registers, found.spills, waves

    @cached_property
    def statistics(self) -> LoopStatistics:
        """What stands in its K loop."""
        return loop_statistics(self.code.asm, self.lanes.name, self.chip)

    def emulate(
        self, views: Sequence[ArrayView], numbers: Sequence[int], order: Order, seed: int, check: Check
    ) -> EmulationReport:
        """Run the machine code on this CPU; the arrays hold its results unless something was found."""
        arrays = [v.numpy() for v in views]
        code = self.code_for(self._anyhow(views))
        emulator = Emulator.from_assembly(code.asm, self.chip)
        given = launch_arguments(code.arguments, [v.name for v in self._memories()], arrays, self._symbols(numbers))
        grid, block = (self.lanes.workgroups, 1, 1), (code.workgroup_size, 1, 1)
        return emulator.launch(self.lanes.name, grid, block, given, order=order, seed=seed, check=check)

    def run(self, arrays: Sequence[Any], numbers: Sequence[int], parameters: tuple[Parameter, ...]) -> None:
        """On the card, by HIP."""
        try:
            hip_driver(self.lanes.name)
        except TargetError as error:
            here_too = f"{self.lanes.name}.emulate(…) runs its machine code on this CPU"
            raise TargetError(error.what, loc=here(), remedy=f"{error.remedy}\n{here_too}") from None
        views = check_call(self.lanes.name, parameters, arrays, "rocm", here())
        self._on_card(self._anyhow(views), numbers, parameters)(arrays, numbers)

    def _on_card(self, anyhow: frozenset[str], numbers: Sequence[int], parameters: tuple[Parameter, ...]) -> HipProgram:
        if anyhow not in self._loaded:
            code = self.code_for(anyhow)
            names = [v.name for v in self._memories()]
            slots = tuple(_slot(a, names, list(self._symbols(numbers))) for a in code.arguments)
            launch = GpuLaunch(slots, (self.lanes.workgroups, 1, 1), (code.workgroup_size, 1, 1))
            fields = kernels(code.code_object)[0].fields
            made = HipCode(self.lanes.name, self.chip, code.code_object, launch, parameters, fields)
            self._loaded[anyhow] = HipProgram(made)
        return self._loaded[anyhow]

    def code_for(self, anyhow: frozenset[str]) -> AmdCode:
        if anyhow not in self._codes:
            self._codes[anyhow] = self._kept_or_made(anyhow)
        return self._codes[anyhow]

    def _kept_or_made(self, anyhow: frozenset[str]) -> AmdCode:
        store = default_cache()
        lines = " ".join(str(op.loc) for op in walk(self.lanes.body))  # findings name the author's lines
        parts = ("amd", __version__, sources(), version("llvmlite"), self.chip, str(self.lanes), lines)
        key = key_of(*parts, *sorted(anyhow))
        kept = store.get(key)
        if kept is None:
            kept = _packed(self._made(anyhow))
            store.put(key, kept)
        return _unpacked(kept)

    def _made(self, anyhow: frozenset[str]) -> AmdCode:
        target = AMDGCN[self.chip]
        lowered = lower_lanes(self.lanes, target, anyhow)
        try:
            made = assemble(lowered.llvm_ir, target.machine)
        except AssemblyFailed as failed:
            raise TargetError(
                f"{self.lanes.name}: LLVM could not compile it for {self.chip}: {failed}",
                loc=here(),
                remedy="this is a fault of tilewave's; the kernel's text, kernel.ir(), makes a good report",
            ) from None
        sizes = lowered.shared_bytes, lowered.workgroup_size
        return AmdCode(lowered.arguments, lowered.reaches, *sizes, made.asm, link(made.code))

    def _anyhow(self, views: Sequence[ArrayView]) -> frozenset[str]:
        """The arrays that cannot be reached through windows of rows."""
        steps = ([s // v.dtype.bytes for s in v.strides] for v in views)
        strides = dict(zip((v.name for v in self._memories()), steps, strict=True))
        addresses = dict(zip(strides, (v.pointer for v in views), strict=True))
        return frozenset(r.name for r in self.code.reaches if not r.allows(strides[r.name], addresses[r.name]))

    def _memories(self) -> list[Any]:
        return [v for v in self.lanes.body.args if isinstance(v.type, Memory)]

    def _symbols(self, numbers: Sequence[int]) -> dict[str, int]:
        open_ones = [v.name for v in self.lanes.body.args if not isinstance(v.type, Memory)]
        return dict(zip(open_ones, numbers, strict=True))


def launch_arguments(
    arguments: Sequence[KernelArgument], names: Sequence[str], arrays: Sequence[Any], symbols: dict[str, int]
) -> list[Any]:
    """What a kernel is launched with, in its order: arrays for pointers, strides in elements, numbers."""
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
            return Number(symbols.index(argument.name))
    raise NotImplementedError(f"a launch cannot provide a {argument.kind}")


def _packed(code: AmdCode) -> bytes:
    """How the cache keeps it: a line of JSON, then the assembly, then the code object."""
    head = asdict(code)
    asm = head.pop("asm").encode()
    del head["code_object"]
    return json.dumps({**head, "asm_bytes": len(asm)}).encode() + b"\n" + bytes(asm) + code.code_object


def _unpacked(kept: bytes) -> AmdCode:
    head, _, rest = kept.partition(b"\n")
    fields = json.loads(head)
    size = fields.pop("asm_bytes")
    return AmdCode(
        tuple(KernelArgument(**a) for a in fields["arguments"]),
        tuple(Reach(r["name"], r["bytes"], tuple(r["steps"]), r["grain"]) for r in fields["reaches"]),
        fields["shared_bytes"],
        fields["workgroup_size"],
        rest[:size].decode(),
        rest[size:],
    )
