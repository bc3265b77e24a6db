"""Load balance of a launch whose tiles take different times, such as the rows of causal attention.

A row of queries attends to the keys up to its own, so with blocks of 128 queries and 64 keys row r of a causal grid
takes 2·r + 2 blocks of keys. The hardware gives each workgroup, in launch order, to the next unit of its XCD that is
free; on two units, one head of four rows, that is

    linear()          unit 0 | 0 0 2 2 2 2 2 2                        last_first()   unit 0 | 3 3 3 3 3 3 3 3 0 0
                      unit 1 | 1 1 1 1 3 3 3 3 3 3 3 3                               unit 1 | 2 2 2 2 2 2 1 1 1 1

and the order that starts with the longest tiles ends sooner. Costs are blocks of keys; no machine is modelled.
"""

from __future__ import annotations

import heapq

import numpy as np

from tilewave.mapping.coverage import Array, Coverage
from tilewave.mapping.grid import Grid, MappingError, checked_parameter, deal_of
from tilewave.mapping.index import Index, choose
from tilewave.mapping.text import as_mapping
from tilewave.records import dataclass


@dataclass(frozen=True)
class Causal:
    """Blocks of `queries` along M; each takes the blocks of `keys` up to its last query, or up to `length`."""

    queries: int
    keys: int
    length: int | None = None

    def __post_init__(self) -> None:
        for name in ("queries", "keys", "length"):
            if getattr(self, name) is not None:
                checked_parameter("causal", name, getattr(self, name))

    def costs(self, grid: Grid) -> Array:
        """Return costs[row, col]: the number of key blocks of each tile."""
        seen = (np.arange(grid.rows, dtype=np.int64) + 1) * self.queries
        if self.length is not None:
            seen = np.minimum(seen, self.length)
        return np.broadcast_to(-(-seen // self.keys)[:, None], (grid.rows, grid.cols))


@dataclass(frozen=True)
class XcdWork:
    """What one XCD computes: tiles, their cost in all, and when its last unit is done."""

    xcd: int
    tiles: int
    work: int
    ends: int


@dataclass(frozen=True)
class Balance:
    """When the units of a launch are done, counted in what a tile costs."""

    mapping: str
    grid: Grid
    xcds: tuple[XcdWork, ...]
    units: int
    longest: int
    """What the costliest tile takes."""

    @property
    def work(self) -> int:
        """The cost of all tiles."""
        return sum(xcd.work for xcd in self.xcds)

    @property
    def ends(self) -> int:
        """When the last unit is done."""
        return max(xcd.ends for xcd in self.xcds)

    @property
    def soonest(self) -> int:
        """No order ends before: the work shared evenly, or the costliest tile alone."""
        return max(-(-self.work // self.units), self.longest)

    @property
    def busy(self) -> float:
        """The share of the units' time that they spend computing."""
        return self.work / (self.units * self.ends)

    def __str__(self) -> str:
        return f"{self.mapping} on {self.grid}: {self.units} units end after {self.ends}, {self.busy:.0%} of it busy"


def balance(
    mapping: object, grid: Grid, costs: Array, xcds: int = 1, units: int | None = None, workgroups: int | None = None
) -> Balance:
    """The report for one launch: unit u sits on XCD u % xcds, and without `units` all workgroups run at once."""
    coverage = mapping if isinstance(mapping, Coverage) else as_mapping(mapping)
    launched = deal_of(grid, workgroups).workgroups
    units = min(launched if units is None else units, launched)
    if units < min(xcds, launched):
        raise MappingError(
            f"{units} units are too few for {xcds} XCDs", remedy="let at least one workgroup run on each"
        )
    work, tiles, longest = np.zeros(launched, np.int64), np.zeros(launched, np.int64), 0
    for visits in coverage.visits(grid, workgroups):
        cost = costs[visits.row, visits.col]
        np.add.at(work, visits.workgroup, cost)
        np.add.at(tiles, visits.workgroup, 1)
        longest = max(longest, int(cost.max()))
    start, _ = next_free(work, np.arange(units) % xcds)
    owner = np.arange(launched) % xcds
    ends = np.zeros(xcds, np.int64)
    np.maximum.at(ends, owner, start + work)
    shares = (np.bincount(owner, part, minlength=xcds) for part in (tiles, work))
    found = (XcdWork(x, *map(int, parts)) for x, parts in enumerate(zip(*shares, ends, strict=True)))
    return Balance(str(coverage), grid, tuple(found), units, longest)


LEAST_STAYING = 15, 16
"""The part of the workgroups that at least must stay: the others would have nothing to do."""


def even_rounds(period: Index, workgroups: int) -> Index:
    """How many of so many workgroups stay, so that `folded()` gives all of them the same; 0 where they are too few.

    Where tile t costs as much as tile t + period, and costs fall or rise evenly between, workgroup w has the w-th tile
    of a round and the w-th from the end of the next. Both together cost the same for all w if two rounds are whole
    periods: then their places in a period, counted from its two ends, are the same.
    """
    unit = period // (2 - period % 2)
    staying = workgroups // unit * unit
    part, whole = LEAST_STAYING
    return choose(staying * whole >= workgroups * part, staying, 0)


def next_free(lengths: Array, queue_of_unit: Array) -> tuple[Array, Array]:
    """(start, unit) of each workgroup: workgroup w waits in queue w % queues until one of its units is free."""
    units, w, queues = len(queue_of_unit), np.arange(len(lengths)), int(queue_of_unit.max()) + 1
    if len(lengths) <= units or (units % queues == 0 and (lengths == lengths[0]).all()):
        # Round after round; the w-th workgroup of a round sits on the w-th unit.
        return w // units * int(lengths[0]), w % units
    start, unit = np.zeros_like(w), np.zeros_like(w)
    for queue in range(queues):
        free = [(0, int(u)) for u in np.flatnonzero(queue_of_unit == queue)]
        for one in range(queue, len(lengths), queues):
            time, u = free[0]
            start[one], unit[one] = time, u
            heapq.heapreplace(free, (time + int(lengths[one]), u))
    return start, unit
