"""The closed form: what an LRU cache misses when streams are walked in beats, all at one pace.

A stream last walked in beat i and walked again in beat j finds in front of it, at the fraction x of its length,

    D(x) = between + again + (1 - x) · only_i + x · only_j

bytes: what was walked in the beats between, what i and j both walk, the rest of what i walked and nobody since, and
what j has walked so far that is neither. Where D(x) fits into the cache, x hits: a share of the stream that is
linear in the capacity. Every term is known from one number per cache and beat, `alive[i]`: the bytes whose last walk
was in beat i. So the cost is that of sorting, and grows linearly with the number of walks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewave.sim.accesses import Array

FAR = 1e300
"""A distance beyond every capacity; infinity would make differences of distances undefined."""


@dataclass(frozen=True, eq=False)
class Walks:
    """Which cache walks which stream in which beat, each once, ordered by beat; `size` is that cache's share of it."""

    beat: Array
    cache: Array
    stream: Array
    size: Array

    def __len__(self) -> int:
        return len(self.beat)


def lru_misses(walks: Walks, caches: int, streams: int, capacities: Array, extra: Array) -> Array:
    """Bytes that each walk misses, for each capacity: an array of (walks, capacities).

    extra[cache, beat] are bytes that a cache takes in at the end of a beat and nobody asks for again.
    """
    beats = extra.shape[1]
    state = _Caches(caches, streams, beats, float(capacities.max()), extra)
    misses = np.empty((len(walks), len(capacities)))
    bounds = np.searchsorted(walks.beat, np.arange(beats + 1))
    for beat in range(beats):
        part = slice(bounds[beat], bounds[beat + 1])
        misses[part] = state.walk(beat, walks.cache[part], walks.stream[part], walks.size[part], capacities)
    return misses


class _Caches:
    """When each cache last walked each stream, and the bytes whose last walk was in each beat."""

    def __init__(self, caches: int, streams: int, beats: int, largest: float, extra: Array) -> None:
        self.streams, self.beats, self.largest = streams, beats, largest
        self.last = np.full(caches * streams, -1, np.int64)
        self.alive = np.zeros((caches, beats))
        self.taken = np.concatenate([np.zeros((caches, 1)), np.cumsum(extra, 1)], 1)
        self.oldest = 0

    def walk(self, beat: int, cache: Array, stream: Array, size: Array, capacities: Array) -> Array:
        """The bytes that the walks of one beat miss."""
        where = cache * self.streams + stream
        last = self.last[where]
        groups, member = np.unique(cache * (self.beats + 1) + last + 1, return_inverse=True)
        again = np.bincount(member, size)
        of_cache, since = groups // (self.beats + 1), groups % (self.beats + 1) - 1
        lower, upper = self._distances(beat, of_cache, since, again)
        room, span = capacities - lower[:, None], (upper - lower)[:, None]
        hit = np.where(span < 1.0, room >= 0.0, np.clip(room / np.maximum(span, 1.0), 0.0, 1.0))
        known = since >= 0
        self.alive[of_cache[known], since[known]] -= again[known]
        self.alive[:, beat] = np.bincount(cache, size, minlength=len(self.alive))
        self.last[where] = beat
        missed: Array = size[:, None] * (1.0 - hit[member])
        return missed

    def _distances(self, beat: int, cache: Array, since: Array, again: Array) -> tuple[Array, Array]:
        """The least and the greatest D(x) of each group of streams that one cache last walked in one beat."""
        between = self._walked_since(beat)
        at = np.maximum(since, self.oldest)
        fixed = between[cache, at - self.oldest] + again + self.taken[cache, beat] - self.taken[cache, at]
        fixed[since < self.oldest] = FAR
        only_then = self.alive[cache, at] - again
        # Groups stand by cache, then from the longest unused (or new) to the latest: what came before is `only_now`.
        running = np.cumsum(again) - again
        _, first, which = np.unique(cache, return_index=True, return_inverse=True)
        only_now = running - running[first][which]
        return fixed + np.minimum(only_then, only_now), fixed + np.maximum(only_then, only_now)

    def _walked_since(self, beat: int) -> Array:
        """[cache, i - oldest]: different bytes walked after beat i and before this one; forgets what cannot hit."""
        window = self.alive[:, self.oldest : beat + 1]
        after = np.cumsum(window[:, ::-1], 1)[:, ::-1] - window
        if beat > self.oldest:
            useless = np.append(np.min(after[:, :-1], 0) > self.largest, False)
            forget = int(useless.argmin())
            self.oldest += forget
            after = after[:, forget:]
        return after
