"""How long workgroups wait for their turns: the steps that a sum across workgroups takes in an order of workgroups.

    workgroup 0   | tile 0 | tile 1 | tile 2 |            each takes a step for a tile, and then adds to it;
    workgroup 1   | tile 0 |~~~| tile 1 | tile 2 |        the next one may add when it has heard of that

Workgroups start in the order of their numbers, each where another has ended, and wait for lower numbers only: so one
pass over them, from the lowest, gives the time of every turn. Time is counted in steps; no machine is modelled.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from tilewave.analysis.turns import TakenTurns, turns_taken
from tilewave.ir.launch import bind
from tilewave.records import dataclass

HAND_OVER = 2.2
"""The steps after an addition until the next workgroup may add: in a prototype on an H200, 5 microseconds."""


@dataclass(frozen=True)
class TurnWaits:
    """The steps until the last workgroup ends, and those that it would take if none waited for a turn."""

    steps: float
    without_waits: float

    @property
    def share(self) -> float:
        """The share of the time that is left without waits, 1 where there are none."""
        return self.without_waits / self.steps if self.steps else 1.0


def turn_waits(compiled: Any, at_once: int, hand_over: float = HAND_OVER, **sizes: int) -> TurnWaits:
    """Return how long a compiled kernel with turns takes for these sizes, with `at_once` workgroups on the chip."""
    (taken,) = turns_taken(bind(compiled.kernel, sizes), sizes).values()
    return TurnWaits(_ends(taken, at_once, hand_over), _ends(taken, at_once, -np.inf))


def _ends(taken: TakenTurns, at_once: int, hand_over: float) -> float:
    counters = np.ravel_multi_index(tuple(taken.at.T), taken.shape)
    order = np.argsort(taken.workgroup, kind="stable")
    begins = np.flatnonzero(np.diff(taken.workgroup[order], prepend=-1))
    added: dict[int, float] = {}
    free = [0.0] * at_once
    for places in np.split(counters[order], begins[1:]):
        now = heapq.heappop(free)
        for place in places.tolist():
            now = max(now + 1, added.get(place, -np.inf) + hand_over)
            added[place] = now
        heapq.heappush(free, now)
    return max(free)
