"""Replayed calls: a plan repeats the launches of an earlier call for arrays with the same layout.

An operation describes a call as `CallWork`: its results, and the launches that fill them, in views of its arrays. All
of this follows from the arrays' layout (shape, strides, dtype, device, and address alignment), so a `Plan` is stored
under that key: the next such call allocates its results, passes addresses, and launches. What else a launch relies on,
it checks itself: that nothing overlaps a written array, and on a GPU the stream, and whether a graph records it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from tilewave.backend.protocol import ReplayedCall
from tilewave.ir.launch import picked as picked_of
from tilewave.lang.kernel import WaveKernel
from tilewave.ops.arrays import Array, ArrayArguments, ArrayLibrary, numpy_layout
from tilewave.ops.dynamic_plans import DynamicPlans
from tilewave.ops.preload import leave_to_calls

KEPT_PLANS = 4096
"""The most plans of one operation; one more clears them all."""
MOST_NEW = 3
"""After so many calls with new layouts in a row, a plan is made for a layout that comes a second time only."""
NOT_MADE = object()
"""The result of a plan that could not be replayed; None is a valid result of an operation."""


class KernelLaunch(NamedTuple):
    """A kernel and its arguments."""

    kernel: WaveKernel
    arrays: Mapping[str, Array]
    """In the kernel's order: views of the operation's arguments and results, under the names of these."""
    numbers: tuple[Any, ...] = ()
    order: tuple[int, ...] | None = None
    """For each kernel argument its index among the arrays followed by the numbers; None: in that order."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        every = (*self.arrays.values(), *self.numbers)
        return every if self.order is None else tuple(every[i] for i in self.order)

    def __call__(self) -> None:
        self.kernel(*self.arguments)


def given_only(**arrays: Array | None) -> dict[str, Array]:
    """Return the arrays that are not None."""
    return {name: array for name, array in arrays.items() if array is not None}


class CallWork(NamedTuple):
    """The results of a call of an operation, and the launches that compute them."""

    results: Mapping[str, Array]
    """By name; new ones, or one that the call was given."""
    launch: KernelLaunch | None = None
    """None where there is nothing to compute."""
    more: tuple[KernelLaunch, ...] = ()
    """Launches that follow it, in this order."""
    scratch: Mapping[str, Array] = MappingProxyType({})
    """Arrays by name that one launch writes for a later one, allocated for each call."""
    after: Callable[[], None] | None = None
    """Work after the launches, such as a copy into `out`."""

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
    """One replayed launch of a plan, for arrays with the layout of the first call's."""

    picked: Callable[[tuple[Array, ...]], tuple[Array, ...]]
    """Picks the kernel's arrays from the arguments followed by the allocated arrays."""
    call: ReplayedCall
    words: Callable[[Sequence[Any]], tuple[int, ...]]
    """Converts scalar arguments to the words that a launch passes."""


class Plan(NamedTuple):
    """The allocations and launches of a call, replayed with other arrays."""

    allocations: Sequence[Callable[[], Array]]
    """One function for each result and scratch array that a call allocates."""
    launches: tuple[PlannedLaunch, ...]
    results: Callable[[tuple[Array, ...]], Any]
    """Picks the results, one array or several, from the arguments followed by the allocated arrays."""

    def __call__(self, arrays: tuple[Array, ...], numbers: Sequence[Any] = ()) -> Any:
        """Return the results, with the first call's scalar arguments or others; `NOT_MADE`: take the full path."""
        allocations, launches = self.allocations, self.launches
        if len(allocations) == 1 == len(launches) and not numbers:  # almost all calls: without loops
            every = (*arrays, allocations[0]())
            picked, call, _ = launches[0]
            return NOT_MADE if call(picked(every)) else self.results(every)
        every = (*arrays, *[allocate() for allocate in allocations])
        for picked, call, words in launches:
            said = call(picked(every), words(numbers)) if numbers else call(picked(every))
            if said:
                return NOT_MADE
        return self.results(every)

    @staticmethod
    def of(lib: ArrayLibrary, given: Mapping[str, Array], work: CallWork) -> Plan | None:
        """Return the plan of work that has run; None where it cannot be replayed."""
        if work.launch is None or work.after is not None:
            return None
        new = [*(name for name in work.results if given.get(name) is None), *work.scratch]
        sources = {**given, **work.results, **work.scratch}
        at = {name: i for i, name in enumerate((*given, *new))}  # a new array replaces a None of the same name
        launches = [_planned(lib, launch, sources, new, at) for launch in work.launches]
        if None in launches:
            return None
        allocations = [lib.allocation(sources[name]) for name in new]
        results = itemgetter(*[at[name] for name in work.results]) if work.results else _nothing
        return Plan(allocations, tuple(found for found in launches if found), results)


