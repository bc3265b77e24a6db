"""What the waves of a workgroup share: memories, signals, the barrier, and copies that are under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewave.ir.arithmetic import Array
from tilewave.ir.core import Op, Value
from tilewave.ir.interp import Buffer, Launch
from tilewave.ir.lane_memory import Access, LaneMemory, Ledger
from tilewave.ir.lane_signals import SignalArray
from tilewave.ir.ops import Barrier, Meet


@dataclass(frozen=True)
class Wait:
    """Where a wave stands still, until when, and how that is told."""

    op: Op
    is_over: Callable[[], bool]
    told: Callable[[], str]


@dataclass
class Copy:
    """A copy under way; it may land at any time."""

    segment: int
    """The segment of its reads where it goes out, of its writes where it comes in."""
    land: Callable[[], None]
    has_landed: bool = False


class WorkgroupState:
    """Everything of one workgroup that is not a wave's own."""

    def __init__(self, launch: Launch, arguments: dict[Value, Any], waves: int, lanes: int) -> None:
        self.launch, self.arguments = launch, arguments
        self.waves, self.lanes = waves, lanes
        self.ledger = Ledger(waves)
        self.allocations: dict[Value, LaneMemory] = {}
        self.signals: dict[Value, SignalArray] = {}
        self.at_barrier: dict[int, Op] = {}
        self.copies: list[Copy] = []

    @property
    def number(self) -> int:
        return self.launch.workgroup

    def allocate(self, value: Value) -> LaneMemory:
        if value not in self.allocations:
            self.allocations[value] = LaneMemory.shared(value, self.waves)
        return self.allocations[value]

    def overlay(self, under: Value, memory: LaneMemory, value: Value) -> LaneMemory:
        if value not in self.allocations:
            self.allocations[value] = memory.overlaid(under, value)
        return self.allocations[value]

    def make_signals(self, op: Op, arrivals: int, wave: int, maker: int) -> SignalArray:
        """All waves come here, and one of them makes the signals."""
        if op.result not in self.signals:
            self.signals[op.result] = SignalArray.of(op.result, op, maker, arrivals)
        made = self.signals[op.result]
        if wave == maker and made.made_in is None:
            made.made_in = self.ledger.clocks.current[wave]
        return made

    # -- memory

    def note_read(self, memory: LaneMemory, access: Access, flat: Array) -> None:
        memory.note_read(self.ledger, access, flat)
        if memory.buffer is not None and memory.buffer.writer is not None:
            self.launch.note_read(access.op, memory.buffer, np.unravel_index(flat, memory.shape))

    def note_write(self, memory: LaneMemory, access: Access, flat: Array, new: Array | None) -> None:
        memory.note_write(self.ledger, access, flat, new)
        if memory.buffer is not None:
            self.launch.note_write(access.op, memory.buffer, np.unravel_index(flat, memory.shape))

    # -- waves that wait for each other

    def come_to_barrier(self, wave: int, op: Barrier) -> None:
        self.at_barrier[wave] = op
        count = op.waves or self.waves
        those = range(wave // count * count, wave // count * count + count)
        others = (self.at_barrier.get(other) for other in those)
        if all(other is op or (isinstance(op, Meet) and isinstance(other, Meet)) for other in others):
            for other in those:
                del self.at_barrier[other]
            self.ledger.clocks.barrier(those)

    def land(self, copy: Copy) -> None:
        copy.has_landed = True
        self.copies.remove(copy)
        copy.land()


def argument_memory(buffer: Buffer, waves: int) -> LaneMemory:
    """A global memory; only what the kernel writes is stamped."""
    data = np.ascontiguousarray(buffer.data)
    memory = LaneMemory(buffer.value, data, waves, buffer)
    if buffer.writer is not None:
        assert data is buffer.data, "an output is a copy of its own, in rows"
        memory.table("writer", 1)
    return memory
