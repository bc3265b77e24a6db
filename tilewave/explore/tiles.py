"""The tiles of a launch as the page draws them: when each is computed, where, and where its bytes come from."""

from __future__ import annotations

from math import ceil, prod, sqrt
from typing import Any

import numpy as np

from tilewave.analysis.schedule import Schedule
from tilewave.compiled import Compiled
from tilewave.explore.choice import ExplorerError
from tilewave.records import dataclass
from tilewave.sim.accesses import Array
from tilewave.sim.simulate import SimulatedRun
from tilewave.view.coarse import Coarse
from tilewave.view.traffic import origin_of_tasks

MOST_TILES = 1 << 20
MOST_DRAWN, LONGEST_DRAWN = 1 << 16, 512
"""The most cells that are sent to the page; in larger grids a cell is a square of tiles."""
NO_TILE = -1
BYTES = ("asked", "missed", "hbm")


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tables of the tiles, indexed [row, column]; NO_TILE where a row is not full."""

    tables: dict[str, Array]
    """turn, xcd and round of each tile; where known, the bytes that it requests, misses in L2, and takes from HBM."""
    wrapped: bool
    """Whether a single column of tiles was folded into rows."""

    @property
    def shape(self) -> tuple[int, int]:
        rows, cols = self.tables["turn"].shape
        return rows, cols

    def to_json(self) -> dict[str, Any]:
        coarse = Coarse.of(*self.shape, MOST_DRAWN, LONGEST_DRAWN)
        cells = {name: coarse.corners(self.tables[name]) for name in ("turn", "xcd", "round")}
        cells.update({name: coarse.means(self.tables[name]) for name in BYTES if name in self.tables})
        rows, cols = self.shape
        drawn = {name: np.round(table).astype(np.int64).ravel().tolist() for name, table in cells.items()}
        count = int(self.tables["turn"].max()) + 1
        facts = {"rows": rows, "cols": cols, "count": count, "every": coarse.every, "wrapped": self.wrapped}
        return {**facts, "drawn_rows": coarse.rows, "drawn_cols": coarse.cols, "cells": drawn}


def want_drawable(tiles: int) -> None:
    """Refuse a launch of more tiles than are worked out while somebody waits."""
    if tiles > MOST_TILES:
        what = f"{tiles:,} tiles are more than the {MOST_TILES:,} of a page"
        raise ExplorerError(what, remedy="take larger tiles, or a smaller shape")


def tiles_of(run: SimulatedRun, problem: object) -> Tiles | None:
    """None where there are no tiles to speak of: what is simulated is neither a GEMM nor a compiled kernel."""
    columns = _columns(run, problem)
    if columns is None:
        return None
    tile, (rows, cols), values = columns
    want_drawable(rows * cols)
    wrapped = cols == 1 and rows > 1
    shape = (ceil(rows / ceil(sqrt(rows))), ceil(sqrt(rows))) if wrapped else (rows, cols)
    tables = {}
    for name, column in values.items():
        flat = np.full(prod(shape), NO_TILE, np.float64)
        flat[tile] = column
        tables[name] = flat.reshape(shape)
    return Tiles(tables, wrapped)


Columns = tuple[Array, tuple[int, int], dict[str, Array]]
"""The tiles, their grid, and what belongs to each tile."""


def _columns(run: SimulatedRun, problem: object) -> Columns | None:
    accesses = run.accesses
    if accesses.tile_of_task is not None:
        return accesses.tile_of_task, accesses.tile_grid, _of_tasks(run)
    if not isinstance(problem, Compiled):
        return None
    schedule = problem.schedule
    *before, cols = schedule.grid  # batches and heads are drawn one below the other
    grid = prod(before), cols
    if np.array_equal(schedule.workgroup, accesses.workgroup):  # its tasks are its tiles
        return schedule.tile, grid, _of_tasks(run)
    return schedule.tile, grid, _of_workgroups(run, schedule)


def _of_tasks(run: SimulatedRun) -> dict[str, Array]:
    origin, accesses = origin_of_tasks(run), run.accesses
    return {
        "turn": accesses.turn * accesses.workgroups + accesses.workgroup,
        "xcd": run.placed.xcd,
        "round": run.placed.launch_wave,
        "asked": origin.total,
        "missed": origin.from_between + origin.from_hbm,
        "hbm": origin.from_hbm,
    }


def _of_workgroups(run: SimulatedRun, schedule: Schedule) -> dict[str, Array]:
    """Where a tile takes several tasks, its bytes are not known, but who computes it and when."""
    turn = np.arange(len(schedule.tile)) - schedule.starts[schedule.workgroup]
    known, first = np.unique(run.accesses.workgroup, return_index=True)
    xcd = np.zeros(schedule.workgroups, np.int64)
    xcd[known] = run.placed.xcd[first]
    number = turn * schedule.workgroups + schedule.workgroup
    return {"turn": number, "xcd": xcd[schedule.workgroup], "round": number // run.placed.slots}
