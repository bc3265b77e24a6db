"""The elements of a memory that the lanes of a wave access, as row-major numbers, and out-of-bounds accesses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tilewave.interp.arithmetic import Array
from tilewave.records import dataclass


class Elements(NamedTuple):
    """The number of each register's element, lanes x registers…, and which are accessed; None: all."""

    flat: Array
    active: Array | None

    @property
    def kept(self) -> Array:
        """The accessed elements, flattened."""
        return in_a_row(self.flat, self.active)


class OutsideMemory(Exception):
    """An out-of-bounds access of a lane."""

    def __init__(self, lane: int, position: tuple[int, ...]) -> None:
        super().__init__(lane, position)
        self.lane, self.position = lane, position


@dataclass(frozen=True)
class RegisterOffsets:
    """The offsets of a load's or store's registers from its first element, which depend on the op alone."""

    offsets: tuple[Array, ...]
    flat: Array
    low: tuple[int, ...]
    high: tuple[int, ...]

    @staticmethod
    def of(registers: tuple[int, ...], steps: tuple[tuple[int, ...], ...], memory: tuple[int, ...]) -> RegisterOffsets:
        numbers = np.indices(registers)
        offsets = tuple(
            sum((n * step[axis] for n, step in zip(numbers, steps, strict=True)), np.zeros(registers, np.int64))
            for axis in range(len(memory))
        )
        flat = sum((o * s for o, s in zip(offsets, strides(memory), strict=True)), np.zeros(registers, np.int64))
        low, high = (tuple(int(bound(o)) for o in offsets) for bound in (np.min, np.max))
        return RegisterOffsets(offsets, flat, low, high)

    def fit(self, at: Sequence[Any], memory: tuple[int, ...]) -> bool:
        """Return whether all registers of all lanes are in bounds."""
        bounds = zip(at, self.low, self.high, memory, strict=True)
        return all(
            (a.min() + low >= 0 and a.max() + high < extent)
            if isinstance(a, np.ndarray)
            else (a + low >= 0 and a + high < extent)
            for a, low, high, extent in bounds
        )

    def below(self, own: Sequence[Any], within: Sequence[int]) -> Array:
        """Return which registers are in the in-bounds part of a tile; `own` is the first register's position in it."""
        rank = self.flat.ndim
        places = [by_lane(a, rank) + o < n for a, o, n in zip(own, self.offsets, within, strict=True)]
        found: Array = np.logical_and.reduce(np.broadcast_arrays(*places))
        return found

    def elements(
        self, at: Sequence[Any], memory: tuple[int, ...], guard: Sequence[int], mask: Array | None
    ) -> Elements:
        rank = self.flat.ndim
        if self.fit(at, memory):
            first = sum((a * s for a, s in zip(at, strides(memory), strict=True)), 0)
            flat = by_lane(first, rank) + self.flat
            return Elements(*_same_shape(flat, mask))
        positions = [by_lane(a, rank) + o for a, o in zip(at, self.offsets, strict=True)]
        return elements_at(positions, memory, guard, mask)


def elements_at(
    positions: Sequence[Array], memory: tuple[int, ...], guard: Sequence[int], mask: Array | None
) -> Elements:
    """Return the elements at given positions; out of bounds along `guard` they are skipped, along others refused."""
    shape = np.broadcast_shapes(*(p.shape for p in positions), *(() if mask is None else (mask.shape,)))
    active = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape).copy()
    inside = np.ones(shape, bool)
    for axis, (p, extent) in enumerate(zip(positions, memory, strict=True)):
        here = (p >= 0) & (p < extent)
        if axis in guard:
            active &= here
        else:
            inside &= here
    lost = active & ~inside
    if lost.any():
        where = tuple(int(n[0]) for n in np.nonzero(lost))
        raise OutsideMemory(where[0], tuple(int(np.broadcast_to(p, shape)[where]) for p in positions))
    flat = sum((p * s for p, s in zip(positions, strides(memory), strict=True)), np.zeros(shape, np.int64))
    return Elements(np.where(active, flat, 0), active)


def in_a_row(x: Array, active: Array | None) -> Array:
    """Return what the active lanes and registers hold, flattened."""
    row: Array = x.reshape(-1) if active is None else x[active]
    return row


@lru_cache(maxsize=1024)
def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def by_lane(x: Any, rank: int) -> Array:
    """Return x as lanes x registers…; it has one number per lane, one for all lanes, or registers already."""
    x = np.asarray(x)
    found: Array = x if x.ndim == rank + 1 else x.reshape(-1, *[1] * rank)
    return found


def of_shape(x: Array, shape: tuple[int, ...]) -> Array:
    """Return x broadcast to a shape; most often it has that shape, and numpy takes long to find out."""
    return x if x.shape == shape else np.broadcast_to(x, shape)


def _same_shape(flat: Array, mask: Array | None) -> tuple[Array, Array | None]:
    if mask is None:
        return flat, None
    shape = np.broadcast_shapes(flat.shape, mask.shape)
    return of_shape(flat, shape), of_shape(mask, shape)
