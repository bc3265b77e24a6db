"""How lanes share a product with few rows or columns: which axes its terms have, and how many of the depth at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewave.analysis.loads import memory_order, power_of_two
from tilewave.analysis.register_pressure import BESIDE, REGISTER_BYTES
from tilewave.ir.core import Op, Value
from tilewave.ir.ops import Cast, Mma, Permute, Read
from tilewave.machine.chips import Chip
from tilewave.records import dataclass

FEW = 4
"""Rows or columns up to which lanes multiply what they load."""
LANE_ELEMENTS = 16
"""Elements of the longer operand that a lane loads in each step: more would take registers, fewer leave it waiting."""
MOST_WAVES = 16
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
    registers: int
    """Registers of a lane: for terms, for what it loads in a step, and for addresses."""
    resident: int
    """The workgroups that share an SM."""

    @staticmethod
    def of(chip: Chip, tile: ThinTile, widest_bytes: int = 0, waves: int = 0) -> ThinLanes:
        """Return the lanes of a tile, each of which accesses at most `widest_bytes` of an array at once.

        `waves` are those that the author asks for, if any.
        """
        wanted = power_of_two_below(tile.long * tile.depth // (chip.lanes * LANE_ELEMENTS))
        lanes = (waves or min(MOST_WAVES, wanted)) * chip.lanes
        width = max(1, (widest_bytes or chip.widest_load_bytes) // tile.acc_bytes)
        beside = min(chip.lanes, max(1, power_of_two(tile.long, tile.long) // width)) if tile.is_across else 1
        along = lanes // beside if tile.is_across else width * lanes
        depth = power_of_two(tile.depth, min(along, tile.depth, max(1, MOST_TERMS * lanes // tile.sums)))
        axes = (0, 1, 2) if not tile.is_across else (1, 2, 0) if tile.is_long_of_rows else (0, 2, 1)
        terms = -(-tile.sums * depth // lanes)
        loads = terms * (tile.few + -(-tile.long // beside)) // max(1, tile.few * tile.long // beside)
        registers = BESIDE + terms + loads * (tile.depth // depth) // (2 if width > 1 else 1)
        most = chip.tuning.rows.resident_lanes // lanes
        return ThinLanes(lanes // chip.lanes, depth, axes, registers, max(1, min(most, chip.register_bytes // (REGISTER_BYTES * registers * lanes))))


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


def power_of_two_below(n: int) -> int:
    """Return the largest power of two that is at most n; 1 for less."""
    return 1 << max(1, n).bit_length() - 1


def made_from(v: Value, defs: Mapping[Value, Op]) -> Sequence[Op]:
    """Return the read that an operand is, and the ops that permute and convert it, in order; empty for any other."""
    ops: list[Op] = []
    while isinstance(op := defs.get(v), (Permute, Cast)):
        ops.append(op)
        v = op.x
    return [op, *reversed(ops)] if isinstance(op, Read) else []


def is_across(operand: Value, defs: Mapping[Value, Op]) -> bool:
    """Return whether neighbours in memory are in different rows of an operand, and not along its depth."""
    read, *made = made_from(operand, defs) or [None]
    if not isinstance(read, Read) or not read.axes:
        return False
    axis = memory_order(read)[-1]
    for op in made:
        axis = op.axes.index(axis) if isinstance(op, Permute) else axis
    return axis != len(operand.type.shape) - 1
