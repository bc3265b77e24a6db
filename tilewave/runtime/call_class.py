"""What is seen at once of a call, from where its arrays are: how they lie, its numbers, and that nothing is wrong."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from tilewave.ir.host_program import HostProgram
from tilewave.runtime.array_layouts import ArrayPlaces, words_at
from tilewave.runtime.native.engine import engine, of_record
from tilewave.runtime.native.records import CALL, REPLAY, UNKNOWN, NativeRecord, in_memory, words


class SeenCall(NamedTuple):
    """What a call comes to."""

    layout: bytes
    """How its arrays lie: the same for all that one launch serves on a device and a stream."""
    class_key: bytes
    """With the numbers that must be the same for another call to be as right as this one."""
    numbers: tuple[int, ...]
    """Of the call, in the order of the kernel's arguments."""
    workgroups: int
    passed: tuple[int, ...]
    """The numbers that its launch passes on."""


class CallLook:
    """A program that looks at the arrays of a call; where it is not sure, they must be looked at closely."""

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
        """The arrays' axes, how many numbers a call gives, and which of the program's numbers are what."""
        self.ranks, self.given = tuple(ranks), given
        self.program, self.memory = program, in_memory(program)
        self.class_key, self.numbers = (*layout, *telling), numbers
        self._layout_bytes, self._launched = 8 * len(layout), launched

    def at(self, places: ArrayPlaces, given: Sequence[int]) -> SeenCall | None:
        """None where it is not sure."""
        found = self.words(places, given)
        if found is None or engine().evaluate(self.memory.address, ctypes.addressof(found)):
            return None
        class_key = struct.pack(f"{len(self.class_key)}q", *[found[i] for i in self.class_key])
        numbers, launched = ([found[i] for i in some] for some in (self.numbers, self._launched))
        return SeenCall(class_key[: self._layout_bytes], class_key, tuple(numbers), launched[0], tuple(launched[1:]))

    def words(self, places: ArrayPlaces, given: Sequence[int]) -> Any:
        """What the program is given, in memory with room for what it computes; None where it cannot be given that."""
        _, shapes, _ = places
        if tuple([len(shape) for shape in shapes]) != self.ranks or len(given) != self.given:
            return None
        try:
            return words([*words_at(places), *given], self.program.numbers)
        except struct.error:  # a number does not fit 64 bits
            return None


class NativeCalls:
    """The calls of a kernel that machine code makes: it has seen such before."""

    def __init__(self, look: CallLook, dtypes: Sequence[int], is_capturing: int, reader: NativeRecord | None) -> None:
        """`dtypes` are as DLPack has them; where `is_capturing` is no address, graphs need no launches of their own."""
        self._look, self._launches = look, dict[bytes, int]()
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
                "launches": id(self._launches),
                "is_capturing": is_capturing,
                "reader": reader or 0,
            },
            self._launches,
        )
        self.reader = reader
        self.with_tensors = of_record(engine().call, self._record) if reader else None
        """Makes a call of tensors that the reader reads, and of numbers; tuples of both."""

    def __len__(self) -> int:
        return len(self._launches)

    def __call__(self, places: ArrayPlaces, given: Sequence[int], device: int, stream: int) -> int:
        """Make a call of arrays whose dtypes fit, wherever they are; as the engine has it."""
        found = self._look.words(places, given)
        if found is None:
            return UNKNOWN
        made: int = engine().make_call(self._record.address, ctypes.addressof(found), device, stream)
        return made

    def replay(self, places: ArrayPlaces, given: Sequence[int], device: int, kept: object) -> Any:
        """Makes calls of a tuple of tensors that begin where arrays do which lie as these, and of the same numbers or a
        tuple of others; None where nothing can.

        `kept` holds the launches, and lives as long.
        """
        found = self._look.words(places, given)
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

    def know(self, seen: SeenCall, device: int, stream: int, launch: NativeRecord) -> None:
        """From here on it makes all calls that are alike; the launch lives as long as this."""
        self._launches[seen.class_key + struct.pack("qq", device, stream)] = launch.address

    def forget(self) -> None:
        self._launches.clear()
