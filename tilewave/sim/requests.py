"""How much of what workgroups ask for reaches L2, where requests of neighbouring units are merged on the way.

Up to `most` requests for one line from units of one merge group become one, if the first is still under way when the
others come. So three things decide. A launch begins in step: in its first tile all merge that can. Later, a line that
L2 has is back soon and few are in time for it; one that is fetched from further away is under way for longer. And
units drift apart. Workgroups next to each other in the order stay in step through the stream they share, for each
merged reply wakes them together, where that is the stream asked for last; where it is the first, each waits for a last
stream of its own, and every miss there is a step of a random walk. Workgroups further apart merge less the longer a
launch takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import sqrt

import numpy as np

from tilewave.machine import Machine
from tilewave.sim.accesses import NO_STREAM, Accesses, Array
from tilewave.sim.dispatch import Placed
from tilewave.sim.flows import Flows


@dataclass(frozen=True)
class Sync:
    """How well units stay in step; fitted on the persistent rows of both files of H200 counters."""

    steps: float = 198.0
    """Steps in which those further apart lose half of their merging, for tiles of 128×256; see AREA_POWER."""
    floor: float = 0.074
    """What is left of it after a long launch."""
    in_l2: float = 0.322
    """Of the merging of lines that come from further away, what those further apart reach for lines that L2 has."""
    neighbours_in_l2: float = 0.797
    """The same for neighbours."""
    own_misses: float = 103.0
    """Steps with a miss of their own after which neighbours that share the first stream have lost half."""


REFERENCE_AREA = 128 * 256
AREA_POWER = 4
"""Small tiles wait for loads rather than for products: `Sync.steps` falls with this power of a tile's area."""


def requested_bytes(accesses: Accesses, placed: Placed, machine: Machine, flows: Flows, sync: Sync) -> float:
    """Bytes of reads that reach L2."""
    if machine.merging is None:
        return accesses.asked_bytes
    return sum(reads.requested(sync) for reads in shared_reads(accesses, placed, machine.merging.most, flows))


class Sharers(Enum):
    """Who reads the same stream at a time."""

    NEIGHBOURS = "those next to each other in the order, and it is what each asks for last"
    NEIGHBOURS_FIRST = "those next to each other, and each then asks for a stream of its own"
    APART = "those further apart in the order"


@dataclass(frozen=True)
class SharedReads:
    """The i-th reads of all tasks: what they ask for, and all that decides how much of it is merged."""

    asked_bytes: float
    left: float
    """Requests left of each one asked, if all units are in step."""
    sharers: Sharers
    missed: float
    """The share that is not in the L2 partition that is asked first."""
    last_missed: float
    """The same of the last reads."""
    steps: float
    """Of a unit, in the whole launch."""
    first_tile: float
    """The share of the launch that is the first tile of each unit."""
    area: float
    """Of a tile, in those of 128×256."""

    def requested(self, sync: Sync) -> float:
        """Bytes that reach L2."""
        reached = self.first_tile + (1 - self.first_tile) * self._reached_later(sync)
        return self.asked_bytes * (1 - reached * (1 - self.left))

    def _reached_later(self, sync: Sync) -> float:
        match self.sharers:
            case Sharers.NEIGHBOURS:
                return _mixed(sync.neighbours_in_l2, self.missed)
            case Sharers.NEIGHBOURS_FIRST:
                return 1 / (1 + sqrt(self.steps * self.last_missed / sync.own_misses))
            case Sharers.APART:
                in_step = sync.floor + (1 - sync.floor) / (1 + self.steps / (sync.steps * self.area**AREA_POWER))
                return _mixed(sync.in_l2, self.missed) * in_step


def _mixed(in_l2: float, missed: float) -> float:
    return in_l2 + (1 - in_l2) * missed


def shared_reads(accesses: Accesses, placed: Placed, most: int, flows: Flows) -> list[SharedReads]:
    """The reads of a launch, by their place in a task."""
    last = accesses.reads.shape[1] - 1
    launched = np.lexsort((placed.seat, placed.beat))
    first_is_kept = last >= 0 and _kept(accesses, launched, 0) > _kept(accesses, launched, last)
    others = Sharers.NEIGHBOURS_FIRST if first_is_kept else Sharers.APART
    missed = [_missed(flows, at) for at in range(last + 1)]
    return [
        SharedReads(
            asked_bytes=float(accesses.read_bytes[:, at].sum()),
            left=_share_left(accesses, placed, most, at),
            sharers=Sharers.NEIGHBOURS if at == last else others,
            missed=missed[at],
            last_missed=missed[last],
            steps=accesses.tasks / placed.seats * accesses.steps,
            first_tile=min(1.0, placed.seats / accesses.tasks),
            area=float(np.prod(accesses.tile[:2])) / REFERENCE_AREA if accesses.tile else 1.0,
        )
        for at in range(last + 1)
    ]


def _share_left(accesses: Accesses, placed: Placed, most: int, at: int) -> float:
    """Requests left of each one asked, if all units are in step."""
    stream = accesses.reads[:, at]
    groups = int(placed.merge_group.max()) + 1
    place = placed.beat * groups + placed.merge_group
    key = (place * accesses.streams + stream)[stream != NO_STREAM]
    together = np.unique(key, return_counts=True)[1]
    return float(np.ceil(together / most).sum()) / max(1, int(together.sum()))


def _missed(flows: Flows, at: int) -> float:
    """The share of the at-th reads' walks that is not in the L2 partition that is asked first."""
    walks = np.unique(flows.walks.of_read[:, at])
    walks = walks[walks >= 0]
    asked = float(flows.walks.size[walks].sum())
    return float(flows.missed[walks].sum()) / asked if asked else 0.0


def _kept(accesses: Accesses, launched: Array, at: int) -> float:
    """How often a task reads the same stream as the one before it in the order."""
    stream = accesses.reads[launched, at]
    return float((np.diff(stream) == 0).mean()) if len(stream) > 1 else 0.0
