"""From a lane-level kernel to machine code of an AMD chip: lowering and LLVM; not imported for code from the cache."""

from __future__ import annotations

from contextlib import suppress

from tilewave.backend.amd.allotments import OTHERS, USUAL, cost_of, may_move
from tilewave.backend.amd.code import AmdCode
from tilewave.backend.amd.code_object import link
from tilewave.backend.amd.spelling import Amdgcn
from tilewave.backend.amd.wait_states import settled, too_early
from tilewave.backend.assembler import OUR_FAULT, assembled
from tilewave.backend.llvm_machine import ObjectCode
from tilewave.errors import TargetError, here
from tilewave.ir.core import Kernel
from tilewave.ir.ops import LoadTransposed, Store
from tilewave.ir.rewrite import walk
from tilewave.lower.gpu.kernel import lower_lanes
from tilewave.machine.chips import Chip


def llvm_ir_of(kernel: Kernel, chip: Chip) -> str:
    return lower_lanes(kernel, Amdgcn(chip)).llvm_ir


def code_of(kernel: Kernel, chip: Chip, any_strides: frozenset[str]) -> AmdCode:
    lowered = lower_lanes(kernel, Amdgcn(chip), any_strides)
    make = _least_moved if lowered.launch or _reads_across(kernel) else _in_time
    made = make(kernel.name, chip, lowered.llvm_ir)
    sizes = lowered.shared_bytes, lowered.workgroup_size, lowered.workgroups, lowered.launch
    return AmdCode(lowered.arguments, lowered.reaches, *sizes, made.asm, link(made.code))


def _reads_across(kernel: Kernel) -> bool:
    """Return whether operands are contiguous across their depth, so that more registers and addresses are live."""
    across = (
        isinstance(op, LoadTransposed) or (isinstance(op, Store) and op.is_across_rows) for op in walk(kernel.body)
    )
    return any(across)


def _least_moved(kernel: str, chip: Chip, llvm_ir: str) -> ObjectCode:
    """Return LLVM's code; where the K loop moves accumulators or reloads registers, the best of several strategies."""
    usual = _in_time(kernel, chip, llvm_ir)
    if not may_move(usual.asm) or cost_of(usual.asm, kernel, chip.cpu).is_least:
        return usual
    ways = [usual]
    for options in OTHERS:
        with suppress(TargetError):  # the default code remains where LLVM fails with other options
            ways.append(_in_time(kernel, chip, llvm_ir, options))
    return min(ways, key=lambda made: cost_of(made.asm, kernel, chip.cpu))


def _in_time(kernel: str, chip: Chip, llvm_ir: str, options: tuple[str, ...] = USUAL) -> ObjectCode:
    """Return LLVM's code with the wait states of every matrix instruction."""
    machine = Amdgcn(chip).machine._replace(options=options)
    made = assembled(kernel, chip.name, llvm_ir, machine)
    if too_early(made.asm, chip.matrix) is None:
        return made
    made = assembled(kernel, chip.name, settled(llvm_ir), machine)
    if (early := too_early(made.asm, chip.matrix)) is not None:
        what = f"{kernel}: LLVM's code for {chip.name} lacks wait states: {early}"
        raise TargetError(what, loc=here(), remedy=OUR_FAULT)
    return made
