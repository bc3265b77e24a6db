"""The algebra: renumberings compose to renumberings, and an order makes a mapping of them.

    xcd_contiguous(8) >> grouped(4)

reads from left to right: the tile's place in the deal is renumbered, and the number becomes a (row, col).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import field
from inspect import signature
from typing import Any, ClassVar, NoReturn, overload

import numpy as np

from tilewave.mapping.coverage import Array, Walk
from tilewave.mapping.grid import AnyDeal, AnyGrid, Deal, Grid, MappingError, checked_number, deal_of
from tilewave.mapping.index import Index, is_one
from tilewave.mapping.orders import Linear, Order
from tilewave.mapping.steps import MappingStep
from tilewave.records import dataclass

FreeFormula = Callable[[Index, Any], tuple[Index, Index]]
"""A function of (number, grid); the grid is a Grid, or an OpenGrid where its sides are known only at launch."""


class Renumbering(MappingStep):
    """A permutation of the numbers below `deal.count`, for every deal."""

    def __call__(self, t: Index, deal: Deal) -> Index:
        """The number that the t-th tile of the deal gets; t is below `deal.count`."""
        return self.formula(checked_number(t, deal.count, f"{self} of {deal.count} tiles"), deal)

    @abstractmethod
    def formula(self, t: Index, deal: AnyDeal) -> Index:
        """The number of a t that is one of the deal's."""

    def no_effect(self, deal: Deal) -> str:
        """Why this renumbering could as well be left out of this deal; empty where it matters."""
        return ""

    def tile(self, t: Index, grid: AnyGrid, workgroups: Index | None = None) -> tuple[Index, Index, Index]:
        """As a mapping whose order is `linear()`."""
        return mapping_of(self).tile(t, grid, workgroups)

    def warnings(self, grid: Grid, workgroups: int | None = None) -> tuple[str, ...]:
        """What does nothing on this grid, in words."""
        return mapping_of(self).warnings(grid, workgroups)

    @property
    def steps(self) -> tuple[Renumbering, ...]:
        """The renumberings that this one consists of."""
        return (self,)

    @overload
    def __rshift__(self, other: Renumbering) -> Chain: ...
    @overload
    def __rshift__(self, other: Order | Mapping | FreeFormula) -> Mapping: ...

    def __rshift__(self, other: object) -> Chain | Mapping:
        if isinstance(other, Renumbering):
            return Chain(self.steps + other.steps)
        after = mapping_of(other)
        return Mapping(self.steps + after.renumberings, after.order)


@dataclass(frozen=True)
class Chain(Renumbering):
    """Several renumberings, one after the other; only the first sees the workgroups as the hardware deals them."""

    links: tuple[Renumbering, ...]
    name: ClassVar[str] = "chain"

    def __post_init__(self) -> None:
        assert len(self.links) > 1, "a chain of one is that one"

    def formula(self, t: Index, deal: AnyDeal) -> Index:
        return _renumbered(self.links, t, deal)

    @property
    def steps(self) -> tuple[Renumbering, ...]:
        return self.links

    def parameters(self) -> tuple[object, ...]:
        return tuple(parameter for link in self.links for parameter in link.parameters())

    def bind(self, lookup: Callable[[object], Index]) -> Chain:
        return Chain(tuple(link.bind(lookup) for link in self.links))

    def __str__(self) -> str:
        return " >> ".join(map(str, self.links))


@dataclass(frozen=True)
class Mapping(Walk):
    """Renumberings followed by an order: maps each workgroup to the tile it computes."""

    renumberings: tuple[Renumbering, ...] = ()
    order: Order = field(default_factory=Linear)

    def __call__(self, w: Index, grid: AnyGrid, workgroups: Index | None = None) -> tuple[Index, Index]:
        """(row, col) of the w-th tile dealt, for one batch."""
        if not is_one(grid.batches):
            raise MappingError(
                f"a grid of {grid} has {grid.batches} batches", remedy="use tile(), which also returns the batch"
            )
        _, row, col = self.tile(w, grid, workgroups)
        return row, col

    def tile(self, t: Index, grid: AnyGrid, workgroups: Index | None = None) -> tuple[Index, Index, Index]:
        """(batch, row, col) of the t-th tile; workgroup t % workgroups computes it in round t // workgroups."""
        if isinstance(grid, Grid):
            t = checked_number(t, grid.size, f"{self} on {grid}")
        return self.order.tile(_renumbered(self.renumberings, t, deal_of(grid, workgroups)), grid)

    def parameters(self) -> tuple[object, ...]:
        """Return the parameters whose values are known only at launch, each once."""
        found: list[object] = []
        for step in (*self.renumberings, self.order):
            found += [p for p in step.parameters() if not any(p is other for other in found)]
        return tuple(found)

    def bind(self, lookup: Callable[[object], Index]) -> Mapping:
        """Return this mapping with every open parameter replaced by its value from `lookup`."""
        return Mapping(tuple(step.bind(lookup) for step in self.renumberings), self.order.bind(lookup))

    def warnings(self, grid: Grid, workgroups: int | None = None) -> tuple[str, ...]:
        """What does nothing on this grid, in words."""
        found = []
        deal = deal_of(grid, workgroups)
        for step in self.renumberings:
            reason = "" if step.parameters() or deal.count == 1 else step.no_effect(deal)
            if reason:
                launched = "" if workgroups is None else f" with {workgroups} workgroups"
                found.append(f"{step} has no effect on a grid of {grid}{launched}: {reason}")
            deal = deal.each
        return (*found, *self.order.warnings(grid))

    def __rshift__(self, other: object) -> NoReturn:
        raise MappingError(f"{self} ends with an order; {other} cannot follow it")

    def __str__(self) -> str:
        return " >> ".join(map(str, (*self.renumberings, self.order)))


