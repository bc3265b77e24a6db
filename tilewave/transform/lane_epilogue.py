"""Stores of tiles through shared memory: by lanes, after a wave has transposed its part into rows, or by TMA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce

from tilewave.analysis.layouts_needed import WIDEST_BYTES
from tilewave.analysis.wave_transposes import WaveChunks, stored_width
from tilewave.ir.build import Number
from tilewave.ir.core import Value
from tilewave.ir.ops import (
    And,
    Barrier,
    KeepOrder,
    Load,
    LoadUnaligned,
    Loop,
    Misalignment,
    Role,
    Store,
    StoreUnaligned,
    TmaStore,
    WaitTmaStores,
    WgmmaShared,
    WriteThrough,
)
from tilewave.ir.types import INDEX_SCALAR, Vector
from tilewave.layouts.formulas import Layout, Term
from tilewave.records import dataclass
from tilewave.transform.lane_program import LaneProgram


def write_by_waves(lanes: LaneProgram, op: WriteThrough) -> None:
    """Emit stores in which each wave first transposes its tile into rows through shared memory, chunk by chunk.

    A chunk is stored after the next one is loaded, which hides the latency of the load; but not where lanes store
    less than the widest access, because two chunks would need too many registers there. Where lanes store chunks of
    unaligned rows, `_UnalignedRows` does.
    """
    ((x, layout),) = lanes.held(op.tile)
    _, rows, columns = op.shared.type.shape
    chunks = WaveChunks(layout, rows, columns, op.width or stored_width(op.memory.type), lanes.lanes)
    after = int(chunks.width * x.type.dtype.bytes == WIDEST_BYTES)
    lines: list[tuple[Value, tuple[int, ...]]] = []
    lanes.out.effect(KeepOrder)  # registers of the products before and of the stores after need not fit together
    for first, far in chunks.starts():
        chunk = x
        for axis, (start, count) in enumerate(zip(first, chunks.counts, strict=True)):
            chunk = lanes.part(chunk, axis, start, count)
        where, steps = in_own(lanes, op, chunks.written())
        lanes.out.effect(Store, chunk, op.shared, where, (), steps)
        lanes.out.effect(Barrier, 1)
        if op.width:
            _UnalignedRows(lanes, op, chunks, far).store()
            continue
        where, steps = in_own(lanes, op, chunks.read())
        kind = Vector(chunks.read().registers, x.type.dtype)
        lines.append((lanes.out.emit(Load, op.shared, where, (), steps, type=kind), far))
        lanes.out.effect(Barrier, 1)
        if len(lines) > after:
            store_lines(lanes, op, *lines.pop(0), chunks.stored())
    for line in lines:
        store_lines(lanes, op, *line, chunks.stored())


def in_own(
    lanes: LaneProgram, op: WriteThrough, layout: Layout
) -> tuple[tuple[Value, ...], tuple[tuple[int, ...], ...]]:
    """Return the positions of a lane's registers in the shared memory of its wave."""
    wave = lanes.number("wave") if op.shared.type.shape[0] > 1 else lanes.out.const(0)
    own = (lanes.place(terms) if terms else lanes.out.const(0) for terms in layout.axes)
    return (wave, *own), tuple((0, *step) for step in layout.steps)


def store_lines(lanes: LaneProgram, op: WriteThrough, x: Value, far: tuple[int, ...], layout: Layout) -> None:
    at = list(op.at)
    for axis, steps in zip(op.axes, far, strict=True):
        at[axis] = (Number(lanes.out, at[axis]) + steps).value if steps else at[axis]
    where, steps_of = lanes.window(tuple(at), op.axes, layout)
    if not op.end:
        lanes.out.effect(Store, x, op.memory, where, (), steps_of, op.guard)
        return
    axis = op.axes[-2]
    for i in range(layout.registers[0]):
        row = Number(lanes.out, where[axis]) + i * layout.steps[0][-2]
        mask = ((row < Number(lanes.out, op.end[0])).value,)
        here = tuple(row.value if a == axis else v for a, v in enumerate(where))
        lanes.out.effect(Store, lanes.part(x, 0, i, 1), op.memory, here, mask, steps_of, op.guard)


