"""How lanes share the loads of a tile from global memory: the number of loads per lane, and their width."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from tilewave.ir.core import Kernel, Op
from tilewave.ir.ops import Load, LoadEach, Read, Store, StoreEach, Write
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory
from tilewave.records import dataclass

AHEAD_BYTES = 20 << 10
"""Bytes of a step that lanes prefetch by default: 160 for each of a warpgroup's lanes."""


@dataclass(frozen=True)
class LaneLoads:
    """Every lane makes `loads` loads of `elements` contiguous elements each."""

    memory: str
    loads: int
    elements: int

    def __str__(self) -> str:
        return f"{self.memory}: {self.loads}×{self.elements}"


def loads_per_lane(kernel: Kernel) -> tuple[LaneLoads, ...]:
    """Return one entry for each read of global memory with a decided distribution, in program order."""
    reads = (op for op in walk(kernel.body) if isinstance(op, Read) and op.spread)
    return tuple(_loads(op, kernel) for op in reads if is_in(op.memory, "global"))


def _loads(op: Read, kernel: Kernel) -> LaneLoads:
    elements, lanes, (rows, cols) = prod(op.result.type.shape), kernel.lanes, kernel.waves
    match op.spread:
        case "linear" | "blocks":
            sharing = rows * cols * lanes
        case "rows":
            sharing = rows * lanes
        case "columns":
            sharing = cols * lanes
        case other:
            raise NotImplementedError(f"{op.loc}: no rule for how lanes share a tile {other!r}")
    return LaneLoads(op.memory.name, -(-elements // (sharing * op.per_lane)), op.per_lane)


def run_of_neighbours(shape: Sequence[int], steps: Sequence[Sequence[int]]) -> int:
    """Return how many of a lane's registers, from the first on, are contiguous along a memory's last axis."""
    run = 1
    for extent, step in zip(reversed(shape), reversed(steps), strict=True):
        if extent > 1 and (any(step[:-1]) or step[-1] != run):
            break
        run *= extent
    return run


def moved_in_chunks(kernel: Kernel) -> tuple[str, ...]:
    """Return the arrays of which some access is vectorized; of others lanes move single elements."""
    moving = (op for op in walk(kernel.body) if not _moves_single_elements(op))
    memories = (v for op in moving for v in op.operands if isinstance(v.type, Memory) and is_in(v, "global"))
    return tuple(dict.fromkeys(v.name for v in memories))


def _moves_single_elements(op: Op) -> bool:
    match op:
        case Load():
            return run_of_neighbours(op.result.type.shape, op.steps) == 1
        case Store(x):
            return run_of_neighbours(x.type.shape, op.steps) == 1
        case LoadEach() | StoreEach():
            return op.run == 1
        case _:
            return False


def memory_order(op: Read) -> tuple[int, ...]:
    """Return the tile's axes in the memory's order: elements along the last one are contiguous."""
    return tuple(sorted(range(len(op.axes)), key=lambda i: op.axes[i]))


def widest_chunk(op: Read, widest_bytes: int) -> int:
    """Return the widest vectorized load, in elements: a power of two that divides the tile's rows in memory.

    For a boundary tile, it divides the part that is in bounds.
    """
    shape, there, last = op.result.type.shape, op.within or op.result.type.shape, memory_order(op)[-1:]
    if not last or op.axes[last[0]] != op.memory.type.rank - 1:
        return 1
    return power_of_two(gcd(shape[last[0]], there[last[0]]), widest_bytes // op.result.type.dtype.bytes)


def is_crossed(write: Write, order: tuple[int, ...]) -> bool:
    """Return whether a tile, read with its axes in `order`, is written to rows of another axis."""
    return write.axes[order[-1]] != max(write.axes)


@dataclass(frozen=True)
class LaneBlock:
    """What a lane loads of a tile that is stored transposed: some elements of each of several rows."""

    rows: int
    width: int


def lane_block(op: Read, widest_bytes: int, lanes: int) -> LaneBlock | None:
    """Return the block of rows and columns for transposed loads of at most `widest_bytes`; None for less than 2x2."""
    shape, size, order = op.result.type.shape, op.result.type.dtype.bytes, memory_order(op)
    if len(shape) < 2 or prod(shape[axis] for axis in order[:-2]) > 1:
        return None
    width = widest_chunk(op, widest_bytes)
    while width > 1 and prod(shape) < 2 * width * lanes:
        width //= 2
    rows = power_of_two(shape[order[-2]], min(widest_bytes // size, max(2, prod(shape) // (width * lanes))))
    return LaneBlock(rows, width) if min(rows, width) > 1 else None


def power_of_two(extent: int, most: int) -> int:
    """The largest power of two that divides `extent` and is not above `most`; 1 at least."""
    found = 1
    while found * 2 <= most and extent % (found * 2) == 0:
        found *= 2
    return found
