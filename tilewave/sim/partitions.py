"""An L2 of several partitions, in closed form: each is the home of its share of the lines and caches copies of others.

A resident workgroup asks its own partition first, which keeps lines of other partitions as copies; the home partition
is asked only if the copy is missing, and memory only on a miss at home. A line that is used through copies alone
therefore ages at home, and the history depends on the capacity: each capacity has a separate set of caches.
"""

from __future__ import annotations

import numpy as np

from tilewave.records import dataclass
from tilewave.sim.accesses import Array
from tilewave.sim.dispatch import Placed
from tilewave.sim.flows import OwnWalks
from tilewave.sim.sampled import SampledCaches

PIECES = 12
"""Steps per wave: a finer cut changes bytes by less than the difference between two cards."""
HEARD = 0.5
"""A home counts as accessed if remote residents miss more than this share of their copies."""


def partitioned_l2(
    walks: OwnWalks, placed: Placed, parts: int, streams: int, capacities: Array, written: Array, looks: float
) -> tuple[Array, Array, Array]:
    """Return the bytes (missed, crossed, requested from memory) of each walk, for each capacity."""
    points, domains = len(capacities), len(placed.domain_xcd)
    each = np.repeat(capacities, domains)
    state = SampledCaches(2 * streams * PIECES, each, placed.launch_waves * PIECES, looks)
    taken, nothing = np.tile(written, (points, 1)), np.zeros(len(each))
    found = np.empty((3, len(walks), points))
    bounds = np.searchsorted(walks.launch_wave, np.arange(placed.launch_waves + 1))
    for launch_wave in range(placed.launch_waves):
        part = slice(bounds[launch_wave], bounds[launch_wave + 1])
        size = walks.size[part] / PIECES
        together = _LaunchWave.of(walks.domain[part], walks.stream[part], size, parts, streams, points, domains)
        copies, homes = np.zeros(together.copy_cache.shape), np.zeros(together.home_cache.shape)
        for turn in range(PIECES):
            piece = PIECES - 1 - turn if placed.backwards[launch_wave] else turn
            at_end = taken[:, launch_wave] if turn == PIECES - 1 else nothing
            of_copies, of_homes = together.walked(launch_wave * PIECES + turn, piece, state, at_end)
            copies += of_copies
            homes += of_homes
        found[:, part] = together.flows(copies, homes)
    return found[0], found[1], found[2]


@dataclass(frozen=True, eq=False)
class _LaunchWave:
    """The walks of one wave, for all capacities: copies by [capacity, walk], homes by [capacity, stream, partition]."""

    copy_cache: Array
    copy_stream: Array
    copy_size: Array
    home_cache: Array
    home_stream: Array
    home_size: Array
    home_of: Array
    """The index of each walk's stream among the streams read on an XCD."""
    own_part: Array
    walkers: Array
    resident: Array
    """[stream, partition]: whether a workgroup resident at that partition reads the stream."""

    @staticmethod
    def of(
        domain: Array, stream: Array, size: Array, parts: int, streams: int, points: int, domains: int
    ) -> _LaunchWave:
        key, first, home_of = np.unique(domain // parts * streams + stream, return_index=True, return_inverse=True)
        resident = np.zeros((len(key), parts), bool)
        resident[home_of, domain % parts] = True
        shift = np.arange(points)[:, None] * domains
        home = (key // streams * parts)[:, None] + np.arange(parts)
        return _LaunchWave(
            copy_cache=domain + shift,
            copy_stream=np.broadcast_to(stream + streams, (points, len(domain))),
            copy_size=np.broadcast_to(size * (parts - 1) / parts, (points, len(domain))),
            home_cache=home + shift[:, :, None],
            home_stream=np.broadcast_to((key % streams)[:, None], (points, len(key), parts)),
            home_size=np.broadcast_to((size[first] / parts)[:, None], (points, len(key), parts)),
            home_of=home_of,
            own_part=domain % parts,
            walkers=np.bincount(home_of)[home_of],
            resident=resident,
        )

    def walked(self, step: int, piece: int, state: SampledCaches, taken: Array) -> tuple[Array, Array]:
        """The shares that copies, and homes that are asked, miss of a piece."""
        points, count = self.copy_cache.shape
        asked = self._asked_of_homes(state.missing(self.copy_cache, self.copy_stream * PIECES + piece))
        at_home = state.missing(self.home_cache, self.home_stream * PIECES + piece)
        walked = self.resident | (asked > HEARD)
        missed = state.walk(step, *self._all(walked, piece), taken)
        at_home[walked] = missed[points * count :]
        return missed[: points * count].reshape(points, count), np.where(self.resident, at_home, at_home * asked)

    def flows(self, copies: Array, homes: Array) -> Array:
        """Return bytes as [(missed, crossed, requested from memory), walk, capacity], summed over the pieces."""
        crossed, at_home = copies * self.copy_size, homes * self.home_size
        in_own = at_home[:, self.home_of, self.own_part]
        # One of the partitions that read a stream takes the miss at home, so it is divided among them.
        return np.stack(
            [(crossed + in_own / self.walkers).T, crossed.T, (at_home.sum(2)[:, self.home_of] / self.walkers).T]
        )

    def _all(self, homes: Array, piece: int) -> tuple[Array, Array, Array]:
        """(cache, stream, size) of all copies and of the homes named."""
        return (
            np.concatenate([self.copy_cache.ravel(), self.home_cache[homes]]),
            np.concatenate([self.copy_stream.ravel(), self.home_stream[homes]]) * PIECES + piece,
            np.concatenate([self.copy_size.ravel(), self.home_size[homes]]),
        )

    def _asked_of_homes(self, copies: Array) -> Array:
        """[point, stream, part]: the share that residents of other partitions miss of their copies, at the most."""
        parts = self.resident.shape[1]
        of_split = np.zeros(self.home_cache.shape)
        of_split[:, self.home_of, self.own_part] = copies
        if parts == 2:
            return of_split[:, :, ::-1]
        return np.stack([np.delete(of_split, part, 2).max(2) for part in range(parts)], 2)