def _planned(
    lib: ArrayLibrary, launch: KernelLaunch, sources: Mapping[str, Array], new: Sequence[str], at: Mapping[str, int]
) -> PlannedLaunch | None:
    """Return a past launch as a replayed one, with its arrays at these indices; None where it cannot be replayed."""
    if any(lib.address(view) != lib.address(sources[name]) for name, view in launch.arrays.items()):
        return None  # a view is a copy, whose address the replayed launch would not know
    fresh = [i for i, name in enumerate(launch.arrays) if name in new]
    call = launch.kernel.replay(launch.arguments, fresh)
    picked = picked_of([at[name] for name in launch.arrays])
    return None if call is None else PlannedLaunch(picked, call, launch.kernel.words)


def _nothing(every: tuple[Array, ...]) -> None:
    """Return None: the result of an operation that changes its arrays in place."""


class Operated:
    """An operation with the plans of its past calls."""

    def __init__(self, caller: str, names: Sequence[str], work: Callable[..., CallWork], numbers: int = 0) -> None:
        """`work(lib, *arrays, *said)` describes a call with arrays of these names; `weight?` may be None.

        The first `numbers` of `said` are the kernel's scalar arguments and decide nothing else.
        """
        self.arguments = ArrayArguments(caller, names)
        self.names, self.work, self.numbers = self.arguments.names, work, numbers
        self.kept: dict[Any, Plan] = {}
        self.dynamic: dict[tuple[Any, ...], DynamicPlans] = {}
        """Plans for calls of any sizes, by the further arguments."""
        self.once: set[Any] = set()
        """Layouts that came once, and have no plan."""
        self.new = 0
        """How many calls with new layouts came one after the other."""

    def __call__(self, lib: ArrayLibrary, arrays: tuple[Array | None, ...], *said: Any) -> Any:
        """Return the results of a call with these arrays, of which some may be None, and further arguments `said`."""
        return self.known(lib, lib.layout(arrays), arrays, said)

    def replayed(self, arrays: tuple[Array | None, ...], *said: Any) -> Any:
        """Return the results of a call with numpy arrays that has a plan; `NOT_MADE` for other calls."""
        plan = self.kept.get((numpy_layout(arrays), said))
        found = NOT_MADE if plan is None else plan(arrays)
        if found is not NOT_MADE:
            self.new = 0
        return found

    def known(self, lib: ArrayLibrary, layout: Any, arrays: tuple[Array | None, ...], said: tuple[Any, ...]) -> Any:
        """Return the results of a call whose layout key is known."""
        count = self.numbers
        plan = self.kept.get((layout, said[count:] if count else said))
        found = NOT_MADE if plan is None else plan(arrays, said[:count] if count else ())
        if found is NOT_MADE:
            return self._closely(lib, layout, arrays, said)
        self.new = 0
        return found

    def _closely(self, lib: ArrayLibrary, layout: Any, arrays: tuple[Array | None, ...], said: tuple[Any, ...]) -> Any:
        """Run a call on the full path, and store its plan where it has one."""
        leave_to_calls()
        self.arguments.want_all(arrays)
        given = lib.bare(arrays)
        work = self.work(lib, *given, *said)
        work.run()
        if layout is not None:
            self._keep(lib, (layout, said[self.numbers :]), given, work)
            self._keep_dynamic(lib, given, said, work)
        results = [self._own(name, arrays, found) for name, found in work.results.items()]
        return tuple(results) if len(results) > 1 else results[0] if results else None

    def _keep(self, lib: ArrayLibrary, key: Any, given: tuple[Array | None, ...], work: CallWork) -> None:
        """Store the plan of a call; where sizes change with every call, only once they come again.

        To make a plan takes longer than the rest of such a call.
        """
        if self.new >= MOST_NEW and key not in self.once:
            if len(self.once) >= KEPT_PLANS:
                self.once.clear()
            self.once.add(key)
            return
        self.once.discard(key)
        self.new += 1
        plan = Plan.of(lib, dict(zip(self.names, given, strict=True)), work)
        if plan is None:
            return
        if len(self.kept) >= KEPT_PLANS:
            self.kept.clear()
        self.kept[key] = plan

    def replay(self, arrays: tuple[Array | None, ...], said: tuple[Any, ...], grad: object) -> Any:
        """Return the result of a call of any sizes that machine code makes; None where Python must make it.

        `grad` says whether gradients are recorded, which Python must do for arrays that require them.
        """
        plans = self.dynamic.get(said)
        return None if plans is None or plans.calls is None else plans.calls.call(arrays, grad)

    def _keep_dynamic(
        self, lib: ArrayLibrary, given: tuple[Array | None, ...], said: tuple[Any, ...], work: CallWork
    ) -> None:
        """Store a plan for calls of other sizes, unless the kernel takes scalar arguments."""
        if self.numbers:
            return
        plans = self.dynamic.get(said)
        if plans is None:
            if len(self.dynamic) >= KEPT_PLANS:
                self.dynamic.clear()
            plans = self.dynamic[said] = DynamicPlans(lib)
        named = dict(zip(self.names, given, strict=True))
        plans.keep(lib, named, work, lambda *arrays: self.work(*arrays, *said))

    def _own(self, name: str, arrays: tuple[Array | None, ...], found: Array) -> Array:
        """Return the caller's own object for a result, where one was given."""
        given = arrays[self.names.index(name)] if name in self.names else None
        return found if given is None else given
