"""The sizes that a kernel leaves open, found in the arrays of a call; what was found is kept by the arrays' shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewave.errors import CallError, here
from tilewave.forks import cached_property
from tilewave.ir.core import Kernel, Value
from tilewave.ir.launch import MOST_OPEN, HostLaunch, open_sizes
from tilewave.ir.types import INDEX_SCALAR, Memory, dims
from tilewave.runtime.arrays import Parameter, view

KEPT_CALLS = 4096
"""Sets of sizes that a kernel remembers; more than that in turn, and it starts afresh."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class SizedCall:
    """What a call with arrays of certain shapes comes to."""

    values: Mapping[str, int]
    """The kernel's indices: its open sizes, and the symbols of the call."""
    numbers: tuple[int, ...]
    """The same in the order of its arguments."""
    parameters: tuple[Parameter, ...]
    workgroups: int


class Sizes:
    """How a kernel's arrays tell its sizes."""

    def __init__(self, kernel: Kernel, written: set[Value]) -> None:
        self.kernel, self.written = kernel, {v.name for v in written}
        self.memories = [v for v in kernel.body.args if isinstance(v.type, Memory)]
        self.indices = tuple(v.name for v in kernel.body.args if v.type == INDEX_SCALAR)
        self.told = open_sizes(kernel)
        """The indices that arrays tell."""
        self._kept: dict[Any, SizedCall] = {}

    @cached_property
    def launch(self) -> HostLaunch:
        return HostLaunch(self.kernel)

    def of_call(self, arrays: Sequence[Any], symbols: Mapping[str, int]) -> SizedCall:
        """The call's sizes; `symbols` are those that it gives by name, checked. An error where they do not agree."""
        key = (*[tuple(getattr(array, "shape", ())) for array in arrays], *symbols.items())
        found = self._kept.get(key)
        if found is None:
            found = self._sized(arrays, symbols)
            if len(self._kept) >= KEPT_CALLS:
                self._kept.clear()
            self._kept[key] = found
        return found

    def _sized(self, arrays: Sequence[Any], symbols: Mapping[str, int]) -> SizedCall:
        names = [m.name for m in self.memories]
        if len(arrays) != len(names):
            what = f"{self.kernel.name}: takes {len(names)} arrays ({', '.join(names)}), but got {len(arrays)}"
            raise CallError(what, loc=here(), remedy=f"call {self.kernel.name}({', '.join(names)})")
        values = self._inferred([_shape(array) for array in arrays], symbols)
        return self.of_values({**values, **symbols})

    def of_values(self, values: Mapping[str, int]) -> SizedCall:
        """The same for sizes that somebody knows."""
        numbers = tuple([values[name] for name in self.indices])
        launched = self.launch(numbers)
        known = dict(zip(self.launch.names, launched.numbers, strict=True))
        return SizedCall(
            values=dict(zip(self.indices, numbers, strict=True)),
            numbers=numbers,
            parameters=tuple(self._parameter(m, known) for m in self.memories),
            workgroups=launched.workgroups,
        )

    def _parameter(self, memory: Value, known: Mapping[str, int]) -> Parameter:
        kind = memory.type
        assert isinstance(kind, Memory)
        shape = tuple(known[extent] if isinstance(extent, str) else extent for extent in kind.extents)
        return Parameter(memory.name, shape, kind.dtype, memory.name in self.written)

    def _inferred(self, shapes: Sequence[Shape], symbols: Mapping[str, int]) -> dict[str, int]:
        found: dict[str, int] = {}
        source: dict[str, tuple[str, int]] = {}
        for memory, shape in zip(self.memories, shapes, strict=True):
            extents = memory.type.extents
            if len(shape) != len(extents):
                self._fail(f"{memory.name} is {dims(shape) or '0-dimensional'}, but the kernel takes {_told(extents)}")
            for axis, (extent, length) in enumerate(zip(extents, shape, strict=True)):
                if extent not in self.told:
                    continue
                assert isinstance(extent, str)
                said = symbols.get(extent, length)
                if said != length:
                    self._fail(f"{extent} is {said} by name, but axis {axis} of {memory.name} has {length}")
                if found.setdefault(extent, length) != length:
                    other, where = source[extent]
                    self._fail(
                        f"{extent} is {found[extent]} in {other} (axis {where}), but {length} in {memory.name} "
                        f"(axis {axis}), which is {dims(shape)} for {_told(extents)}"
                    )
                source.setdefault(extent, (memory.name, axis))
                if length > MOST_OPEN:
                    self._fail(
                        f"{extent} is {length:,}, and a size that stays open is at most {MOST_OPEN:,}",
                        f"give it in subs: {{{extent}: {length}, …}}",
                    )
        return found

    def _fail(self, what: str, remedy: str = "pass arrays whose sizes agree") -> None:
        raise CallError(f"{self.kernel.name}: {what}", loc=here(), remedy=remedy)


def _told(extents: Sequence[int | str]) -> str:
    return "x".join(map(str, extents))


def _shape(array: object) -> Shape:
    shape = getattr(array, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) else view(array).shape
