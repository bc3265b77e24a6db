"""Stores of tiles through shared memory: by lanes, after a wave has transposed its part into rows, or by TMA."""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.analysis.layouts_needed import WIDEST_BYTES
from tilewave.analysis.wave_transposes import WaveChunks, stored_width
from tilewave.ir.build import Number
from tilewave.ir.core import Value
from tilewave.ir.ops import Barrier, KeepOrder, Load, Role, Store, TmaStore, WaitTmaStores, WgmmaShared, WriteThrough
from tilewave.ir.types import Vector
from tilewave.layouts.formulas import Layout, Term
from tilewave.transform.lane_program import LaneProgram


def write_by_waves(lanes: LaneProgram, op: WriteThrough) -> None:
    """Emit stores in which each wave first transposes its tile into rows through shared memory, chunk by chunk.

    A chunk is stored after the next one is loaded, which hides the latency of the load; but not where lanes store
    less than the widest access, because two chunks would need too many registers there.
    """
    ((x, layout),) = lanes.held(op.tile)
    _, rows, columns = op.shared.type.shape
    chunks = WaveChunks(layout, rows, columns, stored_width(op.memory.type), lanes.lanes)
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
    lanes.out.effect(Store, x, op.memory, where, (), steps_of, op.guard)


def write_by_groups(lanes: LaneProgram, op: WriteThrough) -> None:
    """Fill a warpgroup's buffers, issue their TMA stores together, and wait for them before filling them again."""
    ((x, layout),) = lanes.held(op.tile)
    *batch, blocks, eights, _, _ = x.type.shape
    groups, buffers, rows, columns = op.shared.type.shape
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
        for group in range(groups):
            starts = [((group * blocks + block) * WgmmaShared.group.rows, eight * 8) for block, eight in some]
            let_go(lanes, op, group, [start[::-1] if is_transposed else start for start in starts])
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


def let_go(lanes: LaneProgram, op: WriteThrough, group: int, starts: Sequence[tuple[int, int]]) -> None:
    """Emit the TMA stores of a group's chunks; the first wave of the group issues them."""
    with lanes.out.region():
        for buffer, start in enumerate(starts):
            at = list(op.at)
            for axis, far in zip(op.axes[-2:], start, strict=True):
                at[axis] = (Number(lanes.out, at[axis]) + far).value
            source_at = (lanes.out.const(group), lanes.out.const(buffer))
            more = buffer < len(starts) - 1
            lanes.out.effect(TmaStore, op.shared, source_at, op.memory, tuple(at), op.axes[-2:], more)
        body = lanes.out.block(())
    lanes.out.effect(Role, group * WgmmaShared.group.waves, group * WgmmaShared.group.waves + 1, body)
