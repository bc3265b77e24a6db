"""Stage the epilogue: results are written to shared memory chunk by chunk, and TMA stores each chunk to global memory.

    write(%sums, %c, [%m, %n])   →   %c_shared = allocate() : memory<2x2x64x64xf16, shared, xor(8, 8, 1)>
                                     write_through(%sums, %c, [%m, %n], %c_shared)

Lanes hold a few neighbours of many rows, and would store them one by one; a chunk is stored in whole rows of 128 bytes.
Every warpgroup has `buffers` chunks, and fills them again after TMA has read them. Results that are computed transposed
(`transpose_mma`) are transposed on their way there.

Unaligned rows, which TMA cannot store, are stored by lanes; each wave transposes what it holds into rows first, so that
its lanes store neighbours:

    %c_shared = allocate() : memory<8x8x32xf16, shared, pad(8)>

TMA stores complete in any order, and no wave waits for them: what is read again, or written twice, is stored as lanes
hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewave.analysis.layouts_needed import LayoutsNeeded
from tilewave.analysis.positions import BlockScalars
from tilewave.analysis.rewritten import written_again
from tilewave.analysis.wave_transposes import chunk_memory, stored_width
from tilewave.interp.tiles import touched
from tilewave.ir.build import Builder
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.launch import in_front
from tilewave.ir.ops import Allocate, Write, WriteThrough
from tilewave.ir.placements import is_in, row_pitch
from tilewave.ir.remarks import Left, Remark, RemarkKind, want
from tilewave.ir.rewrite import names, rewrite
from tilewave.ir.types import Memory, Swizzled, dims
from tilewave.machine.chips import Chip, Tma
from tilewave.machine.matrix import GROUP_INSTRUCTIONS, MANY_SUMS

READ_AGAIN = RemarkKind(
    "{memory} is also read or written elsewhere, and TMA stores are not ordered with that, so lanes store it",
    "write to a separate memory",
)
ACROSS_ROWS = RemarkKind(
    "{memory} is written transposed, and TMA stores along its rows, so lanes store it",
    "declare it with the columns of the product last",
)
ROWS_APART = RemarkKind(
    "the row stride of {memory} is {bytes} bytes, and TMA needs a multiple of {grain}, so lanes store it, {stored} "
    "bytes at a time",
    "give it rows of a multiple of {elements} elements",
)
UNALIGNED_BASE = RemarkKind(
    "tiles of {memory} are not known to begin at a multiple of {grain} bytes in its rows, so lanes store it",
    "let them begin at multiples of {elements} elements",
)
MANY_AXES = RemarkKind(
    "{memory} has {axes} axes, of which TMA takes at most {most}, or its tile has several batches, so lanes store it"
)
NARROW_TILE = RemarkKind(
    "the tile has {bytes} bytes in a row, and TMA stores need a multiple of {shortest}, so lanes store {memory}",
    "make its columns a multiple of {columns}",
)
PADDED = RemarkKind(
    "the tile is {tile} and is padded to {padded} for its product, and TMA stores whole boxes, so lanes store {memory}",
    "cut tiles of {padded}",
)
BLOCK = 8
"""Rows and columns of a block of neighbouring lanes."""
LEAST_TRANSPOSED = 40
"""The fewest rows of a tile that is computed transposed: smaller tiles are stored as lanes hold them."""
NOT_SUMS = RemarkKind("this tile does not have the layout of an accumulator, so lanes store {memory}")


@dataclass(frozen=True)
class StageEpilogue:
    """`by_tma`: whether TMA may store; `buffers`: chunks that a warpgroup fills before it issues their stores."""

    machine: Chip
    by_tma: bool = True
    buffers: int = 2

    def __repr__(self) -> str:
        return f"StageEpilogue({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        engine = self.machine.tma
        if engine is None or len(kernel.waves) != 2 or prod(kernel.waves) % _GROUP.waves:
            return kernel
        spreads, positions = LayoutsNeeded(kernel), BlockScalars(kernel.body)
        repeated = touched(kernel)[1] | written_again(kernel)
        builder = Builder(names(kernel))
        memories: dict[Memory, Value] = {}
        allocations: list[Op] = []
        remarks: list[Remark] = []

        def stage(op: Op) -> Sequence[Op] | None:
            if not isinstance(op, Write) or not is_in(op.memory, "global"):
                return None
            guard: tuple[int, ...] = ()
            kind: Memory | None
            try:
                want(op.memory not in repeated, READ_AGAIN, op.loc, memory=op.memory.name)
                _want_rows(op)
                odd = _unaligned_rows(op, engine)
                remarks.extend([odd] if odd else [])
                if odd or not self.by_tma:
                    kind, guard = self.chunks_of_waves(op, spreads), op.guard
                else:
                    kind = self.chunks_of_groups(op, _chunk(op, engine, positions), spreads)
            except Left as left:
                remarks.append(left.remarks)
                return None
            if kind is None:
                return None
            if kind not in memories:
                memories[kind] = builder.fresh(f"{op.memory.name}_shared", kind)
                allocations.append(Allocate(results=(memories[kind],), loc=op.loc))
            return [WriteThrough(op.tile, op.memory, op.at, memories[kind], op.axes, guard, loc=op.loc)]

        staged = rewrite(kernel, stage)
        made = replace(staged, body=in_front(allocations, staged.body))
        return made.with_remarks(*remarks) if self.by_tma else made  # without TMA no remark: lanes store everything

    def chunks_of_groups(self, op: Write, columns: int, spreads: LayoutsNeeded) -> Memory:
        """Return the shared memory that TMA stores from: as many rows of sums as a warpgroup multiplies at once, or as
        many columns of transposed sums."""
        dtype, groups = op.tile.type.dtype, prod(spreads.waves) // _GROUP.waves
        rows, buffers = _GROUP.rows, self.buffers
        if not _is_held_by_groups(op, spreads):
            rows, columns = _transposed_rows(op, spreads), _GROUP.rows
            want(rows, NOT_SUMS, op.loc, memory=op.memory.name)
            buffers = transposed_buffers(rows, prod(op.tile.type.shape) // groups, buffers)
        swizzle = _ROWS.swizzle(columns * dtype.bytes)
        placement = Swizzled(swizzle[0] // dtype.bytes, *swizzle[1:])
        return Memory((groups, buffers, rows, columns), dtype, "shared", placement)

    def chunks_of_waves(self, op: Write, spreads: LayoutsNeeded) -> Memory | None:
        """Return the shared memory that lanes store from, of no more bytes; None where they store what they hold."""
        if not isinstance(op.memory.type.extents[-1], int) or not _is_held_by_groups(op, spreads):
            return None  # with dynamic rows, lanes may have to store single elements
        waves, (layout,) = prod(spreads.waves), spreads.held(op.tile)
        if prod(layout.registers) > most_sums(self.by_tma):
            return None  # the addresses of rows would spill sums
        room = waves // _GROUP.waves * self.buffers * _GROUP.rows * max(_ROWS.row_bytes)
        return chunk_memory(self.machine, layout, op.memory.type, waves, room, _ROWS.row_bytes)


def most_sums(by_tma: bool) -> int:
    """Return the sums that a lane may hold while it transposes some; lanes that load tiles have fewer registers."""
    return MANY_SUMS if by_tma else MANY_SUMS // 2


_ROWS = GROUP_INSTRUCTIONS[0]
"""The instruction whose operands have the rows of a chunk: TMA has the same swizzles for both."""
_GROUP = _ROWS.group


def _want_rows(op: Write) -> None:
    """Raise `Left` where a tile is not along the rows of the memory, or is padded."""
    name, shape = op.memory.name, op.tile.type.shape
    want(not op.within, PADDED, op.loc, memory=name, tile=dims(op.within), padded=dims(shape))
    rows = op.axes == tuple(sorted(op.axes)) and op.axes[-1] == op.memory.type.rank - 1 and len(op.axes) > 1
    want(rows, ACROSS_ROWS, op.loc, memory=name)


def _unaligned_rows(op: Write, engine: Tma) -> Remark | None:
    """Return a remark where TMA cannot store the rows of this memory; dynamic rows are checked at the launch."""
    row, size, grain = row_pitch(op.memory), op.memory.type.dtype.bytes, engine.grain_bytes
    if not isinstance(row, int) or row * size % grain == 0:
        return None
    facts = {"bytes": row * size, "grain": grain, "elements": grain // size}
    return ROWS_APART.at(op.loc, memory=op.memory.name, stored=stored_width(op.memory.type) * size, **facts)


def _chunk(op: Write, engine: Tma, positions: BlockScalars) -> int:
    """Return the columns of a chunk, the longest rows that divide the tile; raise `Left` where TMA cannot store it."""
    memory, size, columns = op.memory.type, op.tile.type.dtype.bytes, op.tile.type.shape[-1]
    grain, axes, loc = engine.grain_bytes, memory.rank, op.loc
    facts = {"memory": op.memory.name, "grain": grain, "elements": grain // size}
    want(positions.divisor(op.at[-1]) * size % grain == 0, UNALIGNED_BASE, loc, **facts)
    few = axes <= engine.most_axes and prod(op.tile.type.shape[:-2]) == 1
    want(few, MANY_AXES, loc, **facts, axes=axes, most=engine.most_axes)
    found = _ROWS.panel_bytes(columns * size)
    shortest = min(_ROWS.row_bytes)
    more = {"bytes": columns * size, "shortest": shortest, "columns": shortest // size}
    want(found, NARROW_TILE, loc, **facts, **more)
    return found // size


def transposed_rows(rows: int, element_bytes: int) -> int:
    """Return the rows of a chunk for a tile of `rows` that is computed transposed: the most that divide them, or 0
    where lanes store it. A long tile has several chunks anyway, and small chunks leave shared memory for pipeline
    stages."""
    if rows < LEAST_TRANSPOSED or rows % BLOCK or _GROUP.rows * element_bytes != max(_ROWS.row_bytes):
        return 0
    most = _GROUP.rows if rows <= 2 * _GROUP.rows else _GROUP.rows // 2
    return max(n for n in range(BLOCK, most + 1, BLOCK) if rows % n == 0)


def transposed_buffers(rows: int, elements: int, buffers: int = 2) -> int:
    """Return how many chunks of `rows` a warpgroup has: `buffers`, or as many as have the bytes of one chunk of sums
    that are not transposed, but no more than its elements fill."""
    return min(max(buffers, _GROUP.rows // rows), elements // (rows * _GROUP.rows))


def _transposed_rows(op: Write, spreads: LayoutsNeeded) -> int:
    *batch, rows, columns = op.tile.type.shape
    if columns % (_GROUP.rows * spreads.waves[0] // _GROUP.waves) or spreads.waves[1] != 1:
        return 0
    transposed = (*range(len(batch)), len(batch) + 1, len(batch))
    held = _GROUP.sums((*batch, columns, rows), spreads.waves).permuted(transposed)
    return transposed_rows(rows, op.tile.type.dtype.bytes) if spreads.held(op.tile) == (held,) else 0


def _is_held_by_groups(op: Write, spreads: LayoutsNeeded) -> bool:
    shape, waves = op.tile.type.shape, spreads.waves
    if shape[-2] % (_GROUP.rows * waves[0] // _GROUP.waves) or shape[-1] % 8 or waves[1] != 1:
        return False
    return spreads.held(op.tile) == (_GROUP.sums(shape, waves),)
