"""Calls that came before: which kernel they ran, and which views of their arrays it was given.

Arrays that lie alike, of one dtype and on one device, are served by the same kernel through the same views, so all that
a first call works out is kept under that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tilewave.ir.types import DType
from tilewave.lang.kernel import WaveKernel
from tilewave.ops.arrays import Array, ArrayLibrary, Shape

KEPT_PLANS = 4096
"""Of one operation; with more different calls in turn it starts afresh."""
Key = tuple[Any, ...]


class _View(Enum):
    AS_IT_IS = 0
    TRANSPOSED = 1
    STRIDED = 2


@dataclass(frozen=True)
class Plan:
    """A kernel, its result, and of each of its arrays the view of what the call gave."""

    kernel: WaveKernel
    shape: Shape
    dtype: DType
    views: tuple[tuple[_View, Shape, Shape], ...]
    """Each with its shape and strides."""

    @staticmethod
    def of(lib: ArrayLibrary, kernel: WaveKernel, sources: Sequence[Array], arrays: Sequence[Array]) -> Plan | None:
        """What a call came to; nothing where one of its arrays was copied. The last source is the result."""
        views = []
        for source, array in zip(sources, arrays, strict=True):
            if lib.address(source) != lib.address(array):
                return None
            views.append(_view(lib, source, array))
        result = sources[-1]
        return Plan(kernel, tuple(result.shape), lib.dtype(kernel.name, "out", result), tuple(views))

    def run(self, lib: ArrayLibrary, sources: Sequence[Array], out: Array | None) -> Array:
        """The same with other arrays."""
        found = lib.empty(self.shape, self.dtype, sources[0]) if out is None else out
        given = []
        for (view, shape, steps), source in zip(self.views, (*sources, found), strict=True):
            if view is _View.AS_IT_IS:
                given.append(source)
            elif view is _View.TRANSPOSED:
                given.append(source.swapaxes(-1, -2))
            else:
                given.append(lib.strided(source, shape, steps))
        self.kernel(*given)
        return found


def _view(lib: ArrayLibrary, source: Array, array: Array) -> tuple[_View, Shape, Shape]:
    shape, steps = tuple(array.shape), lib.steps(array)
    if (tuple(source.shape), lib.steps(source)) == (shape, steps):
        return _View.AS_IT_IS, shape, steps
    if len(source.shape) > 1:
        turned = source.swapaxes(-1, -2)
        if (tuple(turned.shape), lib.steps(turned)) == (shape, steps):
            return _View.TRANSPOSED, shape, steps
    return _View.STRIDED, shape, steps


class Plans:
    """Those of one operation."""

    def __init__(self) -> None:
        self.kept: dict[Key, Plan] = {}

    def note(self, key: Key, plan: Plan | None) -> None:
        if plan is not None:
            if len(self.kept) >= KEPT_PLANS:
                self.kept.clear()
            self.kept[key] = plan
