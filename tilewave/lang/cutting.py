"""The launch that values of all symbols make of a kernel's work: its constraints cut the dims of the work into tiles.

Sizes may be integers, or numbers of a `HostProgram`: then the same arithmetic is recorded for each call's sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tilewave.cost.work import CutProduct, CutTransfer, CutWork
from tilewave.ir.host_program import Number, larger, rounded_up, smaller
from tilewave.lang.constraints import (
    Constraint,
    HardwareConstraint,
    SplitConstraint,
    TilingConstraint,
    WaveConstraint,
    WorkgroupConstraint,
)
from tilewave.lang.symbols import Expression, Symbol, rounded_where_open
from tilewave.lang.windows import followed
from tilewave.trace import DimensionWindow, TileProduct, TileTransfer, TileWork


def cut_work(work: TileWork, constraints: Sequence[Constraint], values: Mapping[Symbol, Any]) -> CutWork:
    """Return the launch of a kernel with these constraints and values of its symbols."""
    return Cutting(work, constraints, values).work()


def around(t: TileTransfer) -> tuple[Any, ...]:
    """The loops that a transfer is repeated in; a tile that an inner one does not move is read before it."""
    walked = t.walked
    while walked and walked[-1] not in t.dims and not t.is_written:
        walked = walked[:-1]
    return walked


class Cutting:
    """A kernel's work whose every symbol has a value."""

    def __init__(self, of: TileWork, constraints: Sequence[Constraint], values: Mapping[Symbol, Any]) -> None:
        self.of, self.values = of, values
        self.grid: dict[Symbol, Number] = {}
        self.steps: dict[Symbol, Number] = {}
        self.waves: dict[Symbol, int] = {}
        self.goes_with: dict[Symbol, Number] = {}
        self.sizes: dict[Any, Number] = {}
        self.split, self.wish = 1, ""
        for c in constraints:
            match c:
                case WorkgroupConstraint(primary=True):
                    self.grid[c.dim] = self.number(c.tile)
                case WorkgroupConstraint():
                    self.goes_with[c.dim] = self.number(c.tile)
                case TilingConstraint(tile=tile) if tile is not None:
                    self.steps[c.dim] = self.number(tile)
                case WaveConstraint():
                    self.waves[c.dim] = self.number(c.tile)
                case SplitConstraint():
                    self.split = self.number(c.parts)
                case HardwareConstraint(mma_type=asked) if asked is not None:
                    self.wish = asked.value

    def number(self, e: Expression) -> Number:
        """Return the value of an expression; a number of a program only where it is a symbol's."""
        known = self.values.get(e) if isinstance(e, Symbol) else None
        if known is None:
            known = max(1, int(e.evaluate(self.values)))
        return known if not isinstance(known, int) else max(1, known)

    def size(self, dim: Any) -> Number:
        found = self.sizes.get(dim)
        if found is None:
            found = self.sizes[dim] = self.number(rounded_where_open(dim, {}))  # of typical sizes
        return found

    def extent(self, dim: Any) -> Number:
        """Return the tile size along a dimension; an untiled one is whole; an expression follows its symbol."""
        for cut in (self.grid, self.steps, self.goes_with):
            if dim in cut:
                return cut[dim]
        return self.size(dim) if (part := self.followed(dim)) is None else part.extent

    def followed(self, dim: Any) -> DimensionWindow | None:
        """The part of a dim that goes with a tile of the dim that it is made of."""
        tiles = self.grid | self.steps | self.goes_with
        return followed(dim, {s: DimensionWindow.tile(0, n) for s, n in tiles.items()}, self.values)

    def count(self, dim: Any) -> Number:
        """Return the number of tiles along a dimension."""
        return rounded_up(self.size(dim), self.extent(dim))

    def work(self) -> CutWork:
        products = tuple(map(self.product, self.of.products))
        transfers = tuple(map(self.transfer, self.of.transfers))
        steps: Number = 1
        for times in [*(p.times for p in products), *(t.times for t in transfers)]:
            steps = larger(steps, times)
        grid = tuple(self.count(dim) for dim in self.grid)
        fit = all(self.extent(dim) % tile == 0 for dim, tile in self.waves.items())
        return CutWork(grid, steps, products, transfers, self.waves_of_product(), fit, self.split)

    def product(self, p: TileProduct) -> CutProduct:
        rows, cols, depth = (self.extent(d) for d in (p.rows, p.cols, p.depth))
        batch = prod(self.extent(d) for d in p.batch)
        largest = smaller(rows, self.size(p.rows)), smaller(cols, self.size(p.cols))
        total = prod(self.size(d) for d in (p.rows, p.cols, p.depth, *p.batch))
        return CutProduct(rows, cols, depth, batch, self.times(p.walked), p.dtype, p.acc, largest, total, self.wish)

    def transfer(self, t: TileTransfer) -> CutTransfer:
        elements, size = prod(self.extent(d) for d in t.dims), t.dtype.bytes
        array = prod(self.size(d) for d in t.dims) * size
        walked = around(t)
        beside = prod(self.count(d) for d in self.grid if d not in t.dims)
        again = prod(self.count(d) for d in walked if d not in t.dims)
        row = self.size(t.dims[-1]) * size if t.dims else size
        along = self.extent(t.dims[-1]) * size if t.dims else size
        facts = elements * size, array * beside * again, self.times(walked), t.is_written, bool(walked)
        return CutTransfer(t.memory, *facts, array, row, elements, along, self.is_across(t))

    def is_across(self, t: TileTransfer) -> bool:
        products = self.of.products
        return len(products) == 1 and not t.is_written and products[0].depth in t.dims[:-1]

    def times(self, walked: tuple[Any, ...]) -> Number:
        return prod(self.count(d) for d in walked)

    def waves_of_product(self) -> tuple[int, int] | None:
        if not self.waves or not self.of.products:
            return None
        first = self.of.products[0]
        rows, cols = (-(-self.extent(d) // self.waves[d]) if d in self.waves else 1 for d in (first.rows, first.cols))
        return rows, cols
