"""Widen stores to 16 bytes a lane: where lanes hold fewer neighbours, their wave first transposes them into rows.

    write(%sums, %c, [%m, %n])   →   %c_shared = overlay(%y_shared) : memory<8x16x64xf16, shared, pad(4)>
                                     write_through(%sums, %c, [%m, %n], %c_shared)

A lane holds four neighbours of the sums: 16 bytes of f32, but 8 of f16. Each wave has its own part of the memory, so
that its lanes need no barrier among waves. The bytes are those of a staged operand that is dead by then: the kernel
needs no more shared memory than before. Where nothing was staged, the allocated memory leaves room for as many waves as
a compute unit runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewave.analysis.layouts_needed import LayoutsNeeded
from tilewave.analysis.wave_transposes import chunk_memory
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Allocate, CopyAsync, Launch, Mma, Overlay, Write, WriteThrough
from tilewave.ir.placements import is_in, size_bytes
from tilewave.ir.remarks import Left, Remark, RemarkKind, want
from tilewave.ir.rewrite import map_blocks, names, walk
from tilewave.ir.types import BOOL, Memory, dims
from tilewave.layouts.formulas import Layout
from tilewave.layouts.fragments import NEIGHBOURS
from tilewave.machine.chips import Chip
from tilewave.machine.matrix import NAMED

ROW_BYTES = (128, 64)
"""Possible lengths of a chunk's rows; shorter ones are no better than what lanes hold."""

ACROSS_ROWS = RemarkKind(
    "{memory} is written transposed, so lanes store at most {bytes} bytes at a time",
    "declare it with the columns of the product last",
)
RAGGED_ROWS = RemarkKind(
    "rows of {memory} have {row_bytes} bytes, not a multiple of {widest}, so stores are not widened: {bytes} bytes at "
    "a time",
    "give it rows of a multiple of {elements} elements",
)
PADDED = RemarkKind(
    "the tile is {tile} and is padded to {padded} for its product, so stores are not widened: {bytes} bytes at a time",
    "cut tiles of {padded}",
)
NOT_SUMS = RemarkKind("this tile does not have the layout of an accumulator, so stores are not widened")
NO_BYTES = RemarkKind(
    "every staged operand is still needed when this is written, so no shared memory is free to widen its stores",
    "write it after the loop",
)
SHORT_ROWS = RemarkKind(
    "a wave's part of this tile has no whole rows of {shortest} bytes, or they do not fit in shared memory, so stores "
    "are not widened: {bytes} bytes at a time",
    "give each wave more columns",
)


@dataclass(frozen=True)
class WidenStores:
    machine: Chip

    def __repr__(self) -> str:
        return f"WidenStores({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        return _Widening(kernel, self.machine).kernel()


