"""The class of a call: a program computes its layout key and numbers from the arrays' layouts, and checks them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from tilewave.ir.host_program import HostProgram
from tilewave.runtime.array_layouts import Placed, words_at
from tilewave.runtime.gpu_launch import LaunchPlace
from tilewave.runtime.launch_template import LaunchTemplate
from tilewave.runtime.native.compiled_program import CompilableProgram
from tilewave.runtime.native.engine import engine, of_record
from tilewave.runtime.native.records import CALL, REPLAY, UNKNOWN, NativeRecord, in_memory, words


class SeenCall(NamedTuple):
    """The class of a call, its numbers, and its launch."""

    layout: bytes
    """The layout key; one launch record serves all calls with this key on one device and stream."""
    class_key: bytes
    """The layout key, followed by the numbers that must be equal for a call to need no further check."""
    numbers: tuple[int, ...]
    """The call's scalar arguments, in the order of the kernel's arguments."""
    workgroups: int
    passed: tuple[int, ...]
    """The numbers that its launch passes to the kernel."""

    def key_on(self, on: LaunchPlace) -> bytes:
        """Return the key by which machine code finds the launch of this class on a stream."""
        return self.class_key + struct.pack("qq", *on)


class CallLook:
    """A program that classifies calls by their arrays; calls that it gives up on need the full check."""

    def __init__(
        self,
        ranks: Sequence[int],
        given: int,
        program: HostProgram,
        layout: Sequence[int],
        telling: Sequence[int],
        numbers: Sequence[int],
        launched: Sequence[int],
    ) -> None:
        """Take the arrays' ranks, the count of scalar arguments, and the positions of results in the program."""
        self.ranks, self.given = tuple(ranks), given
        self.program, self.memory = program, in_memory(program)
        self.class_key, self.numbers = (*layout, *telling), numbers
        self._layout_bytes, self._launched = 8 * len(layout), launched
        self.compilable = CompilableProgram(program, self.memory, (*self.class_key, *numbers, *launched))

    def at(self, placed: Placed, given: Sequence[int]) -> SeenCall | None:
        """Return the class of a call; None where the call needs the full check."""
        found = self.words(placed, given)
        if found is None or engine().evaluate(self.memory.address, ctypes.addressof(found)):
            return None
        class_key = struct.pack(f"{len(self.class_key)}q", *[found[i] for i in self.class_key])
        numbers, launched = ([found[i] for i in some] for some in (self.numbers, self._launched))
        return SeenCall(class_key[: self._layout_bytes], class_key, tuple(numbers), launched[0], tuple(launched[1:]))

    def words(self, placed: Placed, given: Sequence[int]) -> Any:
        """Return the program's inputs, in memory with space for what it computes; None where they do not fit."""
        if tuple([len(array.lengths) for array in placed]) != self.ranks or len(given) != self.given:
            return None
        try:
            return words([*words_at(placed), *given], self.program.numbers)
        except struct.error:  # a number does not fit 64 bits
            return None


class NativeCalls:
    """The calls of a kernel that machine code makes, because their class has been launched before."""

    def __init__(
        self,
        look: CallLook,
        dtypes: Sequence[int],
        is_capturing: int,
        reader: NativeRecord | None,
        launches: Mapping[Any, Any],
    ) -> None:
        """`dtypes` are DLPack's words; `is_capturing` is 0 where recorded graphs can share the launches of streams.

        `launches` has a `LaunchTemplate` under the `key_on` of each class that machine code may launch.
        """
        self._look, self._launches = look, launches
        array_words = sum(1 + 2 * rank for rank in look.ranks)
        inputs = [*range(array_words), *look.numbers]
        self._record = NativeRecord(
            CALL,
            {
                "arrays": len(look.ranks),
                "ranks": words(look.ranks),
                "dtypes": words(dtypes),
                "words": array_words,
                "given": look.given,
                "program": look.memory,
                "numbers": look.program.numbers,
                "keys": len(look.class_key),
                "key": words(look.class_key),
                "inputs": len(inputs),
                "input": words(inputs),
                "launches": id(launches),
                "is_capturing": is_capturing,
                "reader": reader or 0,
            },
            launches,
        )
        self.reader = reader
        self.with_tensors = of_record(engine().call, self._record) if reader else None
        """Makes a call from a tuple of tensors that the reader can read, and a tuple of numbers."""

    @property
    def address(self) -> int:
        """The address of its record of `CALL`."""
        return self._record.address

    @property
    def programs(self) -> list[CompilableProgram]:
        """The programs that its calls evaluate: that of their class, and of each launch."""
        launches = [one for one in [*self._launches.values()] if isinstance(one, LaunchTemplate)]
        return [self._look.compilable, *(launch.launcher.code.compilable for launch in launches)]

    def knows(self, placed: Placed, given: Sequence[int], on: LaunchPlace) -> bool:
        """Return whether there is a launch for the class of a call."""
        found = self._look.at(placed, given)
        return found is not None and found.key_on(on) in self._launches

    def __call__(self, placed: Placed, given: Sequence[int], device: int, stream: int) -> int:
        """Make a call of arrays with the right dtypes; return LAUNCHED, UNKNOWN, or the driver's error."""
        found = self._look.words(placed, given)
        if found is None:
            return UNKNOWN
        made: int = engine().make_call(self._record.address, ctypes.addressof(found), device, stream)
        return made

    def replay(self, placed: Placed, given: Sequence[int], device: int, kept: object) -> Any:
        """Return a function that replays this call for a tuple of tensors with the same layout, and optionally for a
        tuple of other scalar arguments; None where machine code cannot.

        `kept` owns the launches and is kept alive by the function.
        """
        found = self._look.words(placed, given)
        if found is None or self.reader is None:
            return None
        ranks = self._look.ranks
        record = NativeRecord(
            REPLAY,
            {
                "call": self._record,
                "reader": self.reader,
                "arrays": len(ranks),
                "places": words([*accumulate((1 + 2 * rank for rank in ranks[:-1]), initial=0)]),
                "words": sum(1 + 2 * rank for rank in ranks),
                "given": len(given),
                "template": found,
                "device": device,
            },
            kept,
        )
        return of_record(engine().replay_call, record)
