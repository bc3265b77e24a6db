"""Plans of calls with any sizes: an operation's description, run on symbolic arrays, becomes a program of guards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tilewave.ir.host_program import Number, Recorder, remainder
from tilewave.ops.arrays import Array, ArrayLibrary
from tilewave.ops.symbolic import SymbolicArray, SymbolicLibrary, SymbolicSize
from tilewave.runtime.array_layouts import words_at
from tilewave.runtime.array_view import PlacedArray
from tilewave.runtime.dynamic_calls import DynamicCalls, DynamicKernel, DynamicPlan, PlanNumbers

GRAIN_BYTES = 16
"""The alignment of addresses and strides that a plan's calls share: TMA's."""
MOST_PLANS = 32
"""The most plans of an operation: each is tried in turn."""
MOST_FAILED = 16
"""After so many calls that cannot be described by symbols, none of the same ranks and dtypes is tried."""

Given = Mapping[str, "Array | None"]
"""The arguments of a call by name."""


class DynamicPlans:
    """The plans of one operation with the same further arguments."""

    def __init__(self, lib: ArrayLibrary) -> None:
        self.calls: DynamicCalls | None = lib.dynamic_calls()
        self.failed: Counter[Any] = Counter()
        """How many calls with arguments of these ranks, dtypes and device could not be described by symbols."""

    def keep(self, lib: ArrayLibrary, given: Given, work: Any, described: Callable[..., Any]) -> None:
        """Store a plan for a call that has run; `described(lib, *arrays)` describes it again."""
        arrays = [array for array in given.values() if array is not None]
        if self.calls is None or not (heads := lib.heads(tuple(given.values()))):
            return
        found = words_at([PlacedArray(lib.address(x), tuple(x.shape), lib.steps(x)) for x in arrays])
        for plan in self.calls.plans:
            if plan.heads == heads and plan.holds(found):
                plan.refresh()
                return
        if len(self.calls.plans) >= MOST_PLANS or self.failed[heads] >= MOST_FAILED:
            return
        kernel = _kernel_of(given, work)
        if kernel is not None and not self._add(lib, given, heads, work, kernel, described):
            self.failed[heads] += 1

    def _add(
        self,
        lib: ArrayLibrary,
        given: Given,
        heads: Any,
        work: Any,
        kernel: DynamicKernel,
        described: Callable[..., Any],
    ) -> bool:
        """Add the plan of a call; return whether its description can be run on symbols."""
        assert self.calls is not None
        try:
            numbers = _numbers(lib, given, work.launch, kernel, described)
        except Exception:  # whatever the description does with symbols: a plan only saves time
            return False
        if numbers is None:
            return False
        (result,) = work.results.values()
        self.calls.add(DynamicPlan(heads, numbers, lib.result_allocation(result), kernel))
        return True


def _kernel_of(given: Given, work: Any) -> DynamicKernel | None:
    """Return the kernels of a call with one launch and one new result; None for others, and where Python launched."""
    if work.launch is None or work.more or work.after is not None or work.scratch or len(work.results) != 1:
        return None
    if any(given.get(name) is not None for name in work.results):
        return None
    kernel: DynamicKernel | None = work.launch.kernel.dynamic(work.launch.arguments)
    return kernel


def _numbers(
    lib: ArrayLibrary, given: Given, launch: Any, kernel: DynamicKernel, described: Callable[..., Any]
) -> PlanNumbers | None:
    """Return the program of a call's guards, its result and its launch, by its description with symbolic arrays."""
    arrays = {name: array for name, array in given.items() if array is not None}
    recorder = Recorder(sum(1 + 2 * len(array.shape) for array in arrays.values()) + 1)
    symbolic, addresses = _symbolic(lib, arrays, recorder)
    work = described(SymbolicLibrary(lib.digits()), *(symbolic.get(name) for name in given))
    ((_, result),) = work.results.items()
    if work.launch.kernel is not launch.kernel or work.launch.numbers != launch.numbers:
        return None
    addresses[result.base] = recorder.given[-1]
    views = [*work.launch.arrays.values()]
    for array, axis in kernel.pinned:
        views[array].shape[axis].__index__()
    for view in views:
        _want_aligned(recorder, view, addresses[view.base] if view.base != result.base else None)
    words: list[Number] = []
    for view in views:
        words += [addresses[view.base], *map(_number, view.shape), *map(_number, view.steps)]
    words += launch.kernel.words(launch.numbers) if launch.numbers else ()
    sizes = [_number(views[array].shape[axis]) for array, axis in kernel.sizes]
    lengths, steps = [*map(_number, result.shape)], [*map(_number, result.steps)]
    program, positions = recorder.finished(lengths, steps, words, sizes)
    return PlanNumbers(program, *positions)


def _symbolic(
    lib: ArrayLibrary, arrays: Mapping[str, Array], recorder: Recorder
) -> tuple[dict[str, SymbolicArray], dict[str, Number]]:
    """Return a symbolic array for each of a call, and their recorded addresses."""
    found, addresses, at = {}, {}, 0
    for name, array in arrays.items():
        axes, shape, steps = len(array.shape), tuple(array.shape), lib.steps(array)
        numbers = [SymbolicSize(recorder, n, recorder.given[at + 1 + i]) for i, n in enumerate((*shape, *steps))]
        facts = numbers[:axes], numbers[axes:], lib.dtype("", name, array), lib.device(array)
        found[name], addresses[name] = SymbolicArray(name, *facts), recorder.given[at]
        at += 1 + 2 * axes
    return found, addresses


def _want_aligned(recorder: Recorder, view: SymbolicArray, address: Number | None) -> None:
    """Guard which strides, and whether the address of an argument, are multiples of what TMA needs."""
    for step in view.steps:
        bool((step * view.dtype.bytes) % GRAIN_BYTES)
    if address is not None:
        recorder.want(remainder(address, GRAIN_BYTES) == 0)


def _number(size: Any) -> Number:
    return size.number if isinstance(size, SymbolicSize) else size
