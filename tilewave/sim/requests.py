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
    count = accesses.reads.shape[1]
    if machine.merging is None or count == 0:
        return accesses.asked_bytes
    first_tile = min(1.0, placed.seats / accesses.tasks)
    total = 0.0
    for at in range(count):
        left = _share_left(accesses, placed, machine.merging.most, at)
        later = _reached(accesses, placed, flows, sync, at)
        reached = first_tile + (1 - first_tile) * later
        total += float(accesses.read_bytes[:, at].sum()) * (1 - reached * (1 - left))
    return total


def _share_left(accesses: Accesses, placed: Placed, most: int, at: int) -> float:
    """Requests left of each one asked, if all units are in step."""
    stream = accesses.reads[:, at]
    groups = int(placed.merge_group.max()) + 1
    place = placed.beat * groups + placed.merge_group
    key = (place * accesses.streams + stream)[stream != NO_STREAM]
    together = np.unique(key, return_counts=True)[1]
    return float(np.ceil(together / most).sum()) / max(1, int(together.sum()))


def _reached(accesses: Accesses, placed: Placed, flows: Flows, sync: Sync, at: int) -> float:
    """Of the merging that is possible of the at-th reads, what is reached after the first tile."""
    last = accesses.reads.shape[1] - 1
    if at == last:
        return _mixed(sync.neighbours_in_l2, _missed(flows, last))
    steps = accesses.tasks / placed.seats * accesses.steps
    launched = np.lexsort((placed.seat, placed.beat))
    if _kept(accesses, launched, 0) > _kept(accesses, launched, last):
        return float(1 / (1 + np.sqrt(steps * _missed(flows, last) / sync.own_misses)))
    area = float(np.prod(accesses.tile[:2])) if accesses.tile else REFERENCE_AREA
    half = sync.steps * (area / REFERENCE_AREA) ** AREA_POWER
    return _mixed(sync.in_l2, _missed(flows, at)) * (sync.floor + (1 - sync.floor) / (1 + steps / half))


def _mixed(in_l2: float, missed: float) -> float:
    return in_l2 + (1 - in_l2) * missed


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
