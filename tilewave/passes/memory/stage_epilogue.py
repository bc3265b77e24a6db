"""Stage the epilogue: results are written to shared memory chunk by chunk, and stored to global memory from there.

    write(%sums, %c, [%m, %n])   →   %c_shared = allocate() : memory<2x2x64x64xf16, shared, xor(8, 8, 1)>
                                     write_through(%sums, %c, [%m, %n], %c_shared)

Lanes hold a few neighbours of many rows, and would store them one by one. There are two ways:

*By TMA.* Every warpgroup has `buffers` chunks of rows of 128 bytes, and fills them again after TMA has read them.
Results that are computed transposed (`transpose_mma`) are transposed on their way there. TMA stores complete in any
order, and no wave waits for them: what is read again, or written twice, is stored as lanes hold it.

*By lanes.* Each wave transposes what it holds into rows, in a part of the memory of its own, so that it needs no
barrier among waves and its lanes store neighbours. On a chip with TMA, lanes store the unaligned rows, which TMA cannot
store. On others, they store what is narrower than 16 bytes a lane: four neighbours of f16 are 8. The bytes are those of
a staged operand that is dead by then, so the kernel needs no more shared memory than before; where nothing was staged,
the allocated memory leaves room for as many waves as a compute unit runs.

    %c_shared = overlay(%y_shared) : memory<8x16x64xf16, shared, pad(4)>

Rows of a ragged grid's tile, which are stored up to the end of their group, are staged in both ways: TMA stores the
chunks that end before it, and where a chunk has the end in it, lanes read the chunk back and store its rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from tilewave.analysis.bounded_rows import bounded_tile
from tilewave.analysis.layouts_needed import WIDEST_BYTES, LayoutsNeeded
from tilewave.analysis.positions import BlockScalars, scalars_of
from tilewave.analysis.rewritten import written_again
from tilewave.analysis.wave_transposes import chunk_memory, stored_width
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.effects import touched
from tilewave.ir.launch import in_front
from tilewave.ir.ops import Allocate, CopyAsync, Mma, Overlay, Write, WriteIndexed, WriteThrough
from tilewave.ir.placements import is_in, is_row_aligned, row_pitch, size_bytes
from tilewave.ir.remarks import Left, Remark, RemarkKind, want
from tilewave.ir.rewrite import map_blocks, names, walk
from tilewave.ir.types import BOOL, Memory, Swizzled, dims
from tilewave.layouts.formulas import Layout
from tilewave.layouts.fragments import NEIGHBOURS
from tilewave.machine.chips import Chip, Tma
from tilewave.machine.matrix import GROUP_INSTRUCTIONS, MANY_SUMS, NAMED
from tilewave.records import dataclass

ACROSS_ROWS = RemarkKind(
    "{memory} is written transposed, and only what is along its rows is staged, so lanes store what they hold",
    "declare it with the columns of the product last",
)
PADDED = RemarkKind(
    "the tile is {tile} and is padded to {padded} for its product, and only whole tiles are staged, so lanes store "
    "what they hold of {memory}",
    "cut tiles of {padded}",
)
NOT_SUMS = RemarkKind(
    "this tile does not have the layout of an accumulator, so it is not staged, and lanes store what they hold"
)
READ_AGAIN = RemarkKind(
    "{memory} is also read or written elsewhere, and TMA stores are not ordered with that, so lanes store it",
    "write to a separate memory",
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
RAGGED_ROWS = RemarkKind(
    "rows of {memory} have {row_bytes} bytes, not a multiple of {widest}, so lanes store {bytes} bytes at a time",
    "give it rows of a multiple of {elements} elements",
)
NO_BYTES = RemarkKind(
    "every staged operand is still needed when this is written, so no shared memory is free to widen its stores",
    "write it after the loop",
)
SHORT_ROWS = RemarkKind(
    "a wave's part of this tile has no whole rows of {shortest} bytes, or they do not fit in shared memory, so lanes "
    "store {bytes} bytes at a time",
    "give each wave more columns",
)
BLOCK = 8
"""Rows and columns of a block of neighbouring lanes."""
LEAST_TRANSPOSED = 40
"""The fewest rows of a tile that is computed transposed: smaller tiles are stored as lanes hold them."""
ROW_BYTES = (128, 64)
"""Possible lengths of a chunk's rows that lanes store; shorter ones are no better than what lanes hold."""
_ROWS = GROUP_INSTRUCTIONS[0]
"""The instruction whose operands have the rows of a chunk: TMA has the same swizzles for both."""
_GROUP = _ROWS.group


