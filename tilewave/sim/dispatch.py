"""Dispatch: which slot runs each workgroup, and in which wave of workgroups.

Hardware dispatches workgroups in launch order, each to the next free unit; with several XCDs, workgroup w goes to
XCD w % xcds and waits for a unit there. In the first wave all units are free, and their order is known. Later it is
known only where tiles are long, because units then finish in step; where they are short, the order is random.

All resident workgroups run their tasks at one pace, so time is counted in waves: in wave b every occupied slot runs its
b-th task. A wave reads its streams in one direction, that of most of its tasks: workgroups that reverse K after every
tile reverse together.
"""

from __future__ import annotations

import numpy as np

from tilewave.forks import cached_property
from tilewave.machine import Machine
from tilewave.mapping.balance import next_free
from tilewave.records import dataclass
from tilewave.sim.accesses import Accesses, Array
from tilewave.sim.calibration import LONG_STEPS
from tilewave.sim.problem import SimError

CHANCE = 20261115
"""The seed of what chance decides: a launch has one answer."""


@dataclass(frozen=True)
class Residency:
    """How a launch sits on a machine: workgroups per unit, and how many steps residents may be apart."""

    occupancy: int = 1
    skew_steps: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.occupancy, bool) or not isinstance(self.occupancy, int) or not 1 <= self.occupancy <= 64:
            raise SimError(f"occupancy is a whole number from 1 to 64, not {self.occupancy!r}")
        if not 0 <= self.skew_steps < float("inf"):
            raise SimError(f"skew_steps is a number of steps, not {self.skew_steps!r}")


@dataclass(frozen=True, eq=False)
class Placed:
    """The wave, XCD, L2 domain and merge group of each task."""

    slots: int
    launch_wave: Array
    slot: Array
    xcd: Array
    domain: Array
    merge_group: Array
    domain_xcd: Array
    """The xcd of each L2 domain."""
    backwards: Array
    """Whether each wave reads its streams from the end to the start."""

    @cached_property
    def launch_waves(self) -> int:
        return int(self.launch_wave.max()) + 1


def place(accesses: Accesses, machine: Machine, residency: Residency) -> Placed:
    """Deal the workgroups of a launch to the units of a machine."""
    xcd, partition, group = (np.tile(part, residency.occupancy) for part in machine.places())
    lengths = np.bincount(accesses.workgroup, minlength=accesses.workgroups)
    first_launch_wave, slot = next_free(lengths, np.zeros_like(xcd) if machine.dispatch_order else xcd)
    by_chance = machine.dispatch_order and accesses.long_steps < LONG_STEPS and (lengths == 1).all()
    # Neighbours in the order begin together, so their requests merge as if they sat together all the same.
    at, near = (s[accesses.workgroup] for s in (slot, _by_chance(slot, len(xcd)) if by_chance else slot))
    launch_wave = first_launch_wave[accesses.workgroup] + accesses.turn
    return Placed(
        slots=len(xcd),
        launch_wave=launch_wave,
        slot=at,
        xcd=xcd[near],
        domain=(xcd * machine.l2.partitions + partition)[near],
        merge_group=group[at],
        domain_xcd=np.arange(machine.domains) // machine.l2.partitions,
        backwards=_directions(launch_wave, accesses.backwards),
    )


def _by_chance(slot: Array, slots: int) -> Array:
    """The slots of workgroups that are dealt in rounds, all but the first one's in any order."""
    rounds = [slot[start : start + slots] for start in range(0, len(slot), slots)]
    draw = np.random.default_rng(CHANCE)
    return np.concatenate([rounds[0], *(draw.permutation(slots)[: len(one)] for one in rounds[1:])])


def _directions(launch_wave: Array, backwards: Array | None) -> Array:
    """Return, for each wave, whether most of its tasks read backwards."""
    if backwards is None:
        return np.zeros(int(launch_wave.max()) + 1, bool)
    directions: Array = 2 * np.bincount(launch_wave, backwards) > np.bincount(launch_wave)
    return directions
