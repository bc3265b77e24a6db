"""The semantics of the MMAs that a warpgroup executes on shared memory, for one wave of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewave.interp.arithmetic import NEVER_USED, Array
from tilewave.interp.memory import LaneMemory, WaveAccess
from tilewave.interp.positions import strides
from tilewave.interp.wave_state import WaveState
from tilewave.ir.core import Op, Value
from tilewave.ir.ops import WaitMma, WaitOlderMma, Wgmma, WgmmaRegisters, WgmmaShared


def wgmma_shared(wave: WaveState, op: WgmmaShared) -> Array:
    own = np.arange(0, op.shape[0], op.group.rows)[:, None] + 16 * (wave.number % op.group.waves) + np.arange(16)
    reading = begin_reading(wave, op)
    return wgmma(wave, op, reading, take_operand(wave, op, reading, 0, own.reshape(-1)))


def wgmma_registers(wave: WaveState, op: WgmmaRegisters) -> Array:
    return wgmma(wave, op, begin_reading(wave, op), op.group.from_sums(wave.every_lane(op.a)))


def begin_reading(wave: WaveState, op: Wgmma) -> WaveAccess:
    """Return the read of an MMA's operands: made now, or pending until the MMA is waited for."""
    if not wave.state.comes_along(wave.number // op.group.waves, wave.products, (*wave.path, wave.place)):
        wave.fail(
            op,
            f"wave {wave.number} executes an MMA that the other waves of its warpgroup do not",
            "the four waves of a warpgroup execute it together",
        )
    wave.products += 1
    if not op.later:
        return wave.access(op, "read")
    segment = wave.state.ledger.clocks.new_segment()
    wave.begun.append((op.result, segment))
    return wave.access(op, "read", segment)


def wait_mma(wave: WaveState, op: WaitMma) -> Array:
    end_products(wave, op.pending)
    if any(v == op.sums for v, _ in wave.begun):
        wave.fail(op, f"{op.sums} is among the last {op.pending} MMAs, which may still be in flight")
    sums: Array = wave.env[op.sums]
    return sums


def wait_older_mma(wave: WaveState, op: WaitOlderMma) -> None:
    end_products(wave, op.pending)


def end_products(wave: WaveState, pending: int) -> None:
    """Complete all but the last `pending` MMAs, and so their reads."""
    over = wave.begun[: max(0, len(wave.begun) - pending)]
    wave.state.ledger.clocks.learn(wave.index, [segment for _, segment in over])
    wave.begun = wave.begun[len(over) :]


def wgmma(wave: WaveState, op: Wgmma, reading: WaveAccess, a: Array) -> Array:
    """Return the sums of a warpgroup's MMA, given this wave's rows of `a`."""
    b = take_operand(wave, op, reading, 1, np.arange(op.shape[1]))
    acc = wave.every_lane(op.acc)
    if not all(wave.uniform(op, v) for v in op.adds):
        acc = np.zeros_like(acc)
    (shared, _), sums = op.factor(1), op.group.from_sums(acc)
    depth = op.group.depth_bytes // shared.type.dtype.bytes
    found = wave.numbers.multiplied_in_turn(a, b, sums, depth, op.ignored_bits)
    for used in op.columns_used:
        found[..., max(0, int(wave.uniform(op, used))) :] = NEVER_USED
    return op.group.to_sums(found)


def take_operand(wave: WaveState, op: Wgmma, reading: WaveAccess, side: int, rows: Array) -> Array:
    """Return rows of an operand, each along K."""
    depth, batch = op.shape[-1], op.acc.type.shape[:-4]
    if side not in op.transposed:
        return take_rows(wave, op, reading, side, (*batch, rows, depth))
    return np.swapaxes(take_rows(wave, op, reading, side, (*batch, depth, rows)), -1, -2)


def take_rows(wave: WaveState, op: Wgmma, reading: WaveAccess, side: int, box: tuple[Any, ...]) -> Array:
    """Return a part of an operand's memory; `box` has its extents along the last axes, or the rows it takes."""
    shared, at = op.factor(side)
    memory: LaneMemory = wave.env[shared]
    first = [wave.uniform(op, v) for v in at]
    known = wave.state.launch.boxes
    key = id(op), side, wave.number % op.group.waves, *first  # the rows that a wave takes follow from its number
    if key not in known:
        known[key] = box_elements(wave, op, memory, shared, first, box)
    flat = known[key].reshape(-1)
    memory.order_machine(wave.state.ledger, reading, flat)
    wave.state.note_read(memory, reading, flat)
    return memory.data.take(known[key])


def box_elements(
    wave: WaveState, op: Op, memory: LaneMemory, shared: Value, first: list[int], box: tuple[Any, ...]
) -> Array:
    """Return the numbers of the elements of a part of a memory, in the box's shape."""
    extents = [np.arange(n) if isinstance(n, int) else n for n in (*[1] * (len(first) - len(box)), *box)]
    along = [start + extent for start, extent in zip(first, extents, strict=True)]
    for positions, limit in zip(along, memory.shape, strict=True):
        if positions[0] < 0 or positions[-1] >= limit:
            where = ", ".join(map(str, first))
            wave.fail(op, f"wave {wave.number} multiplies {memory.name}[{where}], outside {shared.type}")
    steps = zip(np.ix_(*along), strides(memory.shape), strict=True)
    flat = sum((p * step for p, step in steps), np.zeros(1, np.int64))
    return flat.reshape([len(e) for e in extents[-len(box) :]])
