"""Code for this machine's CPU that LLVM does not optimize, for tests of what kernels compute.

LLVM takes half of the time of these tests. Unoptimized code computes the same bits, except for sums that LLVM may
reorder, and takes a seventh of the time to compile. One kernel in eight is optimized as for users, always the same
ones, and so are all kernels in `make test-slow` and in tests of backends, saved kernels and tuning.
"""

import re
from functools import cache
from zlib import crc32

import llvmlite.binding as llvm
from sampled import ALL

from tilewave.backend.cpu.instruction_sets import host_instruction_set
from tilewave.backend.llvm_child import LlvmMachine, ObjectCode

OF_MEANING = {"analysis", "end_to_end", "fuzz", "in_torch", "interp", "kernels", "lang", "ops", "passes", "transform"}
OF_MEANING |= {"test_documents.py"}
"""Rooms of tests that look at results alone, not at machine code for CPUs."""
OPTIMIZED = 8
"""One in so many kernels is optimized."""


def is_unoptimized(test: str, llvm_ir: str, machine: LlvmMachine) -> bool:
    """Return whether a kernel is compiled without optimizations in a test, given by its id."""
    room = re.split("/|::", test.removeprefix("tests/"))[0]
    return not ALL and room in OF_MEANING and machine == _here() and crc32(llvm_ir.encode()) % OPTIMIZED > 0


@cache
def _here() -> LlvmMachine:
    return host_instruction_set().machine


def unoptimized(llvm_ir: str, machine: LlvmMachine) -> ObjectCode:
    """Return object code for a CPU as LLVM emits it without a pass."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    to = llvm.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=0, reloc="pic", codemodel="default"
    )
    module = llvm.parse_assembly(llvm_ir)
    module.triple, module.data_layout = machine.triple, str(to.target_data)
    module.verify()
    return ObjectCode(to.emit_object(module), "")
