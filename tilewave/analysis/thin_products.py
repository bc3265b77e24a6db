"""How lanes share a product with few rows or columns: which axes its terms have, and how many of the depth at once."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewave.analysis.loads import memory_order, power_of_two
from tilewave.analysis.register_pressure import BESIDE, REGISTER_BYTES
from tilewave.ir.core import Op, Value
from tilewave.ir.ops import Cast, Mma, Read
from tilewave.machine.chips import Chip
from tilewave.records import dataclass

FEW = 4
"""Rows or columns up to which lanes multiply what they load."""
WAVES = (1, 2, 4, 8, 16)
MOST_LOADED = 48
"""Registers that a lane loads to in each step: memory is busy with so many, and so many fit beside the terms."""
MOST_TERMS = 32
"""Terms that a lane adds up beside each other."""


@dataclass(frozen=True)
class ThinLanes:
    """The lanes of a workgroup that adds up one product, and their part of the depth."""

    waves: int
    depth: int
    """The depth of the terms, a slice of a step's: a lane loads all slices of a step before it waits."""
    axes: tuple[int, ...]
    """The axes of rows, columns and depth, as numbers 0, 1 and 2, in the order that terms have them."""
    resident: int
    """The workgroups that share an SM."""

    @staticmethod
    def of(chip: Chip, tile: ThinTile, widest_bytes: int = 0, waves: int = 0) -> ThinLanes:
        """Return the lanes of a tile, each of which accesses at most `widest_bytes` of an array at once.

        `waves` are those that the author asks for, if any.
        """
        width = max(1, (widest_bytes or chip.widest_load_bytes) // tile.acc_bytes)
        found = (_Shared(tile, n * chip.lanes, width, chip.lanes) for n in ((waves,) if waves else WAVES))
        shared = next(one for one in found if one.loaded <= MOST_LOADED or one.lanes >= max(WAVES) * chip.lanes)
        axes = (0, 1, 2) if not tile.is_across else (1, 2, 0) if tile.is_long_of_rows else (0, 2, 1)
        registers = BESIDE + shared.terms + shared.loaded
        most = chip.tuning.rows.resident_lanes // shared.lanes
        fitting = min(most, chip.register_bytes // (REGISTER_BYTES * registers * shared.lanes))
        return ThinLanes(shared.lanes // chip.lanes, shared.depth, axes, max(1, fitting))


@dataclass(frozen=True)
class _Shared:
    """A tile that some lanes share, each of which loads `width` neighbours at once."""

    tile: ThinTile
    lanes: int
    width: int
    of_a_wave: int

    @property
    def beside(self) -> int:
        """The lanes of a wave that are beside each other along the longer side."""
        long = self.tile.long
        return min(self.of_a_wave, max(1, power_of_two(long, long) // self.width)) if self.tile.is_across else 1

    @property
    def depth(self) -> int:
        """The depth of a slice: lanes have a chunk each, unless they would have too many terms."""
        along = self.lanes // self.beside if self.tile.is_across else self.width * self.lanes
        fitting = max(1, MOST_TERMS * self.lanes // self.tile.sums)
        return power_of_two(self.tile.depth, min(along, fitting, self.tile.depth))

    @property
    def terms(self) -> int:
        return -(-self.tile.sums * self.depth // self.lanes)

    @property
    def loaded(self) -> int:
        """Registers for what a lane loads in a step: each load of less than a word takes one."""
        few, long = self.tile.few, -(-self.tile.long // self.beside)
        elements = -(-self.tile.depth * self.beside // self.lanes) * (few + long)
        return elements if self.width == 1 else -(-elements // 2)


@dataclass(frozen=True)
class ThinTile:
    """A tile of a product with few rows or columns, and what of it one step of the loop adds up."""

    rows: int
    cols: int
    batch: int
    depth: int
    is_across: bool
    """Whether neighbours in memory are in different rows of the longer operand, and not along its depth."""
    acc_bytes: int

    @property
    def is_long_of_rows(self) -> bool:
        """Whether the first operand is the longer one."""
        return self.rows >= self.cols

    @property
    def long(self) -> int:
        return max(self.rows, self.cols)

    @property
    def few(self) -> int:
        return min(self.rows, self.cols)

    @property
    def sums(self) -> int:
        return self.batch * self.rows * self.cols


def is_thin(rows: int, cols: int) -> bool:
    """Return whether lanes multiply a tile that they load: a matrix unit would multiply mostly padding."""
    return min(rows, cols) <= FEW


def thin_tile(product: Mma, defs: Mapping[Value, Op]) -> ThinTile:
    *batch, rows, cols = product.acc.type.shape
    across = is_across(product.a if rows >= cols else product.b, defs)
    return ThinTile(rows, cols, prod(batch), product.a.type.shape[-1], across, product.acc.type.dtype.bytes)


@dataclass(frozen=True)
class ConvertedRead:
    """An operand that is read, and then converted by `casts`."""

    read: Read
    casts: tuple[Cast, ...]


def made_from(v: Value, defs: Mapping[Value, Op]) -> ConvertedRead | None:
    """Return how an operand is made of what is read; None where more is done to it."""
    casts: list[Cast] = []
    while isinstance(op := defs.get(v), Cast):
        casts.append(op)
        v = op.x
    return ConvertedRead(op, tuple(reversed(casts))) if isinstance(op, Read) and op.axes else None


def is_across(operand: Value, defs: Mapping[Value, Op]) -> bool:
    """Return whether neighbours in memory are in different rows of an operand, and not along its depth."""
    made = made_from(operand, defs)
    return made is not None and memory_order(made.read)[-1] != len(operand.type.shape) - 1