@dataclass(frozen=True)
class StageEpilogue:
    """`by_tma`: whether TMA may store; `buffers`: chunks that a warpgroup fills before it issues their stores."""

    machine: Chip
    by_tma: bool = True
    buffers: int = 2

    def __repr__(self) -> str:
        return f"StageEpilogue({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        if self.machine.tma is None:
            return _Staging(kernel, _OfWaves(kernel, self.machine)).kernel()
        if len(kernel.waves) != 2 or prod(kernel.waves) % _GROUP.waves:
            return kernel
        return _Staging(kernel, _OfGroups(kernel, self.machine, self.machine.tma, self.by_tma, self.buffers)).kernel()


@dataclass(frozen=True)
class _Chunks:
    """The shared memory of a write: its type, whose bytes it reuses, if any, and the axes that lanes still check."""

    kind: Memory
    under: Value | None = None
    guard: tuple[int, ...] = ()
    width: int = 0
    """As `WriteThrough` has it."""


class _Staging:
    """Replaces writes by staged ones; each type of shared memory is allocated once."""

    def __init__(self, kernel: Kernel, how: _OfGroups | _OfWaves) -> None:
        self.old, self.how, self.builder = kernel, how, Builder(names(kernel))
        self.made: dict[tuple[Value | None, Memory], Op] = {}
        self.remarks: list[Remark] = []

    def kernel(self) -> Kernel:
        body = self.block(self.old.body)
        body = in_front([op for op in self.made.values() if isinstance(op, Allocate)], body)
        front = max((i + 1 for i, op in enumerate(body.ops) if isinstance(op, Allocate)), default=0)
        overlays = (op for op in self.made.values() if isinstance(op, Overlay))
        ops = (*body.ops[:front], *overlays, *body.ops[front:])
        made = replace(self.old, body=replace(body, ops=ops)) if self.made else self.old
        return made.with_remarks(*self.remarks) if self.how.explains else made

    def block(self, block: Block) -> Block:
        ops: list[Op] = []
        for i, old in enumerate(block.ops):
            op = map_blocks(old, self.block)
            is_stored = isinstance(op, (Write, WriteIndexed)) and is_in(op.memory, "global")
            ops.append(self.staged(op, block.ops[:i]) if is_stored else op)
        return replace(block, ops=tuple(ops))

    def staged(self, stored: Op, before: Sequence[Op]) -> Op:
        """Return a store through shared memory; the store itself where it is left as it is."""
        op, end = self.window(stored)
        if op is None:
            return stored
        try:
            chunks = self.how.chunks(op, before, self.remarks)
        except Left as left:
            self.remarks.append(left.remarks)
            return stored
        if chunks is None:
            return stored
        shared = self.memory(op, chunks)
        return WriteThrough(op.tile, op.memory, op.at, shared, op.axes, chunks.guard, end, chunks.width, loc=op.loc)

    def window(self, op: Op) -> tuple[Write | None, tuple[Value, ...]]:
        """Return the window that an op stores, and the end of its rows, if it has one before the end of the memory."""
        found = bounded_tile(op, self.old.defs) if isinstance(op, WriteIndexed) else None
        if found is not None and isinstance(op, WriteIndexed):
            return Write(op.tile, op.memory, found.at, found.axes, guard=found.axes, loc=op.loc), (found.end,)
        return op if isinstance(op, Write) else None, ()

    def memory(self, op: Write, chunks: _Chunks) -> Value:
        under, kind = chunks.under, chunks.kind
        if (under, kind) not in self.made:
            result = self.builder.fresh(f"{op.memory.name}_shared", kind)
            made = Overlay(under, results=(result,), loc=op.loc) if under else Allocate(results=(result,), loc=op.loc)
            self.made[under, kind] = made
        return self.made[under, kind].result


