"""What renumberings and orders have in common: a name, parameters, a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, ClassVar, TypeVar

from tilewave.mapping.coverage import Walk
from tilewave.mapping.grid import checked_along, checked_parameter
from tilewave.mapping.index import Index

S = TypeVar("S", bound="MappingStep")


class MappingStep(Walk):
    """One link of a mapping: a frozen dataclass whose fields are its parameters, in the order they are written."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for field in self._fields():
            value = getattr(self, field.name)
            if field.name == "along":
                checked_along(self.name, value)
            else:
                object.__setattr__(self, field.name, checked_parameter(self.name, field.name, value))

    def parameters(self) -> tuple[object, ...]:
        """Return the parameters whose values are known only at launch."""
        values = (getattr(self, field.name) for field in self._fields())
        return tuple(value for value in values if not isinstance(value, (int, str)))

    def bind(self: S, lookup: Callable[[object], Index]) -> S:
        """Return this step with every open parameter replaced by its value from `lookup`."""
        values = {field.name: getattr(self, field.name) for field in self._fields()}
        known = {name: lookup(value) for name, value in values.items() if not isinstance(value, (int, str))}
        return replace(self, **known)  # type: ignore[type-var]

    def __str__(self) -> str:
        """Return the text that `parse` reads; arguments equal to their defaults are left out."""
        parts = []
        for field in self._fields():
            value = getattr(self, field.name)
            if not isinstance(value, str):
                parts.append(str(value))
            elif value != field.default:
                parts.append(f'{field.name}="{value}"')
        return f"{self.name}({', '.join(parts)})"

    def _fields(self) -> tuple[Any, ...]:
        return fields(self)  # type: ignore[arg-type]
