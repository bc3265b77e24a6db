"""The share of read requests that reaches L2, where requests of neighbouring units are merged on the way.

Up to `most` requests for one line from units of one merge group become one, if the first is still in flight when the
others arrive. So two things decide: how long a request is in flight, and how far apart in time its requesters are.

A launch starts in step: in its first wave all requests merge that can. Later, a line that hits in L2 returns soon, and
few requests are in time for it. A line that is fetched from further away is in flight for longer: for the merge group
that asks first, and for the others that ask before it arrives.

A unit waits for its last load. A late reply releases all of its requesters at once, so they also request the next line
together; and a small tile, whose matrix instructions do not cover its loads, waits for every reply. A unit does not
wait for its earlier loads: their requesters drift apart with every stall (on a private miss in the last stream, or on
any reply that the matrix instructions do not cover), and faster by the square of the distance between their units.

A workgroup that starts after the first wave gets whichever unit is free: only runs of workgroups that are consecutive
in the order start together, and merge.
"""

from __future__ import annotations

from math import log1p

import numpy as np

from tilewave.machine import Machine
from tilewave.records import dataclass
from tilewave.sim.accesses import NO_STREAM, Accesses, Array
from tilewave.sim.dispatch import Placed
from tilewave.sim.flows import Flows


@dataclass(frozen=True)
class Sync:
    """How well units stay in step; fitted on the persistent rows of all three files of H200 counters."""

    in_l2: float = 0.413
    """The share of mergeable requests that merge on an L2 hit when nothing has put units into step."""
    under_way: float = 0.408
    """The share of merge groups, after the first to ask for a line, that find it still in flight."""
    stalls: float = 319.0
    """Private stalls after which adjacent units merge half of their earlier loads."""


COVERING_AREA = 128 * 256
"""The products of a tile of this area just cover its loads, 128×256 on Hopper; those of smaller ones do in part."""


def requested_bytes(accesses: Accesses, placed: Placed, machine: Machine, flows: Flows, sync: Sync) -> float:
    """Bytes of reads that reach L2."""
    if machine.merging is None:
        return accesses.asked_bytes
    return sum(reads.requested(sync) for reads in shared_reads(accesses, placed, machine.merging.most, flows))


@dataclass(frozen=True)
class SharedReads:
    """The i-th reads of all tasks: what they ask for, and all that decides how much of it is merged."""

    asked_bytes: float
    first_bytes: float
    """Bytes that merging saves in the first wave, if all units are in step."""
    later_bytes: float
    """Bytes that merging saves in all later waves, if all units are in step."""
    missed: float
    """The share of `later_bytes` that misses in the L2 partition that is asked first."""
    fetched: float
    """The share of `later_bytes` that misses, counting one of the merge groups that share a line."""
    waiting: float
    """The share of a step in which a unit waits for loads, though L2 has them."""
    distance: float
    """Units from one requester to the next."""
    stalls: float | None
    """Stalls of a unit in the whole launch that its requesters do not have; None for the last reads of a task."""

    def requested(self, sync: Sync) -> float:
        """Bytes that reach L2."""
        merged = self.first_bytes + self.later_bytes * self._merged_later(sync)
        return self.asked_bytes - merged * self._together(sync)

    def _merged_later(self, sync: Sync) -> float:
        slow = self.fetched + sync.under_way * (self.missed - self.fetched)
        too_late = (1 - sync.in_l2) * (1 - slow)
        if self.stalls is None:
            not_woken_together = (1 - slow) * (1 - self.waiting)
            return 1 - too_late * not_woken_together
        return 1 - too_late

    def _together(self, sync: Sync) -> float:
        """The mean over a launch of 1 / (1 + x), where x grows evenly from 0 with the stalls."""
        if not self.stalls:
            return 1.0
        most = self.stalls * self.distance**2 / sync.stalls
        return log1p(most) / most


def shared_reads(accesses: Accesses, placed: Placed, most: int, flows: Flows) -> list[SharedReads]:
    """The reads of a launch, by their place in a task."""
    last = accesses.reads.shape[1] - 1
    if last < 0:
        return []
    waiting = max(0.0, 1 - float(np.prod(accesses.tile[:2])) / COVERING_AREA) if accesses.tile else 0.0
    stalls = accesses.tasks / placed.slots * accesses.steps * (_own_misses(accesses, flows, last) + waiting)
    found = []
    for at in range(last + 1):
        sharing = _sharing(accesses, placed, most, flows, at)
        later = sharing.saved_bytes * (sharing.launch_wave > 0)
        found.append(
            SharedReads(
                asked_bytes=float(accesses.read_bytes[:, at].sum()),
                first_bytes=float(sharing.saved_bytes.sum() - later.sum()),
                later_bytes=float(later.sum()),
                missed=_mean(sharing.missed, later),
                fetched=_mean(sharing.fetched, later),
                waiting=waiting,
                distance=max(1.0, _mean(sharing.distance, sharing.saved_bytes)),
                stalls=None if at == last else stalls,
            )
        )
    return found


@dataclass(frozen=True, eq=False)
class _Sharing:
    """For each merge group, wave and stream: bytes saved by merging, and how its requesters miss and are spaced."""

    launch_wave: Array
    saved_bytes: Array
    missed: Array
    fetched: Array
    distance: Array


def _sharing(accesses: Accesses, placed: Placed, most: int, flows: Flows, at: int) -> _Sharing:
    tasks = np.flatnonzero(accesses.reads[:, at] != NO_STREAM)
    stream, walk, slot = accesses.reads[tasks, at], flows.walks.of_read[tasks, at], placed.slot[tasks]
    place = placed.launch_wave * (int(placed.merge_group.max()) + 1) + placed.merge_group
    run = _runs(accesses, placed, at)[tasks]
    key = (place[tasks] * accesses.streams + stream) * (int(run.max(initial=0)) + 1) + run
    _, first, member, together = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    missed = (flows.missed / np.maximum(flows.walks.size, 1.0))[walk]
    groups_of_walk = np.bincount(np.unique(member * len(flows.walks) + walk) % len(flows.walks))
    lowest, highest = (np.full(len(first), end) for end in (placed.slots, 0))
    np.minimum.at(lowest, member, slot)
    np.maximum.at(highest, member, slot)
    return _Sharing(
        launch_wave=placed.launch_wave[tasks][first],
        saved_bytes=(together - np.ceil(together / most)) * accesses.stream_bytes[stream[first]],
        missed=np.bincount(member, missed) / together,
        fetched=np.bincount(member, missed / groups_of_walk[walk]) / together,
        distance=(highest - lowest) / np.maximum(together - 1, 1),
    )


def _runs(accesses: Accesses, placed: Placed, at: int) -> Array:
    """Return a number for each run of workgroups that read one stream and start after the first wave; else 0."""
    order = np.lexsort((placed.slot, placed.launch_wave))
    stream = accesses.reads[order, at]
    run = np.empty_like(order)
    run[order] = 1 + np.cumsum(np.diff(stream, prepend=stream[:1]) != 0)
    return np.where(placed.launch_wave > accesses.turn, run, 0)


def _own_misses(accesses: Accesses, flows: Flows, at: int) -> float:
    """Return the share of the tasks' at-th reads that misses, each line counted for one requester."""
    walks = np.unique(flows.walks.of_read[:, at])
    asked = float(accesses.read_bytes[:, at].sum())
    return float(flows.missed[walks[walks >= 0]].sum()) / asked if asked else 0.0


def _mean(values: Array, weights: Array) -> float:
    total = float(weights.sum())
    return float(values @ weights) / total if total else 0.0
