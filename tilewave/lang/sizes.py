"""What the shapes of a call's arrays tell of a kernel's sizes: `Memory[M, K, …]` of 128x96 says that M is 128."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewave.errors import CallError, SymbolError, here
from tilewave.ir.types import dims
from tilewave.lang.symbols import Expression, Symbol
from tilewave.lang.types import MemoryType

Shape = tuple[int, ...]
Memories = Sequence[tuple[str, MemoryType]]


@dataclass(frozen=True)
class _Source:
    """Who says what a symbol is worth: an axis of an array, or the author."""

    value: int
    array: str = ""
    axis: int = -1
    shape: Shape = ()

    def __str__(self) -> str:
        return f"{self.array} is {_shown(self.shape)}" if self.array else "so it was given"


def inferred_sizes(
    kernel: str, memories: Memories, shapes: Sequence[Shape], given: Mapping[Symbol, Any]
) -> dict[Symbol, int]:
    """The sizes that the shapes tell, beside those that are `given`; an error where two do not agree."""
    for (name, kind), shape in zip(memories, shapes, strict=True):
        if len(shape) != len(kind.dims):
            _refuse(
                f"{kernel}: {name} has {_axes(len(shape))} (shape {shape}), but the kernel takes {_listed(kind)}",
                f"pass an array with {_axes(len(kind.dims))}",
            )
    known = {symbol: _Source(value) for symbol, value in given.items() if isinstance(value, int)}
    for (name, kind), shape in zip(memories, shapes, strict=True):
        for axis, (dim, extent) in enumerate(zip(kind.dims, shape, strict=True)):
            if isinstance(dim, Symbol):
                _learn(kernel, known, dim, _Source(extent, name, axis, shape))
    values = {symbol: source.value for symbol, source in known.items()}
    for (name, kind), shape in zip(memories, shapes, strict=True):
        _check(kernel, name, kind, shape, values)
    return {symbol: value for symbol, value in values.items() if symbol not in given}


def _learn(kernel: str, known: dict[Symbol, _Source], dim: Symbol, source: _Source) -> None:
    first = known.setdefault(dim, source)
    if first.value == source.value:
        return
    if not first.array:
        _refuse(
            f"{kernel}: {dim} is {first.value}, but {source}, which makes it {source.value}",
            f"{dim} is axis {source.axis} of {source.array}: pass an array that fits, or another {dim}",
        )
    _refuse(
        f"{kernel}: {dim} is {first.value} by {first.array}, but {source.value} by {source.array}; {first}, {source}",
        f"{dim} is axis {first.axis} of {first.array} and axis {source.axis} of {source.array}; they must be equal",
    )


def _check(kernel: str, name: str, kind: MemoryType, shape: Shape, values: Mapping[Symbol, int]) -> None:
    """Sizes that are expressions, such as `Memory[M // 2, K, …]`, where their symbols are known."""
    for axis, (dim, extent) in enumerate(zip(kind.dims, shape, strict=True)):
        symbols = list(dict.fromkeys(dim.symbols()))
        if isinstance(dim, Symbol) or not all(s in values for s in symbols):
            continue  # a symbol that nobody knows is missed by its name
        wanted = _value(kernel, name, dim, values)
        if wanted != extent:
            because = f" where {', '.join(f'{s} is {values[s]}' for s in symbols)}" if symbols else ""
            _refuse(
                f"{kernel}: {name} is {_shown(shape)}, but its axis {axis}, {dim}, is {wanted}{because}",
                f"pass an array that is {_listed(kind)}",
            )


def _value(kernel: str, name: str, dim: Expression, values: Mapping[Symbol, int]) -> int:
    try:
        found: int = dim.evaluate(dict(values))
    except SymbolError as error:
        raise CallError(f"{kernel}: {name}: {error.what}", loc=here(), remedy=error.remedy) from None
    return found


def _refuse(what: str, remedy: str) -> None:
    raise CallError(what, loc=here(), remedy=remedy)


def _axes(count: int) -> str:
    return f"{count} {'axis' if count == 1 else 'axes'}"


def _shown(shape: Shape) -> str:
    return dims(shape) or "0-dimensional"


def _listed(kind: MemoryType) -> str:
    return f"[{', '.join(map(str, kind.dims))}]"
