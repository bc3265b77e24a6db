"""Pictures from Python: `show("xcd_contiguous(8) >> grouped(2)", "8x8")` at the end of a notebook cell draws itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from math import prod
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tilewave.analysis.schedule import Schedule
from tilewave.mapping import Causal, Grid, MappingError
from tilewave.records import dataclass
from tilewave.sim.kernel import kernel_of
from tilewave.sim.ragged import ragged_tiles, rows_of_groups
from tilewave.view.figures import figures_svg
from tilewave.view.groups import PicturedGroups
from tilewave.view.page import page
from tilewave.view.placement import PicturedLaunch, Placement, as_grid, to_json
from tilewave.view.save import save

NOTEBOOK_HEIGHT = 900


@dataclass(frozen=True, eq=False)
class Picture:
    """One mapping or several in the same launch, verified; a notebook shows it as the page, or as the figures."""

    placements: tuple[Placement, ...]

    def __repr__(self) -> str:
        """For a terminal, which shows no picture."""
        orders = " compared with ".join(str(placement.mapping) for placement in self.placements)
        return f'<picture of {orders} on {self.placements[0].launch}; .save("map.html") writes its page>'

    def svg(self, xcd: int = 0) -> str:
        """The three figures of each mapping; the third shows the reads of `xcd`, or what tiles cost."""
        return figures_svg(self.placements, xcd)

    def html(self) -> str:
        """The self-contained page."""
        return page(self.placements)

    def to_json(self) -> dict[str, object]:
        """Everything, for machines."""
        return to_json(self.placements)

    def save(self, path: str | Path) -> None:
        """Write the page to a .html file or the figures to a .svg file, whole or not at all."""
        suffix = Path(path).suffix.lower()
        if suffix not in (".svg", ".html", ".htm"):
            raise MappingError(f"a picture is saved as .svg or .html, not as {suffix or 'a file without a suffix'}")
        save(path, self.svg() if suffix == ".svg" else self.html())

    def _repr_html_(self) -> str:
        """Return the page in a sandboxed iframe: its style and script cannot touch the notebook's."""
        style = f"width:100%;height:{NOTEBOOK_HEIGHT}px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.html())}"></iframe>'

    def _repr_svg_(self) -> str:
        """For whatever shows no frames."""
        return self.svg()


@runtime_checkable
class HasSchedule(Protocol):
    """A compiled kernel, as `wave_compile` returns it, with a schedule: which workgroup computes which tile."""

    @property
    def name(self) -> str: ...
    @property
    def schedule(self) -> Schedule: ...


def _own_order(kernel: HasSchedule) -> tuple[Callable[..., Any], Grid, int]:
    """Return the order in a kernel's code, as a formula; batches are drawn one below the other."""
    schedule = kernel.schedule
    rows, cols = prod(schedule.grid[:-1]), schedule.grid[-1]
    turns = (schedule.rounds() * schedule.workgroups + schedule.table()).ravel()
    tile_of = np.argsort(turns, kind="stable")
    if not np.array_equal(turns[tile_of], np.arange(rows * cols)):
        raise MappingError(
            f"{kernel.name}: in some wave a workgroup has no tile and a later one has one; no mapping draws that",
            remedy="compiled.schedule.table() and .rounds() list which workgroup computes what",
        )

    def own(w: Any, grid: Grid) -> tuple[Any, Any]:
        return tile_of[w] // cols, tile_of[w] % cols

    own.__name__ = kernel.name
    return own, Grid(rows, cols), schedule.workgroups


def _own_groups(kernel: HasSchedule, ends: Sequence[int]) -> PicturedGroups:
    """Return the groups of a kernel's ragged grid."""
    proved = kernel_of(kernel)  # type: ignore[arg-type]  # a compiled kernel has one
    tiles = ragged_tiles(proved)
    if not tiles:
        raise MappingError(f"{kernel.name} has no ragged grid", remedy="leave its counts out")
    groups = tiles[0].memory.type.extents[0]
    if groups != len(ends):
        raise MappingError(f"{kernel.name} has {groups} groups, and {len(ends)} counts are given")
    return PicturedGroups.of(ends, tiles[0].block, rows_of_groups(proved, tiles[0]))


def show(
    mapping: object,
    grid: Grid | str | tuple[int, int] | None = None,
    xcds: int = 8,
    *,
    k_blocks: int = 8,
    workgroups: int | None = None,
    concurrent: int | None = None,
    causal: Causal | None = None,
    ends: Sequence[int] | None = None,
    block: int | None = None,
    compare: Iterable[object] = (),
) -> Picture:
    """Return the picture of a mapping on a grid, next to those of `compare`; MappingError where a tile is lost.

    A compiled kernel is drawn with its own order: `show(compiled)` needs no grid. `ends` are an example of where the
    groups of a ragged grid end, in tiles of `block` rows.
    """
    groups = None
    if isinstance(mapping, HasSchedule):
        groups = None if ends is None else _own_groups(mapping, ends)
        mapping, grid, workgroups = _own_order(mapping)
    elif ends is not None:
        if block is None:
            raise MappingError("it is not known how many rows a tile of the groups has", remedy="write block=128")
        groups = PicturedGroups.of(ends, block)
    if grid is None:
        raise MappingError("a mapping is drawn on a grid", remedy='write show("grouped(4)", "8x8"), or show(compiled)')
    launch = PicturedLaunch(as_grid(grid), xcds, k_blocks, workgroups, concurrent, causal, groups)
    return Picture(tuple(Placement.of(given, launch) for given in (mapping, *compare)))
