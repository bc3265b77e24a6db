"""Lowering of a kernel to LLVM IR: a function that workers call per workgroup, and one per prepacked operand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

from tilewave.analysis.ranges import Ranges
from tilewave.ir import ops as ir
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.dispatch import row_of
from tilewave.ir.faults import telling
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Accumulator, Extent, Memory, Tile
from tilewave.lower.cpu.arguments import (
    ArgumentSlots,
    load_extents,
    load_number,
    load_packed,
    load_place,
    load_word,
    opening,
)
from tilewave.lower.cpu.memory import add, is_number, times
from tilewave.lower.cpu.prepack import write_prepack
from tilewave.lower.cpu.registers import RegisterTiles, RowVectors
from tilewave.lower.cpu.scratch import ComputedTile, ProductTile, ScratchTile, ScratchTiles, WorkerMemory
from tilewave.lower.cpu.target import CpuTarget, Panel
from tilewave.lower.cpu.tile_uses import TileUses, tile_uses
from tilewave.lower.elements import in_memory, literal, stored
from tilewave.lower.lines import Lines, LocatedFunction, first_line
from tilewave.lower.llvm import LlvmFunction, Module, Typed
from tilewave.lower.numbers import elementwise

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


class Room(Enum):
    """Where a kernel's tiles are."""

    REGISTERS = "registers"
    MEMORY = "memory"


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
    body = _Body(_task(module, "workgroup", lines), kernel, slots, target, room)
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


