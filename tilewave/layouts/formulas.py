"""Which lane of a workgroup holds which element of a tile, and in which of its registers.

A layout is a sum: a part that depends on the lane, and a part that depends on the register alone.

64x32 by 256 lanes, 8 neighbours each (`linear`):         row = t // 4,        column = t % 4 · 8   + register
a 32x32 operand of a wave, 16 rows a block, 4 deep:       row = lane % 16      + 16 · row block
                                                          depth = lane // 16 · 4 + 16 · depth block + register
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any, Literal

import numpy as np

from tilewave.layouts.linear import LinearLayout
from tilewave.records import dataclass


@dataclass(frozen=True)
class Term:
    """(x + plus) // divisor % modulus · factor, where x is the lane in its wave, the wave, or the lane among all."""

    of: Literal["lane", "wave", "all"]
    factor: int
    divisor: int = 1
    modulus: int = 0
    """The modulus; 0: none."""
    plus: int = 0

    def value(self, x: Any) -> Any:
        """Return the term's value; x is an int, an array, or a number of a kernel."""
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
        """Return the tile position of every register of every lane: lanes of the workgroup x registers… x axes."""
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
        """Return the layout of a tile with some of the axes only, and the register axes that it keeps, at least one."""
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
        """Return the layout of a slice of a tile along an axis, and the register axis and index where it begins.

        None where the slice is not a range of one register axis.
        """
        whole = (i for i, step in enumerate(self.steps) if step[axis] and step[axis] * self.registers[i] == extent)
        i = next((i for i in whole if first % self.steps[i][axis] == count % self.steps[i][axis] == 0), None)
        if i is None or self.limit:
            return None
        step = self.steps[i][axis]
        registers = (*self.registers[:i], count // step, *self.registers[i + 1 :])
        return replace(self, registers=registers), i, first // step

    def permuted(self, order: Sequence[int]) -> Layout:
        """Return the layout of a tile whose axis i is axis `order[i]` of this one."""
        steps = tuple(tuple(step[a] for a in order) for step in self.steps)
        return replace(self, steps=steps, axes=tuple(self.axes[a] for a in order))

    def spread_over(self, axes: Sequence[int], rank: int) -> Layout:
        """Return the layout of a tile of `rank` axes whose axis `axes[i]` is axis i of this one; others are 1 long."""
        place = {axis: i for i, axis in enumerate(axes)}
        steps = tuple(tuple(step[place[a]] if a in place else 0 for a in range(rank)) for step in self.steps)
        return replace(self, steps=steps, axes=tuple(self.axes[place[a]] if a in place else () for a in range(rank)))

    def with_last(self, axis: int) -> Layout:
        """Return the layout with the register axis that steps along a tile axis last, if there is one."""
        order = neighbours_last(self.steps, axis)
        return replace(
            self, registers=tuple(self.registers[i] for i in order), steps=tuple(self.steps[i] for i in order)
        )


def read_transposed(layout: Layout, lanes: int, rows: int) -> Layout | None:
    """Return the read positions if `lanes` neighbours read `rows` rows for each other to hold a tile as `layout` says.

    None where lanes do not hold columns of so many rows. A lane's registers are groups of `rows` neighbours then:

        holds     column = lane % 16             row = lane // 16 · 8 + register
        reads     column = lane % 4 · 4 + e      row = lane // 16 · 8 + lane // 4 % 4 + group · 4
    """
    depth = next((axis for axis, far in enumerate(layout.steps[-1]) if far), None)
    across = [(axis, term) for axis, terms in enumerate(layout.axes) for term in terms if _tells_apart(term, lanes)]
    whole = layout.registers[-1] % rows == 0 and sum(layout.steps[-1]) == 1 and not layout.limit
    if depth is None or not whole or len(across) != 1:
        return None
    ((axis, term),) = across
    if axis == depth or term != Term("lane", 1, 1, term.modulus) or term.modulus % lanes:
        return None
    far = [Term("lane", lanes, lanes, term.modulus // lanes)] if term.modulus != lanes else []
    axes = [list(terms) for terms in layout.axes]
    axes[axis] = [Term("lane", rows, 1, lanes // rows), *far, *(t for t in axes[axis] if t != term)]
    axes[depth].append(Term("lane", 1, lanes // rows, rows))
    group, each = (tuple(n if i == a else 0 for i in range(layout.rank)) for n, a in ((rows, depth), (1, axis)))
    return Layout(
        (*layout.registers[:-1], layout.registers[-1] // rows, rows),
        (*layout.steps[:-1], group, each),
        tuple(map(tuple, axes)),
    )


def _tells_apart(term: Term, lanes: int) -> bool:
    """Return whether a term differs among so many neighbouring lanes."""
    return term.of == "all" or (term.of == "lane" and term.divisor % lanes != 0)


def neighbours_last(steps: Sequence[Sequence[int]], axis: int) -> tuple[int, ...]:
    """Return the register axes with the one last that steps from neighbour to neighbour along an axis."""
    last = [i for i, step in enumerate(steps) if step[axis] == 1 and sum(map(bool, step)) == 1]
    return (*(i for i in range(len(steps)) if i not in last[-1:]), *last[-1:])


@lru_cache(maxsize=256)
def as_linear(layout: Layout, shape: tuple[int, ...], waves: int, lanes: int) -> LinearLayout | None:
    """Return the layout of a tile as a matrix over bits; None unless all numbers are powers of two and all lanes hold
    something."""
    if layout.limit or any(n & (n - 1) for n in (waves, lanes, *shape, *layout.registers)):
        return None
    positions = layout.positions(waves, lanes)
    held = np.ravel_multi_index(tuple(np.moveaxis(positions, -1, 0)), shape).reshape(waves, lanes, -1)
    found = LinearLayout(shape, *(_columns(part) for part in (held[0, 0], held[0, :, 0], held[:, 0, 0])))
    wave, lane, register = np.ogrid[: held.shape[0], : held.shape[1], : held.shape[2]]
    return found if (found.at(register, lane, wave) == held).all() else None


def _columns(held: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[int, ...]:
    """Return the move of each bit of a number."""
    return tuple(int(held[1 << i]) for i in range(len(held).bit_length() - 1))


def linear(shape: tuple[int, ...], width: int, lanes: int) -> tuple[Layout, ...]:
    """Return layouts in which neighbouring lanes take neighbouring chunks of `width` elements along the last axis.

    Several layouts together cover the tile where the lanes do not divide it: the last set of chunks is then not full,
    and where a round does not begin in the column in which the one before began, each round has a separate layout.
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


LANES_ACROSS = 8
"""Lanes of a wave that load neighbours along a row: with 16 bytes each, a 128-byte cache line, and as many chunks as
shared memory has banks for."""


def blocks(shape: tuple[int, ...], rows: int, width: int, lanes: int) -> tuple[Layout, ...]:
    """Return layouts in which lanes take blocks of `rows` rows and `width` neighbours in each, eight lanes per row.

    64x256 by 512 lanes, 4x8 each:      row = t // 8 % 16 · 4 + i,      column = t % 8 · 8 + t // 128 · 64 + register
    """
    *batch, high, wide = shape
    assert prod(batch) == 1, f"{shape} is more than one matrix"
    across = next(n for n in range(LANES_ACROSS, 0, -1) if wide // width % n == 0)
    panels = linear((wide // width // across, high // rows, across), 1, lanes)
    return tuple(_in_blocks(layout, len(batch), rows, width, across) for layout in panels)


def _in_blocks(panels: Layout, batches: int, rows: int, width: int, across: int) -> Layout:
    """Return the layout of a tile's elements from that of its blocks: panels x rows of blocks x blocks in a row."""
    far = ((0, width * across), (rows, 0), (0, width))  # what each axis of blocks moves along rows and columns
    rounds, _ = panels.steps
    step = tuple(sum(r * f[axis] for r, f in zip(rounds, far, strict=True)) for axis in (0, 1))
    axes = tuple(
        tuple(
            replace(term, factor=term.factor * f[axis])
            for terms, f in zip(panels.axes, far, strict=True)
            for term in terms
            if f[axis]
        )
        for axis in (0, 1)
    )
    front = (0,) * batches
    steps = tuple((*front, *each) for each in (step, (1, 0), (0, 1)))
    return Layout((panels.registers[0], rows, width), steps, (*((),) * batches, *axes), panels.limit)


def _round_step(shape: tuple[int, ...], width: int, lanes: int) -> tuple[int, ...] | None:
    """Return the move of the tile position from round to round; None where it differs between lanes."""
    per_row, outer = shape[-1] // width, shape[:-1]
    if per_row % lanes == 0 and prod(outer) == 1:
        return (*[0] * len(outer), lanes * width)
    if lanes % per_row:
        return None
    for axis in range(len(outer)):
        after = prod(outer[axis + 1 :]) * per_row
        if prod(outer[:axis]) == 1 and lanes % after == 0:  # whole blocks of the axes after this one
            return (*[0] * axis, lanes // after, *[0] * (len(shape) - axis - 1))
    return None


def _round(shape: tuple[int, ...], width: int, first: int, rounds: int, step: tuple[int, ...]) -> Layout:
    per_row = shape[-1] // width
    axes: list[tuple[Term, ...]] = []
    below = per_row
    for extent in reversed(shape[:-1]):
        axes.insert(0, (Term("all", 1, below, extent, first),))
        below *= extent
    if axes:  # no axis is above the first, so its index needs no modulus
        axes[0] = (replace(axes[0][0], modulus=0),)
    axes.append((Term("all", width, 1, per_row, first),))
    within = (*[0] * (len(shape) - 1), 1)
    return Layout((rounds, width), (step, within), tuple(axes))
