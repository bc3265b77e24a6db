"""How much of what workgroups ask for reaches L2, where requests of neighbouring units are merged on the way.

Up to `most` requests for one line from units of one merge group become one, if the first is still under way when the
others come. So two things decide: how long a request is under way, and how far apart in time its sharers are.

A launch begins in step: in its first beat all merge that can. Later, a line that L2 has is back soon, and few are in
time for it. One that is fetched from further away is under way for longer: for the merge group that asks first, and for
those others that come before it is there.

What a unit asks for last it waits for. A reply that took long wakes all of its sharers at once, so they ask for the
next line together as well; and a small tile, whose products do not cover its loads, waits for every reply. What a unit
asks for before that is not what it waits for: its sharers go apart by every stall, on a miss of their own in the last
stream or on any reply that products do not cover, and the sooner by the square of the distance at which they sit.

Where a workgroup begins after the first beat, its unit is whichever is free: only runs of workgroups that follow each
other in the order begin together, and merge.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log1p

import numpy as np

from tilewave.machine import Machine
from tilewave.sim.accesses import NO_STREAM, Accesses, Array
from tilewave.sim.dispatch import Placed
from tilewave.sim.flows import Flows


@dataclass(frozen=True)
class Sync:
    """How well units stay in step; fitted on the persistent rows of all three files of H200 counters."""

    in_l2: float = 0.413
    """Of requests that could merge, the share that does though L2 has the line and nothing brought units into step."""
    under_way: float = 0.408
    """Of the merge groups that ask for a line after the first one, the share that finds it still on its way."""
    stalls: float = 319.0
    """Stalls of their own after which next neighbours merge half of what they ask for first."""


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
    """What merging saves in the first beat, if all units are in step."""
    later_bytes: float
    """The same of all other beats."""
    missed: float
    """Of the later bytes, the share that is not in the L2 partition that is asked first."""
    fetched: float
    """The same, if of all merge groups that share it only one is counted."""
    waiting: float
    """The share of a step in which a unit waits for loads, though L2 has them."""
    distance: float
    """UnitRun from one sharer to the next."""
    stalls: float | None
    """Stalls of a unit, in the whole launch, on what its sharers need not wait for; None: these are the last reads."""

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
    """For each merge group, beat and stream that it reads, what merging saves and who shares."""

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
    """A number for each run of workgroups that read one stream and begin after the first beat; 0 for the others."""
    order = np.lexsort((placed.slot, placed.launch_wave))
    stream = accesses.reads[order, at]
    run = np.empty_like(order)
    run[order] = 1 + np.cumsum(np.diff(stream, prepend=stream[:1]) != 0)
    return np.where(placed.launch_wave > accesses.turn, run, 0)


def _own_misses(accesses: Accesses, flows: Flows, at: int) -> float:
    """Of what a unit asks for in its at-th reads, the share that is missed, each line counted for one sharer."""
    walks = np.unique(flows.walks.of_read[:, at])
    asked = float(accesses.read_bytes[:, at].sum())
    return float(flows.missed[walks[walks >= 0]].sum()) / asked if asked else 0.0


def _mean(values: Array, weights: Array) -> float:
    total = float(weights.sum())
    return float(values @ weights) / total if total else 0.0
