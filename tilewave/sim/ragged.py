"""Kernels over ragged grids, simulated with example counts: the index arithmetic runs, and their groups end as said.

A tile without rows reads and writes nothing, as `skip_empty_tiles` has it. A tile at the end of a group reads whole
boxes, and writes the rows before that end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewave.analysis.index_sources import IndexSources, PositionPart
from tilewave.analysis.index_trace import IndexRun, Visit, Wanted
from tilewave.interp.arithmetic import Array
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import RaggedTile, TileInGroup, Write, WriteIndexed
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.types import Scalar
from tilewave.mapping.ragged import MOST_ROWS, RaggedGrid
from tilewave.records import dataclass
from tilewave.sim.problem import SimError


def ragged_tiles(kernel: Kernel) -> list[RaggedTile]:
    """Return the ops that give a workgroup its rows of a group."""
    return [op for op in walk(kernel.body) if isinstance(op, RaggedTile)]


@dataclass(frozen=True, eq=False)
class RaggedKernel:
    """A kernel whose writes to the rows of groups are writes of tiles, and where its groups end."""

    kernel: Kernel
    ends: Array
    stops: Mapping[int, tuple[int, Value]]
    """For each such write, by its id, the axis of the rows and where they end."""

    @staticmethod
    def of(kernel: Kernel, ends: Sequence[int]) -> RaggedKernel:
        """Return the kernel with its groups; an error where the ends are not those of its groups."""
        _want_ends(kernel, ends)
        sources, stops = IndexSources(kernel), {}

        def tiled(op: Op) -> Sequence[Op] | None:
            found = _as_tile(op, sources) if isinstance(op, WriteIndexed) else None
            if found is None:
                return None
            write, axis, end = found
            stops[id(write)] = axis, end
            return [write]

        return RaggedKernel(rewrite(kernel, tiled), np.asarray(ends, np.int64), stops)

    def visits(self, symbols: Mapping[str, int], wanted: tuple[type[Op], ...]) -> Iterator[Visit]:
        """Yield every visit of the wanted ops, as `analysis.index_trace.visits` does."""
        return _RaggedRun(self, symbols, lambda op: isinstance(op, wanted)).all()


def _want_ends(kernel: Kernel, ends: Sequence[int]) -> None:
    tiles = ragged_tiles(kernel)
    if not tiles:
        raise SimError(f"{kernel.name} has no ragged grid", remedy="leave its counts out")
    counts = np.diff(np.asarray(ends, np.int64), prepend=0)
    if (counts < 0).any():
        group = int(np.argmax(counts < 0))
        raise SimError(f"group {group} has {int(counts[group])} rows", remedy="a group has 0 rows or more")
    for memory in dict.fromkeys(op.memory for op in tiles):
        (groups,) = memory.type.extents
        if groups != len(ends):
            what = f"{kernel.name} has {groups} groups, and {len(ends)} counts are given"
            raise SimError(what, remedy=f"give a count for each of {groups} groups")
    last, rows = int(ends[-1]), rows_of_groups(kernel, tiles[0])
    if last > MOST_ROWS:
        raise SimError(f"the counts add up to {last:,} rows, and kernels number {MOST_ROWS:,}")
    if rows is not None and last > rows:
        what = f"the groups end at {last:,}, and the kernel has {rows:,} rows"
        raise SimError(what, remedy="give fewer rows, or a larger kernel")


def rows_of_groups(kernel: Kernel, tile: RaggedTile) -> int | None:
    """Return the rows that a contract of the ends names."""
    for name, rows, *_ in kernel.contracts:
        if name == tile.memory.name and rows.isdecimal():
            return int(rows)
    return None


def _as_tile(op: WriteIndexed, sources: IndexSources) -> tuple[Write, int, Value] | None:
    """Return a write to rows of a group as one of a tile, the axis of its rows, and their end; None: it is no such."""
    parts: list[PositionPart] = []
    for source in sources.sources(op):
        if source is None or source.read is not None or len(source.parts) != 1:
            return None
        parts.append(source.parts[0])
    starts = [part.rows.results[1] if part.rows else part.start for part in parts]
    along = {part.axis: axis for axis, part in enumerate(parts) if part.axis is not None}
    rows = next(((axis, part.rows.results[2]) for axis, part in enumerate(parts) if part.rows), None)
    is_known = all(isinstance(start.type, Scalar) for start in starts) and len(along) == len(op.tile.type.shape)
    if rows is None or not is_known:
        return None
    return Write(op.tile, op.memory, tuple(starts), tuple(along[axis] for axis in sorted(along)), loc=op.loc), *rows


class _RaggedRun(IndexRun):
    """Runs a kernel's index arithmetic with known groups."""

    def __init__(self, ragged: RaggedKernel, symbols: Mapping[str, int], wanted: Wanted) -> None:
        super().__init__(ragged.kernel, symbols, wanted)
        self.ragged, self.groups = ragged, [op.results[0] for op in ragged_tiles(ragged.kernel)]
        self.kept: dict[tuple[int, int, int, int], tuple[Array, Array]] = {}

    def op(self, op: Op, env: dict[Value, Any], w: Array) -> None:
        match op:
            case RaggedTile():
                numbers = np.broadcast_to(np.asarray(env[op.number]), w.shape)
                found = RaggedGrid(op.block).tiles(self.ragged.ends, numbers)
                env.update(zip(op.results, (found.group, found.first, found.end), strict=True))
            case TileInGroup():
                row, column, columns = (np.broadcast_to(np.asarray(env[v]), w.shape) for v in op.operands[1:])
                placed = RaggedGrid(op.block).tiles_in_groups(self.ragged.ends, (row, column), columns, op.band)
                env.update(zip(op.results, placed, strict=True))
            case _:
                super().op(op, env, w)

    def visit(self, op: Any, env: dict[Value, Any], w: Array) -> None:
        super().visit(op, env, w)
        has_rows = [env[group] >= 0 for group in self.groups if group in env]
        if not has_rows or len(self.out[-1].workgroups) != len(w):
            return
        kept, found = np.logical_and.reduce(has_rows), self.out[-1]
        found = replace(found, workgroups=w[kept], at=tuple(self.those(kept, x) for x in found.at))
        if id(op) in self.ragged.stops:
            axis, end = self.ragged.stops[id(op)]
            found = replace(found, end={axis: env[end][kept]})
        self.out[-1] = found

    def those(self, kept: Array, x: Array) -> Array:
        """Return the positions of some workgroups: one array for all visits that have one array of all workgroups."""
        if kept.all() or x.strides[0] == 0:
            return x[: np.count_nonzero(kept)]
        key = x.ctypes.data, x.strides[0], len(x), hash(kept.tobytes())
        if key not in self.kept:
            self.kept[key] = x, x[kept]  # with x, or its address could be given to another
        return self.kept[key][1]
