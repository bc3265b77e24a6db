"""The process that runs LLVM: a line of JSON on stdin, then the IR; on stdout a mark, a line of JSON, then the bytes.

It needs llvmlite and nothing else of ours; whoever starts it says where that lies.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import BinaryIO

import llvmlite.binding as llvm

MOST_PRODUCTS = 40
"""Of a block; GEMMs have up to 25. LLVM's strength reduction compares each one with all the others: 192 of them,
of a lane with 64 rows of three arrays, took nine tenths of the time, and gave the same instructions."""
PRODUCT = re.compile(r"= mul (?:\w+ )*i\d+ %\S+, %")
REDUCES_STRENGTH = "-amdgpu-scalar-ir-passes"
"""LLVM's option, which has AMD's chips alone; others have no such kernels that take long."""


@dataclass(frozen=True)
class LlvmMachine:
    """What LLVM is told of the machine to compile for."""

    triple: str
    cpu: str
    features: str
    gives: str = "object and text"
    """`text` where LLVM has no assembler of its own: the code is then the text's; `object` where nobody reads one."""


@dataclass(frozen=True)
class ObjectCode:
    code: bytes
    asm: str


def main() -> None:
    _serve(sys.stdin.buffer, sys.stdout.buffer)


def _serve(stdin: BinaryIO, stdout: BinaryIO) -> None:
    request = json.loads(stdin.readline())
    # Not up to the end: the pipe stays open as long as any process forked meanwhile lives.
    text = stdin.read(request["ir_bytes"]).decode()
    made = compile_here(text, LlvmMachine(**request["machine"]))
    asm = made.asm.encode()
    sizes = json.dumps({"code_bytes": len(made.code), "asm_bytes": len(asm)})
    stdout.write(request["mark"].encode() + sizes.encode() + b"\n" + made.code + asm)


def compile_here(llvm_ir: str, machine: LlvmMachine) -> ObjectCode:
    """Optimise LLVM IR and make object code of it, in this process, which LLVM may end."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(machine.triple)
    to = target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=3, reloc="pic", codemodel="default"
    )
    module = llvm.parse_assembly(llvm_ir)
    module.triple, module.data_layout = machine.triple, str(to.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_unrolling = False  # what is worth unrolling is unrolled already
    builder = llvm.create_pass_builder(to, options)
    builder.getModulePassManager().run(module, builder)
    if machine.gives == "text":
        asm = to.emit_assembly(module)
        return ObjectCode(asm.encode(), asm)
    if machine.gives == "object":
        return ObjectCode(to.emit_object(module), "")
    optimized = str(module)  # emitting changes a module, so each of the two gets its own
    llvm.set_option("", f"{REDUCES_STRENGTH}={int(most_products(optimized) <= MOST_PRODUCTS)}")
    return ObjectCode(to.emit_object(module), to.emit_assembly(llvm.parse_assembly(optimized)))


def most_products(llvm_ir: str) -> int:
    """How many numbers that are not constant are multiplied in a block, in the one that has the most of it."""
    return max(len(PRODUCT.findall(block)) for block in re.split(r"\n\S+:", llvm_ir))
