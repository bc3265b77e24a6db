"""The functions of `tilewave.ops`, which also return the kernel that they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from tilewave.lang.kernel import WaveKernel

P = ParamSpec("P")
T = TypeVar("T")


class Operation(Generic[P, T]):
    """A function of arrays; `kernel(…)` returns the kernel that a call with such arrays runs."""

    def __init__(self, name: str, function: Callable[P, T], kernel: Callable[..., WaveKernel]) -> None:
        self.name, self.function, self.kernel = name, function, kernel
        self.__doc__, self.__wrapped__ = function.__doc__, function
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: P.args, **named: P.kwargs) -> T:
        return self.function(*args, **named)

    def __repr__(self) -> str:
        return f"<operation tilewave.ops.{self.name}>"
