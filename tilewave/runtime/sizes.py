"""The sizes that a kernel leaves open, found in the arrays of a call; what was found is kept by the arrays' shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tilewave.errors import CallError, here
from tilewave.forks import cached_property
from tilewave.ir.core import Kernel, Value
from tilewave.ir.launch import MOST_OPEN, HostLaunch, numbers_of, open_sizes
from tilewave.ir.types import INDEX_SCALAR, Memory, dims
from tilewave.runtime.arrays import Parameter, view
from tilewave.runtime.scalars import word_of

KEPT_CALLS = 4096
"""Sets of sizes that a kernel remembers; more than that in turn, and it starts afresh."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class SizedCall:
    """What a call with arrays of certain shapes comes to."""

    values: Mapping[str, Any]
    """Its numbers by name: open sizes, symbols, and parameters such as `alpha: f32`."""
    numbers: tuple[int, ...]
    """The same in the order of the kernel's arguments, each as the word that a launch passes."""
    parameters: tuple[Parameter, ...]


class Sizes:
    """How a kernel's arrays tell its sizes."""

    def __init__(self, kernel: Kernel, written: set[Value]) -> None:
        self.kernel, self.written = kernel, {v.name for v in written}
        self.memories = [v for v in kernel.body.args if isinstance(v.type, Memory)]
        self.numbers = numbers_of(kernel)
        self.told = open_sizes(kernel)
        """The indices that arrays tell."""
        self._others = tuple(v.name for v in self.numbers if v.type != INDEX_SCALAR)
        self._kept: dict[Any, SizedCall] = {}

    @cached_property
    def launch(self) -> HostLaunch:
        return HostLaunch(self.kernel)

    def of_call(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> SizedCall:
        """The call's sizes; `given` are the numbers that it gives itself, checked. An error where they do not agree."""
        key: Any = [tuple(getattr(array, "shape", ())) for array in arrays] if self.told else []
        key = (*key, *given.items()) if given and not self._others else tuple(key)
        found = None if given and self._others else self._kept.get(key)
        if found is None:
            found = self.of_values({**self._inferred(arrays, given), **given} if self.told else given)
            if len(self._kept) >= KEPT_CALLS:
                self._kept.clear()
            if not (given and self._others):
                self._kept[key] = found
        return found

    def of_values(self, values: Mapping[str, Any]) -> SizedCall:
        """The same for sizes that somebody knows."""
        ordered = [values[v.name] for v in self.numbers]
        launched = self.launch(ordered)
        known = dict(zip(self.launch.names, launched.numbers, strict=True))
        words = tuple(word_of(x, v.type.dtype) for x, v in zip(ordered, self.numbers, strict=True))
        parameters = tuple(self._parameter(m, known) for m in self.memories)
        return SizedCall({v.name: values[v.name] for v in self.numbers}, words, parameters)

    def _parameter(self, memory: Value, known: Mapping[str, int]) -> Parameter:
        kind = memory.type
        assert isinstance(kind, Memory)
        shape = tuple(known[extent] if isinstance(extent, str) else extent for extent in kind.extents)
        return Parameter(memory.name, shape, kind.dtype, memory.name in self.written)

    def _inferred(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> dict[str, int]:
        names = [m.name for m in self.memories]
        if len(arrays) != len(names):
            plural = "" if len(names) == 1 else "s"
            what = f"takes {len(names)} array{plural} ({', '.join(names)}), but got {len(arrays)}"
            self._fail(what, f"call {self.kernel.name}({', '.join(names)})")
        found: dict[str, int] = {}
        source: dict[str, tuple[str, int]] = {}
        for memory, array in zip(self.memories, arrays, strict=True):
            extents, shape = memory.type.extents, _shape(array)
            if len(shape) != len(extents):
                self._fail(f"{memory.name} is {dims(shape) or '0-dimensional'}, but the kernel takes {_told(extents)}")
            for axis, (extent, length) in enumerate(zip(extents, shape, strict=True)):
                if extent in self.told:
                    self._learn(str(extent), length, (memory.name, axis), found, source, given)
        return found

    def _learn(
        self,
        name: str,
        length: int,
        where: tuple[str, int],
        found: dict[str, int],
        source: dict[str, tuple[str, int]],
        given: Mapping[str, Any],
    ) -> None:
        array, axis = where
        if given.get(name, length) != length:
            self._fail(f"{name} is given as {given[name]}, but axis {axis} of {array} has length {length}")
        if found.setdefault(name, length) != length:
            other, its_axis = source[name]
            self._fail(f"{name} is {found[name]} by axis {its_axis} of {other}, but {length} by axis {axis} of {array}")
        source.setdefault(name, where)
        if length > MOST_OPEN:
            what = f"{name} is {length:,}, and a size that stays open is at most {MOST_OPEN:,}"
            self._fail(what, f"fix it when the kernel is compiled: subs={{{name}: {length}, …}}")

    def _fail(self, what: str, remedy: str = "pass arrays whose sizes agree") -> NoReturn:
        raise CallError(f"{self.kernel.name}: {what}", loc=here(), remedy=remedy)


def _told(extents: Sequence[int | str]) -> str:
    return "x".join(map(str, extents))


def _shape(array: object) -> Shape:
    shape = getattr(array, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) else view(array).shape
