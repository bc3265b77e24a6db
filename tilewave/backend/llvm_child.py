"""The process that runs LLVM: LLVM IR on stdin; on stdout a mark, a line with two sizes, then the object and the text.

It calls the functions of llvmlite's library by ctypes, and imports nothing of tilewave and little of the standard
library: importing llvmlite's own Python takes 60 ms, more than LLVM takes for a small kernel.
"""

from __future__ import annotations

import os
import sys
from ctypes import CDLL, POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_void_p, string_at

TYPE_CHECKING = False  # as in `typing`, which is not imported
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MOST_PRODUCTS = 40
"""Products of a block above which strength reduction is skipped; GEMMs have up to 25. LLVM's strength reduction
compares each with all the others: 192 of them, of a lane with 64 rows of three arrays, took nine tenths of the time,
and gave the same instructions."""
REDUCES_STRENGTH = "-amdgpu-scalar-ir-passes"
"""LLVM's option for strength reduction, which only AMD targets have; others have no kernels where it is slow."""
NOT_COMPUTED = {"bitcast", "select", "shufflevector", "insertelement"}
"""Instructions whose vectors are assembled from parts, which may be selects."""

SIGN_BITS, SIGN_BIT = " splat (i32 -2147483648)", ", -2147483648"
"""The sign bits of a vector of i32 as the second operand of an `xor`, and that of one element."""

_OUT = POINTER(c_char_p)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ContextCreate": (c_void_p,),
    "ContextDispose": (None, c_void_p),
    "CopyStringRepOfTargetData": (None, c_void_p, _OUT),
    "CreatePassBuilder": (c_void_p, c_void_p, c_void_p),
    "CreatePipelineTuningOptions": (c_void_p,),
    "CreateTargetMachine": (c_void_p, c_void_p, *(c_char_p,) * 3, c_int, *(c_char_p,) * 2, *(c_int,) * 2, c_char_p),
    "CreateTargetMachineData": (c_void_p, c_void_p),
    "DisposeMemoryBuffer": (None, c_void_p),
    "DisposeNewModulePassManger": (None, c_void_p),
    "DisposePassBuilder": (None, c_void_p),
    "DisposePipelineTuningOptions": (None, c_void_p),
    "DisposeString": (None, c_char_p),
    "DisposeTargetData": (None, c_void_p),
    "DisposeTargetMachine": (None, c_void_p),
    "GetBufferSize": (c_size_t, c_void_p),
    "GetBufferStart": (c_void_p, c_void_p),
    "GetTargetFromTriple": (c_void_p, c_char_p, _OUT),
    "InitializeAllAsmPrinters": (None,),
    "InitializeAllTargetInfos": (None,),
    "InitializeAllTargetMCs": (None,),
    "InitializeAllTargets": (None,),
    "PTOSetLoopUnrolling": (None, c_void_p, c_bool),
    "ParseAssembly": (c_void_p, c_void_p, c_char_p, _OUT),
    "PrintModuleToString": (None, c_void_p, _OUT),
    "RunNewModulePassManager": (None, c_void_p, c_void_p, c_void_p),
    "SetCommandLine": (None, c_char_p, c_char_p),
    "SetDataLayout": (None, c_void_p, c_char_p),
    "SetTarget": (None, c_void_p, c_char_p),
    "TargetMachineEmitToMemory": (c_void_p, c_void_p, c_void_p, c_int, _OUT),
    "VerifyModule": (c_bool, c_void_p, _OUT),
    "buildPerModuleDefaultPipeline": (c_void_p, c_void_p, c_int),
}
"""The result and the parameters of each function, without its prefix `LLVMPY_`, in llvmlite 0.50."""


