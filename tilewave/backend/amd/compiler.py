"""A kernel's lanes → machine code of an AMD chip: lowering and LLVM, which code from the cache does without."""

from __future__ import annotations

from tilewave.backend.amd.code import AmdCode
from tilewave.backend.amd.code_object import link
from tilewave.backend.amd.spelling import AMDGCN
from tilewave.backend.amd.wait_states import settled, too_early
from tilewave.backend.assembler import OUR_FAULT, assembled
from tilewave.backend.llvm_child import ObjectCode
from tilewave.errors import TargetError, here
from tilewave.ir.core import Kernel
from tilewave.lower.gpu.kernel import lower_lanes


def llvm_ir_of(kernel: Kernel, chip: str) -> str:
    return lower_lanes(kernel, AMDGCN[chip]).llvm_ir


def code_of(kernel: Kernel, chip: str, anyhow: frozenset[str]) -> AmdCode:
    target = AMDGCN[chip]
    lowered = lower_lanes(kernel, target, anyhow)
    made = _in_time(kernel.name, chip, lowered.llvm_ir)
    sizes = lowered.shared_bytes, lowered.workgroup_size, kernel.workgroups
    return AmdCode(lowered.arguments, lowered.reaches, *sizes, made.asm, link(made.code))


def _in_time(kernel: str, chip: str, llvm_ir: str) -> ObjectCode:
    """What LLVM makes of it, in which every matrix instruction has its wait states."""
    machine = AMDGCN[chip].machine
    made = assembled(kernel, chip, llvm_ir, machine)
    if too_early(made.asm, chip) is None:
        return made
    made = assembled(kernel, chip, settled(llvm_ir), machine)
    if (early := too_early(made.asm, chip)) is not None:
        raise TargetError(f"{kernel}: LLVM's code for {chip} lacks wait states: {early}", loc=here(), remedy=OUR_FAULT)
    return made
