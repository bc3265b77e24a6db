"""Kernels with optional parameters: made for exactly the arrays and scalars that a call passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tilewave.errors import Loc
from tilewave.ir.types import DType
from tilewave.lang.constraints import Constraint
from tilewave.lang.kernel import WaveKernel, wave
from tilewave.lang.symbols import Symbol
from tilewave.lang.types import MemoryType

Parameters = Mapping[str, MemoryType | DType]


def kernel_of(
    name: str,
    constraints: Sequence[Constraint],
    parameters: Parameters,
    do: Callable[[Any], None],
    subs: Mapping[Symbol, Any] | None = None,
) -> WaveKernel:
    """Return the kernel of that name; `do` gets its parameters as attributes of one object."""

    def function(*given: Any) -> None:
        do(SimpleNamespace(**dict(zip(parameters, given, strict=True))))

    function.__name__ = name
    function.__annotations__ = dict(parameters)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    listed = inspect.Signature([inspect.Parameter(each, kind) for each in parameters])
    function.__signature__ = listed  # type: ignore[attr-defined]
    return replace(wave(constraints, subs)(function), loc=Loc(do.__code__.co_filename, do.__code__.co_firstlineno))


def given(**parameters: MemoryType | DType | None) -> dict[str, MemoryType | DType]:
    """Return the parameters that are not None."""
    return {name: kind for name, kind in parameters.items() if kind is not None}
