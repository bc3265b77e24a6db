"""LLVM in a child process: a crash of LLVM ends the child, not the user's process."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import llvmlite
from llvmlite.utils import get_library_name

from tilewave.backend.llvm_machine import LlvmMachine, ObjectCode
from tilewave.children import ChildFailed, run_child
from tilewave.errors import TargetError, here

# Isolated from the user's variables, directories and start-up files, which may print or shadow; the folder that it
# imports from is its first argument. It ends before garbage is worth collecting.
_START = "import gc, sys; gc.disable(); sys.path.append(sys.argv[1]); import llvm_child; llvm_child.main()"
_FOLDER = str(Path(__file__).parent)
LIBRARY = str(Path(llvmlite.__file__).parent / "binding" / get_library_name())
"""llvmlite's library, which has LLVM."""
OUR_FAULT = "this is a fault of tilewave's; the kernel's text, kernel.ir(), makes a good report"
NO_PYTHON = "set sys.executable to the path of a Python interpreter: tilewave runs LLVM in a separate process"


class AssemblyFailed(Exception):
    """LLVM failed; the message is its output."""

    def __init__(self, what: str, remedy: str = OUR_FAULT) -> None:
        super().__init__(what)
        self.remedy = remedy


def assembled(kernel: str, target: str, llvm_ir: str, machine: LlvmMachine) -> ObjectCode:
    """Run `assemble` for a named kernel and report failures as TargetError."""
    try:
        return assemble(llvm_ir, machine)
    except AssemblyFailed as failed:
        what = f"{kernel}: LLVM could not compile it for {target}: {failed}"
        raise TargetError(what, loc=here(), remedy=failed.remedy) from None


def assemble(llvm_ir: str, machine: LlvmMachine) -> ObjectCode:
    """Optimize LLVM IR and compile it to object code, in a child process."""
    if not sys.executable:
        raise AssemblyFailed(f"sys.executable is {sys.executable!r}, so there is no Python to run it in", NO_PYTHON)
    mark = f"tilewave {secrets.token_hex(16)} "
    ir = llvm_ir.encode()
    *facts, options = machine
    asked = _FOLDER, LIBRARY, mark, str(len(ir)), *map(str, facts), *options
    try:
        child = run_child([sys.executable, "-I", "-S", "-c", _START, *asked], ir)
    except ChildFailed as failed:
        size = f"{llvm_ir.count(chr(10)):,} lines of LLVM IR"
        raise AssemblyFailed(f"{failed} ({size})", failed.remedy) from None
    if child.returncode != 0:
        raise AssemblyFailed(_last_words(child.stderr) or f"LLVM ended with code {child.returncode}")
    return _answer(child.stdout, mark.encode())


def _last_words(stderr: bytes) -> str:
    said = stderr.decode(errors="replace").strip().splitlines()
    return next((line for line in said if "ERROR" in line or "error" in line), said[-1] if said else "")


def _answer(stdout: bytes, mark: bytes) -> ObjectCode:
    """Return the answer after the mark; other code in the child may have printed before and after it."""
    _, found, answer = stdout.partition(mark)
    head, _, rest = answer.partition(b"\n")
    code, asm = map(int, head.split()) if found else (0, 1)
    if len(rest) < code + asm:
        raise AssemblyFailed(f"{sys.executable!r} ended without an answer", NO_PYTHON)
    return ObjectCode(rest[:code], rest[code : code + asm].decode())
