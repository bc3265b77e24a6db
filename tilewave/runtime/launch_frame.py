"""The frame: the memory that the driver reads a launch from, its constant part and the offsets of the rest."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

from tilewave.runtime.gpu_launch import Attribute, Cluster, DependentLaunchAttribute, GpuLaunch, Shape3, TiledArray
from tilewave.runtime.tensor_map import MAP_BYTES

CONFIG_BYTES = 56
"""The size of a CUlaunchConfig: the grid, the workgroup's lanes, shared bytes, a stream, the address of its attributes,
and their count."""
_CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 4, 6  # CUlaunchAttributeID


class FrameLayout:
    """The offsets of everything that the driver reads of a launch.

    The frame has tensor maps, their sizes and strides, a word for each parameter, the config, pointers to the
    parameters, and attributes; a CUlaunchAttribute is a number and, 8 bytes on, a value of 64 bytes. Programmatic
    dependent launch is the last attribute, so that launches without it pass one less.
    """

    def __init__(
        self,
        count: int,
        maps: Sequence[tuple[int, int]],
        block: Shape3,
        shared_bytes: int,
        attributes: Sequence[Attribute],
    ) -> None:
        """`maps` are the indices of parameters that are tensor maps, with their ranks."""
        self.uses_pdl = any(isinstance(a, DependentLaunchAttribute) for a in attributes)
        self.attributes = sorted(attributes, key=lambda a: isinstance(a, DependentLaunchAttribute))
        ranks = [rank for _, rank in maps]
        self.map_numbers_at = [*accumulate((16 * rank for rank in ranks), initial=len(maps) * MAP_BYTES)]
        """The offset of each map's sizes, which its strides follow; the last entry is where parameter words begin."""
        self.words_at, words_at = self.map_numbers_at[0], self.map_numbers_at[-1]
        self.config_at = words_at + 8 * count
        self.pointers_at = self.config_at + CONFIG_BYTES
        self.attributes_at = self.pointers_at + 8 * count
        self.parameters_at = [*range(words_at, self.config_at, 8)]
        for at, (parameter, _) in enumerate(maps):
            self.parameters_at[parameter] = at * MAP_BYTES
        config = struct.pack("@12x4I28x", *block, shared_bytes)
        spelled = b"".join(map(_spelled, self.attributes))
        self.image = bytes(self.config_at) + config + bytes(8 * count) + spelled
        """The constant part of a frame, with zeros elsewhere."""

    @classmethod
    def of(cls, launch: GpuLaunch) -> FrameLayout:
        maps = [(at, len(slot.axes)) for at, slot in enumerate(launch.slots) if isinstance(slot, TiledArray)]
        return cls(len(launch.slots), maps, launch.block, launch.shared_bytes, launch.attributes)


def _spelled(attribute: Attribute) -> bytes:
    match attribute:
        case Cluster(shape):
            number, value = _CLUSTER_DIMENSION, shape
        case DependentLaunchAttribute():
            number, value = _PROGRAMMATIC_SERIALIZATION, (1, 0, 0)
        case _:
            raise NotImplementedError(f"no launch attribute for {attribute}")
    return struct.pack("@i4x3I52x", number, *value)
