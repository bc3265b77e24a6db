"""The inner loop of the trace engine: LRU caches as linked lists in arrays, and caches that look before they evict.

Compiled by numba where that is installed, once, and kept on disk; without it, the same code runs a few hundred times
slower. Only `trace.py` imports this, and only when it is asked to run: numba is heavy. Arrays are named once here:
`older`, `newer` link the lines of each cache from the one used last to the one used longest ago; `held` is a line's
size while it is in the cache. Line `lines` is the head of the list, `lines + 1` its tail. A cache that looks at some
lines by chance and evicts the oldest keeps its lines in `older`, in any order, their places in `newer`, and when each
was used in `since`; `used` are the figures of a cache: its BYTES and, where it looks, its LINES, what chance DREW last,
its USES so far, and the sizes of the LARGEST and the SMALLEST line it ever held.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar, cast

import numpy as np

from tilewave.sim.accesses import Array

F = TypeVar("F", bound=Callable[..., Any])


def _installed() -> Any:
    try:
        return import_module("numba")
    except ImportError:
        return None


numba = _installed()


def compiled(function: F) -> F:
    """The function as machine code, where numba is here."""
    return cast(F, numba.njit(cache=True)(function)) if numba else function


BYTES, LINES, DREW, USES, LARGEST, SMALLEST = range(6)
ALL = 0
"""Looks: LRU, which knows the oldest of all lines."""
FAR_BELOW = 4
"""Lines this many times smaller than the mean are evicted as if equal: they hold few bytes, and rejection is slow."""
HBM = 3
"""The column of `flows` that counts bytes from HBM."""


@compiled
def touch(line: int, size: float, older: Array, newer: Array, held: Array, used: Array, capacity: float) -> bool:
    """Use a line: whether it was there; if not, it is now, and what was used longest ago has made room."""
    head = held.shape[0] - 2
    there = held[line] > 0
    if there:
        before, after = newer[line], older[line]
        older[before] = after
        newer[after] = before
    else:
        held[line] = size
        used[BYTES] += size
    first = older[head]
    older[head] = line
    newer[line] = head
    older[line] = first
    newer[first] = line
    while used[BYTES] > capacity:
        last = newer[head + 1]
        if last == head:
            break
        before = newer[last]
        older[before] = head + 1
        newer[head + 1] = before
        used[BYTES] -= held[last]
        held[last] = 0
    return bool(there)


@compiled
def drawn(used: Array, below: int) -> int:
    """A number that chance draws: Marsaglia's xorshift of 32 bits."""
    state = int(used[DREW]) or 2463534242
    state ^= (state << 13) & 0xFFFFFFFF
    state ^= state >> 17
    state ^= (state << 5) & 0xFFFFFFFF
    used[DREW] = state
    return state * below >> 32


@compiled
def looked_at(older: Array, held: Array, used: Array) -> int:
    """A line, by chance: one of twice the size is looked at twice as often."""
    while True:
        line = older[drawn(used, int(used[LINES]))]
        if drawn(used, 1 << 20) * used[LARGEST] < held[line] * (1 << 20):
            return int(line)


@compiled
def looked_up(
    line: int,
    size: float,
    older: Array,
    newer: Array,
    held: Array,
    since: Array,
    used: Array,
    capacity: float,
    looks: int,
) -> bool:
    """Use a line of a cache that evicts the oldest of `looks` lines."""
    used[USES] += 1
    since[line] = int(used[USES])
    if held[line] > 0:
        return True
    held[line] = size
    used[BYTES] += size
    used[LARGEST] = max(used[LARGEST], size)
    used[SMALLEST] = min(used[SMALLEST], size) if used[SMALLEST] > 0 else size
    older[int(used[LINES])] = line
    newer[line] = int(used[LINES])
    used[LINES] += 1
    while used[BYTES] > capacity and used[LINES] > 1:
        victim = looked_at(older, held, used)
        for _ in range(looks - 1):
            seen = looked_at(older, held, used)
            if since[seen] < since[victim]:
                victim = seen
        small = max(used[SMALLEST], used[BYTES] / used[LINES] / FAR_BELOW)
        if drawn(used, 1 << 20) * held[victim] > small * (1 << 20):
            continue  # a large line goes whole, so it goes the more seldom
        used[LINES] -= 1
        last = older[int(used[LINES])]
        older[newer[victim]] = last
        newer[last] = newer[victim]
        used[BYTES] -= held[victim]
        held[victim] = 0
    return False


@compiled
def use(
    line: int,
    size: float,
    cache: int,
    older: Array,
    newer: Array,
    held: Array,
    since: Array,
    used: Array,
    capacity: float,
    looks: int,
) -> bool:
    """Use a line of one of the L2s: whether it was there."""
    if looks > 0:
        return looked_up(
            line, size, older[cache], newer[cache], held[cache], since[cache], used[cache], capacity, looks
        )
    return touch(line, size, older[cache], newer[cache], held[cache], used[cache], capacity)


@compiled
def run_trace(
    bounds: Array,
    backwards: Array,
    domain: Array,
    stream: Array,
    size: Array,
    write_bounds: Array,
    write_domain: Array,
    write_size: Array,
    looks: int,
    partitions: int,
    streams: int,
    slabs: int,
    capacity: float,
    last_capacity: float,
    older: Array,
    newer: Array,
    held: Array,
    since: Array,
    used: Array,
    last_older: Array,
    last_newer: Array,
    last_held: Array,
    last_used: Array,
    flows: Array,
) -> None:
    """Trace all waves, slab by slab, and add each walk's bytes to `flows`: missed, crossed, asked of memory, HBM."""
    for launch_wave in range(bounds.shape[0] - 1):
        for turn in range(slabs):
            slab = slabs - 1 - turn if backwards[launch_wave] else turn
            for walk in range(bounds[launch_wave], bounds[launch_wave + 1]):
                own = domain[walk]
                bytes_here = size[walk] / (slabs * partitions)
                line = stream[walk] * slabs + slab
                for home in range(partitions):
                    at = line + home * streams * slabs
                    keeper = own // partitions * partitions + home
                    if use(at, bytes_here, own, older, newer, held, since, used, capacity, looks):
                        continue  # the home of a copy does not hear of its use
                    flows[walk, 0] += bytes_here
                    if keeper != own:
                        flows[walk, 1] += bytes_here
                        if use(at, bytes_here, keeper, older, newer, held, since, used, capacity, looks):
                            continue
                    flows[walk, 2] += bytes_here
                    if last_capacity > 0 and touch(
                        at, bytes_here, last_older, last_newer, last_held, last_used, last_capacity
                    ):
                        continue
                    flows[walk, 3] += bytes_here
        for write in range(write_bounds[launch_wave], write_bounds[launch_wave + 1]):
            own = write_domain[write]
            for home in range(partitions):
                keeper = own // partitions * partitions + home
                at = partitions * (streams * slabs + write) + home
                share = write_size[write] / partitions
                use(at, share, keeper, older, newer, held, since, used, capacity, looks)
                if keeper != own:  # on its way to another partition it takes room in its own
                    use(at, share, own, older, newer, held, since, used, capacity, looks)


def empty_lists(caches: int, lines: int) -> tuple[Any, Any, Any, Any]:
    """(older, newer, held, used) of so many empty caches."""
    older = np.full((caches, lines + 2), -1, np.int32)
    newer = np.full((caches, lines + 2), -1, np.int32)
    older[:, lines], newer[:, lines + 1] = lines + 1, lines
    return older, newer, np.zeros((caches, lines + 2), np.float32), np.zeros((caches, 6))
