"""LLVM in a process of its own: what it dislikes ends that process, not the author's.

Run as a script it needs nothing but llvmlite: a JSON line on stdin, then the IR; on stdout a JSON line, then the bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import BinaryIO

import llvmlite.binding as llvm


@dataclass(frozen=True)
class Machine:
    """What LLVM is told of the machine to compile for."""

    triple: str
    cpu: str
    features: str
    gives: str = "object"
    """`object`, or `text` where LLVM has no assembler of its own; the code is then the text's."""


@dataclass(frozen=True)
class ObjectCode:
    code: bytes
    asm: str


class AssemblyFailed(Exception):
    """LLVM gave up; the text is what it said."""


def assemble(llvm_ir: str, machine: Machine) -> ObjectCode:
    """Optimise LLVM IR and make object code of it, in a child process."""
    request = json.dumps(asdict(machine)).encode() + b"\n" + llvm_ir.encode()
    child = subprocess.run([sys.executable, "-I", __file__], input=request, capture_output=True, check=False)
    if child.returncode != 0:
        said = child.stderr.decode(errors="replace").strip().splitlines()
        first = next((line for line in said if "ERROR" in line or "error" in line), said[-1] if said else "")
        raise AssemblyFailed(first or f"LLVM ended with code {child.returncode}")
    head, _, rest = child.stdout.partition(b"\n")
    size = json.loads(head)["code_bytes"]
    return ObjectCode(rest[:size], rest[size:].decode())


def _serve(stdin: BinaryIO, stdout: BinaryIO) -> None:
    head, _, text = stdin.read().partition(b"\n")
    made = _assemble(text.decode(), Machine(**json.loads(head)))
    stdout.write(json.dumps({"code_bytes": len(made.code)}).encode() + b"\n" + made.code + made.asm.encode())


def _assemble(llvm_ir: str, machine: Machine) -> ObjectCode:
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
    optimized = str(module)  # emitting changes a module, so each of the two gets its own
    return ObjectCode(to.emit_object(module), to.emit_assembly(llvm.parse_assembly(optimized)))


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
