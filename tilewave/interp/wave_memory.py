"""The semantics of loads and stores of lanes, for one wave."""

from __future__ import annotations

import numpy as np

from tilewave.interp import copies
from tilewave.interp.arithmetic import Array
from tilewave.interp.lane_order import lane_bits
from tilewave.interp.memory import LaneMemory
from tilewave.interp.positions import Elements, OutsideMemory, RegisterOffsets, by_lane, elements_at, in_a_row, of_shape
from tilewave.interp.wave_state import WaveState
from tilewave.ir.core import Value
from tilewave.ir.ops import (
    Allocate,
    CopyAsyncChunks,
    Load,
    LoadEach,
    LoadTransposed,
    Misalignment,
    Overlay,
    Store,
    StoreEach,
)


def allocate(wave: WaveState, op: Allocate) -> LaneMemory:
    return wave.state.allocate(op.result)


def overlay(wave: WaveState, op: Overlay) -> LaneMemory:
    return wave.state.overlay(op.memory, wave.env[op.memory], op.result)


def load(wave: WaveState, op: Load) -> Array:
    memory: LaneMemory = wave.env[op.memory]
    return take(wave, op, memory, elements(wave, op, memory, op.result.type.shape))


def load_transposed(wave: WaveState, op: LoadTransposed) -> Array:
    memory: LaneMemory = wave.env[op.memory]
    found = take(wave, op, memory, elements(wave, op, memory, op.read_shape))
    read = np.broadcast_to(found, (wave.state.lanes, *op.read_shape))
    *front, _ = read.shape[1:]
    rows = np.moveaxis(read.reshape(-1, op.lanes, *front, op.rows), 1, -2).reshape(-1, *front, op.rows, op.lanes)
    return np.moveaxis(rows, -1, 1).reshape(-1, *op.result.type.shape)


def store(wave: WaveState, op: Store) -> None:
    memory: LaneMemory = wave.env[op.memory]
    kept = elements(wave, op, memory, op.x.type.shape)
    if op.combine:
        combine(wave, op, memory, kept)
    else:
        put(wave, op, memory, kept, op.x)


def misalignment(wave: WaveState, op: Misalignment) -> Array:
    """Return what it is for an array without gaps that begins at a multiple of 16 bytes."""
    memory: LaneMemory = wave.env[op.memory]
    flat: Array = np.zeros((), np.int64)
    for v, extent in zip(op.at, memory.shape, strict=True):
        flat = flat * extent + wave.env[v]
    return flat % op.chunk


def load_each(wave: WaveState, op: LoadEach) -> Array:
    memory: LaneMemory = wave.env[op.memory]
    memory.was_read = True  # also where data decides that no element of it is
    return take(wave, op, memory, elements_each(wave, op, memory, len(op.result.type.shape)))


def store_each(wave: WaveState, op: StoreEach) -> None:
    memory: LaneMemory = wave.env[op.memory]
    found = elements_each(wave, op, memory, len(op.x.type.shape))
    if op.combine:
        combine(wave, op, memory, found)
    else:
        put(wave, op, memory, found, op.x)


def combine(wave: WaveState, op: Store | StoreEach, memory: LaneMemory, elements: Elements) -> None:
    """Combine elements with what the memory has, one after the other, as atomic operations do."""
    x = by_lane(wave.env[op.x], len(op.x.type.shape))
    shape = np.broadcast_shapes(x.shape, elements.flat.shape)
    active = None if elements.active is None else of_shape(elements.active, shape)
    kept, new = (in_a_row(of_shape(each, shape), active) for each in (elements.flat, x))
    if not len(kept):
        return
    if memory.buffer is None:
        access = wave.access(op, "change")
        lanes = lane_bits(of_shape(elements.flat, shape), active, wave.state.lanes)
        memory.order_lanes(wave.state.ledger, access, kept, lanes, None)
        memory.note_change(wave.state.ledger, access, kept)
    else:
        wave.state.note_combined(op, memory, kept)
        here, array = wave.standpoint, memory.buffer.value
        wave.state.launch.turns.note_added(here, op, array, memory.shape, kept)
    memory.combine(op.combine, kept, new)


def copy_async_chunks(wave: WaveState, op: CopyAsyncChunks) -> None:
    copies.bring_elements(wave, op, elements(wave, op, wave.env[op.memory], op.shape))