@dataclass(frozen=True)
class _UnalignedRows:
    """The stores of a chunk of unaligned rows, in aligned accesses of `width` elements.

    Each row has its own first element at a multiple of 16 bytes. Aligned accesses begin there, and leave as many
    elements at both ends of the row together as one access has, which lanes store one by one:

        row of 64, 3 before the first multiple:   0 1 2 | 3 … 10 | 11 … 18 | ⋯ | 51 … 58 | 59 60 61 62 63
    """

    lanes: LaneProgram
    op: WriteThrough
    chunks: WaveChunks
    far: tuple[int, ...]

    def store(self) -> None:
        out, found = self.lanes.out, [*self.accesses(self.chunks), *self.accesses(replace(self.chunks, width=1))]
        out.effect(Barrier, 1)
        for cls, x, where, mask in found:
            steps = (tuple(int(axis == self.op.axes[-1]) for axis in range(len(where))),)
            out.effect(cls, x, self.op.memory, where, mask, steps, self.op.guard)

    def accesses(self, chunks: WaveChunks) -> Iterator[tuple[type[Store], Value, tuple[Value, ...], tuple[Value, ...]]]:
        """Emit the loads of whole accesses, or of elements at the ends of rows, and yield the stores.

        All lanes load, those without a store from the nearest elements of their own wave: what is masked out of a
        load reads the first element of the memory, to which another wave may be storing.
        """
        lanes, op, out, width = self.lanes, self.op, self.lanes.out, self.chunks.width
        per_row = chunks.columns // width if chunks.width > 1 else width
        rows_at_once = lanes.lanes // per_row
        row_in_chunk = Number(out, lanes.place((Term("lane", 1, per_row),)))
        of_lane = Number(out, lanes.place((Term("lane", 1, 1, per_row),)))
        wave = lanes.number("wave") if op.shared.type.shape[0] > 1 else out.const(0)
        kind = Vector((chunks.width,), op.memory.type.dtype)
        for first in range(0, chunks.rows, rows_at_once):
            row = row_in_chunk + first
            at = self.position(row)
            before = (width - Number(out, out.emit(Misalignment, op.memory, at, type=INDEX_SCALAR))) % width
            last = chunks.columns - chunks.width
            if chunks.width > 1:
                column = of_lane * width + before
                there = column <= last
            else:
                column = (of_lane < before).choose(of_lane, of_lane + (chunks.columns - width))
                there = before > 0
            truths = [there, row < chunks.rows] if chunks.rows % rows_at_once else [there]
            mask = self.masked(truths, at[op.axes[-2]])
            own = (row.smaller(chunks.rows - 1).value, column.smaller(last).value)
            load, store = (LoadUnaligned, StoreUnaligned) if chunks.width > 1 else (Load, Store)
            x = out.emit(load, op.shared, (wave, *own), (), ((0, 0, 1),), type=kind)
            where = list(at)
            where[op.axes[-1]] = (Number(out, at[op.axes[-1]]) + column).value
            yield store, x, tuple(where), mask

    def position(self, row: Number) -> tuple[Value, ...]:
        """Return where a row of the chunk begins in the memory."""
        at, own = list(self.op.at), self.chunks.layout.axes
        for i, (axis, steps) in enumerate(zip(self.op.axes, self.far, strict=True)):
            terms = tuple(term for term in own[i] if term.of == "wave")
            number = Number(self.lanes.out, at[axis]) + steps
            number = number + Number(self.lanes.out, self.lanes.place(terms)) if terms else number
            at[axis] = (number + row if axis == self.op.axes[-2] else number).value
        return tuple(at)

    def masked(self, truths: list[Number], row: Value) -> tuple[Value, ...]:
        """Return the mask of lanes for which all of this is true, in a row of the memory that is stored."""
        out = self.lanes.out
        stored = [Number(out, row) < Number(out, end) for end in self.op.end]
        return (reduce(partial(out.binary, And), [truth.value for truth in (*truths, *stored)]),)


