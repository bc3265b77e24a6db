"""What is seen at once of a call, from where its arrays are: how they lie, its numbers, and that nothing is wrong."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from tilewave.ir.host_program import HostProgram
from tilewave.runtime.array_places import ArrayPlaces, words_at
from tilewave.runtime.host_engine import CALL, NativeRecord, engine, in_memory, words


class SeenCall(NamedTuple):
    """What a call comes to."""

    alike: bytes
    """The same for all calls that one launch serves on a device and a stream, but for their addresses and lengths."""
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
        alike: Sequence[int],
        numbers: Sequence[int],
        launched: Sequence[int],
    ) -> None:
        """The arrays' axes, how many numbers a call gives, and which of the program's numbers are what."""
        self.ranks, self.given = tuple(ranks), given
        self._program, self._memory = program, in_memory(program)
        self._alike, self._numbers, self._launched = alike, numbers, launched
        self._words = sum(1 + 2 * rank for rank in ranks)

    def at(self, places: ArrayPlaces, given: Sequence[int]) -> SeenCall | None:
        """None where it is not sure."""
        _, shapes, _ = places
        if tuple(map(len, shapes)) != self.ranks or len(given) != self.given:
            return None
        try:
            found = words([*words_at(places), *given], self._program.numbers)
        except struct.error:  # a number does not fit 64 bits
            return None
        if engine().evaluate(self._memory.address, ctypes.addressof(found)):
            return None
        alike, numbers, launched = ([found[i] for i in some] for some in (self._alike, self._numbers, self._launched))
        return SeenCall(bytes(words(alike))[: 8 * len(alike)], tuple(numbers), launched[0], tuple(launched[1:]))

    def caller(self, dtypes: Sequence[int], launches: dict[bytes, int], is_capturing: int, reader: NativeRecord) -> Any:
        """call(arrays, numbers), in machine code, for tensors that the reader reads.

        `dtypes` are as DLPack has them. `launches` are addresses of launches by what is alike, device and stream; where
        `is_capturing` is no address, it does not matter whether a graph is recorded.
        """
        inputs = [*range(self._words), *self._numbers]
        record = NativeRecord(
            CALL,
            {
                "arrays": len(self.ranks),
                "ranks": words(self.ranks),
                "dtypes": words(dtypes),
                "words": self._words,
                "given": self.given,
                "program": self._memory,
                "numbers": self._program.numbers,
                "keys": len(self._alike),
                "key": words(self._alike),
                "inputs": len(inputs),
                "input": words(inputs),
                "launches": id(launches),
                "is_capturing": is_capturing,
                "reader": reader,
            },
            launches,
        )
        return engine().caller(record)
