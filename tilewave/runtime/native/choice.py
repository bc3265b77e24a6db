"""The best config for the sizes of a call, found by machine code in microseconds.

The formula of each config's time runs once on recorded numbers; what the formulas compute is a `HostProgram`, which
machine code evaluates for the sizes of each call.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence

from tilewave.errors import TilewaveError
from tilewave.ir.host_program import HostProgram, Number, Recorder, remainder, smaller
from tilewave.records import dataclass
from tilewave.runtime.native.engine import engine
from tilewave.runtime.native.records import NativeRecord, in_memory, words

NO_CONFIG = -1


@dataclass(frozen=True)
class NativeChoice:
    """A program that finds the best of several configs."""

    program: HostProgram
    result: int
    memory: NativeRecord
    kept: threading.local
    """The numbers of each thread's last evaluation, which the next one overwrites."""

    @staticmethod
    def of(count: int, times: Sequence[Callable[[Sequence[Number]], Number]]) -> NativeChoice | None:
        """Return the program for so many sizes; None where a config's time cannot be recorded."""
        recorder = Recorder(count)
        best: Number = None
        try:
            for at, time in enumerate(times):
                weighed = time(recorder.given) * len(times) + at
                best = weighed if best is None else smaller(best, weighed)
        except (TypeError, TilewaveError):  # an expression of sizes that a program cannot compute
            return None
        program, [[result]] = recorder.finished([remainder(best, len(times))])
        return NativeChoice(program, result, in_memory(program), threading.local())

    def __call__(self, sizes: Sequence[int]) -> int:
        """Return the index of the best config; `NO_CONFIG` where a number does not fit 64 bits."""
        kept = self.kept
        try:
            numbers, address = kept.numbers, kept.address
        except AttributeError:
            numbers = kept.numbers = words((), self.program.numbers)
            address = kept.address = ctypes.addressof(numbers)
        numbers[: len(sizes)] = sizes
        if engine().evaluate(self.memory.address, address):
            return NO_CONFIG
        return int(numbers[self.result])
