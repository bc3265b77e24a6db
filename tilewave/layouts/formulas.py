"""Which lane of a workgroup holds which element of a tile, and in which of its registers.

A layout is a sum: a part that depends on the lane, and a part that depends on the register alone.

64x32 by 256 lanes, 8 neighbours each (`linear`):         row = t // 4,        column = t % 4 · 8   + register
a 32x32 operand of a wave, 16 rows a block, 4 deep:       row = lane % 16      + 16 · row block
                                                          depth = lane // 16 · 4 + 16 · depth block + register
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, Literal

import numpy as np

from tilewave.layouts.linear import LinearLayout


@dataclass(frozen=True)
class Term:
    """(x + plus) // divisor % modulus · factor, where x is the lane in its wave, the wave, or the lane among all."""

    of: Literal["lane", "wave", "all"]
    factor: int
    divisor: int = 1
    modulus: int = 0
    """0: no remainder is taken."""
    plus: int = 0

    def value(self, x: Any) -> Any:
        """On an int, an array, or a number of a kernel."""
        if self.plus:
            x = x + self.plus
        if self.divisor != 1:
            x = x // self.divisor
        if self.modulus:
            x = x % self.modulus
        return x * self.factor if self.factor != 1 else x


@dataclass(frozen=True)
class Layout:
    """Tile axis a of register (i, j, …) is Σ axes[a] + i · steps[0][a] + j · steps[1][a] + …"""

    registers: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    axes: tuple[tuple[Term, ...], ...]
    limit: int = 0
    """Only the first `limit` lanes of the workgroup hold anything; 0: all do."""

    @property
    def rank(self) -> int:
        return len(self.axes)

    def positions(self, waves: int, lanes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The tile position of every register of every lane: lanes of the workgroup x registers… x axes."""
        t = np.arange(waves * lanes)
        x = {"lane": t % lanes, "wave": t // lanes, "all": t}
        found = np.zeros((len(t), *self.registers, self.rank), np.int64)
        register = np.indices(self.registers)
        for axis, terms in enumerate(self.axes):
            own = sum((term.value(x[term.of]) for term in terms), np.zeros(len(t), np.int64))
            offset = sum((r * step[axis] for r, step in zip(register, self.steps, strict=True)), np.int64(0))
            found[..., axis] = own.reshape(-1, *[1] * len(self.registers)) + offset
        return found if not self.limit else found[: self.limit]

    def along(self, kept: Sequence[int]) -> tuple[Layout, tuple[int, ...]]:
        """The layout of what runs along some of the axes only, and which register axes it keeps, one at least."""
        fewest = min(range(len(self.registers)), key=lambda i: self.registers[i])
        used = tuple(i for i, step in enumerate(self.steps) if any(step[a] for a in kept)) or (fewest,)
        return (
            Layout(
                tuple(self.registers[i] for i in used),
                tuple(tuple(self.steps[i][a] for a in kept) for i in used),
                tuple(self.axes[a] for a in kept),
                self.limit,
            ),
            used,
        )

    def part(self, axis: int, extent: int, first: int, count: int) -> tuple[Layout, int, int] | None:
        """The layout of a part of a tile that is so long along an axis, and where it begins along which register axis.

        None where lanes hold the part otherwise than in a row of those registers.
        """
        whole = (i for i, step in enumerate(self.steps) if step[axis] and step[axis] * self.registers[i] == extent)
        i = next((i for i in whole if first % self.steps[i][axis] == count % self.steps[i][axis] == 0), None)
        if i is None or self.limit:
            return None
        step = self.steps[i][axis]
        registers = (*self.registers[:i], count // step, *self.registers[i + 1 :])
        return replace(self, registers=registers), i, first // step

    def permuted(self, order: Sequence[int]) -> Layout:
        """The layout of a tile whose axis i is axis `order[i]` of this one."""
        steps = tuple(tuple(step[a] for a in order) for step in self.steps)
        return replace(self, steps=steps, axes=tuple(self.axes[a] for a in order))


@lru_cache(maxsize=256)
def as_linear(layout: Layout, shape: tuple[int, ...], waves: int, lanes: int) -> LinearLayout | None:
    """The layout of such a tile as a matrix over bits, if it is one: all numbers are powers of two, and all lanes
    hold something."""
    if layout.limit or any(n & (n - 1) for n in (waves, lanes, *shape, *layout.registers)):
        return None
    positions = layout.positions(waves, lanes)
    held = np.ravel_multi_index(tuple(np.moveaxis(positions, -1, 0)), shape).reshape(waves, lanes, -1)
    found = LinearLayout(shape, *(_columns(part) for part in (held[0, 0], held[0, :, 0], held[:, 0, 0])))
    wave, lane, register = np.ogrid[: held.shape[0], : held.shape[1], : held.shape[2]]
    return found if (found.at(register, lane, wave) == held).all() else None


def _columns(held: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[int, ...]:
    """What each bit of a number moves."""
    return tuple(int(held[1 << i]) for i in range(len(held).bit_length() - 1))


def linear(shape: tuple[int, ...], width: int, lanes: int) -> tuple[Layout, ...]:
    """Neighbouring lanes take neighbouring chunks of `width` elements along the last axis, until the tile is taken.

    Several layouts together cover the tile where the lanes do not divide it: the last round is then not full, and
    where a round does not begin in the column in which the one before began, each round has a layout of its own.
    """
    assert shape[-1] % width == 0, f"chunks of {width} do not fit rows of {shape[-1]}"
    chunks = prod(shape) // width
    rounds, left = divmod(chunks, lanes)
    found = []
    if rounds:
        step = _round_step(shape, width, lanes)
        if step is not None:
            found.append(_round(shape, width, 0, rounds, step))
        else:
            found += [_round(shape, width, r * lanes, 1, (0,) * len(shape)) for r in range(rounds)]
    if left:
        found.append(replace(_round(shape, width, rounds * lanes, 1, (0,) * len(shape)), limit=left))
    return tuple(found)


def _round_step(shape: tuple[int, ...], width: int, lanes: int) -> tuple[int, ...] | None:
    """How far the tile position moves from round to round, where that is the same for all lanes."""
    per_row, outer = shape[-1] // width, shape[:-1]
    if per_row % lanes == 0 and prod(outer) == 1:
        return (*[0] * len(outer), lanes * width)
    if lanes % per_row:
        return None
    for axis in range(len(outer)):
        behind = prod(outer[axis + 1 :]) * per_row
        if prod(outer[:axis]) == 1 and lanes % behind == 0:  # whole blocks of the axes behind this one
            return (*[0] * axis, lanes // behind, *[0] * (len(shape) - axis - 1))
    return None


def _round(shape: tuple[int, ...], width: int, first: int, rounds: int, step: tuple[int, ...]) -> Layout:
    per_row = shape[-1] // width
    axes: list[tuple[Term, ...]] = []
    below = per_row
    for extent in reversed(shape[:-1]):
        axes.insert(0, (Term("all", 1, below, extent, first),))
        below *= extent
    if axes:  # nothing lies above the first axis, so that no remainder is needed
        axes[0] = (replace(axes[0][0], modulus=0),)
    axes.append((Term("all", width, 1, per_row, first),))
    within = (*[0] * (len(shape) - 1), 1)
    return Layout((rounds, width), (step, within), tuple(axes))
