"""The counters that s_waitcnt waits for: one for each queue of a wave's memory operations."""

from __future__ import annotations

import numpy as np

from tilewave.emulator.numbers import I32

VECTOR, SCALAR = 0, 1
"""The two queues: vmcnt counts vector memory, lgkmcnt scalar loads, which come in any order."""


class WaitCounters:
    """How many operations of each queue a wave has issued, and how many of them it knows to be over."""

    def __init__(self, waves: int) -> None:
        self.issued, self.done = np.zeros((2, waves), I32), np.zeros((2, waves), I32)
