"""The author's formulas for a workgroup's coordinates, in a kernel and on every grid.

A formula of `ReorderingConstraint` depends on sizes, and a grid has its tiles: `ReorderedTiles` gives each dim as many
elements as the grid has tiles along it, so that formulas can be tried on all grids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from tilewave.errors import NOWHERE, Loc, SymbolError
from tilewave.lang.symbols import COORDINATES, Expression, Symbol
from tilewave.mapping import Grid, Index
from tilewave.mapping.coverage import Walk
from tilewave.mapping.grid import AnyGrid
from tilewave.records import dataclass

Formulas = tuple[tuple[int, Expression], ...]
"""The reordered dimensions of the grid, each with the formula of the new coordinate."""


@dataclass(frozen=True)
class Reordering:
    """The author's formulas for a workgroup's coordinates, which replace the hardware's."""

    formulas: Formulas
    values: Mapping[Any, Any]
    loc: Loc
    """The lines of the formulas."""
    sides: tuple[Expression, ...] = ()
    """The number of tiles along each dimension of the grid; empty where workgroups compute several tiles."""

    def bind(self, lookup: Callable[[Symbol], Any]) -> Reordering:
        used = dict.fromkeys(s for _, e in self.formulas for s in e.symbols())
        at_call = {s: lookup(s) for s in used if s not in self.values and s not in COORDINATES}
        return replace(self, values={**self.values, **at_call})

    def tile(self, number: Any, grid: AnyGrid, workgroups: Any) -> tuple[Any, Any, Any]:
        hardware = _hardware(number, grid)
        values = {**self.values, **dict(zip(COORDINATES, hardware, strict=True))}
        replaced = dict(self.formulas)
        row, col, batch = (
            replaced[dim].evaluate(values) if dim in replaced else hardware[dim] for dim in range(len(hardware))
        )
        return batch, row, col

    def coordinates(self, workgroup: int, values: Mapping[str, int]) -> str:
        """Return a workgroup's coordinates as text, at values of dynamic sizes; empty where they are not known."""
        known = {**self.values, **{Symbol(name): value for name, value in values.items()}}
        try:
            sides = [side.evaluate(known) for side in self.sides]
        except SymbolError:
            return ""
        return coordinates_text(workgroup, Grid(*sides)) if sides and all(type(n) is int for n in sides) else ""

    @property
    def left_alone(self) -> str:
        """A sentence on the dimensions of the grid that no formula reorders; empty where there are none."""
        reordered = [dim for dim, _ in self.formulas]
        others = [str(dim) for dim in range(len(self.sides)) if dim not in reordered]
        if not others:
            return ""
        one = len(others) == 1
        return (
            f"Dimension{'' if one else 's'} {' and '.join(others)} of the grid {'is' if one else 'are'} not reordered."
        )

    @property
    def doubt(self) -> str:
        """Why the formulas may not be a permutation on every grid."""
        named = " and ".join(f"WORKGROUP_{dim}" for dim, _ in self.formulas)
        return f"the order of tiles is the author's own formula for {named}"

    @property
    def positive(self) -> tuple[str, ...]:
        """The symbols that must be at least 1."""
        return ()

    def __repr__(self) -> str:
        return "; ".join(f"WORKGROUP_{dim} = {e}" for dim, e in self.formulas)


@dataclass(frozen=True)
class ReorderedTiles(Walk):
    """The tiles of formulas on any grid: `divided` are the dims along its axes, with the length of a tile."""

    formulas: Formulas
    divided: Mapping[int, tuple[Symbol, Expression]] = field(hash=False)
    subs: Mapping[Symbol, Any] = field(hash=False)
    loc: Loc = NOWHERE

    def parameters(self) -> tuple[object, ...]:
        return ()

    def tile(self, t: Index, grid: AnyGrid, workgroups: Index | None = None) -> tuple[Index, Index, Index]:
        try:
            return Reordering(self.formulas, self._values(grid), self.loc).tile(t, grid, workgroups)
        except SymbolError as error:
            if not error.missing:
                raise error.at(self.loc) from None
            raise self._no_value(Symbol(error.missing)) from None

    def workgroup_name(self, workgroup: int, grid: Grid, workgroups: int | None) -> str:
        return str(workgroup) if workgroups else f"{workgroup} ({coordinates_text(workgroup, grid)})"

    def _values(self, grid: AnyGrid) -> dict[Symbol, Any]:
        """Return the values of symbols on a grid: a dim is as long as its tiles."""
        values, sides = dict(self.subs), (grid.rows, grid.cols, grid.batches)
        for axis, (dim, tile) in self.divided.items():
            if isinstance(tile, Symbol):
                values.setdefault(tile, 1)
            values[dim] = sides[axis] * tile.evaluate(values)
        return values

    def _no_value(self, s: Symbol) -> SymbolError:
        return SymbolError(
            f"{s} has no value",
            loc=self.loc,
            remedy=f"give it one: find_counterexample(…, subs={{{s.code}: …}});\n"
            "a size that the grid divides needs none where its WorkgroupConstraint is in the list too",
            missing=s.name,
        )

    def __str__(self) -> str:
        return " and ".join(f"ReorderingConstraint of dimension {dim}" for dim, _ in self.formulas)


def places(locs: Sequence[Loc]) -> Loc:
    """Return the places of several expressions as one, for an error about all of them."""
    first, *others = dict.fromkeys(locs)
    return replace(first, also=tuple(others))


def coordinates_text(workgroup: int, grid: Grid) -> str:
    """Return `WORKGROUP_0 = 3, WORKGROUP_1 = 2`, for the dimensions along which there are several tiles."""
    sides = (grid.rows, grid.cols, grid.batches)
    dims = [dim for dim, side in enumerate(sides) if side > 1] or [0]
    at = _hardware(workgroup, grid)
    return ", ".join(f"{COORDINATES[dim]} = {at[dim]}" for dim in range(dims[-1] + 1))


def _hardware(number: Any, grid: AnyGrid) -> tuple[Any, Any, Any]:
    """Return the coordinates of a workgroup in the grid as launched."""
    return number % grid.rows, number // grid.rows % grid.cols, number // grid.plane