class Library:
    """The functions of llvmlite's library."""

    def __init__(self, path: str) -> None:
        self.handle = CDLL(path)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.handle, f"LLVMPY_{name}")
        found.restype, *found.argtypes = _SIGNATURES[name]
        setattr(self, name, found)
        return found

    def said(self, name: str, *given: Any) -> tuple[Any, str]:
        """Return the result of a function whose last parameter is a text to be written, and that text."""
        out = c_char_p()
        result = getattr(self, name)(*given, byref(out))
        text = (out.value or b"").decode()
        self.DisposeString(out)
        return result, text

    def needed(self, name: str, *given: Any) -> Any:
        """Return the pointer that a function returns, or raise an error with what it says instead."""
        result, text = self.said(name, *given)
        if not result:
            raise RuntimeError(text)
        return result


class Llvm:
    """LLVM for one machine, in a context of its own, which `with` disposes of."""

    def __init__(self, library: str, triple: str, cpu: str, features: str, opt: int = 3) -> None:
        self.lib = lib = Library(library)
        for what in ("TargetInfos", "Targets", "TargetMCs", "AsmPrinters"):
            getattr(lib, f"InitializeAll{what}")()
        self.triple, self.opt = triple.encode(), opt
        target = lib.needed("GetTargetFromTriple", self.triple)
        facts = self.triple, cpu.encode(), features.encode(), opt, b"pic", b"default", 0, 0, b""
        self.machine = lib.CreateTargetMachine(target, *facts)
        self.context = lib.ContextCreate()

    def __enter__(self) -> Llvm:
        return self

    def __exit__(self, *_: object) -> None:
        self.lib.ContextDispose(self.context)  # and of its modules
        self.lib.DisposeTargetMachine(self.machine)

    def set_option(self, name: str, option: str) -> None:
        """Set an option of the command line, for the rest of the process."""
        self.lib.SetCommandLine(name.encode(), option.encode())

    def parsed(self, llvm_ir: str) -> int:
        module: int = self.lib.needed("ParseAssembly", self.context, llvm_ir.encode())
        return module

    def text(self, module: int) -> str:
        return self.lib.said("PrintModuleToString", module)[1]

    def for_this_machine(self, llvm_ir: str) -> int:
        """Return a module that is verified and knows the machine's triple and data layout."""
        lib, module = self.lib, self.parsed(llvm_ir)
        data = lib.CreateTargetMachineData(self.machine)
        lib.SetTarget(module, self.triple)
        lib.SetDataLayout(module, lib.said("CopyStringRepOfTargetData", data)[1].encode())
        lib.DisposeTargetData(data)
        is_broken, why = lib.said("VerifyModule", module)
        if is_broken:
            raise RuntimeError(why)
        return module

    def optimize(self, module: int) -> None:
        lib = self.lib
        options = lib.CreatePipelineTuningOptions()
        lib.PTOSetLoopUnrolling(options, False)  # the lowering has unrolled what pays
        builder = lib.CreatePassBuilder(self.machine, options)
        passes = lib.buildPerModuleDefaultPipeline(builder, self.opt)
        lib.RunNewModulePassManager(passes, module, builder)
        lib.DisposeNewModulePassManger(passes)
        lib.DisposePassBuilder(builder)
        lib.DisposePipelineTuningOptions(options)

    def assembly(self, module: int) -> bytes:
        return self._emitted(module, 0)

    def object_code(self, module: int) -> bytes:
        return self._emitted(module, 1)

    def _emitted(self, module: int, as_object: int) -> bytes:
        lib = self.lib
        buffer = lib.needed("TargetMachineEmitToMemory", self.machine, module, as_object)
        found = string_at(lib.GetBufferStart(buffer), lib.GetBufferSize(buffer))
        lib.DisposeMemoryBuffer(buffer)
        return found


def main() -> None:
    library, mark, size, triple, cpu, features, gives, negates, *options = sys.argv[2:]
    # A fixed number of bytes: the pipe stays open as long as any process forked meanwhile lives.
    llvm_ir = sys.stdin.buffer.read(int(size)).decode()
    llvm = Llvm(library, triple, cpu, features)
    code, asm = compiled(llvm, llvm_ir, gives, negates == "True", options)
    sys.stdout.buffer.write(f"{mark}{len(code)} {len(asm)}\n".encode() + code + asm)
    sys.stdout.flush()
    os._exit(0)  # the rest of the process ends with it, without being taken apart


