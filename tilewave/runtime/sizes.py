"""Dynamic shapes: a kernel's sizes are inferred from the arrays of a call, and stored by the arrays' shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from tilewave.errors import CallError, here
from tilewave.forks import cached_property
from tilewave.ir.core import Kernel, Value
from tilewave.ir.host_program import Number, Recorder
from tilewave.ir.launch import (
    MOST_OPEN,
    HostLaunch,
    limits_of,
    numbers_of,
)
from tilewave.ir.ops.workgroup import MOST_WORKGROUPS
from tilewave.ir.types import INDEX_SCALAR, Extent, Memory, dims
from tilewave.records import dataclass
from tilewave.runtime.array_layouts import Placed, apart, kinds_of, layout_of, placed_arrays
from tilewave.runtime.arrays import Parameter, Shape, view
from tilewave.runtime.call_class import CallLook, SeenCall
from tilewave.runtime.scalars import word_of

KEPT_CALLS = 4096
"""The most sets of sizes that are stored for a kernel; one more clears them all."""


@dataclass(eq=False)
class SizedCall:
    """The sizes and parameters of a call with arrays of given shapes."""

    values: Mapping[str, Any]
    """The call's numbers by name: dynamic sizes, symbols, and parameters such as `alpha: f32`."""
    numbers: tuple[int, ...]
    """The values in the order of the kernel's arguments, each as the word that a launch passes."""
    parameters: tuple[Parameter, ...]
    is_right: bool = False
    """Whether the kernel was proved or checked to be correct for these sizes and symbols."""
    kept_as: SizedCall | None = None
    """The stored call of equal sizes, where this one differs from it in other scalar arguments."""

    def note_right(self) -> None:
        """Record that the kernel is correct for these sizes, whatever its other scalars are."""
        (self.kept_as or self).is_right = True


Surely = Callable[[Number, Sequence[Number], Sequence[Sequence[Number]]], Sequence[Number]]
"""From workgroups, the numbers of a launch, and arrays' lengths to the conditions for a correct launch."""


