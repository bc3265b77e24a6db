"""The lane level run in numpy: wave by wave in any order, finding whatever depends on that order.

Each wave of a workgroup runs until it must wait, or for a few accesses; then another does. What is found does not
depend on the order, because it is judged by who is known to come before whom and not by who happened to run first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from math import prod

import numpy as np

from tilewave.errors import CallError, EndlessLoop, InterpreterError
from tilewave.ir.arithmetic import Array
from tilewave.ir.core import Kernel
from tilewave.ir.interp import Buffer, Launch
from tilewave.ir.lane_memory import LaneMemory, Race
from tilewave.ir.lane_positions import Registers
from tilewave.ir.lane_wave import WITHOUT_END, Running, WaveRun
from tilewave.ir.lane_workgroup import WorkgroupState, argument_memory

ENDED = ""
LONGEST_STRETCH = 5
"""Accesses that a wave makes at most before a random order may switch to another."""

Pick = Callable[[list[WaveRun], np.random.Generator], WaveRun]


def interpret_lanes(
    kernel: Kernel,
    arrays: Sequence[Array],
    symbols: Mapping[str, int],
    order: str = "in turn",
    seed: int = 0,
    workgroups: Iterable[int] | None = None,
) -> None:
    """Run every workgroup, or those given; what they write is kept if all is well."""
    if order not in ORDERS:
        raise CallError(f"no order of waves is called {order!r}; the orders are {', '.join(ORDERS)}")
    assert kernel.level == "lane" and kernel.waves and kernel.lanes, f"{kernel.name} is not at the lane level"
    run = _LaneInterpreter(Launch(kernel, arrays, symbols), ORDERS[order], np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        for w in range(kernel.workgroups) if workgroups is None else workgroups:
            run.run_workgroup(w)
    if workgroups is None:
        run.launch.want_all_taken()
    run.launch.keep()


def _in_turn(waves: list[WaveRun], random: np.random.Generator) -> WaveRun:
    return waves[0]


def _backwards(waves: list[WaveRun], random: np.random.Generator) -> WaveRun:
    return waves[-1]


def _at_random(waves: list[WaveRun], random: np.random.Generator) -> WaveRun:
    wave = waves[random.integers(len(waves))]
    # Half the time a wave runs as far as it can: waves that are far apart show other mistakes than close ones.
    wave.stretch = int(random.integers(1, LONGEST_STRETCH + 1)) if random.integers(2) else WITHOUT_END
    return wave


ORDERS: dict[str, Pick] = {"in turn": _in_turn, "backwards": _backwards, "random": _at_random}


class _LaneInterpreter:
    """Runs workgroups one after the other, and the waves of each in some order."""

    def __init__(self, launch: Launch, pick: Pick, random: np.random.Generator) -> None:
        self.launch, self.pick, self.random = launch, pick, random
        self.kernel = launch.kernel
        self.waves = prod(self.kernel.waves)
        self.registers: dict[int, Registers] = {}
        self.arguments = {
            value: argument_memory(x, self.waves) if isinstance(x, Buffer) else x for value, x in launch.env.items()
        }

    def run_workgroup(self, w: int) -> None:
        self.launch.workgroup = w
        state = WorkgroupState(self.launch, self.arguments, self.waves, self.kernel.lanes)
        try:
            self.run_waves(state)
            _want_all_read(state)
        except Race:
            raise
        except (InterpreterError, EndlessLoop):
            if state.ledger.suspicion is not None:  # whatever followed from memory that nobody wrote
                raise state.ledger.suspicion from None
            raise
        if state.ledger.suspicion is not None:
            raise state.ledger.suspicion
        for memory in self.arguments.values():
            if isinstance(memory, LaneMemory):
                memory.forget()

    def run_waves(self, state: WorkgroupState) -> None:
        waves = [WaveRun(number, state, self.registers) for number in range(self.waves)]
        running: list[Running] = [wave.run(self.kernel.body) for wave in waves]
        while ready := self.ready(state, waves):
            next(running[self.pick(ready, self.random).number], None)
        if not all(wave.has_ended for wave in waves):
            raise _deadlock(state, waves)

    def ready(self, state: WorkgroupState, waves: list[WaveRun]) -> list[WaveRun]:
        """The waves that can run now; some copies have landed in between, and all do before nobody can run."""
        for copy in tuple(state.copies):
            if self.random.integers(2):
                state.land(copy)
        while not (found := [wave for wave in waves if wave.can_run]) and state.copies:
            state.land(state.copies[self.random.integers(len(state.copies))])
        return found


def _want_all_read(state: WorkgroupState) -> None:
    for memory in state.allocations.values():
        if memory.last_write is not None and not memory.was_read:
            raise InterpreterError(
                f"workgroup {state.number} writes {memory.name} and never reads it",
                loc=memory.last_write.op.loc,
                remedy="leave the write out, or read what it stores",
            )


def _deadlock(state: WorkgroupState, waves: list[WaveRun]) -> InterpreterError:
    told = [wave.wait.told() if wave.wait else ENDED for wave in waves]
    lines = [_sentence(list(group), what) for what, group in groupby(range(len(told)), key=told.__getitem__)]
    first = next(wave.wait for wave in waves if wave.wait)
    return InterpreterError(f"no wave of workgroup {state.number} can go on", loc=first.op.loc, remedy="\n".join(lines))


def _sentence(waves: list[int], told: str) -> str:
    """What neighbouring waves do."""
    who = f"wave {waves[0]}" if len(waves) == 1 else f"waves {waves[0]} to {waves[-1]}"
    if told == ENDED:
        return f"{who} {'has' if len(waves) == 1 else 'have'} ended"
    return f"{who} {'waits' if len(waves) == 1 else 'wait'} {told}"
