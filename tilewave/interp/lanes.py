"""The interpreter of the lane level, in numpy: it runs waves in any order, and finds whatever depends on that order.

Each wave of a workgroup runs until it must wait, or for a few accesses; then another wave runs. Findings do not depend
on the order of the run, because accesses are judged by happens-before and not by which happened to run first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from math import prod

import numpy as np

from tilewave.errors import CallError, EndlessLoop, InterpreterError
from tilewave.interp.arithmetic import Array
from tilewave.interp.memory import LaneMemory, Race
from tilewave.interp.numbers import DTYPE_NUMBERS, Numbers
from tilewave.interp.positions import RegisterOffsets
from tilewave.interp.tile_run import InterpretedCall, TrackedMemory
from tilewave.interp.wave import WITHOUT_END, Running, WaveRun
from tilewave.interp.workgroup import ClusterState, WorkgroupState, argument_memory
from tilewave.ir.core import Kernel

ENDED = ""
LONGEST_STRETCH = 5
"""The most accesses of a wave before a random order may switch to another wave."""

Pick = Callable[[list[WaveRun], np.random.Generator], WaveRun]


def interpret_lanes(
    kernel: Kernel,
    arrays: Sequence[Array],
    symbols: Mapping[str, float],
    order: str = "in turn",
    seed: int = 0,
    workgroups: Iterable[int] | None = None,
    numbers: Numbers = DTYPE_NUMBERS,
) -> None:
    """Run every workgroup, or those given and their clusters; results are kept only if no error is found.

    `arrays` hold what `numbers` holds for their dtypes.
    """
    if order not in ORDERS:
        raise CallError(f"no order of waves is called {order!r}; the orders are {', '.join(ORDERS)}")
    assert kernel.level == "lane" and kernel.waves and kernel.lanes, f"{kernel.name} is not at the lane level"
    launch = InterpretedCall(kernel, arrays, symbols, numbers)
    run = _LaneInterpreter(launch, ORDERS[order], np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        wanted = range(kernel.workgroup_count) if workgroups is None else workgroups
        for first in dict.fromkeys(w // kernel.cluster * kernel.cluster for w in wanted):
            run.run_cluster(first)
    if workgroups is None:
        run.launch.want_all_taken()
    run.launch.keep()


def _in_turn(waves: list[WaveRun], random: np.random.Generator) -> WaveRun:
    return waves[0]


def _backwards(waves: list[WaveRun], random: np.random.Generator) -> WaveRun:
    return waves[-1]


def _at_random(waves: list[WaveRun], random: np.random.Generator) -> WaveRun:
    wave = waves[random.integers(len(waves))]
    # Half the time a wave runs as far as it can, because waves that are far apart show other errors than close ones.
    wave.stretch = int(random.integers(1, LONGEST_STRETCH + 1)) if random.integers(2) else WITHOUT_END
    return wave


ORDERS: dict[str, Pick] = {"in turn": _in_turn, "backwards": _backwards, "random": _at_random}


class _LaneInterpreter:
    """Runs workgroups one after the other, those of a cluster concurrently, with waves in some order."""

    def __init__(self, launch: InterpretedCall, pick: Pick, random: np.random.Generator) -> None:
        self.launch, self.pick, self.random = launch, pick, random
        self.kernel = launch.kernel
        self.waves = prod(self.kernel.waves)
        self.registers: dict[int, RegisterOffsets] = {}
        self.arguments = {
            value: argument_memory(x, self.waves * self.kernel.cluster, launch.numbers)
            if isinstance(x, TrackedMemory)
            else x
            for value, x in launch.env.items()
        }

    def run_cluster(self, first: int) -> None:
        state = ClusterState(self.launch, self.arguments, first, self.waves)
        try:
            self.run_waves(state)
            _want_all_known(state)
            for member in state.members:
                self.launch.turns.want_passed(member.number)
                _want_all_read(member)
        except Race:
            raise
        except (InterpreterError, EndlessLoop):
            if state.ledger.suspicion is not None:  # the cause: a read of uninitialized memory
                raise state.ledger.suspicion from None
            raise
        if state.ledger.suspicion is not None:
            raise state.ledger.suspicion
        for memory in self.arguments.values():
            if isinstance(memory, LaneMemory):
                memory.forget()

    def run_waves(self, state: ClusterState) -> None:
        waves = [WaveRun(number, member, self.registers) for member in state.members for number in range(self.waves)]
        running: list[Running] = [wave.run(self.kernel.body) for wave in waves]
        while ready := self.ready(state, waves):
            next(running[self.pick(ready, self.random).index], None)
        if not all(wave.has_ended for wave in waves):
            raise _deadlock(state, waves)

    def ready(self, state: ClusterState, waves: list[WaveRun]) -> list[WaveRun]:
        """Return the waves that can run, after completing some copies at random, or as many as it takes."""
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


def _want_all_known(state: ClusterState) -> None:
    for asked in (one for here in state.asked.values() for one in here.values()):
        if asked.box is not None:
            raise InterpreterError(
                f"{asked.who} loads a part of a multicast box, and the others are never loaded", loc=asked.op.loc
            )
    late = state.never_waited_for()
    if late is not None and late.from_outside:
        raise InterpreterError(
            f"workgroup {late.there.number} may have ended when {late.who} accesses it",
            loc=late.op.loc,
            remedy="a cluster_barrier must be after it, so that both end together",
        )
    if late is not None:
        raise InterpreterError(
            f"workgroup {late.there.number} may have ended when the copy of {late.who} arrives in its shared memory",
            loc=late.op.loc,
            remedy="a wait_mbarrier of its mbarrier must be after it",
        )


def _deadlock(state: ClusterState, waves: list[WaveRun]) -> InterpreterError:
    notified = [wave.wait.notified() if wave.wait else ENDED for wave in waves]
    lines = [_sentence(list(group), what) for what, group in groupby(waves, key=lambda wave: notified[wave.index])]
    first = next(wave.wait for wave in waves if wave.wait)
    numbers = " or ".join(str(member.number) for member in state.members)
    return InterpreterError(f"no wave of workgroup {numbers} can go on", loc=first.op.loc, remedy="\n".join(lines))


def _sentence(waves: list[WaveRun], notified: str) -> str:
    """Return a sentence on what neighbouring waves do, for the message of a deadlock."""
    who = waves[0].name if len(waves) == 1 else f"waves {waves[0].number} to {waves[-1].name.removeprefix('wave ')}"
    if notified == ENDED:
        return f"{who} {'has' if len(waves) == 1 else 'have'} ended"
    return f"{who} {'waits' if len(waves) == 1 else 'wait'} {notified}"
