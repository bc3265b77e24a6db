"""Proofs over all grids up to a size, and the smallest grid on which a formula fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingType
from itertools import product
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tilewave.mapping.algebra import Mapping, Renumbering
from tilewave.mapping.coverage import BLOCK, Counterexample, Coverage, Visits, Walk, as_integers, count_of
from tilewave.mapping.grid import Deal, Grid, MappingError, checked_workgroups, deal_of
from tilewave.mapping.index import Index
from tilewave.mapping.orders import Order
from tilewave.mapping.text import STEPS, as_mapping
from tilewave.records import dataclass

Workgroups = int | Iterable[int] | None


@dataclass(frozen=True)
class PersistentFormula(Coverage):
    """An author's own persistent loop: workgroup w begins at tile start(w, grid, workgroups) and steps by workgroups.

    The loop ends at the number of tiles, and each tile number becomes a (row, col) by `order`.
    """

    start: Callable[[Index, Grid, int], Index]
    order: Order

    def visits(self, grid: Grid, workgroups: int | None = None) -> Iterator[Visits]:
        """Everything that the workgroups compute, round by round."""
        n = grid.size if workgroups is None else checked_workgroups(workgroups)
        w = np.arange(n)
        number = as_integers(self.start(w, grid, n), w).astype(np.int64)
        below = number < 0
        if below.any():  # outside, whatever the order would make of it
            yield Visits(w[below], 0 * w[below], 0 * w[below], number[below])
        turns = max(1, BLOCK // n) * n
        for first in range(0, grid.size, turns):
            steps = np.arange(first, min(first + turns, grid.size), n)
            reached = steps[:, None] + number
            going = (reached >= 0) & (reached < grid.size)
            if going.any():
                who = np.broadcast_to(w, going.shape)[going]
                tile = self.order.tile(reached[going], grid)
                yield Visits(who, *(as_integers(part, who) for part in tile))

    def __str__(self) -> str:
        return f"{getattr(self.start, '__name__', self.start)} >> {self.order}"


@dataclass(frozen=True)
class Proof:
    """What was proved: every grid up to `max_rows` × `max_cols`, for each of `mappings`, by exhaustion."""

    mappings: int
    max_rows: int
    max_cols: int
    checks: int

    def __str__(self) -> str:
        grids = self.max_rows * self.max_cols
        return (
            f"{count_of(self.mappings, 'mapping')} proved on all {count_of(grids, 'grid')} "
            f"up to {self.max_rows}×{self.max_cols} ({count_of(self.checks, 'check')})"
        )


def is_right_on_every_grid(given: object) -> bool:
    """Whether every tile is computed exactly once on all grids, by any number of workgroups: nothing is left to check.

    True for named mappings alone, with all values of their parameters from 1 on (arguments: docs/guide/proofs.md).
    False for an author's own formula, loop or class: what holds on one grid need not hold on another.
    """
    if isinstance(given, Coverage) and not isinstance(given, Walk):
        return False
    mapping = as_mapping(given)
    steps = (*(link for step in mapping.renumberings for link in step.steps), mapping.order)
    return all(type(step) in STEPS.values() for step in steps)


def prove(
    given: object,
    max_rows: int = 16,
    max_cols: int = 16,
    workgroups: Workgroups = None,
    **parameters: Iterable[int],
) -> Proof:
    """Check all grids up to a size, or raise MappingError with the smallest counterexample.

    `given` is a mapping, or a function of `parameters` that makes one: `prove(grouped, size=range(1, 65))`. A bijection
    after a permutation is a bijection, so renumberings are checked once per number of tiles, orders once per grid.
    """
    proved: set[object] = set()
    mappings = 0
    for mapping in _family(given, parameters):
        mappings += 1
        for grid, n in _launches(max_rows, max_cols, workgroups):
            _prove_splits(mapping, grid, n, proved)
    return Proof(mappings, max_rows, max_cols, len(proved))


def _family(given: object, parameters: dict[str, Iterable[int]]) -> Iterator[Mapping]:
    if not parameters:
        yield as_mapping(given)
        return
    if not callable(given):
        raise MappingError(f"{given!r} is not a function of {', '.join(parameters)}")
    for values in product(*parameters.values()):
        yield as_mapping(given(**dict(zip(parameters, values, strict=True))))


def _prove_splits(mapping: Mapping, grid: Grid, workgroups: int | None, proved: set[object]) -> None:
    deal = deal_of(grid, workgroups)
    for step in mapping.renumberings:
        if (step, deal) not in proved and not _permutes(step, deal):
            mapping.verify(grid, workgroups)
            raise AssertionError(f"{step} is no permutation of {deal}, yet {mapping} covers {grid}")
        proved.add((step, deal))
        deal = deal.each
    if (mapping.order, grid) not in proved:
        found = mapping.order.fault(grid)
        if found is not None:
            raise MappingError(f"{mapping.order} fails {found}", counterexample=found)
        proved.add((mapping.order, grid))


def _permutes(step: Renumbering, deal: Deal) -> bool:
    numbers = np.broadcast_to(step(np.arange(deal.count, dtype=np.int64), deal), deal.count)
    if numbers.min() < 0 or numbers.max() >= deal.count:
        return False
    seen = np.zeros(deal.count, bool)
    seen[numbers] = True
    return bool(seen.all())


@runtime_checkable
class HasTileOrder(Protocol):
    """A kernel, or a constraint of one, which gives the order of its tiles together with other constraints."""

    def tile_order(self, others: Sequence[Any], subs: MappingType[Any, Any]) -> Coverage:
        """Return the order on every grid; `subs` are values of symbols."""
        ...


def find_counterexample(
    formula: object,
    max_rows: int = 16,
    max_cols: int = 16,
    workgroups: Workgroups = None,
    subs: MappingType[Any, Any] | None = None,
) -> Counterexample | None:
    """The smallest grid (by tiles, then rows, then workgroups) on which a formula fails, or None.

    `formula` is a mapping, its text, a function, a kernel or a list of its constraints, with the values of symbols in
    `subs`; a dim that a `WorkgroupConstraint` divides has on each grid the size that belongs to it.
    """
    coverage = _coverage_of(formula, subs or {})
    for grid, n in _launches(max_rows, max_cols, workgroups):
        found = coverage.fault(grid, n)
        if found is not None:
            return found
    return None


def _coverage_of(formula: object, subs: MappingType[Any, Any]) -> Coverage:
    first, *others = formula if isinstance(formula, (list, tuple)) and formula else [formula]
    if isinstance(first, HasTileOrder):
        return first.tile_order(others, subs)
    return formula if isinstance(formula, Coverage) else as_mapping(formula)


def _launches(max_rows: int, max_cols: int, workgroups: Workgroups) -> Iterator[tuple[Grid, int | None]]:
    """All grids, smallest first, each with all numbers of workgroups."""
    numbers: list[int | None] = [workgroups] if workgroups is None or isinstance(workgroups, int) else [*workgroups]
    grids = [Grid(rows, cols) for rows in range(1, max_rows + 1) for cols in range(1, max_cols + 1)]
    for grid in sorted(grids, key=lambda grid: (grid.size, grid.rows)):
        for n in numbers:
            yield grid, n
