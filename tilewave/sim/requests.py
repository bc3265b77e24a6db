"""How much of what workgroups ask for reaches L2, where requests of neighbouring units are merged on the way.

Up to `most` requests for one line from units of one merge group become one, if they come at about the same time.
Workgroups next to each other in the order stay in step through the stream they share: each merged reply wakes them
together. Streams shared by workgroups further apart merge only until these have drifted apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewave.machine import Machine
from tilewave.sim.accesses import NO_STREAM, Accesses, Array
from tilewave.sim.dispatch import Placed


@dataclass(frozen=True)
class Sync:
    """How well units stay in step; fitted on the persistent rows of both files of H200 counters that are marked so."""

    neighbour: float = 0.964
    """Of the merging that is possible, what neighbours reach."""
    floor: float = 0.121
    """What is left of the others' merging after a long launch."""
    steps: float = 163.0
    """Steps until the others drift apart, for tiles of 128×256; it grows with the tile's area to `area_power`."""
    area_power: float = 3.26
    row_steps: float = 850.0
    """The same where neighbours share the stream that is asked for first."""


REFERENCE_AREA = 128 * 256


def requested_bytes(accesses: Accesses, placed: Placed, machine: Machine, sync: Sync) -> float:
    """Bytes of reads that reach L2."""
    if machine.merging is None or accesses.reads.shape[1] == 0:
        return accesses.asked_bytes
    count = accesses.reads.shape[1]
    drift = _drift(accesses, placed, sync)
    total = 0.0
    for at in range(count):
        left = _share_left(accesses, placed, machine.merging.most, at)
        reached = sync.neighbour if at == count - 1 else drift
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


def _drift(accesses: Accesses, placed: Placed, sync: Sync) -> float:
    """How much of the possible merging those reach that are not neighbours, over the whole launch."""
    steps = accesses.tasks / placed.seats * accesses.steps
    launched = np.lexsort((placed.seat, placed.beat))
    if _kept(accesses, launched, 0) > _kept(accesses, launched, -1):
        return 1 / (1 + steps / sync.row_steps)
    area = float(np.prod(accesses.tile[:2])) if accesses.tile else REFERENCE_AREA
    together = sync.steps * (area / REFERENCE_AREA) ** sync.area_power
    return float(sync.floor + (1 - sync.floor) * min(1.0, together / steps))


def _kept(accesses: Accesses, launched: Array, at: int) -> float:
    """How often a task reads the same stream as the one before it in the order."""
    stream = accesses.reads[launched, at]
    return float((np.diff(stream) == 0).mean()) if len(stream) > 1 else 0.0