def _renumbered(steps: tuple[Renumbering, ...], t: Index, deal: AnyDeal) -> Index:
    for step in steps:
        t = step.formula(t, deal)
        deal = deal.each
    return t


@dataclass(frozen=True)
class Formula(Order):
    """An author's own function of (number, grid); it is verified like every other order, and nothing is known of it."""

    function: FreeFormula
    name: ClassVar[str] = "formula"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise MappingError(f"{self.function!r} is not a function of (w, grid)")

    def formula(self, number: Index, grid: AnyGrid) -> tuple[Index, Index]:
        if not isinstance(number, np.ndarray):
            return self._pair(self.function(number, grid), grid)
        try:
            with np.errstate(divide="raise"):
                return self._pair(self.function(number, grid), grid)
        except (ValueError, TypeError, FloatingPointError):
            # The function uses `if` or `min`, or divides by zero in a branch not taken: evaluate number by number.
            return self._one_by_one(number, grid)

    def _one_by_one(self, numbers: Array, grid: AnyGrid) -> tuple[Array, Array]:
        pairs = []
        for number in numbers.tolist():
            try:
                pairs.append(self._pair(self.function(number, grid), grid))
            except ZeroDivisionError:
                raise MappingError(f"{self} divides by zero for workgroup {number} of a grid of {grid}") from None
        rows, cols = zip(*pairs, strict=True)
        return np.asarray(rows), np.asarray(cols)

    def _pair(self, answer: object, grid: AnyGrid) -> tuple[Index, Index]:
        if not isinstance(answer, tuple) or len(answer) != 2:
            remedy = "write for example lambda w, grid: (w % grid.rows, w // grid.rows), the tile of workgroup w"
            raise MappingError(f"{self} must return (row, col), not {answer!r}", remedy=remedy)
        return answer

    def parameters(self) -> tuple[object, ...]:
        return ()

    def bind(self, lookup: Callable[[object], Index]) -> Formula:
        return self

    def __str__(self) -> str:
        return str(getattr(self.function, "__name__", self.function))


def from_function(function: FreeFormula) -> Mapping:
    """A mapping from an author's own function of (w, grid) that answers with (row, col)."""
    _want_two_parameters(function)
    return Mapping((), Formula(function))


def _want_two_parameters(function: FreeFormula) -> None:
    """Raise MappingError for a function that does not take (number, grid)."""
    try:
        parameters = signature(function)
    except (TypeError, ValueError):  # a function without a signature (a builtin) is called unchecked
        return
    try:
        parameters.bind(0, None)
    except TypeError:
        name = getattr(function, "__name__", function)
        what = f"{name} takes {parameters}, but a mapping is asked with a workgroup's number and the grid"
        raise MappingError(what, remedy="write for example lambda w, grid: (w % grid.rows, w // grid.rows)") from None


LONGEST_QUOTE = 80
"""The characters that an error quotes of what is no mapping."""


def mapping_of(given: object) -> Mapping:
    """Return a mapping from a mapping, an order, a renumbering (followed by `linear()`) or a function."""
    if isinstance(given, Mapping):
        return given
    if isinstance(given, Order):
        return Mapping((), given)
    if isinstance(given, Renumbering):
        return Mapping(given.steps)
    if callable(given):
        return from_function(given)
    text = repr(given)
    text = text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"
    raise MappingError(
        f"{text} is not a mapping", remedy="write an order such as grouped(4), or renumberings >> an order"
    )
