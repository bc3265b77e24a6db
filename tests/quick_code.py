"""Less work for LLVM in tests of what kernels compute, where LLVM takes half of the time.

Code for this machine's CPU is not optimized: it computes the same bits, except for sums that LLVM may reorder, and
takes a seventh of the time to compile. Code for AMD chips is emitted as the text that the emulator runs, and not a
second time as an object. One kernel in sixteen is compiled as for users, always the same ones, and so are all kernels
in `make test-slow` and in tests of backends, saved kernels and tuning.
"""

from functools import cache, lru_cache
from zlib import crc32

from sampled import ALL

from tilewave.backend.assembler import LIBRARY
from tilewave.backend.cpu.instruction_sets import host_instruction_set
from tilewave.backend.llvm_child import Llvm, choose_strength_reduction, compiled, optimized
from tilewave.backend.llvm_machine import LlvmMachine, ObjectCode

OF_MEANING = {
    "analysis",
    "bench",
    "cli",
    "end_to_end",
    "fuzz",
    "in_torch",
    "interp",
    "kernels",
    "lang",
    "ops",
    "passes",
}
OF_MEANING |= {"transform", "test_documents.py"}
"""Rooms of tests that look at results alone, not at machine code for CPUs."""
EMULATED = ("direct_to_shared", "kloop", "layouts", "lowering", "open_sizes")
"""Modules `test_amd_…` of tests/backend/amd that read and emulate code of AMD chips as text."""
COMPILED_AS_FOR_USERS = 16
"""One in so many kernels is."""
KEPT = 200
"""How many kernels' code is kept, for tests that compile the same kernel again."""


def compile_here(llvm_ir: str, machine: LlvmMachine) -> ObjectCode:
    """Return the code of LLVM IR, compiled in this process."""
    with Llvm(LIBRARY, machine.triple, machine.cpu, machine.features) as llvm:
        code, asm = compiled(llvm, llvm_ir, machine.gives, machine.negates_choices, machine.options)
        return ObjectCode(code, asm.decode())


@lru_cache(KEPT)
def compiled_once(llvm_ir: str, machine: LlvmMachine) -> ObjectCode:
    return compile_here(llvm_ir, machine)


def quick_code(test: str, llvm_ir: str, machine: LlvmMachine) -> ObjectCode:
    """Return the code of a kernel in a test, given by its id."""
    parts = test.partition("::")[0].removeprefix("tests/").split("/")
    is_meant = parts[0] in OF_MEANING or parts[-1] in {f"test_amd_{name}.py" for name in EMULATED}
    if ALL or not is_meant or crc32(llvm_ir.encode()) % COMPILED_AS_FOR_USERS == 0:
        return compiled_once(llvm_ir, machine)
    if machine == _here():
        return unoptimized(llvm_ir, machine)
    return text_alone(llvm_ir, machine) if machine.triple.startswith("amdgcn") else compiled_once(llvm_ir, machine)


@cache
def _here() -> LlvmMachine:
    return host_instruction_set().machine


def unoptimized(llvm_ir: str, machine: LlvmMachine) -> ObjectCode:
    """Return object code for a CPU as LLVM emits it without a pass."""
    with Llvm(LIBRARY, machine.triple, machine.cpu, machine.features, opt=0) as llvm:
        return ObjectCode(llvm.object_code(llvm.for_this_machine(llvm_ir)), "")


@lru_cache(KEPT)
def text_alone(llvm_ir: str, machine: LlvmMachine) -> ObjectCode:
    """Return the text of a kernel's code, with the object of a kernel that does nothing in place of its own."""
    with Llvm(LIBRARY, machine.triple, machine.cpu, machine.features) as llvm:
        text = llvm.text(optimized(llvm, llvm_ir, machine.negates_choices))
        choose_strength_reduction(llvm, text)
        return ObjectCode(_nothing(machine).code, llvm.assembly(llvm.parsed(text)).decode())


@cache
def _nothing(machine: LlvmMachine) -> ObjectCode:
    return compile_here("define amdgpu_kernel void @nothing() {\n  ret void\n}", machine)
