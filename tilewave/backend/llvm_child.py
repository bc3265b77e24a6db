"""The process that runs LLVM: a line of JSON on stdin, then the IR; on stdout a mark, a line of JSON, then the bytes.

It imports llvmlite and nothing else of tilewave; the parent process passes the path.
"""

from __future__ import annotations

import json
import re
import sys
from typing import BinaryIO, NamedTuple

import llvmlite.binding as llvm

MOST_PRODUCTS = 40
"""Products of a block above which strength reduction is skipped; GEMMs have up to 25. LLVM's strength reduction
compares each with all the others: 192 of them, of a lane with 64 rows of three arrays, took nine tenths of the time,
and gave the same instructions."""
PRODUCT = re.compile(r"= mul (?:\w+ )*i\d+ %\S+, %")
REDUCES_STRENGTH = "-amdgpu-scalar-ir-passes"
"""LLVM's option for strength reduction, which only AMD targets have; others have no kernels where it is slow."""
NEGATION = re.compile(r"^  (%\S+) = (fneg .*?)<(\d+) x (\w+)> (%[^\s,]+)(.*)$", re.MULTILINE)
DEFINITION = re.compile(r"^  (%\S+) = (\w+)", re.MULTILINE)
NOT_COMPUTED = {"bitcast", "select", "shufflevector", "insertelement"}
"""Instructions whose vectors are assembled from parts, which may be selects."""


class LlvmMachine(NamedTuple):
    """LLVM's description of the machine to compile for."""

    triple: str
    cpu: str
    features: str
    gives: str = "object and text"
    """`text` where LLVM has no assembler for the target: the code is the text; `object` where no text is needed."""
    negates_choices: bool = True
    """False where LLVM negates only the last element of a vector of selects."""
    options: tuple[str, ...] = ()
    """LLVM options besides those for all code; they apply to the rest of the process."""


class ObjectCode(NamedTuple):
    code: bytes
    asm: str


def main() -> None:
    _serve(sys.stdin.buffer, sys.stdout.buffer)


def _serve(stdin: BinaryIO, stdout: BinaryIO) -> None:
    request = json.loads(stdin.readline())
    # A fixed number of bytes: the pipe stays open as long as any process forked meanwhile lives.
    text = stdin.read(request["ir_bytes"]).decode()
    made = compile_here(text, LlvmMachine(**request["machine"]))
    asm = made.asm.encode()
    sizes = json.dumps({"code_bytes": len(made.code), "asm_bytes": len(asm)})
    stdout.write(request["mark"].encode() + sizes.encode() + b"\n" + made.code + asm)


def compile_here(llvm_ir: str, machine: LlvmMachine) -> ObjectCode:
    """Optimize LLVM IR and compile it to object code in this process, which LLVM may terminate."""
    to, module = optimized(llvm_ir, machine)
    if machine.gives == "text":
        asm = to.emit_assembly(module)
        return ObjectCode(asm.encode(), asm)
    if machine.gives == "object":
        return ObjectCode(to.emit_object(module), "")
    text = str(module)  # emitting changes a module, so object and text are emitted from separate ones
    choose_strength_reduction(text)
    return ObjectCode(to.emit_object(module), to.emit_assembly(llvm.parse_assembly(text)))


def optimized(llvm_ir: str, machine: LlvmMachine) -> tuple[llvm.TargetMachine, llvm.ModuleRef]:
    """Return what emits code for a machine, and the optimized module."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for option in machine.options:
        llvm.set_option("", option)
    target = llvm.Target.from_triple(machine.triple)
    to = target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=3, reloc="pic", codemodel="default"
    )
    module = llvm.parse_assembly(llvm_ir)
    module.triple, module.data_layout = machine.triple, str(to.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_unrolling = False  # the lowering has unrolled what pays
    builder = llvm.create_pass_builder(to, options)
    builder.getModulePassManager().run(module, builder)
    return to, module if machine.negates_choices else _with_parts_negated(module)


def choose_strength_reduction(llvm_ir: str) -> None:
    """Decide for optimized LLVM IR whether LLVM's strength reduction for AMD targets runs, from here on."""
    llvm.set_option("", f"{REDUCES_STRENGTH}={int(most_products(llvm_ir) <= MOST_PRODUCTS)}")


def most_products(llvm_ir: str) -> int:
    """Return the most multiplications without a constant in a basic block."""
    return max(len(PRODUCT.findall(block)) for block in re.split(r"\n\S+:", llvm_ir))


def _with_parts_negated(module: llvm.ModuleRef) -> llvm.ModuleRef:
    before = str(module)
    after = negated_by_parts(before)
    return module if after == before else llvm.parse_assembly(after)


def negated_by_parts(llvm_ir: str) -> str:
    """Return LLVM IR with vectors that may be assembled from selects negated element by element."""
    made_by = dict(DEFINITION.findall(llvm_ir))

    def parts(negation: re.Match[str]) -> str:
        name, fneg, count, kind, vector, rest = negation.groups()
        if made_by.get(vector) not in NOT_COMPUTED:
            return negation[0]
        lines, whole, stem = [], "poison", f"%negated.{negation.start()}"
        for i in range(int(count)):
            part, minus = f"{stem}.part.{i}", f"{stem}.minus.{i}"
            now = name if i + 1 == int(count) else f"{stem}.whole.{i}"
            lines.append(f"  {part} = extractelement <{count} x {kind}> {vector}, i64 {i}{rest}")
            lines.append(f"  {minus} = {fneg}{kind} {part}{rest}")
            lines.append(f"  {now} = insertelement <{count} x {kind}> {whole}, {kind} {minus}, i64 {i}{rest}")
            whole = now
        return "\n".join(lines)

    return NEGATION.sub(parts, llvm_ir)
