"""The two forms of an array on its way to the driver: an `ArrayView`, and the numbers of which a launch is computed.

A third one is memory: `words_at` in array_layouts writes placed arrays into the list that machine code reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tilewave.errors import CallError
from tilewave.ir.host_program import Number
from tilewave.ir.types import DType

Shape = tuple[int, ...]
NDArray: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
HOST = "cpu"
"""The device of arrays in host memory."""


class PlacedArray(NamedTuple):
    """An array's address, lengths, and strides in elements, of which formulas compute a launch.

    They are plain numbers, or recorded ones: then the formula becomes a program that machine code runs.
    """

    pointer: Number
    lengths: Sequence[Number]
    steps: Sequence[Number]


class ArrayView(NamedTuple):
    """An array's memory: the address of its first element, and strides in bytes, which may be 0 or negative.

    A named tuple, since one is made for every array of a call that Python looks at, in 0.3 µs.
    """

    pointer: int
    shape: Shape
    strides: tuple[int, ...]
    dtype: DType
    device: str
    readonly: bool = False
    owner: object = None
    """The object that keeps the memory alive; equality does not compare it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayView) and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:-1])

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields[:-1], self, strict=False))
        return f"ArrayView({fields})"

    @property
    def placed(self) -> PlacedArray:
        item = self.dtype.bytes
        return PlacedArray(self.pointer, self.shape, tuple([stride // item for stride in self.strides]))

    def at(self, placed: PlacedArray) -> ArrayView:
        """Return an array of this dtype and device at another place."""
        item = self.dtype.bytes
        strides = tuple([step * item for step in placed.steps])
        return self._replace(pointer=placed.pointer, shape=tuple(placed.lengths), strides=strides)

    def numpy(self) -> NDArray:
        """Return a numpy array over this memory, which keeps the owner alive."""
        if self.device != HOST:
            raise CallError(f"an array on {self.device} is not in numpy's reach", remedy="copy it to the CPU first")
        array = self.elements().view(self.dtype.numpy)
        array.flags.writeable = not self.readonly
        return array

    def elements(self) -> NDArray:
        """Return the elements as raw bytes; for a GPU's memory only their addresses can be used."""
        return elements_at(self.pointer, self.shape, self.strides, self.dtype.bytes, self)


class _Range:
    """Memory that numpy reads by its array interface, and what keeps it alive."""

    def __init__(self, interface: dict[str, object], owner: object) -> None:
        self.__array_interface__, self.owner = interface, owner


def elements_at(pointer: int, shape: Shape, strides: tuple[int, ...], item_bytes: int, owner: object) -> NDArray:
    """Return raw elements at an address; an empty array at address 0, which numpy 2.2 refuses, gets another."""
    if not pointer and 0 in shape:
        return np.empty(shape, f"|V{item_bytes}")
    where = {"version": 3, "data": (pointer, False), "shape": shape, "strides": strides, "typestr": f"|V{item_bytes}"}
    return np.asarray(_Range(where, owner))
