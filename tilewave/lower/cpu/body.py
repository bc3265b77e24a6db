"""The function of one workgroup while it is lowered: its LLVM values, and where its tiles are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from tilewave.analysis.ranges import ranges_of
from tilewave.ir import ops as ir
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.dispatch import row_of
from tilewave.ir.rewrite import walk
from tilewave.lower.cpu.arguments import ArgumentSlots, load_number, load_place, load_word
from tilewave.lower.cpu.registers import RegisterTiles
from tilewave.lower.cpu.scratch import ScratchTiles
from tilewave.lower.cpu.scratch_tiles import WorkerMemory
from tilewave.lower.cpu.target import CpuTarget
from tilewave.lower.cpu.tile_uses import TileUses, tile_uses
from tilewave.lower.llvm import LlvmFunction


class Room(Enum):
    """Where a kernel's tiles are."""

    REGISTERS = "registers"
    MEMORY = "memory"


Lowerings = Mapping[type[Op], Callable[["TaskBody", Any], None]]
"""The lowering of each tile-level op."""


class TaskBody:
    """The function of one workgroup."""

    def __init__(
        self,
        f: LlvmFunction,
        kernel: Kernel,
        slots: ArgumentSlots,
        target: CpuTarget,
        room: Room,
        lowerings: Lowerings,
    ) -> None:
        self.f, self.kernel, self.slots, self.target, self.room = f, kernel, slots, target, room
        self.lowerings = lowerings
        self.ranges = ranges_of(kernel)
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
            row_of(self.lowerings, op, "cannot lower")(self, op)

    def give(self, op: Op, x: Any) -> None:
        self.values[op.result] = x

    def taken(self, values: Sequence[Value]) -> list[Any]:
        return [self.values[v] for v in values]

    def formula(self, where: Block) -> Any:
        """Return the function from an element's index in its tile to its position in memory."""
        return lambda index: self.block(where, *map(str, index))


def uses_matrix_unit(kernel: Kernel) -> bool:
    return any(isinstance(op, ir.MatrixUnitOp) for op in walk(kernel.body))
