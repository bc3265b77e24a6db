"""What is to be tiled: a kernel's work in dims, how it is cut in symbols, and sizes; a point of a space cuts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tilewave.forks import cached_property
from tilewave.ir.types import DType
from tilewave.lang.constraints import (
    Constraint,
    GridConstraint,
    HardwareConstraint,
    ReorderingConstraint,
    SplitConstraint,
    TilingConstraint,
    WaveConstraint,
    WorkgroupConstraint,
    WorkgroupMapping,
)
from tilewave.lang.symbols import Expression, Symbol, rounded_where_open
from tilewave.lang.windows import followed
from tilewave.trace import DimensionWindow, TileProduct, TileTransfer, TileWork
from tilewave.tune.space import IN_PLACE, NUM_STAGES, SPLIT, UNSAID

Config = Mapping[Symbol, int]
"""A value for each symbol that is to be decided."""


@dataclass(frozen=True)
class CutProduct:
    """A product of tiles: its extents, and how often a task computes it."""

    rows: int
    cols: int
    depth: int
    batch: int
    times: int
    dtype: DType
    acc: DType
    largest: tuple[int, int]
    """Rows and columns of a full tile, or of the only one clipped to the array."""
    inside: float
    """The in-bounds share of all rows and columns."""
    all: int
    """The number of in-bounds element products of all tasks."""
    wish: str = ""
    """The matrix instruction that its author asks for."""


@dataclass(frozen=True)
class CutTransfer:
    """A tile that is read or written, and how often a task does so."""

    memory: str
    tile_bytes: int
    inside_bytes: float
    """The average in-bounds part of `tile_bytes`."""
    times: int
    is_written: bool
    is_walked: bool
    array_bytes: int
    """Bytes of the part of the array that the launch accesses, each counted once."""
    row_bytes: int
    """Bytes of a whole row of the array."""
    elements: int
    """The number of elements of the tile."""
    tile_row_bytes: int
    """Bytes of the tile along the rows of the array."""
    swept_bytes: int
    """In-bounds bytes that a task reads in all its steps."""
    is_across: bool = False
    """Whether rows do not go along the depth of the product that it is read for."""
    is_one_row: bool = False
    """Whether the array has a single row, so that no row stride matters."""
    is_column: bool = False
    """Whether it is one column across the depth, which TMA loads as a row (`passes/memory/pack_unaligned.py`)."""

    def is_off(self, multiple_bytes: int) -> bool:
        """Return whether the row stride is not a multiple of `multiple_bytes`."""
        return not self.is_one_row and not self.is_column and self.row_bytes % multiple_bytes > 0


@dataclass(frozen=True)
class CutWork:
    """A launch: so many tasks, and what each of them does."""

    tasks: int
    grid: tuple[int, ...]
    """Tiles along each dimension of the grid."""
    steps: int
    products: tuple[CutProduct, ...]
    transfers: tuple[CutTransfer, ...]
    waves: tuple[int, int] | None
    """The waves along rows and columns of a tile, if the author gives them."""
    waves_fit: bool = True
    """Whether their parts make up the tile."""
    split: int = 1
    """Parts that the steps of a task are cut into."""
    num_stages: int = UNSAID
    """Steps that shared memory holds at once, where that is said."""
    in_place: int = UNSAID
    """1 if operands are read in place."""
    in_fixed_order: bool = False
    """Whether results are batch-invariant: stream-K is then off."""
    given: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What was worked out of it before (`gpu_room.computed_once`)."""

    def with_knobs(self, config: Config) -> CutWork:
        """Return this work with the knobs of a config; knobs that it does not name are kept."""
        return replace(
            self,
            split=config.get(SPLIT, self.split),
            num_stages=config.get(NUM_STAGES, self.num_stages),
            in_place=config.get(IN_PLACE, self.in_place),
        )

    @cached_property
    def operands(self) -> tuple[CutTransfer, ...]:
        """What the steps of the loop read."""
        return tuple(t for t in self.transfers if t.is_walked and not t.is_written)

    @cached_property
    def held_bytes(self) -> int:
        """Bytes of the tiles that are read before the loop."""
        return sum(t.tile_bytes for t in self.transfers if not t.is_walked and not t.is_written)

    @cached_property
    def read_tile_bytes(self) -> int:
        """Bytes of all tiles that are read."""
        return sum(t.tile_bytes for t in self.transfers if not t.is_written)

    @cached_property
    def beside(self) -> int:
        """Tiles as large as the sums that are read, or written before the last one."""
        sums = max((p.batch * p.rows * p.cols for p in self.products), default=0)
        found = [t for t in self.transfers if not t.is_walked and t.elements == sums]
        return max(0, len(found) - 1)

    @cached_property
    def step_bytes(self) -> int:
        """Bytes that one step of a task reads."""
        return sum(t.tile_bytes * t.times for t in self.operands) // self.steps

    @cached_property
    def outside_bytes(self) -> float:
        """The out-of-bounds part of `step_bytes`."""
        return sum((t.tile_bytes - t.inside_bytes) * t.times for t in self.operands) / self.steps

    @cached_property
    def written_bytes(self) -> int:
        """Bytes of the tiles that a task writes."""
        return sum(t.tile_bytes for t in self.transfers if t.is_written)

    @cached_property
    def asked_bytes(self) -> float:
        """Bytes that all tasks read and write."""
        return self.tasks * sum(t.inside_bytes * t.times for t in self.transfers)

    @cached_property
    def distinct_bytes(self) -> float:
        """Bytes that the launch reads and writes, each counted once."""
        once: dict[tuple[str, bool], int] = {}
        for t in self.transfers:
            once[t.memory, t.is_written] = max(t.array_bytes, once.get((t.memory, t.is_written), 0))
        return float(sum(once.values()))

    @cached_property
    def flops(self) -> float:
        """Flops of all tasks; boundary tiles count as full ones."""
        return self.tasks * sum(2.0 * p.batch * p.rows * p.cols * p.depth * p.times for p in self.products)


