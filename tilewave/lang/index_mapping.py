"""Where the elements of a tile sit in memory, when that is not simply where its dimensions say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewave.errors import Loc, TraceError, here
from tilewave.lang.symbols import Combined, Expression, Symbol, Whole, expression


@dataclass(frozen=True)
class Iterator(Symbol):
    """Runs over one dimension of a tile; `IndexMapping.iterator(i)` makes it."""

    __hash__ = Symbol.__hash__
    __str__ = Symbol.__str__


@dataclass(frozen=True)
class IndexMapping:
    """For a read, `inputs` says where in memory and `outputs` which tile dims; for a write, the other way round."""

    num_iterators: int
    inputs: Mapping[Symbol, Expression]
    outputs: Mapping[Symbol, Expression]
    loc: Loc = field(default_factory=here, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs"):
            given = {dim: expression(e) for dim, e in getattr(self, name).items()}
            object.__setattr__(self, name, given)
        known = {self.iterator(i) for i in range(self.num_iterators)}
        for e in (*self.inputs.values(), *self.outputs.values()):
            for s in e.symbols():
                if isinstance(s, Iterator) and s not in known:
                    raise TraceError(f"{s} is not among the {self.num_iterators} iterators", loc=self.loc)

    @staticmethod
    def iterator(i: int) -> Iterator:
        return Iterator(f"iterator({i})")


def iterators_in(e: Expression) -> set[Iterator]:
    return {s for s in e.symbols() if isinstance(s, Iterator)}


def unit_step(e: Expression) -> tuple[Iterator | None, Expression] | None:
    """(i, rest) where e = i + rest with no iterator in rest; None where it is anything more than that."""
    if not iterators_in(e):
        return None, e
    match e:
        case Iterator():
            return e, Whole(0)
        case Combined("+", a, b) if not iterators_in(b):
            return _and_then(unit_step(a), "+", b)
        case Combined("+", a, b) if not iterators_in(a):
            return _and_then(unit_step(b), "+", a)
        case Combined("-", a, b) if not iterators_in(b):
            return _and_then(unit_step(a), "-", b)
        case _:
            return None


def _and_then(
    step: tuple[Iterator | None, Expression] | None, how: str, more: Expression
) -> tuple[Iterator | None, Expression] | None:
    if step is None:
        return None
    iterator, rest = step
    return iterator, more if how == "+" and rest == Whole(0) else Combined(how, rest, more)