class _Body:
    """The function of one workgroup."""

    def __init__(self, f: LlvmFunction, kernel: Kernel, slots: ArgumentSlots, target: CpuTarget, room: Room) -> None:
        self.f, self.kernel, self.slots, self.target, self.room = f, kernel, slots, target, room
        self.ranges = Ranges(kernel)
        self.uses = tile_uses(kernel.body) if room is Room.MEMORY else TileUses()
        self.values: dict[Value, Any] = {}
        self.tiles: Any = RegisterTiles(self.f, target)

        self.scratch: WorkerMemory | None = None

    @property
    def scratch_bytes(self) -> int:
        return self.scratch.bytes if self.scratch else 0

    def write(self) -> str:
        f = self.f
        for v in self.slots.memories:
            self.values[v] = load_place(f, v, self.slots)
        for v, slot in self.slots.numbers.items():
            self.values[v] = load_number(f, slot, v.type.dtype)
        if self.room is Room.MEMORY or any(isinstance(op, ir.Allocate) for op in walk(self.kernel.body)):
            base = load_word(f, self.slots.scratch, "ptr")
            stride = load_word(f, self.slots.scratch + 1)
            offset = f.value(f"mul i64 %worker, {stride}")
            self.scratch = WorkerMemory(f, f.value(f"getelementptr i8, ptr {base}, i64 {offset}"))
        if self.room is Room.MEMORY:
            assert self.scratch
            self.tiles = ScratchTiles(f, self.scratch, self.target, self.uses)
        unit = self.target.matrix_unit if uses_matrix_unit(self.kernel) else None
        if unit:
            unit.begin(f)
        self.block(self.kernel.body)
        if unit:
            unit.end(f)
        return f.finish() + "!0 = !{}\n"

    def block(self, block: Block, *args: Any) -> list[Any]:
        self.values.update(zip(block.args, args, strict=False))
        for op in block.ops:
            if isinstance(op, ir.Yield):
                return [self.values[v] for v in op.values]
            self.op(op)
        return []

    def op(self, op: Op) -> None:
        with self.f.at(op.loc):
            row_of(LOWERINGS, op, "cannot lower")(self, op)

    def give(self, op: Op, x: Any) -> None:
        self.values[op.result] = x

    def taken(self, values: Sequence[Value]) -> list[Any]:
        return [self.values[v] for v in values]

    def const(self, op: ir.Const) -> None:
        kind = op.result.type
        is_tile = isinstance(kind, Tile)
        self.give(op, self.tiles.constant(kind, op.value) if is_tile else literal(op.value, kind.dtype))

    def launch(self, op: ir.Launch) -> None:
        """Emit nothing: the results were loaded as words with the scalar arguments."""

    def workgroup(self, op: ir.Workgroup) -> None:
        self.give(op, "%number")

    def allocate(self, op: ir.Allocate) -> None:
        assert self.scratch and isinstance(op.result.type, Memory)
        self.give(op, self.scratch.allocate(op.result.type))

    def broadcast(self, op: ir.Broadcast) -> None:
        self.give(op, self.tiles.broadcast(self.values[op.x], op.axes, op.result.type))

    def permute(self, op: ir.Permute) -> None:
        self.give(op, self.tiles.permute(self.values[op.x], op.axes, op.result.type))

    def iota(self, op: ir.Iota) -> None:
        self.give(op, self.tiles.iota(op.result.type))

    def barrier(self, op: ir.Barrier) -> None:
        """Emit nothing: one thread runs a workgroup."""

    def reduce(self, op: ir.Reduce) -> None:
        self.give(op, self.tiles.reduce(op, self.values[op.x]))

    def shift(self, op: ir.Shift) -> None:
        self.give(op, self.tiles.shift(op, self.values[op.x]))

    def read(self, op: ir.Read) -> None:
        read = self.tiles.operand if op.result in self.uses.operands else self.tiles.read
        place, at = self.values[op.memory], self.taken(op.at)
        self.give(op, read(place, at, op.axes, op.result.type))
        if op.ahead:
            self.tiles.prefetch(
                place, [add(self.f, v, n) for v, n in zip(at, op.ahead, strict=True)], op.axes, op.result.type
            )

    def write_tile(self, op: ir.Write) -> None:
        self.tiles.write(self.values[op.memory], self.taken(op.at), op.axes, self.values[op.tile])

    def gather(self, op: ir.Gather) -> None:
        self.give(op, self.tiles.gather(self.values[op.memory], op.result.type, self.formula(op.where)))

    def scatter(self, op: ir.Scatter) -> None:
        self.tiles.scatter(self.values[op.memory], self.values[op.tile], self.formula(op.where))

    def read_indexed(self, op: ir.ReadIndexed) -> None:
        self.give(op, self.tiles.read_indexed(op, self.values[op.memory], self.taken(op.at), op.result.type))

    def write_indexed(self, op: ir.WriteIndexed) -> None:
        self.tiles.write_indexed(op, self.values[op.memory], self.taken(op.at), self.values[op.tile])

    def prepack(self, op: ir.Prepack) -> None:
        self.give(op, load_packed(self.f, op.result, self.slots))

    def multiply(self, op: ir.Mma) -> None:
        found = self.tiles.multiply(*self.taken((op.a, op.b, op.acc)))
        if isinstance(found, ProductTile) and op.result not in self.uses.finished:
            carried = self.uses.accumulated.get(op.result)
            found = self.tiles.stored(found, None if carried is None else self.values[carried])
        self.give(op, found)

    def matrix_unit(self, op: Op) -> None:
        """Lower an op of the matrix unit, which holds one block of sums; so their type alone identifies them."""
        unit, values, kind = self.target.matrix_unit, self.values, op.results[0].type
        assert unit is not None, f"{op.loc}: no matrix unit for {op.name}"
        match op, kind:
            case ir.ZeroAccumulator(), Accumulator():
                unit.zero(self.f, kind)
            case ir.LoadAccumulator(x), Accumulator():
                unit.load(self.f, kind, self.tiles.to_buffer(values[x]))
            case ir.Accumulate(a, b), Accumulator():
                unit.multiply(self.f, values[a], values[b], kind)
            case ir.ReadAccumulator(acc), Tile():
                buffer = self.tiles.buffer(kind)
                unit.store(self.f, values[acc], buffer)
                values[op.results[0]] = self.tiles.whole_buffer(buffer, kind)
                return
            case _:
                raise NotImplementedError(f"{op.loc}: cannot lower {op.name}")
        values[op.results[0]] = kind

    def elementwise(self, op: ir.Elementwise) -> None:
        operands, kind = self.taken(op.operands), op.result.type
        if isinstance(kind, Tile):
            self.give(op, self.tiles.elementwise(op, operands, kind, self.ranges.of))
        else:
            self.give(op, elementwise(self.f, op, operands, op.operands[-1].type.dtype, 1, self.ranges.of))

    def formula(self, where: Block) -> Any:
        """Return the function from an element's index in its tile to its position in memory."""
        return lambda index: self.block(where, *map(str, index))

    def read_panel(self, op: ir.ReadPanel) -> None:
        self.give(op, self.panel(op))

    def panel(self, op: ir.ReadPanel) -> Panel:
        f, packed = self.f, self.values[op.memory]
        *batch, panels, groups, _, _ = packed.extents
        rows, group = packed.group
        *outer, panel, depth = (self.values[v] for v in op.at)
        number = "0"
        for index, count in zip((*outer, panel), (*batch, panels), strict=True):
            scaled = number if number == "0" else f.value(f"mul i64 {number}, {count}")
            number = index if scaled == "0" else f.value(f"add i64 {scaled}, {index}")
        first = f.value(f"mul i64 {number}, {times(f, groups, rows * group)}")
        along = f.value(f"mul i64 {depth}, {rows}")
        offset = f.value(f"add i64 {first}, {along}")
        element = in_memory(packed.dtype)
        pointer = f.value(f"getelementptr {element}, ptr {packed.pointer}, i64 {offset}")
        return Panel(pointer, rows, op.result.type.shape[-1], group, packed.dtype)

    # -- loops: they carry scalars, the vectors of tiles, and tiles in memory

    def loop(self, op: ir.Loop) -> None:
        carry = _Carry(self, op.init, op.results)
        results = self.f.loop(
            self.values[op.trips],
            carry.start(),
            lambda i, carried: carry.next(self.block(op.body, i, *carry.values(carried))),
        )
        self.values.update(zip(op.results, carry.values(results), strict=True))

    def loop_while(self, op: ir.While) -> None:
        carry = _Carry(self, op.init, op.results)
        results = self.f.loop_while(
            carry.start(),
            lambda carried: str(self.block(op.condition, *carry.values(carried))[0]),
            lambda carried: carry.next(self.block(op.body, *carry.values(carried))),
        )
        self.values.update(zip(op.results, carry.values(results), strict=True))


