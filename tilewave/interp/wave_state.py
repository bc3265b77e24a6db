"""The state of a wave that runs the lane level's ops."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NoReturn

import numpy as np

from tilewave.errors import InterpreterError
from tilewave.interp.arithmetic import Array
from tilewave.interp.memory import LaneMemory, WaveAccess
from tilewave.interp.positions import RegisterOffsets, of_shape
from tilewave.interp.turns import Standpoint
from tilewave.interp.workgroup import CopyUnderWay, Wait, WorkgroupState
from tilewave.ir.core import Op, Value

Waiting = Generator[None, None, tuple[Any, ...]]
"""An op in steps: it yields wherever another wave may run."""


class WaveState:
    """A wave of a workgroup: its values, its position in the program, and what it waits for or has started."""

    def __init__(self, number: int, state: WorkgroupState, registers: dict[int, RegisterOffsets]) -> None:
        self.number, self.state, self.numbers = number, state, state.launch.numbers
        self.index = state.first + number
        """The wave's number among all waves of the cluster."""
        self.env: dict[Value, Any] = dict(state.arguments)
        self.path: tuple[int, ...] = ()
        """The position in the program of the current block: op, iteration, op, iteration, …"""
        self.place = 0
        """The number of the current op in that block."""
        self.leader = 0
        """The first of the waves that run this block."""
        self.meeting = next(state.launch.meetings)
        """The number of the last op at which the lanes of this wave synchronized."""
        self.wait: Wait | None = None
        self.loading: dict[Value, int] = {}
        """Loads from memory that copies fill, with the segments of their reads until something waits for them."""
        self.sent: list[tuple[CopyUnderWay, ...]] = []
        """TMA stores in the order in which this wave started them; one tuple for each bulk group."""
        self.joined: tuple[CopyUnderWay, ...] = ()
        """TMA stores of the bulk group that is not committed yet."""
        self.loaded: list[tuple[CopyUnderWay, int]] = []
        """Asynchronous copies that this wave started, in order, with their bytes."""
        self.may_touch = not state.launch.uses_pdl
        """Whether this wave may access global memory; with PDL, earlier kernels may still write it."""
        self.registers = registers
        """Register offsets per op, by its id: they are the same for all waves."""
        self.products = 0
        """How many MMAs this wave made with its warpgroup."""
        self.begun: list[tuple[Value, int]] = []
        """Sums of asynchronous MMAs in flight, in order, with the segments of their reads."""

    @property
    def name(self) -> str:
        alone = len(self.state.cluster.members) == 1
        return f"wave {self.number}" if alone else f"wave {self.number} of workgroup {self.state.number}"

    @property
    def standpoint(self) -> Standpoint:
        """Where this wave is, and what it knows now of accesses to global memory."""
        clocks = self.state.ledger.clocks
        known = clocks.known(self.index, "global")[: clocks.count].copy()
        return Standpoint(self.state.number, clocks.current[self.index], known)

    def access(self, op: Op, verb: str, segment: int | None = None) -> WaveAccess:
        """Return an access of this wave, made now, or, with `segment`, made asynchronously for it."""
        place, copied = (*self.path, self.place), segment is not None
        when = self.state.ledger.clocks.current[self.index] if segment is None else segment
        return WaveAccess(op, self.index, place, when, verb, copied, self.name, self.meeting)

    def fail(self, op: Op, why: str, remedy: str = "") -> NoReturn:
        raise InterpreterError(why, loc=op.loc, remedy=remedy)

    def uniform(self, op: Op, value: Value) -> Any:
        return self.agreed(op, self.env[value])

    def every_lane(self, value: Value) -> Array:
        return of_shape(self.env[value], (self.state.lanes, *value.type.shape))

    def each_register(self, value: Value) -> Array:
        """Return a vector as lanes x registers, in the vector's order."""
        return self.every_lane(value).reshape(self.state.lanes, -1)

    def agreed(self, op: Op, x: Any) -> Any:
        """Return the number that all lanes hold; raise where they differ."""
        if not isinstance(x, np.ndarray):
            return x
        other = np.flatnonzero(x != x[0])
        if len(other):
            lanes = f"lanes 0 and {other[0]} of wave {self.number}"
            self.fail(op, f"{op.name}: {lanes} say {x[0]} and {x[other[0]]}, and must agree")
        return x[0].item()

    def lanes_meet(self) -> None:
        """Order what lanes of this wave did before what its lanes do next."""
        self.meeting = next(self.state.launch.meetings)

    def end_loads(self) -> None:
        """At a barrier, synchronize the lanes of this wave and complete their loads."""
        self.lanes_meet()
        self.state.ledger.clocks.learn(self.index, list(self.loading.values()))
        self.loading.clear()

    def until(self, wait: Wait) -> Generator[None, None, None]:
        """Let other waves run until a wait is over."""
        while not wait.is_over():
            self.wait = wait
            yield
        self.wait = None

    def want_waited(self, op: Op, memory: LaneMemory) -> None:
        """Refuse accesses to global memory before the wait for earlier kernels, where the kernel uses PDL."""
        if memory.buffer is not None and not self.may_touch:
            self.fail(
                op,
                f"wave {self.number} touches {memory.name} while earlier kernels may still run",
                "wait_prior_launch() must be before it",
            )