def compiled(
    llvm: Llvm, llvm_ir: str, gives: str, negates_choices: bool, options: Sequence[str]
) -> tuple[bytes, bytes]:
    """Optimize LLVM IR, and return its object code and text; the parameters are those of `LlvmMachine`."""
    for option in options:
        llvm.set_option("", option)
    module = optimized(llvm, llvm_ir, negates_choices)
    if gives == "text":
        asm = llvm.assembly(module)
        return asm, asm
    if gives == "object":
        return llvm.object_code(module), b""
    text = llvm.text(module)  # emitting changes a module, so object and text are emitted from separate ones
    choose_strength_reduction(llvm, text)
    return llvm.object_code(module), llvm.assembly(llvm.parsed(text))


def optimized(llvm: Llvm, llvm_ir: str, negates_choices: bool) -> int:
    """Return the optimized module of LLVM IR."""
    module = llvm.for_this_machine(llvm_ir)
    llvm.optimize(module)
    if negates_choices:
        return module
    before = llvm.text(module)
    after = negated_by_parts(before)
    return module if after == before else llvm.parsed(after)


def choose_strength_reduction(llvm: Llvm, llvm_ir: str) -> None:
    """Decide for optimized LLVM IR whether LLVM's strength reduction for AMD targets runs, from here on."""
    llvm.set_option("", f"{REDUCES_STRENGTH}={int(most_products(llvm_ir) <= MOST_PRODUCTS)}")


def most_products(llvm_ir: str) -> int:
    """Return the most multiplications without a constant in a basic block."""
    most = count = 0
    for line in llvm_ir.splitlines():
        _, is_product, product = line.partition(" = mul ")
        count = count if line.startswith(" ") else 0  # a label
        count += bool(is_product) and "<" not in product and product.partition(", ")[2].startswith("%")
        most = max(most, count)
    return most


def negated_by_parts(llvm_ir: str) -> str:
    """Return LLVM IR with vectors negated element by element: floats that may be assembled from selects, and sign bits
    of integers, which LLVM takes for negations of floats."""
    lines = llvm_ir.splitlines()
    made_by = {words[0]: words[2] for words in (line.split(maxsplit=3) for line in lines) if words[1:2] == ["="]}
    return "\n".join(_by_parts(line, f"%negated.{i}", made_by) for i, line in enumerate(lines)) + "\n"


def _by_parts(line: str, stem: str, made_by: dict[str, str]) -> str:
    """Return a line, or those that do what it does element by element, if it negates such a vector."""
    name, _, negation = line.strip().partition(" = ")
    negates, _, typed = negation.partition("<")
    vector, _, operand = typed.partition("> ")
    of, comma, rest = operand.partition(",")
    other = ""
    if negates == "xor " and rest.startswith(SIGN_BITS):
        other, (_, comma, rest) = SIGN_BIT, rest.removeprefix(SIGN_BITS).partition(",")
    elif not negates.startswith("fneg ") or made_by.get(of) not in NOT_COMPUTED:
        return line
    count, _, kind = vector.partition(" x ")
    lines, whole = [], "poison"
    for i in range(int(count)):
        part, minus = f"{stem}.part.{i}", f"{stem}.minus.{i}"
        now = name if i + 1 == int(count) else f"{stem}.whole.{i}"
        lines.append(f"  {part} = extractelement <{vector}> {of}, i64 {i}{comma}{rest}")
        lines.append(f"  {minus} = {negates}{kind} {part}{other}{comma}{rest}")
        lines.append(f"  {now} = insertelement <{vector}> {whole}, {kind} {minus}, i64 {i}{comma}{rest}")
        whole = now
    return "\n".join(lines)
