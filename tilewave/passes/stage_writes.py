"""Results go to global memory through shared memory, chunk by chunk, and the machine copies each chunk by itself.

    write(%sums, %c, [%m, %n])   →   %c_shared = allocate() : memory<2x2x64x64xf16, shared, xor(8, 8, 1)>
                                     write_through(%sums, %c, [%m, %n], %c_shared)

Lanes hold a few neighbours of many rows, and would store them one by one; a chunk leaves in whole rows of 128 bytes.
Every group of waves has chunks of its own, `BUFFERS` of them, and fills them again when they have been read.

Copies arrive in any order, and nobody waits until they have: what is read again, or written twice, is stored by lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewave.analysis.layouts_needed import Spreads
from tilewave.analysis.positions import Positions
from tilewave.analysis.visits import written_again
from tilewave.interp.tiles import touched
from tilewave.ir.build import Builder
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Allocate, Write, WriteThrough
from tilewave.ir.placements import lies_in
from tilewave.ir.rewrite import names, rewrite
from tilewave.ir.types import Memory, Swizzled
from tilewave.layouts.fragments import GROUP, GROUP_ROWS, GroupFragment
from tilewave.machine.chips import Chip, CopyEngine
from tilewave.machine.matrix import GROUP_INSTRUCTIONS

BUFFERS = 2
"""Chunks that a group fills before it lets them go together."""


@dataclass(frozen=True)
class StageWrites:
    machine: Chip

    def __repr__(self) -> str:
        return f"StageWrites({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        engine = self.machine.copy_engine
        if engine is None or len(kernel.waves) != 2 or prod(kernel.waves) % GROUP:
            return kernel
        spreads, positions = Spreads(kernel), Positions(kernel.body)
        again = touched(kernel)[1] | written_again(kernel)
        builder = Builder(names(kernel))
        memories: dict[Memory, Value] = {}
        allocations: list[Op] = []

        def stage(op: Op) -> Sequence[Op] | None:
            if not isinstance(op, Write) or not lies_in(op.memory, "global") or op.memory in again:
                return None
            chunk = _chunk(op, engine, positions)
            if not chunk or not _is_held_by_groups(op, spreads):
                return None
            size = op.tile.type.dtype.bytes
            rows = _ROWS.swizzle(chunk * size)
            shape = (prod(kernel.waves) // GROUP, BUFFERS, GROUP_ROWS, chunk)
            kind = Memory(shape, op.tile.type.dtype, "shared", Swizzled(rows[0] // size, *rows[1:]))
            if kind not in memories:
                memories[kind] = builder.fresh(f"{op.memory.name}_shared", kind)
                allocations.append(Allocate(results=(memories[kind],), loc=op.loc))
            return [WriteThrough(op.tile, op.memory, op.at, memories[kind], op.axes, loc=op.loc)]

        staged = rewrite(kernel, stage)
        return replace(staged, body=replace(staged.body, ops=(*allocations, *staged.body.ops)))


_ROWS = GROUP_INSTRUCTIONS[0]
"""Rows of a chunk lie as those of an operand do: the engine has the same words for both."""


def _chunk(op: Write, engine: CopyEngine, positions: Positions) -> int:
    """Columns of a chunk: the longest rows that divide the tile; 0 where the engine cannot write this memory."""
    memory, size, columns = op.memory.type, op.tile.type.dtype.bytes, op.tile.type.shape[-1]
    rows = op.axes == tuple(sorted(op.axes)) and op.axes[-1] == len(memory.shape) - 1 and len(op.axes) > 1
    begins = positions.divisor(op.at[-1])
    grains = memory.shape[-1] * size % engine.grain_bytes == 0 and begins * size % engine.grain_bytes == 0
    if not rows or not grains or len(memory.shape) > engine.most_axes or prod(op.tile.type.shape[:-2]) != 1:
        return 0
    return next((row // size for row in _ROWS.row_bytes if columns * size % row == 0), 0)


def _is_held_by_groups(op: Write, spreads: Spreads) -> bool:
    shape, waves = op.tile.type.shape, spreads.waves
    if shape[-2] % (GROUP_ROWS * waves[0] // GROUP) or shape[-1] % 8 or waves[1] != 1:
        return False
    return spreads.held(op.tile) == (GroupFragment(0).sums(shape, waves),)
