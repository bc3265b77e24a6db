"""The memory that the driver reads a launch from."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from ctypes import byref
from itertools import accumulate
from itertools import count as count_from
from typing import Any, NamedTuple

from tilewave.runtime.gpu_launch import Attribute, Cluster, EarlyStart, Shape3
from tilewave.runtime.tensor_map import MAP_ALIGNMENT, MAP_BYTES

CONFIG_BYTES, ATTRIBUTES_AT = 56, 40
"""Of a CUlaunchConfig, and where in it the address of its attributes is, and behind that how many they are."""
_CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 4, 6


class FrameLayout:
    """Where a launch has what the driver reads.

    Tensor maps, the numbers that they are made of, a word for each parameter, its config, pointers to the parameters,
    and attributes. A CUlaunchConfig is the grid, the workgroup's lanes, shared bytes, a stream, and where its
    attributes are; a CUlaunchAttribute has its number and, 8 bytes on, a value of 64.
    """

    def __init__(
        self,
        count: int,
        maps: Sequence[tuple[int, int]],
        block: Shape3,
        shared_bytes: int,
        attributes: Sequence[Attribute],
    ) -> None:
        """`maps` are the parameters that are tensor maps, and how many axes each has."""
        self.config = *block, shared_bytes
        """What stands in it between grid and stream."""
        self._attributes = [*map(_spelled, attributes)]
        ranks = [rank for _, rank in maps]
        numbers_at = [*accumulate((16 * rank for rank in ranks), initial=len(maps) * MAP_BYTES)]
        self._numbers_at, words_at = numbers_at[0], numbers_at[-1]
        self.pack = struct.Struct(f"@{2 * sum(ranks)}Q{count}q7IQ").pack_into
        """Into a frame: the numbers of its maps, a word for each parameter, and its config up to the stream."""
        self._config_at, self._pointers_at = words_at + 8 * count, words_at + 8 * count + CONFIG_BYTES
        self._count, self._attributes_at = count, self._pointers_at + 8 * count
        self._parameters = [*range(words_at, self._config_at, 8)]
        """Where each is."""
        for at, (parameter, _) in enumerate(maps):
            self._parameters[parameter] = at * MAP_BYTES
        places = zip(count_from(0, MAP_BYTES), numbers_at, ranks, strict=False)
        self._maps = [(at, numbers, numbers + 8 * rank) for at, numbers, rank in places]
        self._memory = ctypes.c_char * (self._attributes_at + sum(map(len, self._attributes)) + MAP_ALIGNMENT)
        self.free: list[LaunchFrame] = []
        """Frames that nobody has."""

    def take(self) -> LaunchFrame:
        """A frame that nobody else has until it is given back."""
        try:
            return self.free.pop()
        except IndexError:
            return self._new()

    def _new(self) -> LaunchFrame:
        memory = self._memory()
        begin = -ctypes.addressof(memory) % MAP_ALIGNMENT
        start = ctypes.addressof(memory) + begin
        struct.pack_into(f"{self._count}Q", memory, begin + self._pointers_at, *map(start.__add__, self._parameters))
        attributes = start + self._attributes_at, len(self._attributes)
        struct.pack_into("QI", memory, begin + self._config_at + ATTRIBUTES_AT, *attributes)
        spelled = b"".join(self._attributes)
        ctypes.memmove(attributes[0], spelled, len(spelled))
        return LaunchFrame(
            memory,
            begin + self._numbers_at,
            byref(memory, begin + self._config_at),
            byref(memory, begin + self._pointers_at),
            [tuple([byref(memory, begin + at) for at in places]) for places in self._maps],
            self.free,
        )


class LaunchFrame(NamedTuple):
    """What the driver reads of one launch; references are as C takes them."""

    memory: Any
    words_at: int
    """Where in it that begins which differs from launch to launch."""
    config: Any
    parameters: Any
    maps: list[tuple[Any, ...]]
    """Where each tensor map is encoded, and where its sizes and strides are."""
    free: list[LaunchFrame]
    """Those that nobody has."""

    def give_back(self) -> None:
        """Let another launch have its memory: this one has been made, and is not kept."""
        self.free.append(self)


def _spelled(attribute: Attribute) -> bytes:
    match attribute:
        case Cluster(shape):
            number, value = _CLUSTER_DIMENSION, shape
        case EarlyStart():
            number, value = _PROGRAMMATIC_SERIALIZATION, (1, 0, 0)
        case _:
            raise NotImplementedError(f"no launch attribute for {attribute}")
    return struct.pack("@i4x3I52x", number, *value)