def write_by_groups(lanes: LaneProgram, op: WriteThrough) -> None:
    """Fill a warpgroup's buffers, issue their TMA stores together, and wait for them before filling them again."""
    ((x, layout),) = lanes.held(op.tile)
    *batch, blocks, eights, _, _ = x.type.shape
    _, buffers, rows, columns = op.shared.type.shape
    is_transposed = layout.steps[-1][-2] == 1  # neighbouring registers are one row apart
    each = (rows if is_transposed else columns) // 8
    chunks = [(block, eight) for block in range(blocks) for eight in range(0, eights, each)]
    for first in range(0, len(chunks), buffers):
        some = chunks[first : first + buffers]
        lanes.out.effect(WaitTmaStores, 0)
        lanes.out.effect(Barrier, WgmmaShared.group.waves)
        for buffer, (block, eight) in enumerate(some):
            of_block = lanes.part(x, len(batch), block, 1)
            fill(lanes, op, lanes.part(of_block, len(batch) + 1, eight, each), layout, buffer)
        lanes.out.effect(Barrier, WgmmaShared.group.waves)
        starts = [(block * WgmmaShared.group.rows, eight * 8) for block, eight in some]
        beside = (blocks * WgmmaShared.group.rows, 0)
        if is_transposed:
            starts, beside = [start[::-1] for start in starts], beside[::-1]
        if op.end:
            store_before_end(lanes, op, starts, beside)
        else:
            store_whole(lanes, op, list(enumerate(starts)), beside)
    lanes.last = [WaitTmaStores(0, loc=op.loc)]


def fill(lanes: LaneProgram, op: WriteThrough, x: Value, layout: Layout, buffer: int) -> None:
    """Store each lane's registers of a chunk to its group's buffer, at positions relative to the group."""
    groups = op.shared.type.shape[0]
    waves = WgmmaShared.group.waves
    group = lanes.place((Term("wave", 1, waves),)) if groups > 1 else lanes.out.const(0)
    inside = (tuple(t for t in terms if (t.of, t.divisor) != ("wave", waves)) for terms in layout.axes[-2:])
    at = (group, lanes.out.const(buffer), *map(lanes.place, inside))
    steps = tuple((0, 0, *step[-2:]) for step in layout.steps)
    lanes.out.effect(Store, x, op.shared, at, (), steps)


Start = tuple[int, int]
"""The row and the column of a chunk within its tile."""


def store_whole(lanes: LaneProgram, op: WriteThrough, chunks: Sequence[tuple[int, Start]], beside: Start) -> None:
    """Emit the TMA stores of chunks, by their buffers; the first wave of each group issues those of its own.

    `chunks` are those of the first group. The chunks of each next group are `beside` further in the tile.
    """
    for group in range(op.shared.type.shape[0]):
        with lanes.out.region():
            for n, (buffer, start) in enumerate(chunks):
                source_at = (lanes.out.const(group), lanes.out.const(buffer))
                own = (start[0] + group * beside[0], start[1] + group * beside[1])
                at, more = chunk_at(lanes, op, op.at, own), n < len(chunks) - 1
                lanes.out.effect(TmaStore, op.shared, source_at, op.memory, at, op.axes[-2:], more)
            body = lanes.out.block(())
        lanes.out.effect(Role, group * WgmmaShared.group.waves, group * WgmmaShared.group.waves + 1, body)


def chunk_at(lanes: LaneProgram, op: WriteThrough, origin: Sequence[Value], start: Start) -> tuple[Value, ...]:
    """Return the position in the memory of a chunk of the tile at `origin`."""
    at = list(origin)
    for axis, far in zip(op.axes[-2:], start, strict=True):
        at[axis] = (Number(lanes.out, at[axis]) + far).value
    return tuple(at)