LOWERINGS: dict[type[Op], Callable[[_Body, Any], None]] = {
    ir.Elementwise: _Body.elementwise,
    ir.Const: _Body.const,
    ir.Launch: _Body.launch,
    ir.Workgroup: _Body.workgroup,
    ir.Allocate: _Body.allocate,
    ir.Broadcast: _Body.broadcast,
    ir.Permute: _Body.permute,
    ir.Iota: _Body.iota,
    ir.Barrier: _Body.barrier,
    ir.Reduce: _Body.reduce,
    ir.Shift: _Body.shift,
    ir.Read: _Body.read,
    ir.Write: _Body.write_tile,
    ir.Gather: _Body.gather,
    ir.ReadIndexed: _Body.read_indexed,
    ir.WriteIndexed: _Body.write_indexed,
    ir.Scatter: _Body.scatter,
    ir.Prepack: _Body.prepack,
    ir.ReadPanel: _Body.read_panel,
    ir.MatrixUnitOp: _Body.matrix_unit,
    ir.Mma: _Body.multiply,
    ir.Loop: _Body.loop,
    ir.While: _Body.loop_while,
}
"""The lowering of each tile-level op."""


class _Carry:
    """Maps the values that a loop carries in the IR to those that it carries in LLVM."""

    def __init__(self, body: _Body, init: Sequence[Value], results: Sequence[Value]) -> None:
        self.body = body
        self.first = [body.values[v] for v in init]
        self.types = [v.type for v in results]
        for place, x in enumerate(self.first):
            if isinstance(x, (ScratchTile, ComputedTile)):  # the loop needs a copy: the initial tile may be used later
                mine = body.tiles.new(x.type)
                body.tiles.copy(x, mine)
                self.first[place] = mine

    def start(self) -> list[Typed]:
        return self.flat(self.first)

    def flat(self, values: Sequence[Any]) -> list[Typed]:
        found: list[Typed] = []
        for kind, x in zip(self.types, values, strict=True):
            if isinstance(x, RowVectors):
                found += x.typed()
            elif not isinstance(x, (ScratchTile, ComputedTile, Accumulator)):
                found.append((stored(kind.dtype), x))
        return found

    def values(self, carried: Sequence[Typed]) -> list[Any]:
        left = iter(carried)
        found: list[Any] = []
        for x in self.first:
            if isinstance(x, RowVectors):
                count = sum(len(row) for row in x.rows)
                found.append(self.body.tiles.rebuilt(x, [next(left)[1] for _ in range(count)]))
            else:
                found.append(x if isinstance(x, (ScratchTile, Accumulator)) else next(left)[1])
        return found

    def next(self, values: Sequence[Any]) -> list[Typed]:
        """Return the body's values for the next step; tiles in memory are copied after all of them are known."""
        own = {mine.pointer for mine in self.first if isinstance(mine, ScratchTile)}
        pairs = [
            (self.body.tiles.kept(x), mine)
            for x, mine in zip(values, self.first, strict=True)
            if isinstance(mine, ScratchTile)
        ]
        pairs = [(self.apart(x) if x.pointer in own - {mine.pointer} else x, mine) for x, mine in pairs]
        for x, mine in pairs:
            if x.pointer != mine.pointer:
                self.body.tiles.copy(x, mine)
        return self.flat(values)

    def apart(self, x: ScratchTile) -> ScratchTile:
        other: ScratchTile = self.body.tiles.new(x.type)
        self.body.tiles.copy(x, other)
        return other


def uses_matrix_unit(kernel: Kernel) -> bool:
    return any(isinstance(op, ir.MatrixUnitOp) for op in walk(kernel.body))


def fits_registers(kernel: Kernel) -> bool:
    """Return whether every tile is small enough for registers, and every product is one of panels, which are never in
    registers as a whole."""
    panels = {op.result for op in walk(kernel.body) if isinstance(op, ir.ReadPanel)}
    factors = {v for op in walk(kernel.body) if isinstance(op, ir.Mma) for v in (op.a, op.b)}
    made = (v for op in walk(kernel.body) for v in op.results if isinstance(v.type, Tile) and v not in panels)
    return factors <= panels and all(prod(v.type.shape) <= LARGEST_REGISTER_TILE for v in made)
