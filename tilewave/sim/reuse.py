"""The closed form: what an LRU cache misses when streams are walked in beats, all at one pace.

A stream last walked in beat i and walked again in beat j finds in front of it, at the fraction x of its length,

    D(x) = between + again + (1 - x) · only_i + x · only_j

bytes: what was walked in the beats between, what i and j both walk, the rest of what i walked and nobody since, and
what j has walked so far that is neither. Where D(x) fits into the cache, x hits: a share of the stream that is
linear in the capacity. Where j goes the other way than i, what i walked last comes first: after the fraction t
of beat j

    D(t) = between + t · (again + only_i + only_j)

Every term is known from one number per cache and beat, `alive[i]`: the bytes whose last walk
was in beat i. So the cost is that of sorting, and grows linearly with the number of walks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewave.sim.accesses import Array

FAR = 1e300
"""A distance beyond every capacity; infinity would make differences of distances undefined."""
DENSE = 8
"""Keys are marked in a table that is so many times as long as they are; where it would be longer, they are sorted."""


@dataclass(frozen=True, eq=False)
class Walks:
    """Which cache walks which stream in which beat, each once, ordered by beat; `size` is that cache's share of it."""

    launch_wave: Array
    cache: Array
    stream: Array
    size: Array

    def __len__(self) -> int:
        return len(self.launch_wave)


def lru_misses(walks: Walks, caches: int, streams: int, capacities: Array, extra: Array, backwards: Array) -> Array:
    """Bytes that each walk misses, for each capacity: an array of (walks, capacities).

    extra[cache, beat] are bytes that a cache takes in at the end of a beat and nobody asks for again; backwards[beat]
    tells which way a beat goes.
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
    """The walks of a beat, put together by cache and by the beat in which it last walked the stream."""

    cache: Array
    since: Array
    size: Array
    member: Array
    """The group of each walk."""


def _numbered(keys: Array, most: int) -> tuple[Array, Array]:
    """The different keys below `most`, in order, and the number of each key among them."""
    if most > DENSE * len(keys):
        return np.unique(keys, return_inverse=True)
    used = np.zeros(most, bool)
    used[keys] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1)[keys]


class Caches:
    """When each cache last walked each stream, and the bytes whose last walk was in each beat.

    capacities[cache, i]: the answers are given for each i, under one history of walks.
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
        """The share that each walk of one beat misses, all of them being made."""
        groups = self._groups(launch_wave, cache, stream, size)
        known = groups.since >= self.oldest
        missed = self._missed(launch_wave, groups)
        self.alive[groups.cache[known], groups.since[known]] -= groups.size[known]
        self.alive[:, launch_wave] = np.bincount(cache, size, minlength=len(self.alive))
        self.last[cache * self.streams + stream] = launch_wave
        return missed

    def tried(self, launch_wave: int, cache: Array, stream: Array, size: Array) -> Array:
        """The share that each walk of one beat would miss; nothing is remembered of it."""
        return self._missed(launch_wave, self._groups(launch_wave, cache, stream, size))

    def _groups(self, launch_wave: int, cache: Array, stream: Array, size: Array) -> _Groups:
        """Streams that were never walked, or longer ago than anything is kept, stand together before `oldest`."""
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
        """The least and the greatest D(x) of each group of streams that one cache last walked in one beat."""
        between = self._walked_since(launch_wave)
        at = np.maximum(since, self.oldest)
        fixed = between[cache, at - self.oldest] + repeated + self.taken[cache, launch_wave] - self.taken[cache, at]
        fixed[since < self.oldest] = FAR
        only_then = self.alive[cache, at] - repeated
        # Groups stand by cache, then from the longest unused (or new) to the latest: what came before is `only_now`.
        running = np.cumsum(repeated) - repeated
        first = np.searchsorted(cache, cache)
        only_now = running - running[first]
        reversed_ = self.backwards[at] != self.backwards[launch_wave]
        lower = np.where(reversed_, -repeated, np.minimum(only_then, only_now))
        return fixed + lower, fixed + np.where(reversed_, only_then + only_now, np.maximum(only_then, only_now))

    def _walked_since(self, launch_wave: int) -> Array:
        """[cache, i - oldest]: different bytes walked after beat i and before this one; forgets what cannot hit."""
        if launch_wave == self.known_at:  # a beat is tried before it is walked
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
