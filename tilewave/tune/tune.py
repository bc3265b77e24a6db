"""`Tune(BLOCK_M=(64, 128), mapping=["grouped(8)", "hilbert()"])`: the search space, given next to the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewave.errors import Loc, SymbolError, here
from tilewave.mapping import as_mapping
from tilewave.renamed import current_options
from tilewave.tune.space import KNOBS, Decision, Space


@dataclass(frozen=True, init=False)
class Tune:
    """Narrows or widens a kernel's search space: values for tunable symbols, and orders of tiles.

    `num_stages`, `split` and `in_place` narrow what the compiler otherwise chooses, on targets that support it. Symbols
    that are not named keep their default values; without `mapping`, a few orders are tried.
    """

    values: tuple[tuple[str, tuple[int, ...]], ...]
    mapping: tuple[str, ...]
    loc: Loc

    def __init__(self, *, mapping: Sequence[object] | None = None, **values: int | Iterable[int]) -> None:
        loc = here()
        named = current_options("Tune", values)
        found = tuple((name, _numbers(name, given, loc)) for name, given in named.items())
        if mapping is not None and (isinstance(mapping, str) or not isinstance(mapping, Iterable) or not [*mapping]):
            remedy = 'write mapping=["grouped(8)", "hilbert()"]'
            raise SymbolError(f"Tune: mapping is {mapping!r}, no list of orders", loc=loc, remedy=remedy)
        object.__setattr__(self, "values", found)
        object.__setattr__(self, "mapping", tuple(str(as_mapping(one)) for one in mapping or ()))
        object.__setattr__(self, "loc", loc)

    def of(self, space: Space) -> Space:
        """The space with these values."""
        known = [s.name for s in space.symbols]
        for name, _ in self.values:
            if name not in known and name not in KNOBS.values():
                remedy = f"what can be tuned: {', '.join(known) or 'nothing'}"
                raise SymbolError(f"Tune: {name} cannot be tuned here", loc=self.loc, remedy=remedy)
        given = dict(self.values)
        return Space(tuple(_with(d, given.get(d.symbol.name)) for d in space.decisions))


def _with(d: Decision, values: tuple[int, ...] | None) -> Decision:
    """A value that its author names is tried, however long the dim is."""
    return d if values is None else Decision(d.symbol, d.role, values)


def _numbers(name: str, given: int | Iterable[int], loc: Loc) -> tuple[int, ...]:
    values = (given,) if isinstance(given, int) else tuple(given) if isinstance(given, Iterable) else ()
    if not values or any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in values):
        remedy = f"write {name}=(64, 128), numbers of at least 1"
        raise SymbolError(f"Tune: {name} is {given!r}, which leaves nothing to try", loc=loc, remedy=remedy)
    return tuple(dict.fromkeys(values))
