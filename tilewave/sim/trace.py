"""The trace engine: the walks of the closed form, simulated slab by slab through caches of lines; slower, no averages.

Without numba it refuses problems that would take minutes.
"""

from __future__ import annotations

import numpy as np

from tilewave.machine import Machine
from tilewave.sim import lru
from tilewave.sim.accesses import Accesses, Array
from tilewave.sim.calibration import MANY_LOOKS, Softness
from tilewave.sim.dispatch import Placed, Residency
from tilewave.sim.flows import Flows, OwnWalks, own_walks
from tilewave.sim.problem import SimError

MOST_SLABS = 32
"""A stream of more steps is cut into this many slabs: a finer cut changes bytes by less than two cards differ."""
MOST_LINES = 1 << 26
MOST_TOUCHES_IN_PYTHON = 400_000


def trace(accesses: Accesses, placed: Placed, machine: Machine, residency: Residency, softness: Softness) -> Flows:
    """The traffic of a launch, as caches with lines would have it: LRU, or such as look before they evict."""
    if residency.skew_steps:
        raise SimError(
            "the trace engine keeps resident workgroups in step", remedy='leave skew_steps out, or use engine="closed"'
        )
    walks = own_walks(accesses, placed)
    slabs = min(accesses.steps, MOST_SLABS)
    looks = round(softness.looks) if machine.l2.partitions > 1 and softness.looks < MANY_LOOKS else lru.ALL
    tracer = _Tracer(accesses, placed, machine, walks, slabs, looks)
    missed, crossed, asked, hbm = tracer.run(softness.share, 1.0).T
    narrow, wide = (float(tracer.run(f, f)[:, lru.HBM].sum()) for f in (softness.narrow, softness.wide))
    return Flows(walks, missed, crossed, asked, hbm, narrow, wide)


class _Tracer:
    """A launch made ready for `run_trace`."""

    def __init__(
        self, accesses: Accesses, placed: Placed, machine: Machine, walks: OwnWalks, slabs: int, looks: int
    ) -> None:
        self.looks, self.machine, self.walks, self.slabs = looks, machine, walks, slabs
        self.streams = accesses.streams
        self.backwards = placed.backwards
        self.bounds = np.searchsorted(walks.launch_wave, np.arange(placed.launch_waves + 1))
        held = machine.l2.holds_writes
        order = np.argsort(placed.launch_wave, kind="stable") if held else np.zeros(0, np.int64)
        self.write_bounds = np.searchsorted(placed.launch_wave[order], np.arange(placed.launch_waves + 1))
        self.write_domain, self.write_size = placed.domain[order], accesses.written_bytes[order]
        self.lines = machine.l2.partitions * (accesses.streams * slabs + len(order))
        self._check()

    def _check(self) -> None:
        total = self.lines * (self.machine.domains + 1)
        if total > MOST_LINES:
            raise SimError(
                f"a trace of this launch would follow {total:,} lines; at most {MOST_LINES:,} are followed",
                remedy='use engine="closed", larger tiles or a part of the matrix',
            )
        touches = len(self.walks) * self.slabs * self.machine.l2.partitions
        if touches > MOST_TOUCHES_IN_PYTHON and lru.numba is None:
            raise SimError(
                f"a trace of {touches:,} accesses takes minutes without numba",
                remedy='pip install tilewave[sim], or use engine="closed"',
            )

    def run(self, l2_factor: float, last_factor: float) -> Array:
        """Return bytes as [walk, (missed, crossed, asked of memory, HBM)], with capacities scaled by the factors."""
        machine, last = self.machine, self.machine.last_level
        flows = np.zeros((len(self.walks), 4))
        older, newer, held, used = lru.empty_lists(machine.domains, self.lines)
        last_older, last_newer, last_held, last_used = lru.empty_lists(1, self.lines if last else 0)
        lru.run_trace(
            self.bounds,
            self.backwards,
            self.walks.domain,
            self.walks.stream,
            self.walks.size,
            self.write_bounds,
            self.write_domain,
            self.write_size,
            self.looks,
            machine.l2.partitions,
            self.streams,
            self.slabs,
            float(l2_factor * machine.l2.bytes / machine.l2.partitions),
            float(last_factor * last.bytes) if last else 0.0,
            older,
            newer,
            held,
            np.zeros(held.shape if self.looks else (machine.domains, 1), np.int64),
            used,
            last_older[0],
            last_newer[0],
            last_held[0],
            last_used[0],
            flows,
        )
        return flows
