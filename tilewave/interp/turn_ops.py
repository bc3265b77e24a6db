"""The semantics of turns for one wave."""

from __future__ import annotations

import numpy as np

from tilewave.interp.memory import LaneMemory
from tilewave.interp.turns import counter_of, place
from tilewave.interp.wave_state import Waiting, WaveState
from tilewave.interp.workgroup import Wait
from tilewave.ir.ops import PassTurn, TurnOp, WaitTurn


def wait_turn(wave: WaveState, op: WaitTurn) -> Waiting:
    """Wait for a turn; workgroups run one after the other, so one that does not come is reported as a deadlock."""
    memory, counter = counted(wave, op)
    turn, data = int(wave.uniform(op, op.turn)), memory.data.reshape(memory.shape)
    turns = wave.state.launch.turns

    def notified() -> str:
        return f"at {op.loc} for turn {turn} of {place(op, data, counter)}, which no earlier workgroup passes on"

    yield from wave.until(Wait(op, lambda: turns.has_come(op, data, counter, turn), notified))
    wave.lanes_meet()
    turns.take(wave.standpoint, op, data, counter, turn)
    return ()


def pass_turn(wave: WaveState, op: PassTurn) -> None:
    memory, counter = counted(wave, op)
    wave.lanes_meet()
    wave.state.launch.turns.give(wave.standpoint, op, memory.data.reshape(memory.shape), counter)


def counted(wave: WaveState, op: TurnOp) -> tuple[LaneMemory, int]:
    """Return the array of an op's counter, and the counter's position in it."""
    memory: LaneMemory = wave.env[op.turns]
    at = tuple(wave.uniform(op, v) for v in op.at)
    counter = counter_of(wave.state.number, op, memory.data.reshape(memory.shape), at)
    wave.want_waited(op, memory)
    wave.state.note_combined(op, memory, np.array([counter]))
    return memory, counter
