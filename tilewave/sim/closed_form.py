"""The closed-form engine: per-xcd L2s, their partitions and a last-level cache, by reuse distances alone.

An L2 partition is home to its share of the lines. It holds its home share of whatever anybody on its xcd walks, and
copies of the other partitions' shares of what its own residents walk; only a miss at home goes to memory. The
last-level cache sees what the L2s miss.
"""

from __future__ import annotations

import numpy as np

from tilewave.machine import Machine
from tilewave.sim.accesses import Accesses, Array
from tilewave.sim.calibration import Softness
from tilewave.sim.dispatch import Placed, Residency
from tilewave.sim.flows import Flows, OwnWalks, own_walks
from tilewave.sim.reuse import Walks, lru_misses


def closed_form(
    accesses: Accesses, placed: Placed, machine: Machine, residency: Residency, softness: Softness
) -> Flows:
    """The traffic of a launch, without running it."""
    walks = own_walks(accesses, placed)
    missed, crossed, asked = _l2(walks, accesses, placed, machine, softness.l2_capacities(machine))
    lost = _lost_to_skew(walks, accesses, placed, machine, residency)
    missed = missed + lost[:, None]
    if machine.l2.partitions == 1:
        asked = asked + lost[:, None]
    hbm = _memory(walks, asked, accesses, placed, machine, softness)
    mean, narrow, wide = softness.combined(hbm)
    of_one = softness.combined
    return Flows(
        walks, of_one(missed)[0], of_one(crossed)[0], of_one(asked)[0], mean, float(narrow.sum()), float(wide.sum())
    )


def _l2(
    walks: OwnWalks, accesses: Accesses, placed: Placed, machine: Machine, capacities: Array
) -> tuple[Array, Array, Array]:
    """(missed, crossed, asked of memory) of each walk, for each capacity."""
    parts, streams = machine.l2.partitions, accesses.streams
    extra = _written(accesses, placed, machine)
    if parts == 1:
        each = Walks(walks.beat, walks.domain, walks.stream, walks.size)
        missed = lru_misses(each, machine.domains, streams, capacities, extra)
        return missed, np.zeros_like(missed), missed
    home, home_of = _home_walks(walks, placed, parts, streams)
    count = len(home)
    far_share = (parts - 1) / parts
    every = Walks(
        np.concatenate([home.beat, walks.beat]),
        np.concatenate([home.cache, walks.domain]),
        np.concatenate([home.stream, walks.stream + streams]),
        np.concatenate([home.size, walks.size * far_share]),
    )
    order = np.argsort(every.beat, kind="stable")
    sorted_walks = Walks(every.beat[order], every.cache[order], every.stream[order], every.size[order])
    missed = np.empty((len(every), len(capacities)))
    missed[order] = lru_misses(sorted_walks, machine.domains, 2 * streams, capacities, extra)
    at_home, far = missed[:count], missed[count:]
    in_own_home = at_home[home_of * parts + walks.domain % parts]
    whole = at_home.reshape(-1, parts, len(capacities)).sum(1)
    # Of the partitions that walk a stream together, the first to come misses what is at home with it.
    walkers = np.bincount(home_of)[home_of][:, None]
    return far + in_own_home / walkers, far, whole[home_of] / walkers


def _home_walks(walks: OwnWalks, placed: Placed, parts: int, streams: int) -> tuple[Walks, Array]:
    """A walk by every partition of the xcd for each stream that the xcd walks; and which of them a walk belongs to."""
    xcds = int(placed.domain_xcd[-1]) + 1
    key = (walks.beat * xcds + placed.domain_xcd[walks.domain]) * streams + walks.stream
    found, first, home_of = np.unique(key, return_index=True, return_inverse=True)
    place, stream = np.divmod(found, streams)
    beat, xcd = np.divmod(place, xcds)
    partition = np.tile(np.arange(parts), len(found))
    return Walks(
        np.repeat(beat, parts),
        np.repeat(xcd, parts) * parts + partition,
        np.repeat(stream, parts),
        np.repeat(walks.size[first] / parts, parts),
    ), home_of


def _written(accesses: Accesses, placed: Placed, machine: Machine) -> Array:
    """[domain, beat]: bytes of output that take room in an L2."""
    parts, beats = machine.l2.partitions, placed.beats
    if not machine.l2.holds_writes:
        return np.zeros((machine.domains, beats))
    flat = np.bincount(placed.xcd * beats + placed.beat, accesses.written_bytes, minlength=machine.xcds * beats)
    return np.repeat(flat.reshape(machine.xcds, beats) / parts, parts, 0)


def _lost_to_skew(walks: OwnWalks, accesses: Accesses, placed: Placed, machine: Machine, residency: Residency) -> Array:
    """What residents fetch again because they are more steps apart than their L2 can bridge."""
    if residency.skew_steps == 0:
        return np.zeros(len(walks))
    slot = walks.beat * machine.domains + walks.domain
    footprint = np.bincount(slot, walks.size, minlength=placed.beats * machine.domains)
    bridged = residency.skew_steps * footprint / accesses.steps
    capacity = machine.l2.bytes / machine.l2.partitions
    loss = np.clip(1.0 - capacity / np.maximum(bridged, 1.0), 0.0, 1.0)
    lost: Array = (walks.sharers - 1) * walks.size * loss[slot]
    return lost


def _memory(
    walks: OwnWalks, asked: Array, accesses: Accesses, placed: Placed, machine: Machine, softness: Softness
) -> Array:
    """What HBM delivers to each walk, for each capacity."""
    if machine.last_level is None:
        return asked
    key = walks.beat * accesses.streams + walks.stream
    found, member = np.unique(key, return_inverse=True)
    total = np.stack([np.bincount(member, column) for column in asked.T], 1)
    touched = total.max(1) > 0
    beat, stream = np.divmod(found[touched], accesses.streams)
    each = Walks(beat, np.zeros_like(beat), stream, accesses.stream_bytes[stream])
    capacities = softness.last_level_capacities(machine)
    missed = np.zeros_like(total)
    missed[touched] = lru_misses(each, 1, accesses.streams, capacities, np.zeros((1, placed.beats)))
    share = np.minimum(missed, total) / np.maximum(total, 1.0)
    return asked * share[member]
