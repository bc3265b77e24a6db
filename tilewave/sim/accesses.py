"""The memory accesses of a launch, in the form that every simulation engine reads.

A *task* is the work of a workgroup between two points where it may write: one tile of a GEMM. A task reads *streams*
from end to end, all at one pace: one row of blocks of A, one of B. Two tasks with the same stream read the same bytes.

    task     workgroup  turn   reads              written
    (2, 0)       5        0    A row 2, B row 0   128×256 elements of C
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewave.forks import cached_property
from tilewave.mapping import Formula, Mapping, MappingError, as_mapping
from tilewave.records import dataclass
from tilewave.sim.problem import Gemm

Array = npt.NDArray[Any]

NO_STREAM = -1
"""In `reads`, where a task reads less often than others."""


@dataclass(frozen=True, eq=False)
class Accesses:
    """The tasks of a launch, sorted by workgroup and then by turn, and the streams that they read."""

    arrays: tuple[str, ...]
    array_written_bytes: Array
    stream_bytes: Array
    stream_array: Array
    workgroups: int
    workgroup: Array
    turn: Array
    reads: Array
    """reads[task, i] is the stream of a task's i-th read."""
    written_bytes: Array
    steps: int
    """How many steps a task takes through its streams."""
    flops: float
    """Flops of the whole launch on the matrix units, without the out-of-bounds part of boundary tiles."""
    step_flops: float
    """Flops of one step of one task; a boundary tile counts as a full one."""
    dtype: str
    tile: tuple[int, ...] = ()
    tile_grid: tuple[int, int] = (0, 0)
    """Tiles along M and N, where tasks are tiles of one matrix."""
    tile_of_task: Array | None = None
    backwards: Array | None = None
    """Whether each task reads its streams from the end to the start; None if no task does."""
    tasks_a_tile: float = 1.0
    """How many tasks there are, on average, from where a workgroup begins a tile to where it ends it."""
    shares_last_wave: bool = False
    """Whether workgroups share the tiles of the last wave, as in stream-K."""

    @property
    def tasks(self) -> int:
        return len(self.workgroup)

    @property
    def streams(self) -> int:
        return len(self.stream_bytes)

    @cached_property
    def read_bytes(self) -> Array:
        """Bytes of each read of each task."""
        return np.where(self.reads == NO_STREAM, 0.0, self.stream_bytes[self.reads])

    @cached_property
    def asked_bytes(self) -> float:
        """What all workgroups read together."""
        return float(self.read_bytes.sum())

    @cached_property
    def distinct_bytes(self) -> float:
        """Every stream that is read, once."""
        used = np.unique(self.reads)
        return float(self.stream_bytes[used[used != NO_STREAM]].sum())

    @property
    def long_steps(self) -> float:
        """A task's steps, as if each took 64 elements of K."""
        return self.steps * (self.tile[2] / 64 if len(self.tile) > 2 else 1.0)

    @cached_property
    def output_bytes(self) -> float:
        return float(self.written_bytes.sum())


def gemm_accesses(gemm: Gemm, mapping: object = "linear()") -> Accesses:
    """The accesses of a plain GEMM whose tiles are dealt by a mapping."""
    grid, order = gemm.grid, as_mapping(mapping)
    _check_formula(order, gemm)
    tiles = order.tiles(grid, gemm.workgroups)
    row, col = tiles[:, 0].astype(np.int64), tiles[:, 1].astype(np.int64)
    launched = min(gemm.workgroups or grid.size, grid.size)
    number = np.arange(grid.size)
    block_m, block_n, _ = gemm.tile
    heights, widths = _extents(gemm.m, block_m, grid.rows), _extents(gemm.n, block_n, grid.cols)
    written = heights[row] * widths[col] * float(gemm.written.bytes)
    by_workgroup = np.argsort(number % launched, kind="stable") if launched < grid.size else number
    row, col, number = row[by_workgroup], col[by_workgroup], number[by_workgroup]
    return Accesses(
        arrays=("a", "b", "c"),
        array_written_bytes=np.array([0.0, 0.0, written.sum()]),
        stream_bytes=np.concatenate([heights, widths]) * float(gemm.k * gemm.element.bytes),
        stream_array=np.repeat([0, 1], [grid.rows, grid.cols]),
        workgroups=launched,
        workgroup=number % launched,
        turn=number // launched,
        reads=np.stack([row, grid.rows + col], 1),
        written_bytes=written[by_workgroup],
        steps=gemm.steps,
        flops=gemm.flops,
        step_flops=2.0 * prod(gemm.tile),
        dtype=gemm.dtype,
        tile=gemm.tile,
        tile_grid=(grid.rows, grid.cols),
        tile_of_task=row * grid.cols + col,
        backwards=number // launched % 2 == 1 if gemm.walk == "to-and-fro" else None,
        shares_last_wave=gemm.last_wave == "stream-K",
    )


def _check_formula(mapping: Mapping, gemm: Gemm) -> None:
    """A formula of the author's own must compute every tile once; of the others that is proved."""
    if isinstance(mapping.order, Formula) and (found := mapping.fault(gemm.grid, gemm.workgroups)) is not None:
        raise MappingError(f"{mapping} fails {found}", counterexample=found)


def _extents(size: int, block: int, count: int) -> Array:
    """Return the sizes of `count` blocks; the last one is clipped to the array."""
    starts = np.arange(count, dtype=np.int64) * block
    return np.minimum(size - starts, block).astype(np.float64)
