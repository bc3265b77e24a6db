"""The semantics of the tile level's ops on memories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from tilewave.interp.arithmetic import Array
from tilewave.interp.tile_run import (
    ATOMICALLY,
    COMBINING,
    LATER,
    NO_WORKGROUP,
    Arriving,
    TileRun,
    TrackedMemory,
    element,
    has_edges,
)
from tilewave.interp.turns import Standpoint
from tilewave.interp.windows import Window
from tilewave.ir import ops as ir
from tilewave.ir.core import Op


def allocate(run: TileRun, op: ir.Allocate) -> tuple[Any, ...]:
    kind = op.result.type
    poison = np.full(kind.shape, run.numbers.poison(kind.dtype), run.numbers.storage(kind.dtype))
    return (TrackedMemory(op.result, poison, np.full(kind.shape, NO_WORKGROUP, np.int32)),)


def overlay(run: TileRun, op: ir.Overlay) -> tuple[Any, ...]:
    return (run.env[op.memory],)  # no other tracking needed: a write to an overlay writes all of it (WriteThrough)


def read_panel(run: TileRun, op: ir.ReadPanel) -> tuple[Any, ...]:
    *where, first = (run.env[v] for v in op.at)
    shape = op.result.type.shape
    panel_rows = run.env[op.memory].data[tuple(where)].swapaxes(0, 1)
    rows = panel_rows.reshape(len(panel_rows), -1)
    return (rows[: shape[-2], first : first + shape[-1]].reshape(shape),)


def read_rows(run: TileRun, op: ir.ReadRows) -> tuple[Any, ...]:
    """Return rows, the last one of the memory for those past it."""
    buffer: TrackedMemory = run.env[op.memory]
    *_, rows, depth = op.result.type.shape
    where: list[Any] = [run.env[v] for v in op.at]
    below = np.minimum(where[op.row_axis] + np.arange(rows), buffer.data.shape[op.row_axis] - 1)
    where[op.row_axis], where[op.depth_axis] = below[:, None], where[op.depth_axis] + np.arange(depth)[None]
    run.note_read(op, buffer, tuple(where))
    return (buffer.data[tuple(where)].reshape(op.result.type.shape),)


def prepack(run: TileRun, op: ir.Prepack) -> tuple[Any, ...]:
    """Return the panels of a memory, made for the first workgroup and kept for the others."""
    buffer: TrackedMemory = run.env[op.memory]
    if op.result not in run.packed:
        *batch, panels, groups, rows, depth = op.result.type.shape
        order = [a for a in range(buffer.data.ndim) if a not in (op.row_axis, op.depth_axis)]
        transposed = buffer.data.transpose([*order, op.row_axis, op.depth_axis])
        whole = np.zeros((*batch, panels * rows, groups * depth), run.numbers.storage(op.result.type.dtype))
        cast = ir.Cast(op.memory, results=op.results, loc=op.loc)  # panels may hold numbers of another dtype
        whole[..., : transposed.shape[-2], : transposed.shape[-1]] = run.numbers.elementwise(cast, [transposed])
        split = whole.reshape(*batch, panels, rows, groups, depth)
        run.packed[op.result] = TrackedMemory(op.result, np.ascontiguousarray(split.swapaxes(-3, -2)))
    return (run.packed[op.result],)


def read(run: TileRun, op: ir.Read) -> tuple[Any, ...]:
    buffer: TrackedMemory = run.env[op.memory]
    window = None if 0 in op.within else window_of(run, op, buffer, op.within or op.result.type.shape)
    tile: Array = np.zeros(op.result.type.shape, buffer.data.dtype)
    if window is not None:
        run.note_read(op, buffer, window.inside)
        found = window.to_tile(buffer.data[window.inside])
        if window.whole and not op.within:
            return (np.array(found),)
        tile[window.part] = found
    return (tile,)


def write(run: TileRun, op: ir.Write | ir.WriteThrough, rows: int | None = None) -> tuple[Any, ...]:
    """Store a tile, or as many of its rows."""
    buffer, tile = run.env[op.memory], run.env[op.tile]
    within = op.within if isinstance(op, ir.Write) else ()
    if rows is not None:
        within = (*tile.shape[:-2], rows, tile.shape[-1])
    if isinstance(op, ir.Write) and is_past(run, op, buffer):
        return ()
    window = window_of(run, op, buffer, within or op.tile.type.shape)
    if window is None:
        outside(run, op, buffer, [run.env[v] for v in op.at])
    run.note_write(op, buffer, window.inside)
    buffer.data[window.inside] = window.to_memory(tile[window.part])
    return ()


def is_past(run: TileRun, op: ir.Write, buffer: TrackedMemory) -> bool:
    """Return whether a tile is wholly out of bounds along an axis that is predicated."""
    along = dict(zip(op.axes, op.tile.type.shape, strict=True))
    starts = ((run.env[op.at[axis]], along.get(axis, 1), buffer.data.shape[axis]) for axis in op.guard)
    return any(at >= extent or at + size <= 0 for at, size, extent in starts)


def write_through(run: TileRun, op: ir.WriteThrough) -> tuple[Any, ...]:
    rows = op.tile.type.shape[-2]
    for end in op.end:
        rows = min(rows, int(run.env[end]) - int(run.env[op.at[op.axes[-2]]]))
    if rows > 0:
        write(run, op, rows)
    shared: TrackedMemory = run.env[op.shared]
    shared.lose(run.numbers.poison(shared.value.type.dtype))
    return ()


def copy(run: TileRun, op: ir.Copy) -> tuple[Any, ...]:
    target: TrackedMemory = run.env[op.to]
    where, tile = taken_box(run, op, run.env[op.memory], target)
    run.note_write(op, target, (*where, ...))
    target.data[where] = tile
    return ()


def bring(run: TileRun, op: ir.CopyAsync) -> tuple[Any, ...]:
    """Start an asynchronous copy: old contents are lost at once, new ones are visible after the wait."""
    target: TrackedMemory = run.env[op.to]
    where, tile = taken_box(run, op, run.env[op.memory], target)
    run.note_write(op, target, (*where, ...))
    assert target.writer is not None
    target.writer[where] = LATER
    target.data[where] = run.numbers.poison(target.value.type.dtype)
    run.on_the_way.append(Arriving(target, where, tile))
    return ()


def wait_async(run: TileRun, op: ir.WaitAsync) -> tuple[Any, ...]:
    while run.on_the_way and sum(b.bytes for b in run.on_the_way) > op.pending:
        come = run.on_the_way.pop(0)
        assert come.target.writer is not None
        come.target.writer[come.where] = run.workgroup
        come.target.data[come.where] = come.tile
    return ()


def taken_box(
    run: TileRun, op: ir.Copy | ir.CopyAsync, source: TrackedMemory, target: TrackedMemory
) -> tuple[tuple[int, ...], Array]:
    """Return the destination and the contents of a copied box."""
    box = target.data.shape[len(op.to_at) :]
    window = Window.of([run.env[v] for v in op.at], op.axes, box, source.data.shape)
    tile: Array = np.zeros(box, source.data.dtype)
    if window is not None:
        run.note_read(op, source, window.inside)
        tile[window.part] = window.to_tile(source.data[window.inside])
    return tuple(run.env[v] for v in op.to_at), tile


def window_of(
    run: TileRun, op: ir.Read | ir.Write | ir.WriteThrough, buffer: TrackedMemory, shape: tuple[int, ...]
) -> Window | None:
    """Return the in-bounds part of a tile; None where there is none, which is allowed in arrays alone."""
    at = [run.env[v] for v in op.at]
    window = Window.of(at, op.axes, shape, buffer.data.shape)
    if window is None and not has_edges(buffer):
        outside(run, op, buffer, at)
    return window


def outside(run: TileRun, op: Op, buffer: TrackedMemory, at: Sequence[int]) -> NoReturn:
    position = ", ".join(map(str, at))
    run.fail(op, f"touches {buffer.value.name}[{position}], all of it outside {buffer.value.type}")


def gather(run: TileRun, op: ir.Gather) -> tuple[Any, ...]:
    buffer: TrackedMemory = run.env[op.memory]
    where, inside = positions(run, op, buffer, op.result.type.shape)
    kept = tuple(p[inside] for p in where)
    run.note_read(op, buffer, kept)
    tile: Array = np.zeros(op.result.type.shape, buffer.data.dtype)
    tile[inside] = buffer.data[kept]  # nothing of an empty memory
    return (tile,)


def scatter(run: TileRun, op: ir.Scatter) -> tuple[Any, ...]:
    buffer, tile = run.env[op.memory], run.env[op.tile]
    where, inside = positions(run, op, buffer, op.tile.type.shape)
    kept = tuple(p[inside] for p in where)
    want_distinct(run, op, buffer, kept)
    run.note_write(op, buffer, kept)
    buffer.data[kept] = tile[inside]
    return ()


def want_distinct(run: TileRun, op: Op, buffer: TrackedMemory, where: tuple[Array, ...]) -> None:
    """Refuse to store two elements of one tile at one place."""
    flat = np.ravel_multi_index(where, buffer.data.shape)
    numbers, counts = np.unique(flat, return_counts=True)
    if (counts > 1).any():
        position = np.unravel_index(numbers[counts > 1][0], buffer.data.shape)
        run.fail(op, f"stores two elements of one tile at {element(buffer, position)}")


def read_indexed(run: TileRun, op: ir.ReadIndexed | ir.ReadIndexedShared) -> tuple[Any, ...]:
    buffer: TrackedMemory = run.env[op.memory]
    where, inside = indexed(run, op, buffer)
    run.note_read(op, buffer, where)
    tile: Array = np.zeros(op.result.type.shape, buffer.data.dtype)
    tile[inside] = buffer.data[where]
    return (tile,)


def write_indexed(run: TileRun, op: ir.WriteIndexed) -> tuple[Any, ...]:
    buffer, tile = run.env[op.memory], run.env[op.tile]
    where, inside = indexed(run, op, buffer)
    if op.combine:
        if has_edges(buffer):
            run.note_write(op, buffer, where, ATOMICALLY)
            flat = np.ravel_multi_index(where, buffer.data.shape)
            run.turns.note_added(Standpoint(run.workgroup), op, buffer.value, buffer.data.shape, flat)
        else:  # it needs what was there, and one workgroup has no other
            run.note_read(op, buffer, where)
        COMBINING[op.combine].at(buffer.data, where, tile[inside])
        return ()
    want_distinct(run, op, buffer, where)
    run.note_write(op, buffer, where)
    buffer.data[where] = tile[inside]
    return ()


def indexed(
    run: TileRun, op: ir.ReadIndexed | ir.ReadIndexedShared | ir.WriteIndexed, buffer: TrackedMemory
) -> tuple[tuple[Array, ...], Array]:
    """Return the positions of a tile's elements that are in bounds, and which these are."""
    places = [np.asarray(run.env[v]) for v in op.at]
    inside = np.ones(places[0].shape, bool)
    for p, extent in zip(places, buffer.data.shape, strict=True):
        inside &= (p >= 0) & (p < extent)
    return tuple(p[inside] for p in places), inside


def positions(
    run: TileRun, op: ir.Gather | ir.Scatter, buffer: TrackedMemory, tile: tuple[int, ...]
) -> tuple[tuple[Array, ...], Array]:
    """Return the position of each element of a tile, clipped into the memory, and which of them are in bounds."""
    memory = buffer.data.shape
    where_to = [np.broadcast_to(np.asarray(p), tile) for p in run.block(op.where, *np.indices(tile))]
    inside = np.ones(tile, bool)
    for p, extent in zip(where_to, memory, strict=True):
        inside &= (p >= 0) & (p < extent)
    may_be_outside = op.part or (isinstance(op, ir.Gather) and has_edges(buffer))
    if not inside.any() and not may_be_outside:
        outside(run, op, buffer, [p.flat[0] for p in where_to])
    return tuple(np.clip(p, 0, n - 1) for p, n in zip(where_to, memory, strict=True)), inside
