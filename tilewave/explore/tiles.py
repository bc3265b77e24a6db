"""The tiles of a launch as the page draws them: when each is computed, where, and where its bytes come from."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod, sqrt
from typing import Any

import numpy as np

from tilewave.analysis.schedule import Schedule
from tilewave.compile import Compiled
from tilewave.explore.choice import ExplorerError
from tilewave.sim.accesses import Array
from tilewave.sim.simulate import SimulatedRun
from tilewave.view.coarse import Coarse
from tilewave.view.traffic import origin_of_tasks

MOST_TILES = 1 << 20
MOST_DRAWN, LONGEST_DRAWN = 1 << 16, 512
"""Cells that are sent to the page; of larger grids, each stands for a square of tiles."""
NOBODY = -1


@dataclass(frozen=True, eq=False)
class Tiles:
    """Each table is indexed [row, column]; where a row is not full, NOBODY."""

    tables: dict[str, Array]
    """turn, xcd and round of each tile; bytes that it asks for, misses in L2, and takes from HBM."""
    wrapped: bool
    """Whether a single column of tiles was folded into rows."""

    @property
    def shape(self) -> tuple[int, int]:
        rows, cols = self.tables["turn"].shape
        return rows, cols

    def to_json(self) -> dict[str, Any]:
        coarse = Coarse.of(*self.shape, MOST_DRAWN, LONGEST_DRAWN)
        cells = {name: coarse.corners(self.tables[name]) for name in ("turn", "xcd", "round")}
        cells.update({name: coarse.means(self.tables[name]) for name in ("asked", "missed", "hbm")})
        rows, cols = self.shape
        drawn = {name: np.round(table).astype(np.int64).ravel().tolist() for name, table in cells.items()}
        facts = {"rows": rows, "cols": cols, "every": coarse.every, "wrapped": self.wrapped}
        return {**facts, "drawn_rows": coarse.rows, "drawn_cols": coarse.cols, "cells": drawn}


def want_drawable(tiles: int) -> None:
    """Refuse a launch of more tiles than are worked out while somebody waits."""
    if tiles > MOST_TILES:
        what = f"{tiles:,} tiles are more than the {MOST_TILES:,} of a page"
        raise ExplorerError(what, remedy="take larger tiles, or a smaller shape")


def tiles_of(run: SimulatedRun, problem: object) -> Tiles | None:
    """None where a kernel's tasks are no tiles, such as one that reads again after it wrote."""
    placed = _placed(run, problem)
    if placed is None:
        return None
    tile, grid = placed
    want_drawable(prod(grid))
    origin, accesses = origin_of_tasks(run), run.accesses
    launched = accesses.workgroups
    columns = {
        "turn": accesses.turn * launched + accesses.workgroup,
        "xcd": run.placed.xcd,
        "round": run.placed.beat,
        "asked": origin.total,
        "missed": origin.from_between + origin.from_hbm,
        "hbm": origin.from_hbm,
    }
    rows, cols = grid
    wrapped = cols == 1 and rows > 1
    shape = (ceil(rows / ceil(sqrt(rows))), ceil(sqrt(rows))) if wrapped else (rows, cols)
    tables = {}
    for name, values in columns.items():
        flat = np.full(prod(shape), NOBODY, np.float64)
        flat[tile] = values
        tables[name] = flat.reshape(shape)
    return Tiles(tables, wrapped)


def _placed(run: SimulatedRun, problem: object) -> tuple[Array, tuple[int, int]] | None:
    """The tile of each task, and the grid; of a kernel, its schedule says it."""
    accesses = run.accesses
    if accesses.tile_of_task is not None:
        return accesses.tile_of_task, accesses.tile_grid
    if not isinstance(problem, Compiled):
        return None
    schedule = problem.schedule
    if len(schedule.tile) != accesses.tasks or not np.array_equal(schedule.workgroup, accesses.workgroup):
        return None
    return schedule.tile, _in_the_plane(schedule)


def _in_the_plane(schedule: Schedule) -> tuple[int, int]:
    """Batches and heads one below the other."""
    *before, cols = schedule.grid
    return prod(before), cols
