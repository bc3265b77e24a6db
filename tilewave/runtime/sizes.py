"""The sizes that a kernel leaves open, found in the arrays of a call; what was found is kept by the arrays' shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tilewave.errors import CallError, here
from tilewave.forks import cached_property
from tilewave.ir.core import Kernel, Value
from tilewave.ir.launch import MOST_OPEN, HostLaunch, limits_of, numbers_of
from tilewave.ir.ops.workgroup import MOST_WORKGROUPS
from tilewave.ir.types import INDEX_SCALAR, Extent, Memory, dims
from tilewave.runtime.arrays import Parameter, view
from tilewave.runtime.scalars import word_of

KEPT_CALLS = 4096
"""Sets of sizes that a kernel remembers; more than that in turn, and it starts afresh."""

Shape = tuple[int, ...]


@dataclass(eq=False)
class SizedCall:
    """What a call with arrays of certain shapes comes to."""

    values: Mapping[str, Any]
    """Its numbers by name: open sizes, symbols, and parameters such as `alpha: f32`."""
    numbers: tuple[int, ...]
    """The same in the order of the kernel's arguments, each as the word that a launch passes."""
    parameters: tuple[Parameter, ...]
    is_right: bool = False
    """Whether the kernel was found right for these sizes and symbols."""


@dataclass(frozen=True)
class _Source:
    """An axis that tells a size."""

    length: int
    array: str
    axis: int
    shape: Shape

    def __str__(self) -> str:
        return f"{self.array} is {dims(self.shape)}"