def elements(
    wave: WaveState, op: Load | LoadTransposed | Store | CopyAsyncChunks, memory: LaneMemory, shape: tuple[int, ...]
) -> Elements:
    if id(op) not in wave.registers:
        steps = op.read_steps if isinstance(op, LoadTransposed) else op.steps
        wave.registers[id(op)] = RegisterOffsets.of(shape, steps, memory.shape)
    begin = op.begin if isinstance(op, (Load, Store)) and op.begin else (0,) * len(op.at)
    at = [wave.env[v] + far for v, far in zip(op.at, begin, strict=True)]
    if isinstance(op, CopyAsyncChunks) and op.columns:
        columns = np.stack(np.broadcast_arrays(*(by_lane(wave.env[v], 1) for v in op.columns)), axis=1)
        at = [*(by_lane(a, 2) for a in at[:-1]), columns]
    try:
        return wave.registers[id(op)].elements(at, memory.shape, op.guard, touching(wave, op, len(shape)))
    except OutsideMemory as outside:
        position = ", ".join(map(str, outside.position))
        verb = "writes" if isinstance(op, Store) else "reads"
        wave.fail(
            op,
            f"lane {outside.lane} of wave {wave.number} {verb} {memory.name}[{position}], outside {op.memory.type}",
        )


def touching(wave: WaveState, op: Load | LoadTransposed | Store | CopyAsyncChunks, rank: int) -> Array | None:
    """Return which lanes, or which of their registers, access the memory; None: all do."""
    mask = mask_of(wave, op, rank)
    if isinstance(op, (CopyAsyncChunks, LoadTransposed)) or not op.own:
        return mask
    below = wave.registers[id(op)].below([wave.env[v] for v in op.own], op.within)
    return below if mask is None else below & mask


def elements_each(wave: WaveState, op: LoadEach | StoreEach, memory: LaneMemory, rank: int) -> Elements:
    at = [by_lane(wave.env[v], rank) for v in op.at]
    return elements_at(at, memory.shape, range(len(memory.shape)), mask_of(wave, op, rank))


def mask_of(
    wave: WaveState, op: Load | LoadTransposed | Store | LoadEach | StoreEach | CopyAsyncChunks, rank: int
) -> Array | None:
    if not op.mask:
        return None
    (mask,) = (wave.env[v] for v in op.mask)
    return None if mask is True else by_lane(mask, rank)


def take(wave: WaveState, op: Load | LoadTransposed | LoadEach, memory: LaneMemory, elements: Elements) -> Array:
    kept = elements.kept
    masks_some = memory.buffer is None and elements.active is not None and len(kept) < elements.flat.size
    if len(kept) or masks_some:
        access = wave.access(op, "read", read_late(wave, op, memory))
    if masks_some:
        memory.note_dropped_read(wave.state.ledger, access)
    if len(kept):
        wave.want_waited(op, memory)
        if memory.is_tracked:
            lanes = lane_bits(elements.flat, elements.active, wave.state.lanes)
            memory.order_lanes(wave.state.ledger, access, kept, lanes, None)
        wave.state.note_read(memory, access, kept)
    if elements.active is None:
        found = memory.data.take(elements.flat)
    else:
        found = np.zeros(elements.flat.shape, memory.data.dtype)
        found[elements.active] = memory.data[kept]
    return found


def read_late(wave: WaveState, op: Load | LoadTransposed | LoadEach, memory: LaneMemory) -> int | None:
    """Return a new segment for a load from memory that copies fill: it may read until something waits for it.

    An arrival does not wait, unless it names what was loaded: the assembler may place it before the data has come.
    """
    if op.memory not in wave.state.launch.filled:
        return None
    wave.loading[op.result] = wave.state.ledger.clocks.new_segment()
    return wave.loading[op.result]


def put(wave: WaveState, op: Store | StoreEach, memory: LaneMemory, elements: Elements, value: Value) -> None:
    x = by_lane(wave.env[value], len(value.type.shape))
    shape = np.broadcast_shapes(x.shape, elements.flat.shape)
    active = None if elements.active is None else of_shape(elements.active, shape)
    kept, new = (in_a_row(of_shape(each, shape), active) for each in (elements.flat, x))
    if not len(kept):
        return
    wave.want_waited(op, memory)
    access = wave.access(op, "write")
    if memory.is_tracked:
        lanes = lane_bits(of_shape(elements.flat, shape), active, wave.state.lanes)
        memory.order_lanes(wave.state.ledger, access, kept, lanes, new)
    wave.state.note_write(memory, access, kept, new)
    twice = memory.put(kept, new)
    if twice is not None:
        at = memory.element(kept[twice])
        wave.fail(op, f"two lanes of wave {wave.number} write different values to {at}")
