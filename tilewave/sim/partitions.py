"""An L2 cut into partitions, in closed form: each is home to its share of the lines and keeps copies of others.

A resident asks its own partition first. A line whose home is elsewhere is kept there as a copy; only where the copy is
missing does its home hear of it, and only a miss at home goes to memory. So what is used through copies alone grows old
at home, and histories differ with the capacity: each capacity is a set of caches of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewave.sim.accesses import Array
from tilewave.sim.dispatch import Placed
from tilewave.sim.flows import OwnWalks
from tilewave.sim.sampled import SampledCaches

PIECES = 12
"""A beat is walked in so many steps: a finer cut changes bytes by less than two cards differ."""
HEARD = 0.5
"""A home counts as walked where its far residents miss more than this share of their copies."""


def partitioned_l2(
    walks: OwnWalks, placed: Placed, parts: int, streams: int, capacities: Array, written: Array, looks: float
) -> tuple[Array, Array, Array]:
    """(missed, crossed, asked of memory) of each walk, for each capacity."""
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
    """The walks of one beat, for all capacities at once: copies by [point, walk], homes by [point, stream, part]."""

    copy_cache: Array
    copy_stream: Array
    copy_size: Array
    home_cache: Array
    home_stream: Array
    home_size: Array
    home_of: Array
    """Which of the streams walked on an xcd each walk is of."""
    own_part: Array
    walkers: Array
    resident: Array
    """[stream, partition]: whether somebody who lives there walks it."""

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
        """[(missed, crossed, asked of memory), walk, point] in bytes, of what the pieces missed together."""
        crossed, at_home = copies * self.copy_size, homes * self.home_size
        in_own = at_home[:, self.home_of, self.own_part]
        # Of the partitions that walk a stream together, the first to come misses what is at home with it.
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
