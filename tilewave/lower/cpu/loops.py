"""Loops over the elements of a shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewave.lower.llvm import LlvmFunction, Typed


def for_each(f: LlvmFunction, shape: Sequence[int], body: Callable[[list[str]], None]) -> None:
    """Emit nested loops over a shape."""

    def level(indices: list[str]) -> None:
        if len(indices) == len(shape):
            body(indices)
            return

        def step(i: str, _: list[Typed]) -> list[Typed]:
            level([*indices, i])
            return []

        f.loop(str(shape[len(indices)]), [], step)

    level([])
