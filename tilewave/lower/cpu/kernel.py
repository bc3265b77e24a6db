"""Lowering of a kernel to LLVM IR: a function that workers call per workgroup, and one per prepacked operand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tilewave.ir import ops as ir
from tilewave.ir.core import Kernel
from tilewave.ir.faults import telling
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Extent, Memory, Tile
from tilewave.lower.cpu.arguments import ArgumentSlots, load_extents, load_packed, load_place, opening
from tilewave.lower.cpu.body import Room, TaskBody
from tilewave.lower.cpu.memory import is_number, times
from tilewave.lower.cpu.prepack import write_prepack
from tilewave.lower.cpu.target import CpuTarget
from tilewave.lower.cpu.tile_ops import LOWERINGS
from tilewave.lower.lines import Lines, LocatedFunction, first_line
from tilewave.lower.llvm import LlvmFunction, Module
from tilewave.records import dataclass

LARGEST_REGISTER_TILE = 1024
"""The most elements of a tile in registers; larger tiles are in memory."""
LONGEST_UNROLLED = 16_000
"""Lines of LLVM IR above which a kernel keeps its tiles in memory, with every step a loop. 31,000 lines took 23 s of
processor time for ARM, 14,700 took 5 (`benchmarks/compile_cliffs.py`). Products in loops over registers were tried:
they are hardly faster than those in memory."""
LONGEST_BLOCK = 1_500
"""Lines of LLVM IR between two labels: the time that LLVM takes to prepare and order a block grows with its square. For
ARM 3,300 lines took 2.2 s of processor time, 1,900 took 1.2. Beyond it loops in memory run faster too: a softmax of
tiles of 3x33 in 0.96 ms in place of 1.54, running sums of 333 in 2.1 in place of 5.2. A GEMM has blocks of 600."""
SHARED_PACKING_BYTES = 1 << 17
"""Operands below this size are packed by one thread: waking another costs more than it saves."""
LINE_DETAIL = "DebugDirectivesOnly"
"""LLVM's emission kind: line directives between the instructions, without debugger tables."""
TASK = [("ptr", "%args"), ("i64", "%number"), ("i64", "%worker")]


@dataclass(frozen=True)
class PackedOperand:
    """An operand to pack before the workgroups run: the function, one task a panel, and the memory that it fills."""

    function: str
    memory: Memory
    slot: int


@dataclass(frozen=True)
class Lowered:
    llvm_ir: str
    code_lines: int
    """Lines of LLVM IR, without debug metadata."""
    longest_block: int
    """Lines of the longest basic block."""
    slots: ArgumentSlots
    packed: tuple[PackedOperand, ...]
    scratch_bytes: int
    opening: str


def lower(kernel: Kernel, target: CpuTarget) -> Lowered:
    """Return the LLVM IR of a kernel and the needs of its launch; tiles are in registers if that is short enough."""
    return _lower(kernel, target, lambda: None)


def lower_with_lines(kernel: Kernel, target: CpuTarget) -> Lowered:
    """Lower as `lower` does, with the source line of every instruction, for assembly that is read.

    Code that runs has no lines, so that equal code from different source files is one cache entry.
    """
    return _lower(kernel, target, lambda: Lines(first_line(kernel), LINE_DETAIL))


def _lower(kernel: Kernel, target: CpuTarget, lines: Callable[[], Lines | None]) -> Lowered:
    with telling("the CPU's lowering", kernel):
        if fits_registers(kernel):
            unrolled = _lowered(kernel, target, Room.REGISTERS, lines())
            if unrolled.code_lines <= LONGEST_UNROLLED and unrolled.longest_block <= LONGEST_BLOCK:
                return unrolled
        return _lowered(kernel, target, Room.MEMORY, lines())


