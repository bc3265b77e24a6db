"""A kernel's signature: arrays and scalars in the author's order, each passed by position or by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from difflib import get_close_matches
from typing import Any, NamedTuple

from tilewave.errors import CallError, here
from tilewave.forks import cached_property
from tilewave.ir.core import word
from tilewave.ir.launch import Picked, picked
from tilewave.ir.types import BOOL, DType
from tilewave.records import dataclass
from tilewave.runtime.dlpack import Refused
from tilewave.runtime.scalars import scalar_value, word_of


class BoundCall(NamedTuple):
    """The arguments of a call, by parameter."""

    arrays: Sequence[Any]
    scalars: Mapping[str, Any]
    """Scalars by name, converted by `scalar_value`."""
    symbols: Mapping[str, Any]
    """Keyword arguments that are no parameters."""


_PlacedNumber = tuple[int, str, DType]
"""A scalar argument: its position among all arguments, its parameter's name, and its dtype."""


class _Way(NamedTuple):
    """The positions of a call's arguments, where it passes each once, by position or by name."""

    arrays: Picked
    numbers: tuple[_PlacedNumber, ...]


@dataclass(frozen=True)
class Signature:
    """The parameters of a kernel, as words of the IR; those with a dtype are scalars, the others arrays."""

    kernel: str
    names: tuple[str, ...]
    dtypes: Mapping[str, DType]
    """The dtypes of the scalar parameters."""

    def bind(self, given: Sequence[Any], named: Mapping[str, Any]) -> BoundCall:
        """Return the arguments by parameter; an error where one is missing, or is given twice."""
        if not named and not self.dtypes:
            return BoundCall(given, {}, {})
        way = self._ways.get((len(given), *named)) or self._way(len(given), tuple(named))
        if way is None:
            return self._bound(given, named)
        everything = *given, *named.values()
        return BoundCall(way.arrays(everything), self._scalars(way.numbers, everything), {})

    @cached_property
    def _ways(self) -> dict[tuple[Any, ...], _Way]:
        """The argument orders of past calls, by the count of positional arguments and the names of the others."""
        return {}

    def _way(self, count: int, named: tuple[str, ...]) -> _Way | None:
        """Return the position of each argument; None unless there is exactly one for each parameter."""
        order = (*self.names[:count], *named)
        if count + len(named) != len(self.names) or {*order} != {*self.names}:
            return None
        arrays = [order.index(name) for name in self.names if name not in self.dtypes]
        numbers = [(order.index(name), name, self.dtypes[name]) for name in self.names if name in self.dtypes]
        key = count, *named
        self._ways[key] = _Way(picked(arrays), tuple(numbers))
        return self._ways[key]

    def _bound(self, given: Sequence[Any], named: Mapping[str, Any]) -> BoundCall:
        named = {name if name.isascii() else word(name): value for name, value in named.items()}
        found = dict(zip(self.names, given, strict=False))
        twice = next((name for name in found if name in named), None)
        if twice is not None:
            what = f"{self.kernel}: {twice} is given twice, as argument {self.names.index(twice) + 1} and by its name"
            raise CallError(what, loc=here(), remedy="leave one of them out")
        if len(given) > len(self.names):
            what = f"{self.kernel}: takes {len(self.names)} arguments ({self._listed}), but got {len(given)}"
            raise CallError(what, loc=here(), remedy=f"call {self.kernel}({self._listed})")
        symbols: dict[str, Any] = {}
        for name, value in named.items():
            (found if name in self.names else symbols)[name] = value
        self._want_all(found, symbols)
        way = self._way(len(self.names), ())
        assert way is not None, "all are there"
        everything = [found[name] for name in self.names]
        return BoundCall(way.arrays(everything), self._scalars(way.numbers, everything), symbols)

    def words(self, numbers: Sequence[Any]) -> tuple[int, ...]:
        """Return the words that a launch passes for the scalar parameters' values, given in order."""
        found = self._scalars([(i, name, dtype) for i, (name, dtype) in enumerate(self._numbers)], numbers)
        return tuple([word_of(found[name], dtype) for name, dtype in self._numbers])

    @cached_property
    def _numbers(self) -> list[tuple[str, DType]]:
        return [(name, self.dtypes[name]) for name in self.names if name in self.dtypes]

    def of_numbers(self, names: Set[str]) -> Signature:
        """Return the signature that has these scalar parameters and no array."""
        kept = tuple(name for name in self.names if name in names)
        return Signature(self.kernel, kept, {name: self.dtypes[name] for name in kept})

    def _scalars(self, numbers: Sequence[_PlacedNumber], given: Sequence[Any]) -> dict[str, Any]:
        try:
            return {name: scalar_value(name, given[i], dtype) for i, name, dtype in numbers}
        except Refused as refused:
            raise CallError(f"{self.kernel}: {refused.what}", loc=here(), remedy=refused.remedy) from None

    def _want_all(self, found: Mapping[str, Any], symbols: Mapping[str, Any]) -> None:
        for name in self.names:
            if name not in found:
                near = get_close_matches(name, symbols, 1, 0.5)
                guess = f"did you mean {name} by {near[0]}? " if near else ""
                raise CallError(self._missing(name), loc=here(), remedy=f"{guess}Call {self._example(name)}")

    def _missing(self, name: str) -> str:
        if name in self.dtypes:
            return f"{self.kernel} needs a number for {name} ({self.dtypes[name]})"
        return f"{self.kernel} needs an array for {name}"

    def _example(self, name: str) -> str:
        if name not in self.dtypes:
            return f"{self.kernel}({self._listed})"
        dtype = self.dtypes[name]
        return f"{self.kernel}(…, {name}={'True' if dtype == BOOL else '0.5' if dtype.is_float else '4'})"

    @property
    def _listed(self) -> str:
        return ", ".join(self.names)
