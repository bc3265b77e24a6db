"""Which elements of a memory a tile covers, and which of the tile's elements are out of bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewave.interp.arithmetic import Array
from tilewave.records import dataclass


def is_empty_axis(at: Any, extent: int, spanned: bool) -> Any:
    """Return whether a tile takes an axis of extent 0 from its beginning, which is not out of bounds."""
    return spanned and extent == 0 and at == 0


@dataclass(frozen=True)
class Window:
    """The in-bounds part of a tile."""

    inside: tuple[Any, ...]
    part: tuple[slice, ...]
    order: tuple[int, ...]
    whole: bool

    @staticmethod
    def of(at: Sequence[int], axes: tuple[int, ...], tile: tuple[int, ...], memory: tuple[int, ...]) -> Window | None:
        """Return the window; None where no element is in bounds, except that a whole axis may be empty."""
        inside: list[Any] = list(at)
        part: list[slice] = [slice(None)] * len(axes)
        whole = True
        for axis, extent in enumerate(memory):
            size = tile[axes.index(axis)] if axis in axes else 1
            start, stop = max(at[axis], 0), min(at[axis] + size, extent)
            if start >= stop and not is_empty_axis(at[axis], extent, axis in axes):
                return None
            if axis in axes:
                inside[axis] = slice(start, stop)
                part[axes.index(axis)] = slice(start - at[axis], stop - at[axis])
                whole = whole and stop - start == size
        rank = sorted(axes)
        return Window(tuple(inside), tuple(part), tuple(rank.index(a) for a in axes), whole)

    def to_tile(self, found: Array) -> Array:
        tile: Array = found.transpose(self.order)
        return tile

    def to_memory(self, tile: Array) -> Array:
        found: Array = tile.transpose(np.argsort(self.order))
        return found
