"""The semantics of tiles that workgroups hand over to each other, for one wave."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from tilewave.interp.arithmetic import Array
from tilewave.interp.exchanges import ExchangeSlots
from tilewave.interp.wave_state import Waiting, WaveState
from tilewave.interp.workgroup import Wait
from tilewave.ir.ops import HandOver, MakeExchange, TakeOver, TakeOverAll


def make_exchange(wave: WaveState, op: MakeExchange) -> ExchangeSlots:
    return wave.state.launch.exchange(op.result)


def hand_over(wave: WaveState, op: HandOver) -> None:
    slots: ExchangeSlots = wave.env[op.exchange]
    held = np.broadcast_to(wave.env[op.tile], (wave.state.lanes, *op.tile.type.shape))
    first = wave.uniform(op, op.slot)
    for i, part in enumerate(np.split(held.reshape(wave.state.lanes, -1), op.wide, axis=1)):
        slots.put(op, wave.state.number, first + i, wave.number, part)


def take_over(wave: WaveState, op: TakeOver) -> Waiting:
    other = yield from taken(wave, op, wave.uniform(op, op.slot))
    return (wave.numbers.added(op.tile.type.dtype, wave.env[op.tile], other),)


def take_over_all(wave: WaveState, op: TakeOverAll) -> Waiting:
    first, apart = wave.uniform(op, op.slot), wave.uniform(op, op.apart)
    found = wave.env[op.tile]
    for i in range(op.count):
        other = yield from taken(wave, op, first + i * apart)
        found = wave.numbers.added(op.tile.type.dtype, found, other)
    return (found,)


def taken(wave: WaveState, op: TakeOver, slot: int) -> Generator[None, None, Array]:
    """Wait for a slot; workgroups run one after the other, so an empty slot is reported as a deadlock."""
    slots: ExchangeSlots = wave.env[op.exchange]
    slots.want_inside(op, wave.state.number, slot)

    def notified() -> str:
        return f"at {op.loc} for {slots.name(slot)}, which no earlier workgroup handed over"

    yield from wave.until(Wait(op, lambda: (slot, wave.number) in slots.full, notified))
    return slots.take(op, wave.state.number, slot, wave.number).reshape(wave.state.lanes, *op.tile.type.shape)
