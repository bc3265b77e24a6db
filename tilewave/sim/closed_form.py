"""The closed-form engine: the traffic of per-XCD L2s, their partitions and a last-level cache, by reuse distance.

Partitioned L2s are modelled in `partitions.py`. The last-level cache serves the misses of the L2s.
"""

from __future__ import annotations

import numpy as np

from tilewave.machine import Machine
from tilewave.sim.accesses import Accesses, Array
from tilewave.sim.calibration import Softness
from tilewave.sim.dispatch import Placed, Residency
from tilewave.sim.flows import Flows, OwnWalks, own_walks
from tilewave.sim.partitions import partitioned_l2
from tilewave.sim.reuse import Walks, lru_misses


def closed_form(
    accesses: Accesses, placed: Placed, machine: Machine, residency: Residency, softness: Softness
) -> Flows:
    """The traffic of a launch, without running it."""
    walks = own_walks(accesses, placed)
    missed, crossed, asked = _l2(walks, accesses, placed, machine, softness)
    lost = _lost_to_skew(walks, accesses, placed, machine, residency)
    missed = missed + lost[:, None]
    if machine.l2.partitions == 1:
        asked = asked + lost[:, None]
    hbm = _memory(walks, asked, accesses, placed, machine, softness)
    expected, narrow, wide = hbm.T
    return Flows(walks, missed[:, 0], crossed[:, 0], asked[:, 0], expected, float(narrow.sum()), float(wide.sum()))


def _l2(
    walks: OwnWalks, accesses: Accesses, placed: Placed, machine: Machine, softness: Softness
) -> tuple[Array, Array, Array]:
    """Return the bytes (missed, crossed, requested from memory) of each walk, for each capacity."""
    capacities, written = softness.l2_capacities(machine), _written(accesses, placed, machine)
    if machine.l2.partitions > 1:
        parts = machine.l2.partitions
        return partitioned_l2(walks, placed, parts, accesses.streams, capacities, written, softness.looks)
    each = Walks(walks.launch_wave, walks.domain, walks.stream, walks.size)
    missed = lru_misses(each, machine.domains, accesses.streams, capacities, written, placed.backwards)
    return missed, np.zeros_like(missed), missed


def _written(accesses: Accesses, placed: Placed, machine: Machine) -> Array:
    """Return [domain, wave]: output bytes that occupy L2, in their home partition and in transit in the writer's."""
    parts, launch_waves, domains = machine.l2.partitions, placed.launch_waves, machine.domains
    if not machine.l2.holds_writes:
        return np.zeros((domains, launch_waves))
    flat = np.bincount(
        placed.domain * launch_waves + placed.launch_wave, accesses.written_bytes, minlength=domains * launch_waves
    )
    own = flat.reshape(machine.xcds, parts, launch_waves)
    at_home = own.sum(1, keepdims=True) / parts
    taken: Array = (at_home + own * (parts - 1) / parts).reshape(domains, launch_waves)
    return taken


def _lost_to_skew(walks: OwnWalks, accesses: Accesses, placed: Placed, machine: Machine, residency: Residency) -> Array:
    """What residents fetch again because they are more steps apart than their L2 can bridge."""
    if residency.skew_steps == 0:
        return np.zeros(len(walks))
    slot = walks.launch_wave * machine.domains + walks.domain
    footprint = np.bincount(slot, walks.size)
    bridged = residency.skew_steps * footprint / accesses.steps
    capacity = machine.l2.bytes / machine.l2.partitions
    loss = np.clip(1.0 - capacity / np.maximum(bridged, 1.0), 0.0, 1.0)
    lost: Array = (walks.peers - 1) * walks.size * loss[slot]
    return lost


def _memory(
    walks: OwnWalks, asked: Array, accesses: Accesses, placed: Placed, machine: Machine, softness: Softness
) -> Array:
    """Return the bytes that HBM delivers to each walk, for each capacity."""
    if machine.last_level is None:
        return asked
    key = walks.launch_wave * accesses.streams + walks.stream
    found, member = np.unique(key, return_inverse=True)
    total = np.stack([np.bincount(member, column) for column in asked.T], 1)
    touched = total.max(1) > 0
    launch_wave, stream = np.divmod(found[touched], accesses.streams)
    each = Walks(launch_wave, np.zeros_like(launch_wave), stream, accesses.stream_bytes[stream])
    capacities = softness.last_level_capacities(machine)
    missed = np.zeros_like(total)
    nothing = np.zeros((1, placed.launch_waves))
    missed[touched] = lru_misses(each, 1, accesses.streams, capacities, nothing, placed.backwards)
    share = np.minimum(missed, total) / np.maximum(total, 1.0)
    return asked * share[member]
