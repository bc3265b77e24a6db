"""The closed form: the misses of an LRU cache when streams are read in waves, all at one pace.

A stream last read in wave i and read again in wave j has, at the fraction x of its length, the reuse distance

    D(x) = between + again + (1 - x) · only_i + x · only_j

in bytes: those read in the waves between, those that both i and j read, the rest of those that i read and no wave
after it, and those that j has read so far that are neither. Where D(x) fits into the cache, x hits: a share of the
stream that is linear in the capacity. Where j reads in the opposite direction, what i read last comes first: after the
fraction t of wave j

    D(t) = between + t · (again + only_i + only_j)

Every term follows from one number per cache and wave, `alive[i]`: the bytes that were last read in wave i.
So the cost is that of sorting, and grows linearly with the number of walks.
"""

from __future__ import annotations

import numpy as np

from tilewave.records import dataclass
from tilewave.sim.accesses import Array

FAR = 1e300
"""A distance beyond every capacity; infinity would make differences of distances undefined."""
DENSE = 8
"""Keys are marked in a table that is so many times as long as they are; where it would be longer, they are sorted."""


@dataclass(frozen=True, eq=False)
class Walks:
    """Which cache reads which stream in which wave, each once, sorted by wave; `size` is the cache's share."""

    launch_wave: Array
    cache: Array
    stream: Array
    size: Array

    def __len__(self) -> int:
        return len(self.launch_wave)


def lru_misses(walks: Walks, caches: int, streams: int, capacities: Array, extra: Array, backwards: Array) -> Array:
    """Return the bytes that each walk misses, for each capacity: an array of (walks, capacities).

    extra[cache, wave] are bytes that enter a cache at the end of a wave and are not read again; backwards[wave] is
    the direction of a wave.
    """
    launch_waves = extra.shape[1]
    state = Caches(streams, np.broadcast_to(capacities, (caches, len(capacities))), extra, backwards)
    missed = np.empty((len(walks), len(capacities)))
    bounds = np.searchsorted(walks.launch_wave, np.arange(launch_waves + 1))
    for launch_wave in range(launch_waves):
        part = slice(bounds[launch_wave], bounds[launch_wave + 1])
        missed[part] = state.walk(launch_wave, walks.cache[part], walks.stream[part], walks.size[part])
    return missed * walks.size[:, None]


@dataclass(frozen=True, eq=False)
class _Groups:
    """The walks of a wave, grouped by cache and by the wave in which it last read the stream."""

    cache: Array
    since: Array
    size: Array
    member: Array
    """The group index of each walk."""


def _numbered(keys: Array, most: int) -> tuple[Array, Array]:
    """The different keys below `most`, in order, and the number of each key among them."""
    if most > DENSE * len(keys):
        return np.unique(keys, return_inverse=True)
    used = np.zeros(most, bool)
    used[keys] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1)[keys]


class Caches:
    """The wave in which each cache last read each stream, and the bytes that were last read in each wave.

    capacities[cache, i]: results are given for each i, with one history of walks.
    """

    def __init__(self, streams: int, capacities: Array, extra: Array, backwards: Array) -> None:
        caches, launch_waves = extra.shape
        self.backwards = backwards
        self.streams, self.capacities, self.largest = streams, capacities, float(capacities.max())
        self.last = np.full(caches * streams, -1, np.int64)
        self.alive = np.zeros((caches, launch_waves))
        self.taken = np.concatenate([np.zeros((caches, 1)), np.cumsum(extra, 1)], 1)
        self.oldest = 0
        self.known_at, self.known = -1, self.alive

    def walk(self, launch_wave: int, cache: Array, stream: Array, size: Array) -> Array:
        """Make the walks of one wave and return the share that each misses."""
        groups = self._groups(launch_wave, cache, stream, size)
        known = groups.since >= self.oldest
        missed = self._missed(launch_wave, groups)
        self.alive[groups.cache[known], groups.since[known]] -= groups.size[known]
        self.alive[:, launch_wave] = np.bincount(cache, size, minlength=len(self.alive))
        self.last[cache * self.streams + stream] = launch_wave
        return missed

    def tried(self, launch_wave: int, cache: Array, stream: Array, size: Array) -> Array:
        """Return the share that each walk of one wave would miss, without changing the state."""
        return self._missed(launch_wave, self._groups(launch_wave, cache, stream, size))

    def _groups(self, launch_wave: int, cache: Array, stream: Array, size: Array) -> _Groups:
        """Group walks by cache and last wave; streams never read, or evicted since, form one group before `oldest`."""
        before = self.oldest - 1
        length = launch_wave - before
        key = cache * length + np.maximum(self.last[cache * self.streams + stream], before) - before
        found, member = _numbered(key, len(self.alive) * length)
        of_cache, since = np.divmod(found, length)
        return _Groups(of_cache, since + before, np.bincount(member, size), member)

    def _missed(self, launch_wave: int, groups: _Groups) -> Array:
        lower, upper = self._distances(launch_wave, groups.cache, groups.since, groups.size)
        room, span = self.capacities[groups.cache] - lower[:, None], (upper - lower)[:, None]
        hit = np.where(span < 1.0, room >= 0.0, np.clip(room / np.maximum(span, 1.0), 0.0, 1.0))
        missed: Array = 1.0 - hit[groups.member]
        return missed

    def _distances(self, launch_wave: int, cache: Array, since: Array, repeated: Array) -> tuple[Array, Array]:
        """Return the least and the greatest D(x) of each group of streams that one cache last read in one wave."""
        between = self._walked_since(launch_wave)
        at = np.maximum(since, self.oldest)
        fixed = between[cache, at - self.oldest] + repeated + self.taken[cache, launch_wave] - self.taken[cache, at]
        fixed[since < self.oldest] = FAR
        only_then = self.alive[cache, at] - repeated
        # Groups are sorted by cache, then from the least recently used (or new) on: `only_now` sums those before.
        running = np.cumsum(repeated) - repeated
        first = np.searchsorted(cache, cache)
        only_now = running - running[first]
        reversed_ = self.backwards[at] != self.backwards[launch_wave]
        lower = np.where(reversed_, -repeated, np.minimum(only_then, only_now))
        return fixed + lower, fixed + np.where(reversed_, only_then + only_now, np.maximum(only_then, only_now))

    def _walked_since(self, launch_wave: int) -> Array:
        """Return [cache, i - oldest]: distinct bytes read between wave i and this one; drop waves that cannot hit."""
        if launch_wave == self.known_at:  # `tried` may have computed it before `walk`
            return self.known
        window = self.alive[:, self.oldest : launch_wave + 1]
        after = np.cumsum(window[:, ::-1], 1)[:, ::-1] - window
        if launch_wave > self.oldest:
            useless = np.append(np.min(after[:, :-1], 0) > self.largest, False)
            forget = int(useless.argmin())
            self.oldest += forget
            after = after[:, forget:]
        self.known_at, self.known = launch_wave, after
        return after
