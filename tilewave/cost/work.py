"""What one launch does: its tasks, their steps, and the bytes and products of each; numbers are known or open."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewave.analysis.thin_products import is_thin
from tilewave.forks import cached_property
from tilewave.ir.host_program import Number, remainder, rounded_up
from tilewave.ir.types import DType
from tilewave.records import dataclass

UNSAID = 0
"""The value of a knob that is left to the compiler."""


@dataclass(frozen=True)
class CutProduct:
    """A product of tiles: its extents, and how often a task computes it."""

    rows: int
    cols: int
    depth: int
    batch: int
    times: Number
    dtype: DType
    acc: DType
    largest: tuple[Number, Number]
    """Rows and columns of a full tile, or of the only one clipped to the array."""
    all: Number
    """The number of in-bounds element products of all tasks."""
    wish: str = ""
    """The matrix instruction that its author asks for."""

    @property
    def elements(self) -> int:
        """Elements of the accumulator tile."""
        return self.batch * self.rows * self.cols


@dataclass(frozen=True)
class CutTransfer:
    """A tile that is read or written, and how often a task does so."""

    memory: str
    tile_bytes: int
    swept_bytes: Number
    """In-bounds bytes that all tasks together read or write."""
    times: Number
    is_written: bool
    is_walked: bool
    array_bytes: Number
    """Bytes of the part of the array that the launch accesses, each counted once."""
    row_bytes: Number
    """Bytes of a whole row of the array."""
    elements: int
    """The number of elements of the tile."""
    tile_row_bytes: int
    """Bytes of the tile along the rows of the array."""
    is_across: bool = False
    """Whether rows do not go along the depth of the product that it is read for."""


@dataclass(frozen=True)
class CutWork:
    """A launch: so many tasks, and what each of them does."""

    grid: tuple[Number, ...]
    """Tiles along each dimension of the grid."""
    steps: Number
    products: tuple[CutProduct, ...]
    transfers: tuple[CutTransfer, ...]
    waves: tuple[int, int] | None = None
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

    def with_knobs(self, split: int, num_stages: int, in_place: int) -> CutWork:
        """Return this work with the knobs of a config."""
        return replace(self, split=split, num_stages=num_stages, in_place=in_place)

    @cached_property
    def is_thin(self) -> bool:
        """Whether a loop adds up one product with few rows or columns, which lanes compute without a matrix unit."""
        return len(self.products) == 1 and is_thin(self.products[0].rows, self.products[0].cols)

    @cached_property
    def tasks(self) -> Number:
        return prod(self.grid)

    @cached_property
    def operands(self) -> tuple[CutTransfer, ...]:
        """What the steps of the loop read."""
        return tuple(t for t in self.transfers if t.is_walked and not t.is_written)

    @cached_property
    def step_bytes(self) -> int:
        """Bytes that one step of a task reads."""
        return sum(t.tile_bytes for t in self.operands)

    @cached_property
    def read_tile_bytes(self) -> int:
        """Bytes of all tiles that are read."""
        return sum(t.tile_bytes for t in self.transfers if not t.is_written)

    @cached_property
    def task_bytes(self) -> Number:
        """Bytes that a task reads and writes."""
        return sum(t.tile_bytes * t.times for t in self.transfers)

    @cached_property
    def asked_bytes(self) -> Number:
        """In-bounds bytes that all tasks read and write."""
        return sum(t.swept_bytes for t in self.transfers)

    @cached_property
    def distinct_bytes(self) -> Number:
        """Bytes that the launch reads and writes, each array counted once."""
        once = {(t.memory, t.is_written): t.array_bytes for t in self.transfers}
        return sum(once.values())

    @cached_property
    def sums(self) -> int:
        """Accumulator elements of a task."""
        return sum(p.elements for p in self.products)

    def unaligned(self, multiple_bytes: int) -> tuple[tuple[Number, CutTransfer], ...]:
        """Return the operands and results, each with whether its row stride is no multiple of `multiple_bytes`."""
        moved = (t for t in self.transfers if t.is_walked or t.is_written)
        return tuple((remainder(t.row_bytes, multiple_bytes) > 0, t) for t in moved)

    def unaligned_lines(self, line_bytes: int, grain_bytes: int) -> Number:
        """Return how many operands have rows of whole grains that are no whole lines: packed copies begin on lines."""
        rows = [t.row_bytes for t in self.operands]
        return sum((remainder(n, line_bytes) > 0) * (remainder(n, grain_bytes) < 1) for n in rows)

    @cached_property
    def split_steps(self) -> Number:
        """The steps of one part of a task."""
        return rounded_up(self.steps, self.split)