class _Widening:
    def __init__(self, kernel: Kernel, machine: Chip) -> None:
        self.old, self.machine = kernel, machine
        self.spreads = LayoutsNeeded(kernel)
        blocks = (instruction.fragment() for instruction in NAMED.values() if machine.matrix in instruction.chips)
        self.blocks = tuple({block.acc: block for block in blocks}.values())
        self.builder = Builder(names(kernel))
        self.staged = [op.result for op in walk(kernel.body) if isinstance(op, Allocate)]
        self.made: dict[tuple[Value | None, Memory], Op] = {}
        self.multiplies = any(isinstance(op, Mma) for op in walk(kernel.body))
        self.remarks: list[Remark] = []

    def kernel(self) -> Kernel:
        body = self.block(self.old.body)
        front = max((i + 1 for i, op in enumerate(body.ops) if isinstance(op, (Allocate, Launch))), default=0)
        ops = (*body.ops[:front], *self.made.values(), *body.ops[front:])
        made = replace(self.old, body=replace(body, ops=ops)) if self.made else self.old
        return made.with_remarks(*self.remarks)

    def block(self, block: Block) -> Block:
        ops: list[Op] = []
        for i, old in enumerate(block.ops):
            op = map_blocks(old, self.block)
            ops.append(self.widened(op, block, i) if isinstance(op, Write) else op)
        return replace(block, ops=tuple(ops))

    def widened(self, op: Write, block: Block, position: int) -> Op:
        if not self.is_narrow(op):
            return op
        try:
            return self.through(op, *self.chunk(op, block, position))
        except Left as left:
            self.remarks += [left.remarks] if self.multiplies else []
            return op

    def is_narrow(self, op: Write) -> bool:
        """Whether a lane's four neighbours are narrower than the widest store."""
        dtype = op.tile.type.dtype
        narrow = NEIGHBOURS * dtype.bytes < self.machine.widest_load_bytes and dtype != BOOL
        return narrow and len(op.axes) > 1 and is_in(op.memory, "global")

    def chunk(self, op: Write, block: Block, position: int) -> tuple[Value | None, Memory]:
        """Return the memory whose bytes a wave reuses to transpose its part into rows, and the type of the rows."""
        layout = self.checked_layout(op)
        under = self.free(block, position)
        waves = prod(self.old.waves)
        want(under is not None or not self.staged, NO_BYTES, op.loc)
        room = _bytes(under) if under else self.machine.shared.bytes // self.machine.resident_waves * waves
        kind = chunk_memory(self.machine, layout, op.memory.type, waves, room, ROW_BYTES)
        if kind is None:
            raise Left(SHORT_ROWS.at(op.loc, shortest=min(ROW_BYTES), bytes=NEIGHBOURS * op.tile.type.dtype.bytes))
        return under, kind

    def checked_layout(self, op: Write) -> Layout:
        """Return the layout of the tile; raise `Left` where the rows of the memory do not allow wider stores."""
        memory, size, widest = op.memory.type, op.tile.type.dtype.bytes, self.machine.widest_load_bytes
        facts = {"memory": op.memory.name, "bytes": NEIGHBOURS * size}
        shapes = {"tile": dims(op.within), "padded": dims(op.tile.type.shape)}
        want(not op.within, PADDED, op.loc, **facts, **shapes)
        rows = op.axes == tuple(sorted(op.axes)) and op.axes[-1] == memory.rank - 1
        want(rows, ACROSS_ROWS, op.loc, **facts)
        length = memory.extents[-1]  # with a dynamic one, most tiles are no boundary tiles
        row_bytes = length * size if isinstance(length, int) else 0
        more = {"row_bytes": row_bytes, "widest": widest, "elements": widest // size}
        want(row_bytes % widest == 0, RAGGED_ROWS, op.loc, **facts, **more)
        layout = self.sums(op)
        if layout is None:
            raise Left(NOT_SUMS.at(op.loc))
        return layout

    def sums(self, op: Write) -> Layout | None:
        """Return the layout of the tile, if it is that of a matrix instruction's accumulator."""
        held = self.spreads.held(op.tile)
        shape, waves = op.tile.type.shape, self.spreads.waves
        own = shape[-2] // waves[0], shape[-1] // waves[1]
        whole = (b for b in self.blocks if own[0] % b.rows == 0 and own[1] % b.cols == 0)
        found = (block.sums(shape, waves, transposed=True) for block in whole)
        return next((layout for layout in found if held == (layout,)), None)

    def free(self, block: Block, position: int) -> Value | None:
        """Return the largest staged memory that is written first, and used before this write only, if there is one."""
        before, all_uses = _uses(block.ops[:position]), _uses(self.old.body.ops)
        filled = [m for m in self.staged if isinstance(next(iter(before[m]), None), (Write, CopyAsync))]
        free = [m for m in filled if before[m] == all_uses[m]]
        return max(free, key=_bytes, default=None)

    def through(self, op: Write, under: Value | None, kind: Memory) -> WriteThrough:
        if (under, kind) not in self.made:
            result = self.builder.fresh(f"{op.memory.name}_shared", kind)
            made = Overlay(under, results=(result,), loc=op.loc) if under else Allocate(results=(result,), loc=op.loc)
            self.made[under, kind] = made
        shared = self.made[under, kind].result
        return WriteThrough(op.tile, op.memory, op.at, shared, op.axes, loc=op.loc)


def _bytes(memory: Value) -> int:
    assert isinstance(memory.type, Memory)
    return size_bytes(memory.type)


def _uses(ops: Sequence[Op]) -> dict[Value, list[Op]]:
    """Return the ops that access each memory, in order."""
    found: dict[Value, list[Op]] = defaultdict(list)
    for op in walk(Block((), tuple(ops))):
        for v in op.operands:
            if isinstance(v.type, Memory):
                found[v].append(op)
    return found
