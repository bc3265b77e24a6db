"""A kernel's lanes → machine code of an AMD chip: lowering and LLVM, which code from the cache does without."""

from __future__ import annotations

from tilewave.amd_code import AmdCode
from tilewave.errors import TargetError, here
from tilewave.ir.core import Kernel
from tilewave.lower.lanes import lower_lanes
from tilewave.targets.amdgcn import AMDGCN
from tilewave.targets.assembler import AssemblyFailed, assemble
from tilewave.targets.code_object import link


def llvm_ir_of(kernel: Kernel, chip: str) -> str:
    return lower_lanes(kernel, AMDGCN[chip]).llvm_ir


def code_of(kernel: Kernel, chip: str, anyhow: frozenset[str]) -> AmdCode:
    target = AMDGCN[chip]
    lowered = lower_lanes(kernel, target, anyhow)
    try:
        made = assemble(lowered.llvm_ir, target.machine)
    except AssemblyFailed as failed:
        raise TargetError(
            f"{kernel.name}: LLVM could not compile it for {chip}: {failed}",
            loc=here(),
            remedy="this is a fault of tilewave's; the kernel's text, kernel.ir(), makes a good report",
        ) from None
    sizes = lowered.shared_bytes, lowered.workgroup_size, kernel.workgroups
    return AmdCode(lowered.arguments, lowered.reaches, *sizes, made.asm, link(made.code))
