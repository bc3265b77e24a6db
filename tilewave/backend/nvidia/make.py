"""Code of one kernel, compiled or from the cache, and the arguments of its launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

from tilewave.backend.nvidia.code import NvidiaCode, Specialization, keep, kept
from tilewave.forks import IMPORTING
from tilewave.ir.core import Kernel
from tilewave.ir.types import INDEX, Memory
from tilewave.lower.launch_arguments import KernelArgument, MapArgument
from tilewave.machine.chips import Chip
from tilewave.runtime.gpu_launch import (
    Address,
    Cluster,
    DependentLaunchAttribute,
    GpuLaunch,
    ScalarSlot,
    ScratchMemory,
    Slot,
    Stride,
    SymbolArgument,
    TiledArray,
)

Make = Callable[[Specialization, Callable[[Specialization], Kernel]], NvidiaCode]
"""Returns the code of a specialization key; its lane-level kernel is built on a cache miss only."""


def maker(key: str, chip: Chip) -> Make:
    """Return a `Make` that reads code from the cache, or compiles and stores it."""

    def make(wanted: Specialization, kernel_of: Callable[[Specialization], Kernel]) -> NvidiaCode:
        code = kept(key, wanted)
        if code is None:
            code = compiler().code_of(kernel_of(wanted), chip, wanted)
            keep(key, wanted, code)
        return code

    return make


def compiler() -> ModuleType:
    with IMPORTING:
        from tilewave.backend.nvidia import compiler as nvidia_ptx  # noqa: PLC0415  LLVM is heavy, and code from the cache needs none of it

    return nvidia_ptx


def launch_of_code(code: NvidiaCode, kernel: Kernel) -> GpuLaunch:
    """Return the launch of code with arrays in the order of the kernel's arguments."""
    names = [v.name for v in kernel.body.args if isinstance(v.type, Memory)]
    symbols = code.symbols
    slots = [*(_slot(a, names, symbols) for a in code.arguments), *(_tiled(m, names) for m in code.maps)]
    attributes = (
        *((Cluster((code.cluster, 1, 1)),) if code.cluster > 1 else ()),
        *((DependentLaunchAttribute(),) if code.uses_pdl else ()),
    )
    known = code.workgroups if isinstance(code.workgroups, int) else code.cluster
    grid, block = (known, 1, 1), (code.workgroup_size, 1, 1)
    return GpuLaunch(tuple(slots), grid, block, code.shared_bytes, attributes)


def _slot(argument: KernelArgument, names: Sequence[str], symbols: Sequence[str]) -> Slot:
    match argument.kind:
        case "pointer":
            return Address(names.index(argument.name))
        case "stride":
            return Stride(names.index(argument.name), argument.axis)
        case "symbol":
            index = symbols.index(argument.name)
            return SymbolArgument(index) if argument.dtype == INDEX.name else ScalarSlot(index)
        case "scratch":
            return ScratchMemory(argument.scratch_bytes)
    raise NotImplementedError(f"a launch cannot provide a {argument.kind}")


def _tiled(m: MapArgument, names: Sequence[str]) -> TiledArray:
    return TiledArray(names.index(m.name), m.axes, m.box, m.swizzle_bytes)