class Sizes:
    """How a kernel's arrays tell its sizes."""

    def __init__(self, kernel: Kernel, written: set[Value]) -> None:
        self.kernel, self.written = kernel, {v.name for v in written}
        self.memories = [v for v in kernel.body.args if isinstance(v.type, Memory)]
        self.numbers = numbers_of(kernel)
        self.limits = limits_of(kernel)
        self.told = tuple(self.limits)
        """The indices that arrays tell."""
        self._others = {v.name: (i, v.type.dtype) for i, v in enumerate(self.numbers) if v.type != INDEX_SCALAR}
        self._kept: dict[Any, SizedCall] = {}

    @cached_property
    def launch(self) -> HostLaunch:
        return HostLaunch.of(self.kernel)

    def of_call(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> SizedCall:
        """The call's sizes; `given` are the numbers that it gives itself, checked. An error where they do not agree."""
        key = self._key(arrays, given)
        found = self._kept.get(key)
        if found is None:
            found = self.of_values({**self._inferred(arrays, given), **given} if self.told else given)
            self._check_computed(arrays, found)
            if len(self._kept) >= KEPT_CALLS:
                self._kept.clear()
            self._kept[key] = found
        return self._with_others(found, given) if self._others else found

    def _key(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> Any:
        key: Any = tuple([getattr(array, "shape", None) for array in arrays]) if self.told else ()
        return key + tuple([(name, x) for name, x in given.items() if name not in self._others]) if given else key

    def of_values(self, values: Mapping[str, Any]) -> SizedCall:
        """The same for sizes that somebody knows."""
        self._check_limits(values)
        ordered = [values[v.name] for v in self.numbers]
        launched = self.launch(ordered)
        if launched.workgroups > MOST_WORKGROUPS:
            what = f"{launched.workgroups:,} workgroups would compute it; a launch numbers at most {MOST_WORKGROUPS}"
            self._fail(what, "cut it into larger tiles")
        known = dict(zip(self.launch.names, launched.numbers, strict=True))
        words = tuple(word_of(x, v.type.dtype) for x, v in zip(ordered, self.numbers, strict=True))
        parameters = tuple(self._parameter(m, known) for m in self.memories)
        return SizedCall({v.name: values[v.name] for v in self.numbers}, words, parameters)

    def _with_others(self, found: SizedCall, given: Mapping[str, Any]) -> SizedCall:
        """The same sizes with the call's own numbers of other dtypes, which decide nothing that is kept."""
        words = list(found.numbers)
        for name, (at, dtype) in self._others.items():
            words[at] = word_of(given[name], dtype)
        return SizedCall({**found.values, **given}, tuple(words), found.parameters, found.is_right)

    def note_right(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> None:
        """Remember that the kernel is right for the sizes of this call, whatever its other numbers are."""
        found = self._kept.get(self._key(arrays, given))
        if found is not None:
            found.is_right = True

    def _check_computed(self, arrays: Sequence[Any], call: SizedCall) -> None:
        """Sizes that follow from others, such as that of `Memory[M // 2, …]`; the rest is checked with the arrays."""
        for memory, array, wanted in zip(self.memories, arrays, call.parameters, strict=False):
            for axis, extent in enumerate(memory.type.extents):
                if isinstance(extent, str) and extent not in self.told and _shape(array)[axis] != wanted.shape[axis]:
                    because = ", ".join(f"{name} is {call.values[name]}" for name in self.told)
                    shown = f"{memory.name} is {dims(_shape(array))}, but its axis {axis} is {wanted.shape[axis]}"
                    self._fail(f"{shown} where {because}", f"pass an array of shape {wanted.shape}")

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
        found: dict[str, _Source] = {}
        for memory, array in zip(self.memories, arrays, strict=True):
            extents, shape = memory.type.extents, _shape(array)
            if len(shape) != len(extents):
                what = f"{memory.name} has {_axes(len(shape))} (shape {shape}), but the kernel takes {_listed(extents)}"
                self._fail(what, f"pass an array with {_axes(len(extents))}")
            for axis, (extent, length) in enumerate(zip(extents, shape, strict=True)):
                if extent in self.told:
                    self._learn(str(extent), _Source(length, memory.name, axis, shape), found, given)
        return {name: source.length for name, source in found.items()}

    def _learn(self, name: str, source: _Source, found: dict[str, _Source], given: Mapping[str, Any]) -> None:
        first, length = found.setdefault(name, source), source.length
        if given.get(name, length) != length:
            what = f"{name} is {given[name]}, but {source}, which makes it {length}"
            remedy = f"{name} is axis {source.axis} of {source.array}: pass an array that fits, or another {name}"
            self._fail(what, remedy)
        if first.length != length:
            what = f"{name} is {first.length} by {first.array}, but {length} by {source.array}; {first}, {source}"
            both = f"axis {first.axis} of {first.array} and axis {source.axis} of {source.array}"
            self._fail(what, f"{name} is {both}; they must be equal")

    def _check_limits(self, values: Mapping[str, Any]) -> None:
        for name, (least, most) in self.limits.items():
            if values[name] > most:
                self._too_long(name, values[name], most)
            if values[name] < least:
                what = f"{name} is {values[name]}, and of no elements there is no largest or smallest one"
                self._fail(what, f"call it with {name} at least {least}")

    def _too_long(self, name: str, length: int, most: int) -> NoReturn:
        if most == MOST_OPEN:
            what = f"{name} is {length:,}, and a size that stays open is at most {MOST_OPEN:,}"
            self._fail(what, f"fix it when the kernel is compiled: subs={{{name}: {length}, …}}")
        what = f"{name} is {length:,}, and it was compiled to take {name} whole up to {most:,}"
        self._fail(what, f"compile it with longest={{{name}: {length}}}, or call the kernel itself, which does so")

    def _fail(self, what: str, remedy: str) -> NoReturn:
        raise CallError(f"{self.kernel.name}: {what}", loc=here(), remedy=remedy)


def _axes(count: int) -> str:
    return f"{count} {'axis' if count == 1 else 'axes'}"


def _listed(extents: Sequence[Extent]) -> str:
    return f"[{', '.join(map(str, extents))}]"


def _shape(array: object) -> Shape:
    shape = getattr(array, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) else view(array).shape
