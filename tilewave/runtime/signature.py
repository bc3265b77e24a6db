"""What a kernel is called with: arrays and numbers in the author's order, each given by its place or by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

from tilewave.errors import CallError, here
from tilewave.forks import cached_property
from tilewave.ir.core import word
from tilewave.ir.types import BOOL, DType
from tilewave.runtime.dlpack import Refused
from tilewave.runtime.scalars import scalar_value


class BoundCall(NamedTuple):
    """The arguments of a call, each with its parameter."""

    arrays: Sequence[Any]
    scalars: Mapping[str, Any]
    """By name, as `scalar_value` has them."""
    symbols: Mapping[str, Any]
    """What was given by a name that is no parameter's."""


@dataclass(frozen=True)
class Signature:
    """The parameters of a kernel, as words of the IR; those of a dtype are numbers, the others arrays."""

    kernel: str
    names: tuple[str, ...]
    dtypes: Mapping[str, DType]
    """Of the numbers."""

    def bind(self, given: Sequence[Any], named: Mapping[str, Any]) -> BoundCall:
        """Each argument with its parameter; an error where one is missing, or is given twice."""
        if not named and not self.dtypes:
            return BoundCall(given, {}, {})
        later = self.names[len(given) :]
        if named.keys() == set(later):
            given = [*given, *[named[name] for name in later]]
            if len(given) == len(self.names):  # each parameter once, and nothing else
                return BoundCall([given[i] for i in self._arrays], self._scalars(given), {})
        return self._bound(given, named)

    @cached_property
    def _arrays(self) -> tuple[int, ...]:
        """Where arrays stand among its parameters."""
        return tuple(i for i, name in enumerate(self.names) if name not in self.dtypes)

    @cached_property
    def _numbers(self) -> tuple[tuple[int, str, DType], ...]:
        return tuple((i, name, self.dtypes[name]) for i, name in enumerate(self.names) if name in self.dtypes)

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
        everything = [found[name] for name in self.names]
        return BoundCall([everything[i] for i in self._arrays], self._scalars(everything), symbols)

    def of_numbers(self, names: Set[str]) -> Signature:
        """Of some of its numbers, and no array."""
        kept = tuple(name for name in self.names if name in names)
        return Signature(self.kernel, kept, {name: self.dtypes[name] for name in kept})

    def _scalars(self, given: Sequence[Any]) -> dict[str, Any]:
        try:
            return {name: scalar_value(name, given[i], dtype) for i, name, dtype in self._numbers}
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