class Size(Protocol):
    """Computes and checks the sizes of a call."""

    def __call__(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> SizedCall:
        """Return the sizes of a call with scalar arguments `given`; an error where something is wrong."""

    @property
    def look(self) -> CallLook:
        """The program that computes a call's layout key and checks its sizes."""

    def knows(self, seen: SeenCall, placed: Placed) -> bool:
        """Return whether the sizes of a classified call are known to be correct, where its class does not prove it."""

    def with_others(self, numbers: Sequence[int], given: Sequence[int]) -> tuple[int, ...] | None:
        """Return a checked call's numbers with other scalar arguments; None where a different one needs a check."""


@dataclass(frozen=True)
class _Source:
    """An array axis whose length gives a size."""

    length: int
    array: str
    axis: int
    shape: Shape

    def __str__(self) -> str:
        return f"{self.array} is {dims(self.shape)}"


class Sizes:
    """Infers a kernel's sizes from the shapes of its arrays."""

    def __init__(self, kernel: Kernel, written: set[Value]) -> None:
        self.kernel = kernel
        memories = [(v.name, v.type) for v in kernel.body.args if isinstance(v.type, Memory)]
        self._extents = [kind.extents for _, kind in memories]
        self._arrays = [Parameter(name, (), kind.dtype, name in {v.name for v in written}) for name, kind in memories]
        """The kernel's arrays, without their shapes."""
        self.numbers = numbers_of(kernel)
        self._names = [v.name for v in self.numbers]
        self.limits = limits_of(kernel)
        self.passed = tuple(self.limits)
        """The indices whose sizes array shapes give."""
        self._telling = [
            (len(extents), [(axis, str(e)) for axis, e in enumerate(extents) if e in self.passed])
            for extents in self._extents
        ]
        """For each array, its rank and the axes whose lengths give a size."""
        self._others = {v.name: (i, v.type.dtype) for i, v in enumerate(self.numbers) if v.type != INDEX_SCALAR}
        self._kept: dict[Any, SizedCall] = {}

    @cached_property
    def launch(self) -> HostLaunch:
        return HostLaunch.of(self.kernel)

    @cached_property
    def _shapes(self) -> list[list[tuple[int, int]]]:
        """For each axis of each array, the position of its length among the launch's numbers, or -1 and the length."""
        at = {name: place for place, name in enumerate(self.launch.names)}
        return [[(at[e], 0) if isinstance(e, str) else (-1, e) for e in extents] for extents in self._extents]

    def words(self, given: Mapping[str, Any]) -> list[int]:
        """Return the scalar arguments of a call, each as a word."""
        names = (name for name in self._names if name not in self.limits)
        return [word_of(given[name], self._others[name][1]) if name in self._others else given[name] for name in names]

    def look(self, surely: Surely | None, telling: Collection[str]) -> CallLook:
        """Return the program that classifies calls; it gives up where lengths do not agree or arrays overlap.

        `surely` gives conditions for the kernel to be correct; None where there are none. Calls of one class also have
        equal values of the numbers named in `telling`.
        """
        ranks, given = [*map(len, self._extents)], [name for name in self._names if name not in self.limits]
        recorder = Recorder(sum(1 + 2 * rank for rank in ranks) + len(given))
        arrays = placed_arrays(recorder.given, ranks)
        known = dict(zip(given, recorder.given[len(recorder.given) - len(given) :], strict=True))
        recorder.want(*self._agreeing(arrays, known))
        numbers = [known[name] for name in self._names]
        workgroups, passed = self.launch.steps(numbers)
        computed = dict(zip(self.launch.names, passed, strict=True))
        recorder.want(*(arrays[i].lengths[axis] == computed[str(self._extents[i][axis])] for i, axis in self._computed))
        recorder.want(workgroups <= MOST_WORKGROUPS, *apart(arrays, kinds_of(self._arrays)))
        if surely is not None:
            recorder.want(*surely(workgroups, passed, [array.lengths for array in arrays]))
        same = [known[name] for name in self._names if name in telling]
        program, results = recorder.finished(layout_of(arrays), same, numbers, [workgroups, *passed])
        return CallLook(ranks, len(given), program, *results)

    def _agreeing(self, arrays: Placed, known: dict[str, Number]) -> Iterator[Number]:
        """Yield what must hold for the arrays' lengths to agree, and add the sizes that they give to `known`."""
        for array, extents in zip(arrays, self._extents, strict=True):
            for length, extent in zip(array.lengths, extents, strict=True):
                if isinstance(extent, int) or extent in known:
                    yield length == (extent if isinstance(extent, int) else known[extent])
                elif extent in self.limits:
                    known[extent] = length
                    least, most = self.limits[extent]
                    yield from (length >= least, length <= most)

    def of_call(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> SizedCall:
        """Return the call's sizes; `given` are its checked scalar arguments. An error where they do not agree."""
        key: Any = tuple([getattr(array, "shape", None) for array in arrays]) if self.passed else ()
        if given:
            key += tuple([(name, x) for name, x in given.items() if name not in self._others])
        found = self._kept.get(key)
        if found is None:
            found = self.of_values({**self._inferred(arrays, given), **given} if self.passed else given)
            self._check_computed(arrays, found)
            if len(self._kept) >= KEPT_CALLS:
                self._kept.clear()
            self._kept[key] = found
        return self._with_others(found, given) if self._others else found

    def of_values(self, values: Mapping[str, Any]) -> SizedCall:
        """Return the call for known sizes; an error where one is outside its limits."""
        self._check_limits(values)
        words = [values[name] for name in self._names]
        launched = self.launch(words)
        if launched.workgroups > MOST_WORKGROUPS:
            what = f"{launched.workgroups:,} workgroups would compute it; a launch numbers at most {MOST_WORKGROUPS}"
            self._fail(what, "cut it into larger tiles")
        known = dict(zip(self._names, words, strict=True))
        for at, dtype in self._others.values():
            words[at] = word_of(words[at], dtype)
        passed = launched.numbers
        parameters = [
            p.of_shape(tuple([length if at < 0 else passed[at] for at, length in shape]))
            for p, shape in zip(self._arrays, self._shapes, strict=True)
        ]
        return SizedCall(known, tuple(words), tuple(parameters))

    def _with_others(self, found: SizedCall, given: Mapping[str, Any]) -> SizedCall:
        """Return the stored call with this call's scalar arguments of other dtypes, which its key does not contain."""
        words = list(found.numbers)
        for name, (at, dtype) in self._others.items():
            words[at] = word_of(given[name], dtype)
        return SizedCall({**found.values, **given}, tuple(words), found.parameters, found.is_right, found)

    @cached_property
    def _computed(self) -> list[tuple[int, int]]:
        """The array axes whose lengths are computed from other sizes, such as that of `Memory[M // 2, …]`."""
        axes = [(i, axis, e) for i, extents in enumerate(self._extents) for axis, e in enumerate(extents)]
        return [(i, axis) for i, axis, e in axes if isinstance(e, str) and e not in self.passed]

    def _check_computed(self, arrays: Sequence[Any], call: SizedCall) -> None:
        """Check lengths that are computed from other sizes; the rest is checked with the arrays."""
        for i, axis in self._computed if arrays else ():
            shape, wanted = _shape(arrays[i]), call.parameters[i]
            if shape[axis] != wanted.shape[axis]:
                because = ", ".join(f"{name} is {call.values[name]}" for name in self.passed)
                shown = f"{wanted.name} is {dims(shape)}, but its axis {axis} is {wanted.shape[axis]}"
                self._fail(f"{shown} where {because}", f"pass an array of shape {wanted.shape}")

    def _inferred(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> dict[str, int]:
        if len(arrays) != len(self._arrays):
            names, plural = ", ".join(p.name for p in self._arrays), "" if len(self._arrays) == 1 else "s"
            what = f"takes {len(self._arrays)} array{plural} ({names}), but got {len(arrays)}"
            self._fail(what, f"call {self.kernel.name}({names})")
        found: dict[str, int] = {}
        for i, (rank, telling) in enumerate(self._telling):
            shape = _shape(arrays[i])
            if len(shape) != rank:
                shown = f"{self._arrays[i].name} has {_axes(len(shape))} (shape {shape})"
                self._fail(
                    f"{shown}, but the kernel takes {_listed(self._extents[i])}", f"pass an array with {_axes(rank)}"
                )
            for axis, name in telling:
                length = shape[axis]
                if found.setdefault(name, length) != length or length > MOST_OPEN or name in given:
                    self._agree(name, _Source(length, self._arrays[i].name, axis, shape), arrays, given)
        return found

    def _agree(self, name: str, source: _Source, arrays: Sequence[Any], given: Mapping[str, Any]) -> None:
        """Raise where an axis contradicts the caller's size or an earlier array, or is too long."""
        first, length = self._first(name, arrays), source.length
        if given.get(name, length) != length:
            what = f"{name} is {given[name]}, but {source}, which makes it {length}"
            remedy = f"{name} is axis {source.axis} of {source.array}: pass an array that fits, or another {name}"
            self._fail(what, remedy)
        if first.length != length:
            what = f"{name} is {first.length} by {first.array}, but {length} by {source.array}; {first}, {source}"
            both = f"axis {first.axis} of {first.array} and axis {source.axis} of {source.array}"
            self._fail(what, self._transposed(arrays, given, source.array) or f"{name} is {both}; they must be equal")

    def _transposed(self, arrays: Sequence[Any], given: Mapping[str, Any], first: str) -> str:
        """Return the remedy where all sizes agree with one of the arrays transposed; `first` is tried before others."""
        shapes = [_shape(array) for array in arrays]
        order = sorted(range(len(arrays)), key=lambda i: self._arrays[i].name != first)
        for i in order:
            others = [shape[::-1] if j == i else shape for j, shape in enumerate(shapes)]
            if len(shapes[i]) == 2 and _unify(self._extents, others, given):
                name, dims_of = self._arrays[i].name, _listed([*self._extents[i][::-1], "…"])
                return f"{name}.T fits: pass {name}.T, or declare {name} as Memory{dims_of}"
        return ""

    def _check_limits(self, values: Mapping[str, Any]) -> None:
        for name, (least, most) in self.limits.items():
            if values[name] > most:
                self._too_long(name, values[name], most)
            if values[name] < least:
                what = f"{name} is {values[name]}, and of no elements there is no largest or smallest one"
                self._fail(what, f"call it with {name} at least {least}")

    def _too_long(self, name: str, length: int, most: int) -> NoReturn:
        if most == MOST_OPEN:
            what = f"{name} is {length:,}, and a dynamic size is at most {MOST_OPEN:,}"
            self._fail(what, f"fix it when the kernel is compiled: subs={{{name}: {length}, …}}")
        what = f"{name} is {length:,}, and it was compiled to take {name} whole up to {most:,}"
        self._fail(what, f"compile it with max_sizes={{{name}: {length}}}, or call the kernel itself, which does so")

    def _first(self, name: str, arrays: Sequence[Any]) -> _Source:
        """Return the first axis whose length gives the size `name`."""
        for array, p, (_, telling) in zip(arrays, self._arrays, self._telling, strict=True):
            for axis, passed in telling:
                if passed == name:
                    shape = _shape(array)
                    return _Source(shape[axis], p.name, axis, shape)
        raise AssertionError(f"no array gives {name}")

    def _fail(self, what: str, remedy: str) -> NoReturn:
        raise CallError(f"{self.kernel.name}: {what}", loc=here(), remedy=remedy)


def _unify(extents: Sequence[Sequence[Extent]], shapes: Sequence[Shape], given: Mapping[str, Any]) -> bool:
    """Return whether arrays of these shapes have the kernel's sizes, each symbol with one length."""
    found = dict(given)
    return all(
        len(shape) == len(mine)
        and all(
            length == (found.setdefault(e, length) if isinstance(e, str) else e)
            for e, length in zip(mine, shape, strict=True)
        )
        for mine, shape in zip(extents, shapes, strict=True)
    )


def _axes(count: int) -> str:
    return f"{count} {'axis' if count == 1 else 'axes'}"


def _listed(extents: Sequence[Extent]) -> str:
    return f"[{', '.join(map(str, extents))}]"


def _shape(array: object) -> Shape:
    shape = getattr(array, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) else view(array).shape
