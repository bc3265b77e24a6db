"""Calls that came before: what they launched is launched again at once, for arrays that lie alike.

An operation says what a call comes to: its results, and the launch that fills them, in views of its arrays. All that
follows from how the arrays lie (shape, strides, dtype, device, and which powers of two divide their addresses), so it
is kept under that: the next such call allocates its results, hands over addresses, and launches. What a launch relies
on beside, it looks at itself: on a GPU that nothing overlaps what is written, the stream, and whether it is recorded.
On a CPU a call that writes to arrays of the caller's is looked at as if it were the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from tilewave.backend.protocol import ReplayedCall
from tilewave.ir.launch import picked as picked_of
from tilewave.lang.kernel import WaveKernel
from tilewave.ops.arrays import Array, ArrayArguments, ArrayLibrary

KEPT_PLANS = 4096
"""Of one operation; with more different calls in turn it starts afresh."""
NOT_MADE = object()


class KernelLaunch(NamedTuple):
    """A kernel and what it is given."""

    kernel: WaveKernel
    arrays: Mapping[str, Array]
    """In the kernel's order: views of what the operation is given, or gives back, by the names of that."""
    numbers: tuple[Any, ...] = ()
    order: tuple[int, ...] | None = None
    """Which of the arrays, and of the numbers behind them, each of the kernel's arguments is; None: as they stand."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        every = (*self.arrays.values(), *self.numbers)
        return every if self.order is None else tuple(every[i] for i in self.order)

    def __call__(self) -> None:
        self.kernel(*self.arguments)


def given_only(**arrays: Array | None) -> dict[str, Array]:
    """Without those that are None."""
    return {name: array for name, array in arrays.items() if array is not None}


class CallWork(NamedTuple):
    """What a call comes to."""

    results: Mapping[str, Array]
    """By name; new ones, or one that the call was given."""
    launch: KernelLaunch | None = None
    """None where there is nothing to compute."""
    more: tuple[KernelLaunch, ...] = ()
    """Launches that follow it, in this order."""
    scratch: Mapping[str, Array] = MappingProxyType({})
    """Arrays by name that launches hand to later ones and the caller never sees; each call has its own."""
    after: Callable[[], None] | None = None
    """What is left to be done then, if anything."""

    @property
    def launches(self) -> tuple[KernelLaunch, ...]:
        """All launches of the call, in order."""
        return () if self.launch is None else (self.launch, *self.more)

    def run(self) -> None:
        for launch in self.launches:
            launch()
        if self.after is not None:
            self.after()


class PlannedLaunch(NamedTuple):
    """One launch of a plan, for other arrays that lie as those of the call that it was made of."""

    picked: Callable[[tuple[Array, ...]], tuple[Array, ...]]
    """Of what is given and what is new, whatever the kernel takes."""
    call: ReplayedCall
    words: Callable[[Sequence[Any]], tuple[int, ...]]
    """Of numbers that the kernel takes."""


class Plan(NamedTuple):
    """What is done again with other arrays."""

    allocations: Sequence[Callable[[], Array]]
    """Of results and scratch arrays that are new."""
    launches: tuple[PlannedLaunch, ...]
    results: Callable[[tuple[Array, ...]], Any]
    """Of what is given and what is new, what is given back: one array, or several."""

    def __call__(self, arrays: tuple[Array, ...], numbers: Sequence[Any] = ()) -> Any:
        """The results, with the kernels' own numbers or others; `NOT_MADE` where arrays must be looked at closely."""
        every = (*arrays, *[allocate() for allocate in self.allocations])
        for picked, call, words in self.launches:
            said = call(picked(every), words(numbers)) if numbers else call(picked(every))
            if said:
                return NOT_MADE
        return self.results(every)

    @staticmethod
    def of(lib: ArrayLibrary, given: Mapping[str, Array], work: CallWork) -> Plan | None:
        """Of work that has been done; None where it cannot be done again so."""
        if work.launch is None or work.after is not None:
            return None
        new = [*(name for name in work.results if given.get(name) is None), *work.scratch]
        sources = {**given, **work.results, **work.scratch}
        at = {name: i for i, name in enumerate((*given, *new))}  # what is new stands behind, under a name given or not
        launches = [_planned(lib, launch, sources, new, at) for launch in work.launches]
        if None in launches:
            return None
        allocations = [lib.allocation(sources[name]) for name in new]
        results = itemgetter(*[at[name] for name in work.results]) if work.results else _nothing
        return Plan(allocations, tuple(found for found in launches if found), results)


def _planned(
    lib: ArrayLibrary, launch: KernelLaunch, sources: Mapping[str, Array], new: Sequence[str], at: Mapping[str, int]
) -> PlannedLaunch | None:
    """A launch that has been made, for arrays at these places; None where it cannot be made again so."""
    if any(lib.address(view) != lib.address(sources[name]) for name, view in launch.arrays.items()):
        return None  # a copy was made
    fresh = [i for i, name in enumerate(launch.arrays) if name in new]
    call = launch.kernel.replay(launch.arguments, fresh)
    picked = picked_of([at[name] for name in launch.arrays])
    return None if call is None else PlannedLaunch(picked, call, launch.kernel.words)


def _nothing(every: tuple[Array, ...]) -> None:
    """What an operation gives back that changes its arrays in place."""


class Operated:
    """The calls of one operation."""

    def __init__(self, caller: str, names: Sequence[str], work: Callable[..., CallWork], numbers: int = 0) -> None:
        """`work(lib, *arrays, *said)` is what a call comes to, whose arrays have these names; `weight?` may be None.

        The first of what is said are so many numbers: all that the kernel takes, which do nothing else.
        """
        self.arguments = ArrayArguments(caller, names)
        self.names, self.work, self.numbers = self.arguments.names, work, numbers
        self.kept: dict[Any, Plan] = {}

    def __call__(self, lib: ArrayLibrary, arrays: tuple[Array | None, ...], *said: Any) -> Any:
        """The results of a call: arrays, None for those that are not given, and whatever else it says."""
        return self.known(lib, lib.layout(arrays), arrays, said)

    def known(self, lib: ArrayLibrary, layout: Any, arrays: tuple[Array | None, ...], said: tuple[Any, ...]) -> Any:
        """The same where it has been asked how the arrays lie."""
        count = self.numbers
        plan = self.kept.get((layout, said[count:]))
        found = NOT_MADE if plan is None else plan(arrays, said[:count])
        return self._closely(lib, layout, arrays, said) if found is NOT_MADE else found

    def _closely(self, lib: ArrayLibrary, layout: Any, arrays: tuple[Array | None, ...], said: tuple[Any, ...]) -> Any:
        """Whatever comes; what can be kept is kept."""
        self.arguments.want_all(arrays)
        given = lib.bare(arrays)
        work = self.work(lib, *given, *said)
        work.run()
        plan = None if layout is None else Plan.of(lib, dict(zip(self.names, given, strict=True)), work)
        if plan is not None:
            if len(self.kept) >= KEPT_PLANS:
                self.kept.clear()
            self.kept[layout, said[self.numbers :]] = plan
        results = [self._own(name, arrays, found) for name, found in work.results.items()]
        return tuple(results) if len(results) > 1 else results[0] if results else None

    def _own(self, name: str, arrays: tuple[Array | None, ...], found: Array) -> Array:
        """What the caller gave for a result is given back as it was."""
        given = arrays[self.names.index(name)] if name in self.names else None
        return found if given is None else given
