"""The best config for the sizes of a call, found by machine code in microseconds.

The formula of each config's time runs once on recorded numbers; what the formulas compute is a `HostProgram`, which
machine code evaluates for the sizes of each call. Recording takes as long as several choices in Python, so programs are
stored in the compile cache.
"""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tilewave.errors import SavedKernelError, TilewaveError
from tilewave.ir.host_program import STEP_WORDS, HostProgram, Number, Recorder, chosen, remainder, smaller
from tilewave.records import dataclass
from tilewave.runtime.native.compiled_program import CompilableProgram
from tilewave.runtime.native.engine import engine
from tilewave.runtime.native.ranges import SIZE, TRUTH
from tilewave.runtime.native.records import NativeRecord, in_memory, words
from tilewave.runtime.records import packed, unpacked

NO_CONFIG = -1
LEFT_OUT = 1 << 61
"""The time of a config that is left out, beyond all others."""
Time = Callable[[Sequence[Number]], Number]
"""From sizes to a time."""


@dataclass(frozen=True, eq=False)
class NativeChoice:
    """A function from the sizes of a call to the best of several configs, by their texts."""

    texts: tuple[str, ...]
    program: HostProgram
    """From sizes, and for each config a number that is not 0 where it is left out."""
    result: int
    """The position of the index of the best config among the program's numbers."""
    memory: NativeRecord
    kept: threading.local
    """The numbers of each thread's last evaluation, which the next one overwrites."""

    @staticmethod
    def of(count: int, times: dict[str, Time]) -> NativeChoice | None:
        """Return the choice by so many sizes among configs with these times; None where one cannot be recorded."""
        recorder = Recorder(count + len(times))
        sizes, left_out = recorder.given[:count], recorder.given[count:]
        best: Number = LEFT_OUT
        try:
            for at, time in enumerate(times.values()):
                best = smaller(best, chosen(left_out[at], LEFT_OUT, time(sizes) * len(times) + at))
        except (TypeError, TilewaveError):  # an expression of sizes that a program cannot compute
            return None
        found = chosen(best < LEFT_OUT, remainder(best, max(1, len(times))), NO_CONFIG)
        program, [[result]] = recorder.finished([found])
        return NativeChoice._made(tuple(times), program, result)

    @staticmethod
    def _made(texts: tuple[str, ...], program: HostProgram, result: int) -> NativeChoice:
        return NativeChoice(texts, program, result, in_memory(program), threading.local())

    def __call__(self, sizes: Sequence[int], left_out: Collection[str] = ()) -> str:
        """Return the best config that is not left out; empty where there is none, or a number does not fit 64 bits."""
        numbers, address = self._numbers()
        numbers[: len(sizes)] = sizes
        numbers[len(sizes) : self.program.given] = [text in left_out for text in self.texts]
        if engine().evaluate(self.memory.address, address):
            return ""
        found = numbers[self.result]
        return "" if found == NO_CONFIG else self.texts[found]

    def among(self, sizes: Sequence[int], made: Collection[str]) -> str:
        """Return the best of some configs."""
        return self(sizes, [text for text in self.texts if text not in made])

    def _numbers(self) -> tuple[Any, int]:
        kept = self.kept
        try:
            return kept.numbers, kept.address
        except AttributeError:
            kept.numbers = words((), self.program.numbers)
            kept.address = ctypes.addressof(kept.numbers)
            return kept.numbers, kept.address

    def compile(self) -> None:
        """Give the program machine code of its own."""
        sizes = self.program.given - len(self.texts)
        given = *[SIZE] * sizes, *[TRUTH] * len(self.texts)
        CompilableProgram(self.program, self.memory, (self.result,), given).compile()

    # -- in the cache

    def stored(self) -> bytes:
        """Return the choice as bytes, for `restored`."""
        steps = array("i", self.program.step_words)
        about = {"texts": [*self.texts], "given": self.program.given, "result": self.result}
        return packed(about, [array("q", self.program.constants).tobytes(), steps.tobytes()])

    @staticmethod
    def restored(data: bytes) -> NativeChoice | None:
        """Return the choice that was stored; None for anything else."""
        try:
            about, (constants, steps) = unpacked(data)
            program = HostProgram(about.number("given"), (*array("q", constants),), (*array("i", steps),))
            if len(program.step_words) % STEP_WORDS:
                return None
            return NativeChoice._made(about.texts("texts"), program, about.number("result"))
        except (SavedKernelError, ValueError):
            return None