NO_WORK = CutWork(0, (), 1, (), (), None)


@dataclass(frozen=True)
class TiledProblem:
    """A kernel whose sizes are known and whose tiles are not."""

    work: TileWork
    constraints: tuple[Constraint, ...]
    values: Mapping[Symbol, Any]
    """Sizes and other symbols, as far as they are known."""
    in_fixed_order: bool = False
    """Whether results are batch-invariant."""

    def sized(self, sizes: Mapping[Symbol, int]) -> TiledProblem:
        return replace(self, values={**self.values, **sizes})

    @property
    def is_ordered(self) -> bool:
        """Whether the author gives the order of tiles, or loops over them."""
        return any(isinstance(c, (WorkgroupMapping, ReorderingConstraint, GridConstraint)) for c in self.constraints)

    def cut(self, config: Config) -> CutWork:
        work = _Cutting(self, {**self.values, **config}).work()
        return replace(work, in_fixed_order=self.in_fixed_order).with_knobs(config)


def around(t: TileTransfer) -> tuple[Any, ...]:
    """The loops that a transfer is repeated in; a tile that an inner one does not move is read before it."""
    walked = t.walked
    while walked and walked[-1] not in t.dims and not t.is_written:
        walked = walked[:-1]
    return walked


class _Cutting:
    """A problem whose every symbol has a value."""

    def __init__(self, problem: TiledProblem, values: Mapping[Symbol, Any]) -> None:
        self.problem, self.values = problem, values
        self.grid: dict[Symbol, int] = {}
        self.steps: dict[Symbol, int] = {}
        self.waves: dict[Symbol, int] = {}
        self.goes_with: dict[Symbol, int] = {}
        self.sizes: dict[Any, int] = {}
        self.split, self.wish = 1, ""
        for c in problem.constraints:
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

    def number(self, e: Expression) -> int:
        known = self.values.get(e) if isinstance(e, Symbol) else None
        return max(1, known if type(known) is int else int(e.evaluate(self.values)))

    def size(self, dim: Any) -> int:
        found = self.sizes.get(dim)
        if found is None:
            found = self.sizes[dim] = self.number(rounded_where_open(dim, {}))  # of typical sizes
        return found

    def extent(self, dim: Any) -> int:
        """Return the tile size along a dimension; an untiled one is whole; an expression follows its symbol."""
        for cut in (self.grid, self.steps, self.goes_with):
            if dim in cut:
                return cut[dim]
        return self.size(dim) if (part := self.followed(dim)) is None else part.extent

    def followed(self, dim: Any) -> DimensionWindow | None:
        """The part of a dim that goes with a tile of the dim that it is made of."""
        tiles = self.grid | self.steps | self.goes_with
        return followed(dim, {s: DimensionWindow.tile(0, n) for s, n in tiles.items()}, self.values)

    def count(self, dim: Any) -> int:
        """Return the number of tiles along a dimension."""
        return -(-self.size(dim) // self.extent(dim))

    def work(self) -> CutWork:
        products = tuple(map(self.product, self.problem.work.products))
        transfers = tuple(map(self.transfer, self.problem.work.transfers))
        steps = max([1, *(p.times for p in products), *(t.times for t in transfers)])
        grid = tuple(self.count(dim) for dim in self.grid)
        fit = all(self.extent(dim) % tile == 0 for dim, tile in self.waves.items())
        return CutWork(prod(grid), grid, steps, products, transfers, self.waves_of_product(), fit, self.split)

    def product(self, p: TileProduct) -> CutProduct:
        rows, cols, depth = (self.extent(d) for d in (p.rows, p.cols, p.depth))
        batch = prod(self.extent(d) for d in p.batch)
        largest = min(rows, self.size(p.rows)), min(cols, self.size(p.cols))
        inside = self.inside(p.rows) * self.inside(p.cols)
        total = prod(self.size(d) for d in (p.rows, p.cols, p.depth, *p.batch))
        facts = rows, cols, depth, batch, self.times(p.walked), p.dtype, p.acc
        return CutProduct(*facts, largest, inside, total, self.wish)

    def inside(self, dim: Any) -> float:
        """Return the in-bounds share of the tiles along a dimension."""
        return self.size(dim) / (self.count(dim) * self.extent(dim))

    def transfer(self, t: TileTransfer) -> CutTransfer:
        elements = prod(self.extent(d) for d in t.dims)
        tile = elements * t.dtype.bytes
        inside = prod(map(self.inside, t.dims))
        array = prod(self.size(d) for d in t.dims) * t.dtype.bytes
        row = self.size(t.dims[-1]) * t.dtype.bytes if t.dims else t.dtype.bytes
        walked = around(t)
        facts = t.memory, tile, tile * inside, self.times(walked), t.is_written, bool(walked), array, row
        along = self.extent(t.dims[-1]) * t.dtype.bytes if t.dims else t.dtype.bytes
        cut = {d: min(self.extent(d), self.size(d)) for d in t.dims}
        swept = prod(self.size(d) if d in walked else cut[d] for d in t.dims) * t.dtype.bytes
        return CutTransfer(*facts, elements, along, swept, self.is_across(t), *self.is_alone(t))

    def is_across(self, t: TileTransfer) -> bool:
        products = self.problem.work.products
        return len(products) == 1 and not t.is_written and products[0].depth in t.dims[:-1]

    def is_alone(self, t: TileTransfer) -> tuple[bool, bool]:
        """Whether there is one row, and whether one column, which it is read across."""
        sizes = [self.size(d) for d in t.dims]
        return prod(sizes[:-1]) == 1, len(sizes) == 2 and sizes[-1] == 1 and self.is_across(t)

    def times(self, walked: tuple[Any, ...]) -> int:
        return prod(self.count(d) for d in walked)

    def waves_of_product(self) -> tuple[int, int] | None:
        if not self.waves or not self.problem.work.products:
            return None
        first = self.problem.work.products[0]
        rows, cols = (-(-self.extent(d) // self.waves[d]) if d in self.waves else 1 for d in (first.rows, first.cols))
        return rows, cols