def store_before_end(lanes: LaneProgram, op: WriteThrough, starts: Sequence[Start], beside: Start) -> None:
    """Emit the stores of all groups' chunks whose rows may end: by TMA where all rows of a chunk are before the end,
    and by lanes where some are, which read the chunk back and store its rows one by one.

    All groups run the same code of lanes, because its addresses take registers in each that there is.
    """
    (end,), rows, out = op.end, op.shared.type.shape[2], lanes.out
    waves = WgmmaShared.group.waves
    own = lanes.place((Term("wave", 1, waves),)) if op.shared.type.shape[0] > 1 else out.const(0)
    origin = list(op.at)
    for axis, far in zip(op.axes[-2:], beside, strict=True):
        origin[axis] = (Number(out, origin[axis]) + Number(out, own) * far).value if far else origin[axis]
    by_row: dict[int, list[tuple[int, Start]]] = {}
    for buffer, start in enumerate(starts):
        by_row.setdefault(start[0], []).append((buffer, start))
    first = Number(out, origin[op.axes[-2]])
    for row, chunks in by_row.items():
        left = Number(out, end) - first - row
        is_whole = (left >= rows).choose((first >= 0).choose(1, 0), 0)  # a tile without rows begins before row 0
        with repeated(lanes, is_whole):
            store_whole(lanes, op, chunks, beside)
        with repeated(lanes, (is_whole.equals(1)).choose(0, (left > 0).choose(1, 0))):
            store_rows(lanes, op, own, origin, chunks, left.smaller(rows))


@contextmanager
def repeated(lanes: LaneProgram, trips: Number) -> Iterator[Number]:
    """Emit what is emitted inside as the body of a loop, with its counter."""
    counter = lanes.out.fresh("step", INDEX_SCALAR)
    with lanes.out.region():
        yield Number(lanes.out, counter)
        body = lanes.out.block([counter], ())
    lanes.out.effect(Loop, trips.value, (), body)


def store_rows(
    lanes: LaneProgram,
    op: WriteThrough,
    group: Value,
    origin: Sequence[Value],
    chunks: Sequence[tuple[int, Start]],
    count: Number,
) -> None:
    """Emit the stores of the first rows of chunks beside each other, whose lanes store 16 bytes each."""
    columns, width = op.shared.type.shape[3], WIDEST_BYTES // op.memory.type.dtype.bytes
    per_row, waves = columns // width, WgmmaShared.group.waves
    of_wave = lanes.lanes // per_row
    (first, start), at_once = chunks[0], of_wave * waves
    row = Number(lanes.out, lanes.place((Term("lane", 1, per_row), Term("wave", of_wave, 1, waves))))
    column = Number(lanes.out, lanes.place((Term("lane", width, 1, per_row),)))
    at, kind = chunk_at(lanes, op, origin, start), Vector((width,), op.memory.type.dtype)
    row_axis, column_axis = op.axes[-2:]
    steps = (tuple(int(axis == column_axis) for axis in range(len(at))),)
    passes = (count + (at_once - 1)) // at_once
    with repeated(lanes, Number(lanes.out, lanes.out.const(len(chunks)))) as chunk, repeated(lanes, passes) as step:
        own, there = step * at_once + row, list(at)
        mask = ((own < count).value,)
        source = (group, (chunk + first).value, own.smaller(op.shared.type.shape[2] - 1).value, column.value)
        x = lanes.out.emit(Load, op.shared, source, (), ((0, 0, 0, 1),), type=kind)  # by all, as in `_UnalignedRows`
        there[row_axis] = (own + Number(lanes.out, at[row_axis])).value
        there[column_axis] = (chunk * columns + column + Number(lanes.out, at[column_axis])).value
        length = op.memory.type.extents[column_axis]
        is_whole = not isinstance(length, int) or length % width == 0  # TMA takes dynamic rows of whole 16 bytes only
        cls = Store if is_whole else StoreUnaligned  # which checks at run time whether a row ends within 16 bytes
        lanes.out.effect(cls, x, op.memory, tuple(there), mask, steps, (row_axis, column_axis))
