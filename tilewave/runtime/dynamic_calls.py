"""Replayed calls of any sizes: machine code finds a plan by its guards, allocates the result, and launches a kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tilewave.ir.host_program import HostProgram
from tilewave.runtime.background import BACKGROUND_WORK
from tilewave.runtime.call_class import NativeCalls
from tilewave.runtime.dlpack import CUDA
from tilewave.runtime.kernel_set import KernelSet, must_wait
from tilewave.runtime.native.choice import NativeChoice
from tilewave.runtime.native.compiled_program import CompilableProgram
from tilewave.runtime.native.dynamic import CHOICE_BITS
from tilewave.runtime.native.engine import engine, of_record
from tilewave.runtime.native.records import CALLS, CHOICE, PLAN, NativeRecord, in_memory, words

NONE = (-1, -1)
"""What describes an argument that is None."""


class DynamicKernel(NamedTuple):
    """The kernels that serve calls of all sizes, and what makes the calls of each by machine code."""

    kernels: KernelSet[Any, Any] | None
    """None where one kernel serves all sizes."""
    calls_of: Callable[[Any], NativeCalls | None]
    """Returns the calls of a kernel of the set, or of the only one: None before the first."""
    sizes: tuple[tuple[int, int], ...] = ()
    """The array and axis of each size that the set chooses by."""
    pinned: tuple[tuple[int, int], ...] = ()
    """The array and axis of each size that must be the same in all calls."""


class Allocation(NamedTuple):
    """How a result is allocated: a function of lengths, strides and dtype; or with dtype and device, by these names."""

    function: Any
    dtype: Any
    device: Any
    names: tuple[str, ...] | None


class PlanNumbers(NamedTuple):
    """The program of a plan's guards, from the arrays' words and the result's address, and positions in it."""

    program: HostProgram
    lengths: Sequence[int]
    steps: Sequence[int]
    """The positions of the result's strides, as `lengths` are those of its extents."""
    words: Sequence[int]
    """What the kernel is passed."""
    sizes: Sequence[int]
    """What its config is chosen by."""


class DynamicPlan:
    """A plan for the calls of an operation with arguments of given ranks, dtypes and device."""

    def __init__(
        self, heads: Sequence[tuple[int, int]], numbers: PlanNumbers, allocation: Allocation, kernel: DynamicKernel
    ) -> None:
        self.heads, self.numbers, self.kernel = tuple(heads), numbers, kernel
        native = None if kernel.kernels is None else kernel.kernels.native
        self._native: NativeChoice | None = native
        texts = native.texts if native else ("",)
        self._calls, self._left_out = words([], len(texts)), words([], len(texts))
        self._serving: list[NativeCalls | None] = [None] * len(texts)
        """What the addresses in `_calls` belong to."""
        self._kept = words([], (1 + len(numbers.sizes)) << CHOICE_BITS)
        self._refused = 0
        results = *numbers.lengths, *numbers.steps, *numbers.words, *numbers.sizes
        self._memory = in_memory(numbers.program)
        self._guards = CompilableProgram(numbers.program, self._memory, results)
        self.record = self._recorded(allocation)
        self.refresh()

    def holds(self, found: Sequence[int]) -> bool:
        """Return whether a call with these addresses, lengths and strides satisfies the guards."""
        numbers = words(found, self.numbers.program.numbers)
        return not engine().evaluate(self._memory.address, ctypes.addressof(numbers))

    def _recorded(self, allocation: Allocation) -> NativeRecord:
        n, native = self.numbers, self._native
        choice = NativeRecord(
            CHOICE,
            {
                "program": native.memory if native else 0,
                "numbers": native.program.numbers if native else 1,
                "sizes": len(n.sizes),
                "sizes_at": words(n.sizes),
                "configs": len(native.texts) if native else 0,
                "left_out": self._left_out,
                "result": native.result if native else 0,
                "kept": self._kept,
                "calls": self._calls,
            },
            native,
        )
        names = allocation.names
        fields = {
            "next": 0,
            "arrays": len(self.heads),
            "heads": words([word for head in self.heads for word in head]),
            "program": self._memory,
            "numbers": n.program.numbers,
            "result": n.program.given - 1,
            "axes": len(n.lengths),
            "lengths_at": words(n.lengths),
            "steps_at": words(n.steps),
            "allocate": id(allocation.function),
            "dtype": id(allocation.dtype),
            "place": id(allocation.device),
            "positional": 2 if names else 3,
            "names": id(names) if names else 0,
            "words": len(n.words),
            "words_at": words(n.words),
            "choice": choice,
            "device": next(device for head, device in self.heads if (head, device) != NONE),
        }
        return NativeRecord(PLAN, fields, allocation)

    def refresh(self) -> None:
        """Let machine code launch what has been compiled and launched since, and leave out what cannot be compiled."""
        kernels, native = self.kernel.kernels, self._native
        texts = native.texts if native else ("",)
        for at, text in enumerate(texts):
            made = None if kernels is None else kernels.made.get(text)
            calls = None if kernels is not None and made is None else self.kernel.calls_of(made)
            if calls is not self._serving[at]:
                self._calls[at] = 0 if calls is None else calls.address
                self._serving[at] = calls
                self._compile_later(calls)
        if kernels is not None and len(kernels.refused) != self._refused:
            self._refused = len(kernels.refused)
            self._left_out[:] = [text in kernels.refused for text in texts]
            self._kept[:] = [0] * len(self._kept)

    def _compile_later(self, calls: NativeCalls | None) -> None:
        """Compile the programs of calls in the background: they take a third of the time that steps take."""
        if calls is None or must_wait():
            return
        for program in (self._guards, *calls.programs):
            BACKGROUND_WORK.add(program.compile)


class DynamicCalls:
    """The plans of an operation, of which machine code tries one after the other."""

    def __init__(self, reader: NativeRecord) -> None:
        self.plans: list[DynamicPlan] = []
        self._record = NativeRecord(CALLS, {"reader": reader, "first": 0}, self.plans)
        self.call = of_record(engine().dynamic_call, self._record)
        """From a tuple of arrays, and whether gradients are recorded, to the result; or None: Python makes the call."""

    def add(self, plan: DynamicPlan) -> None:
        self.plans.append(plan)
        if len(self.plans) == 1:
            self._record.set("first", plan.record.address)
        else:
            self.plans[-2].record.set("next", plan.record.address)


def heads_of(kinds: Sequence[tuple[int, int] | None], number: int) -> tuple[tuple[int, int], ...]:
    """Return what describes arguments on a device: of each its rank and DLPack's word for its dtype, or None."""
    device = CUDA | number << 32
    return tuple([NONE if kind is None else (kind[0] | kind[1] << 32, device) for kind in kinds])