def _want_rows(op: Write) -> None:
    """Raise `Left` where a tile is not along the rows of the memory, or is padded."""
    name, shape = op.memory.name, op.tile.type.shape
    want(not op.within, PADDED, op.loc, memory=name, tile=dims(op.within), padded=dims(shape))
    rows = op.axes == tuple(sorted(op.axes)) and op.axes[-1] == op.memory.type.rank - 1 and len(op.axes) > 1
    want(rows, ACROSS_ROWS, op.loc, memory=name)


# -- by TMA, or by the lanes of warpgroups ----------------------------------------------------------------------------


class _OfGroups:
    def __init__(self, kernel: Kernel, machine: Chip, engine: Tma, by_tma: bool, buffers: int) -> None:
        self.machine, self.engine, self.by_tma, self.buffers = machine, engine, by_tma, buffers
        self.spreads, self.positions = LayoutsNeeded(kernel), scalars_of(kernel.body)
        self.repeated = touched(kernel)[1] | written_again(kernel)
        self.explains = by_tma  # without TMA lanes store everything, and no remark says so

    def chunks(self, op: Write, before: Sequence[Op], remarks: list[Remark]) -> _Chunks | None:
        want(op.memory not in self.repeated, READ_AGAIN, op.loc, memory=op.memory.name)
        _want_rows(op)
        odd = _unaligned_rows(op, self.engine)
        remarks.extend([odd] if odd else [])
        if odd or not self.by_tma:
            is_known = isinstance(op.memory.type.extents[-1], int)
            width = 0 if is_known else max(1, WIDEST_BYTES // op.memory.type.dtype.bytes)
            kind = self.stored_by_lanes(op, width)
            return _Chunks(kind, guard=op.guard, width=width) if kind else None
        return _Chunks(self.stored_by_tma(op, _chunk(op, self.engine, self.positions)))

    def stored_by_tma(self, op: Write, columns: int) -> Memory:
        """Return the shared memory that TMA stores from: as many rows of sums as a warpgroup multiplies at once, or as
        many columns of transposed sums."""
        dtype, groups = op.tile.type.dtype, prod(self.spreads.waves) // _GROUP.waves
        rows, buffers = _GROUP.rows, self.buffers
        if not _is_held_by_groups(op, self.spreads):
            rows, columns = _transposed_rows(op, self.spreads), _GROUP.rows
            want(rows, NOT_SUMS, op.loc)
            buffers = transposed_buffers(rows, prod(op.tile.type.shape) // groups, buffers)
        swizzle = _ROWS.swizzle(columns * dtype.bytes)
        placement = Swizzled(swizzle[0] // dtype.bytes, *swizzle[1:])
        return Memory((groups, buffers, rows, columns), dtype, "shared", placement)

    def stored_by_lanes(self, op: Write, width: int) -> Memory | None:
        """Return the shared memory that lanes store from, of no more bytes; None where they store what they hold.

        Dynamic rows may be aligned to single elements, so lanes store the chunks of each row that are aligned, and the
        elements at its ends one by one.
        """
        if not _is_held_by_groups(op, self.spreads):
            return None
        waves, (layout,) = prod(self.spreads.waves), self.spreads.held(op.tile)
        if prod(layout.registers) > most_sums(self.by_tma):
            return None  # the addresses of rows would spill sums
        room = waves // _GROUP.waves * self.buffers * _GROUP.rows * max(_ROWS.row_bytes)
        return chunk_memory(self.machine, layout, op.memory.type, waves, room, _ROWS.row_bytes, width)


def most_sums(by_tma: bool) -> int:
    """Return the sums that a lane may hold while it transposes some; lanes that load tiles have fewer registers."""
    return MANY_SUMS if by_tma else MANY_SUMS // 2


def _unaligned_rows(op: Write, engine: Tma) -> Remark | None:
    """Return a remark where TMA cannot store the rows of this memory; dynamic rows are checked at the launch."""
    row, size, grain = row_pitch(op.memory), op.memory.type.dtype.bytes, engine.grain_bytes
    if not isinstance(row, int) or is_row_aligned(op.memory, grain):
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


# -- by the lanes of waves, in bytes that are free ---------------------------------------------------------------------


class _OfWaves:
    def __init__(self, kernel: Kernel, machine: Chip) -> None:
        self.machine, self.body, self.waves = machine, kernel.body, prod(kernel.waves)
        self.spreads = LayoutsNeeded(kernel)
        blocks = (instruction.fragment() for instruction in NAMED.values() if machine.matrix in instruction.chips)
        self.blocks = tuple({block.acc: block for block in blocks}.values())
        self.staged = [op.result for op in walk(kernel.body) if isinstance(op, Allocate)]
        self.explains = any(isinstance(op, Mma) for op in walk(kernel.body))

    def chunks(self, op: Write, before: Sequence[Op], remarks: list[Remark]) -> _Chunks | None:
        """Return the memory whose bytes a wave reuses to transpose its part into rows, and the type of the rows."""
        if not self.is_narrow(op):
            return None
        bytes = NEIGHBOURS * op.tile.type.dtype.bytes
        layout = self.checked_layout(op, bytes)
        under = self.free(before)
        want(under is not None or not self.staged, NO_BYTES, op.loc)
        room = _bytes(under) if under else self.machine.shared.bytes // self.machine.resident_waves * self.waves
        kind = chunk_memory(self.machine, layout, op.memory.type, self.waves, room, ROW_BYTES)
        if kind is None:
            raise Left(SHORT_ROWS.at(op.loc, shortest=min(ROW_BYTES), bytes=bytes))
        return _Chunks(kind, under)

    def is_narrow(self, op: Write) -> bool:
        """Whether a lane's four neighbours are narrower than the widest store."""
        dtype = op.tile.type.dtype
        return NEIGHBOURS * dtype.bytes < self.machine.widest_load_bytes and dtype != BOOL and len(op.axes) > 1

    def checked_layout(self, op: Write, bytes: int) -> Layout:
        """Return the layout of the tile; raise `Left` where the rows of the memory do not allow wider stores."""
        _want_rows(op)
        length, size, widest = op.memory.type.extents[-1], op.tile.type.dtype.bytes, self.machine.widest_load_bytes
        row_bytes = (
            length * size if isinstance(length, int) else 0
        )  # with a dynamic one, most tiles are no boundary tiles
        facts = {"memory": op.memory.name, "row_bytes": row_bytes, "widest": widest, "elements": widest // size}
        want(row_bytes % widest == 0, RAGGED_ROWS, op.loc, bytes=bytes, **facts)
        layout = next(self.sums(op), None)
        if layout is None:
            raise Left(NOT_SUMS.at(op.loc))
        return layout

    def sums(self, op: Write) -> Iterator[Layout]:
        """Yield the layout of the tile, if it is that of a matrix instruction's accumulator."""
        held = self.spreads.held(op.tile)
        shape, waves = op.tile.type.shape, self.spreads.waves
        own = shape[-2] // waves[0], shape[-1] // waves[1]
        whole = (b for b in self.blocks if own[0] % b.rows == 0 and own[1] % b.cols == 0)
        found = (block.sums(shape, waves, transposed=True) for block in whole)
        yield from (layout for layout in found if held == (layout,))

    def free(self, ops: Sequence[Op]) -> Value | None:
        """Return the largest staged memory that is written first, and used in these ops only, if there is one."""
        before, all_uses = _uses(ops), _uses(self.body.ops)
        filled = [m for m in self.staged if isinstance(next(iter(before[m]), None), (Write, CopyAsync))]
        free = [m for m in filled if before[m] == all_uses[m]]
        return max(free, key=_bytes, default=None)


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