def _lowered(kernel: Kernel, target: CpuTarget, room: Room, lines: Lines | None) -> Lowered:
    module = Module()
    slots = ArgumentSlots.of(kernel)
    packed: list[PackedOperand] = []
    for op in kernel.body.ops:
        if isinstance(op, ir.Prepack):
            packed.append(_prepack(module, op, slots, len(packed), target, lines))
    body = TaskBody(_task(module, "workgroup", lines), kernel, slots, target, room, LOWERINGS)
    module.functions += [body.write(), _run(module, packed, kernel.workgroups, slots)]
    code = str(module)
    notes = f"!llvm.module.flags = !{{!1}}\n!1 = {lines.flag}\n{lines.metadata()}" if lines else ""
    lines_of = code.count("\n"), longest_block(code)
    return Lowered(code + notes, *lines_of, slots, tuple(packed), body.scratch_bytes, opening(kernel))


def longest_block(llvm_ir: str) -> int:
    """Return the most instructions, one per line, of a basic block."""
    longest = count = 0
    for line in llvm_ir.splitlines():
        count = count + 1 if line.startswith("  ") else 0
        longest = max(longest, count)
    return longest


def _task(module: Module, name: str, lines: Lines | None) -> LlvmFunction:
    """Return a function that a worker calls."""
    return LocatedFunction(module, name, TASK, lines.function(name)) if lines else LlvmFunction(module, name, TASK)


def _prepack(
    module: Module, op: ir.Prepack, slots: ArgumentSlots, number: int, target: CpuTarget, lines: Lines | None
) -> PackedOperand:
    f = _task(module, f"prepack_{number}", lines)
    with f.at(op.loc):
        source, packed = load_place(f, op.memory, slots), load_packed(f, op.result, slots)
        write_prepack(f, op, source, packed, target)
    module.functions.append(f.finish())
    return PackedOperand(f.name, packed.type, slots.packed[op.result])


def _run(module: Module, packed: Sequence[PackedOperand], workgroups: Extent, slots: ArgumentSlots) -> str:
    """Write the function of a whole launch: the operands packed one after the other, then the workgroups."""
    f = LlvmFunction(module, "run", [("ptr", "%launch"), ("ptr", "%args"), ("i64", "%threads")])
    for operand in packed:
        tasks = product_of(f, load_extents(f, operand.memory.extents[:-3], slots))
        size = product_of(f, (tasks, *load_extents(f, operand.memory.extents[-3:], slots)))
        threads = _packing_threads(f, times(f, size, operand.memory.dtype.bytes))
        f.do(f"call void %launch(ptr @{operand.function}, ptr %args, i64 {tasks}, i64 {threads})")
    (count,) = load_extents(f, (workgroups,), slots)
    f.do(f"call void %launch(ptr @workgroup, ptr %args, i64 {count}, i64 %threads)")
    return f.finish()


def _packing_threads(f: LlvmFunction, size: str) -> str:
    if is_number(size):
        return "%threads" if int(size) >= SHARED_PACKING_BYTES else "1"
    worthwhile = f.value(f"icmp uge i64 {size}, {SHARED_PACKING_BYTES}")
    return f.value(f"select i1 {worthwhile}, i64 %threads, i64 1")


def product_of(f: LlvmFunction, factors: Sequence[str]) -> str:
    known = prod(int(x) for x in factors if is_number(x))
    found = str(known)
    for x in factors:
        if not is_number(x):
            found = times(f, x, int(found)) if is_number(found) else f.value(f"mul i64 {found}, {x}")
    return found


def fits_registers(kernel: Kernel) -> bool:
    """Return whether every tile is small enough for registers, and every product is one of panels, or of rows and a
    panel, which are never in registers as a whole."""
    panels = {op.result for op in walk(kernel.body) if isinstance(op, (ir.ReadPanel, ir.ReadRows))}
    factors = {v for op in walk(kernel.body) if isinstance(op, ir.Mma) for v in (op.a, op.b)}
    made = (v for op in walk(kernel.body) for v in op.results if isinstance(v.type, Tile) and v not in panels)
    return factors <= panels and all(prod(v.type.shape) <= LARGEST_REGISTER_TILE for v in made)
