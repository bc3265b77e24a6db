"""Which workgroup, on which XCD, in which round computes each tile: worked out once, for every kind of picture."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewave.errors import TilewaveError, text_error
from tilewave.mapping import (
    Balance,
    Causal,
    Grid,
    Locality,
    Mapping,
    MappingError,
    MappingHasNoEffect,
    XcdChunked,
    XcdContiguous,
    XcdReads,
    as_mapping,
    balance,
    locality,
)
from tilewave.records import dataclass
from tilewave.view.extents import parse_extents
from tilewave.view.groups import PicturedGroups

Array = npt.NDArray[Any]

MOST_TILES = 1 << 22
"""More can be mapped and verified, but not drawn: 2048×2048 tiles of 128×128 are a matrix of 137 GB in f16."""

MOST_XCDS = 256
MOST_SHARES = 1 << 18
"""XCDs times rounds: each pair has its own line in the report."""


@dataclass(frozen=True)
class PicturedLaunch:
    """What the pictures of a comparison share: the grid, the XCDs, and how many workgroups run."""

    grid: Grid
    xcds: int = 8
    k_blocks: int = 8
    workgroups: int | None = None
    concurrent: int | None = None
    causal: Causal | None = None
    """What tiles cost, where they differ."""
    groups: PicturedGroups | None = None
    """The groups of a ragged grid's rows."""

    def __post_init__(self) -> None:
        for name in ("xcds", "k_blocks", "workgroups", "concurrent"):
            _check_count(name, getattr(self, name))
        if self.xcds > MOST_XCDS:
            raise MappingError(f"xcds is {self.xcds}, but a picture shows at most {MOST_XCDS}")
        if self.grid.batches != 1:
            raise MappingError(f"a grid of {self.grid} has {self.grid.batches} batches; a picture shows one")
        if self.grid.size > MOST_TILES:
            raise MappingError(
                f"a grid of {self.grid} has {self.grid.size} tiles; a picture shows at most {MOST_TILES}",
                remedy="Mapping.verify and mapping.locality take any grid",
            )
        if self.groups is not None:
            self.groups.want_grid(self.grid)
        if self.rounds * self.xcds > MOST_SHARES:
            raise MappingError(
                f"{self.rounds} waves on {self.xcds} XCDs are more than the {MOST_SHARES} shares a picture counts",
                remedy="let more workgroups run at a time",
            )

    @property
    def launched(self) -> int:
        """Workgroups that have something to do."""
        return self.grid.size if self.workgroups is None else min(self.workgroups, self.grid.size)

    @property
    def together(self) -> int:
        """Workgroups that run at the same time: one round."""
        return min(self.concurrent or self.launched, self.grid.size)

    @property
    def rounds(self) -> int:
        """Return the number of waves of workgroups."""
        return -(-self.grid.size // self.together)

    def __str__(self) -> str:
        rounds = f" in {self.rounds} waves of {self.together}" if self.rounds > 1 else ""
        groups = f" of {self.groups}" if self.groups else ""
        return f"{self.grid} tiles{groups}, {counted(self.launched, 'workgroup')}{rounds}, {counted(self.xcds, 'XCD')}"


@dataclass(frozen=True, eq=False)
class Work:
    """What each tile of a launch costs, and when its units are done: in this order, and in linear()."""

    costs: Array
    balance: Balance
    linear: Balance

    @staticmethod
    def of(mapping: Mapping, launch: PicturedLaunch) -> Work | None:
        """None where all tiles cost the same."""
        if launch.causal is None:
            return None
        costs = launch.causal.costs(launch.grid)
        both = (
            balance(order, launch.grid, costs, launch.xcds, launch.concurrent, launch.workgroups)
            for order in (mapping, "linear()")
        )
        return Work(costs, *both)

    def to_json(self) -> dict[str, object]:
        """For machines; `costs` is indexed [row][col]."""
        xcds = [{"xcd": x.xcd, "tiles": x.tiles, "work": x.work, "ends": x.ends} for x in self.balance.xcds]
        return {
            "costs": self.costs.tolist(),
            "work": self.balance.work,
            "units": self.balance.units,
            "ends": self.balance.ends,
            "soonest": self.balance.soonest,
            "xcds": xcds,
            "linear": {"ends": self.linear.ends},
        }


@dataclass(frozen=True, eq=False)
class Placement:
    """One mapping in one launch, verified; `tiles[t]` is the (row, col) dealt t-th, `turns[row, col]` is t."""

    mapping: Mapping
    launch: PicturedLaunch
    tiles: Array
    turns: Array
    locality: Locality
    linear: Locality
    work: Work | None
    warnings: tuple[str, ...]

    @staticmethod
    def of(given: object, launch: PicturedLaunch) -> Placement:
        """Verified and measured; MappingError with a counterexample where a tile is lost or computed twice."""
        mapping = as_mapping(given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MappingHasNoEffect)  # they are shown in the picture
            mapping.verify(launch.grid, launch.workgroups)
        return Placement(
            mapping,
            launch,
            mapping.tiles(launch.grid, launch.workgroups),
            mapping.table(launch.grid, launch.workgroups),
            _locality(mapping, launch),
            _locality("linear()", launch),
            Work.of(mapping, launch),
            (*mapping.warnings(launch.grid, launch.workgroups), *_other_xcds(mapping, launch)),
        )

    @property
    def workgroups(self) -> Array:
        """The workgroup that computes each tile."""
        return self.turns % self.launch.launched

    @property
    def xcds(self) -> Array:
        """The XCD that computes each tile: the hardware deals workgroups round-robin."""
        return self.workgroups % self.launch.xcds

    @property
    def rounds(self) -> Array:
        """The round in which each tile is computed."""
        return self.turns // self.launch.together

    @property
    def xcd_of_turn(self) -> Array:
        """The XCD that computes the t-th tile."""
        return np.arange(self.launch.grid.size) % self.launch.launched % self.launch.xcds

    @property
    def proof(self) -> str:
        """What was verified, in words."""
        rounds = f" in {self.launch.rounds} waves" if self.launch.rounds > 1 else ""
        return f"every tile exactly once: verified, {counted(self.launch.launched, 'workgroup')}{rounds}"

    def to_json(self) -> dict[str, object]:
        """Everything, for machines; the four tables are indexed [row][col]."""
        return {
            "mapping": str(self.mapping),
            "verified": True,
            "warnings": list(self.warnings),
            "turns": self.turns.tolist(),
            "workgroups": self.workgroups.tolist(),
            "xcds": self.xcds.tolist(),
            "rounds": self.rounds.tolist(),
            "locality": locality_json(self.locality),
            "linear": {"reads": self.linear.reads, "most_blocks": most(self.linear).blocks},
            **({"balance": self.work.to_json()} if self.work else {}),
        }


def to_json(placements: tuple[Placement, ...]) -> dict[str, object]:
    """Several mappings in one launch, for machines."""
    launch = placements[0].launch
    return {
        "grid": {"rows": launch.grid.rows, "cols": launch.grid.cols},
        "xcds": launch.xcds,
        "k_blocks": launch.k_blocks,
        "workgroups": launch.launched,
        "concurrent": launch.together,
        "rounds": launch.rounds,
        **({"groups": launch.groups.to_json()} if launch.groups else {}),
        "mappings": [placement.to_json() for placement in placements],
    }


def locality_json(report: Locality) -> dict[str, object]:
    """The reads of every XCD, and their sums."""
    return {
        "compulsory": report.compulsory,
        "reads": report.reads,
        "without_reuse": report.without_reuse,
        "xcds": [_reads_json(xcd) for xcd in report.xcds],
    }


def most(report: Locality) -> XcdReads:
    """The XCD that reads the most different blocks; the first of them."""
    return max(report.xcds, key=lambda xcd: xcd.blocks)


def parse_grid(text: str) -> Grid:
    """A grid from text such as 8x8: tiles along M, tiles along N."""
    try:
        rows, cols = parse_extents(text, "a grid", ("rows", "columns"), "8x8")
    except TilewaveError as error:
        raise MappingError(error.what) from None
    for name, extent in (("rows", rows), ("columns", cols)):
        if extent.value < 1:
            what = f"a grid needs at least one of its {name}"
            raise MappingError(text_error(what, text, extent.start, extent.stop))
    try:
        return Grid(rows.value, cols.value)
    except MappingError as error:
        raise MappingError(text_error(error.what, text, rows.start, cols.stop)) from None


def as_grid(given: Grid | str | tuple[int, int]) -> Grid:
    """Return a grid from a grid, its text or a pair."""
    if isinstance(given, Grid):
        return given
    return parse_grid(given) if isinstance(given, str) else Grid(*given)


def counted(number: int, thing: str) -> str:
    """`1 workgroup`, `2 workgroups`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _check_count(name: str, value: object) -> None:
    if value is None and name in ("workgroups", "concurrent"):
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise MappingError(f"{name} is a whole number, not {value!r}")
    if not 1 <= value < 2**31:
        raise MappingError(f"{name} is {value}, but must be between 1 and {2**31 - 1}")


def _other_xcds(mapping: Mapping, launch: PicturedLaunch) -> list[str]:
    steps = (step for step in mapping.renumberings if isinstance(step, (XcdContiguous, XcdChunked)))
    return [
        f"{step} renumbers for {counted(step.xcds, 'XCD')}, but the launch has {launch.xcds}"
        for step in steps
        if step.xcds != launch.xcds
    ]


def _locality(mapping: object, launch: PicturedLaunch) -> Locality:
    groups = None if launch.groups is None else launch.groups.of_rows()
    return locality(mapping, launch.grid, launch.xcds, launch.k_blocks, launch.concurrent, launch.workgroups, groups)


def _reads_json(xcd: XcdReads) -> dict[str, object]:
    return {
        "xcd": xcd.xcd,
        "tiles": xcd.whole.tiles,
        "rows": xcd.whole.rows,
        "cols": xcd.whole.cols,
        "a_blocks": xcd.a_blocks,
        "b_blocks": xcd.b_blocks,
        "blocks": xcd.blocks,
        "reads": xcd.reads,
        "rounds": [{"tiles": share.tiles, "rows": share.rows, "cols": share.cols} for share in xcd.rounds],
    }
