"""A kernel's lanes → machine code of an AMD chip: lowering and LLVM, which code from the cache does without."""

from __future__ import annotations

from tilewave.backend.amd.code import AmdCode
from tilewave.backend.amd.code_object import link
from tilewave.backend.amd.spelling import Amdgcn
from tilewave.backend.assembler import assembled
from tilewave.ir.core import Kernel
from tilewave.lower.gpu.kernel import lower_lanes
from tilewave.machine.chips import Chip


def llvm_ir_of(kernel: Kernel, chip: Chip) -> str:
    return lower_lanes(kernel, Amdgcn(chip)).llvm_ir


def code_of(kernel: Kernel, chip: Chip, anyhow: frozenset[str]) -> AmdCode:
    target = Amdgcn(chip)
    lowered = lower_lanes(kernel, target, anyhow)
    made = assembled(kernel.name, chip.name, lowered.llvm_ir, target.machine)
    sizes = lowered.shared_bytes, lowered.workgroup_size, kernel.workgroups
    return AmdCode(lowered.arguments, lowered.reaches, *sizes, made.asm, link(made.code))
