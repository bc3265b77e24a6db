"""A reduction is a layout divided by an axis: who holds what is to be combined, and who has the result.

Rows of 1024, two waves of 32 lanes, eight neighbours a lane (`rows_in_lanes`): which bit of the column is whose

    column    0  1  2    3  4  5  6  7    8    9
    held by   registers  lanes            reg  wave

Neighbours first is from the left to the right: registers within a lane, lanes within a wave, registers again; waves
come last, and meet in shared memory. Every lane that took part has the result, so that its layout is that of the other
axes. Where the order does not matter, all registers come first, so that lanes exchange one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from tilewave.layouts.formulas import Layout, Term


@dataclass(frozen=True)
class Mover:
    """What moves along an axis: an axis of registers, or one bit of the lane's or the wave's number."""

    of: Literal["registers", "lane", "wave"]
    which: int
    step: int
    count: int = 2


@dataclass(frozen=True)
class Combining:
    """One step of a reduction: axes of registers within each lane, or bits of the lane's number between lanes."""

    of: Literal["registers", "lane"]
    which: tuple[int, ...]


def movers(layout: Layout, axis: int, waves: int, lanes: int) -> tuple[Mover, ...] | None:
    """Whatever moves along an axis, nearest first; None where lanes do not move bit by bit, or along two axes."""
    bits = lane_moves(layout, waves, lanes) if layout.axes[axis] else ([], [])
    if bits is None:
        return None
    found = [Mover("registers", i, step[axis], layout.registers[i]) for i, step in enumerate(layout.steps)]
    found = [m for m in found if m.step and m.count > 1]
    for of, moves in (("lane", bits[0]), ("wave", bits[1])):
        for bit, move in enumerate(moves):
            if move[axis]:
                if any(other for a, other in enumerate(move) if a != axis):
                    return None
                found.append(Mover(of, bit, move[axis]))  # type: ignore[arg-type]
    return tuple(sorted(found, key=lambda m: m.step))


def lane_moves(layout: Layout, waves: int, lanes: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]] | None:
    """How far each bit of the lane's and the wave's number moves along each axis, if bits move by themselves."""
    if layout.limit or lanes & (lanes - 1) or waves & (waves - 1):
        return None
    whole = Layout((1,), ((0,) * layout.rank,), layout.axes).positions(waves, lanes)[:, 0, :]
    held = whole.reshape(waves, lanes, layout.rank)
    of_lane, of_wave = _bits(held[0]), _bits(held[:, 0])
    sums = _sums(of_wave, waves)[:, None] + _sums(of_lane, lanes)[None, :]
    if not (sums + held[0, 0] == held).all() or held[0, 0].any():
        return None
    return of_lane, of_wave


def _bits(held: np.ndarray[Any, Any]) -> list[tuple[int, ...]]:
    return [tuple(int(n) for n in held[1 << i]) for i in range(len(held).bit_length() - 1)]


def _sums(moves: list[tuple[int, ...]], count: int) -> np.ndarray[Any, Any]:
    numbers = np.arange(count)
    found = np.zeros((count, len(moves[0]) if moves else 1), np.int64)
    for bit, move in enumerate(moves):
        found = found + (numbers >> bit & 1)[:, None] * np.array(move)
    return found


def covers(found: Sequence[Mover], extent: int) -> bool:
    """Whether movers reach every element of an axis once."""
    far = 1
    for m in found:
        if m.step != far:
            return False
        far *= m.count
    return far == extent


def nearest_wave(found: Sequence[Mover], extent: int) -> int:
    """How long the runs of neighbours are that a wave holds by itself; all of the axis where no wave has a part."""
    return min((m.step for m in found if m.of == "wave"), default=extent)


def neighbours_first(found: Sequence[Mover], run: int) -> list[Combining]:
    """The steps that combine each run of neighbours, in their order."""
    steps: list[Combining] = []
    for m in found:
        if m.step >= run or m.of == "wave":
            continue
        if steps and steps[-1].of == m.of == "lane":
            steps[-1] = Combining("lane", (*steps[-1].which, m.which))
        else:
            steps.append(Combining(m.of, (m.which,)))
    return steps


def registers_first(found: Sequence[Mover], run: int) -> list[Combining]:
    """The same where the order does not matter: lanes exchange as little as possible."""
    mine = [m for m in found if m.step < run]
    registers = tuple(m.which for m in mine if m.of == "registers")
    lanes = tuple(m.which for m in mine if m.of == "lane")
    steps = [Combining("registers", registers)] if registers else []
    return [*steps, Combining("lane", lanes)] if lanes else steps


def runs(layout: Layout, axis: int, run: int, found: Sequence[Mover]) -> Layout:
    """The layout of a tile that has one element for each run of neighbours along an axis."""
    assert all(m.step < run for m in found if m.of == "lane"), f"lanes of a wave hold several runs of {run}"
    gone = {m.which for m in found if m.of == "registers" and m.step < run}
    kept = [i for i in range(len(layout.registers)) if i not in gone] or [min(gone)]
    steps = tuple(_divided(layout.steps[i], axis, run) for i in kept)
    waves = tuple(Term("wave", m.step // run, 1 << m.which, 2) for m in found if m.of == "wave")
    axes = tuple(waves if a == axis else terms for a, terms in enumerate(layout.axes))
    counts = tuple(1 if i in gone else layout.registers[i] for i in kept)
    return Layout(counts, steps, axes)


def _divided(step: tuple[int, ...], axis: int, run: int) -> tuple[int, ...]:
    return tuple(far // run if a == axis else far for a, far in enumerate(step))


def with_axis_in_registers(layout: Layout, axis: int, extent: int) -> Layout:
    """The layout of a tile with one more axis, all of which every lane holds."""

    def wider(step: tuple[int, ...], far: int) -> tuple[int, ...]:
        return (*step[:axis], far, *step[axis:])

    steps = (*(wider(step, 0) for step in layout.steps), wider((0,) * layout.rank, 1))
    axes = (*layout.axes[:axis], (), *layout.axes[axis:])
    return Layout((*layout.registers, extent), steps, axes, layout.limit)


def rows_in_lanes(
    shape: tuple[int, ...], order: Sequence[int], width: int, lanes: int, waves: int, reduced: Sequence[int]
) -> Layout:
    """Neighbouring lanes take neighbouring chunks; waves take whole parts of axes, of those `reduced` last.

    `order` are the axes from the one along which chunks lie to the farthest. Lanes and waves that find nothing left
    hold copies, as all of them do of a tile without axes.
    """
    if not shape:
        return Layout((1,), ((),), ())
    taken, by_wave = [1] * len(shape), [1] * len(shape)
    taken[order[0]] = width
    terms: list[list[Term]] = [[] for _ in shape]
    divisor = 1
    for axis in order:
        count = min(_power_in(shape[axis] // taken[axis]), lanes // divisor)
        if count > 1:
            terms[axis].append(Term("lane", taken[axis], divisor, 0 if divisor * count == lanes else count))
            taken[axis], divisor = taken[axis] * count, divisor * count
    divisor = 1
    farthest = order[::-1]
    for axis in (*(a for a in farthest if a not in reduced), *(a for a in farthest if a in reduced)):
        count = min(_power_in(shape[axis] // taken[axis]), waves // divisor)
        if count > 1:
            terms[axis].insert(0, Term("wave", shape[axis] // count, divisor, count))
            by_wave[axis], divisor = count, divisor * count
    left = {axis: shape[axis] // taken[axis] // by_wave[axis] for axis in reversed(order)}
    rest = [axis for axis, count in left.items() if count > 1]
    registers = (1, *(left[axis] for axis in rest), width)
    steps = [(axis, taken[axis]) for axis in rest]
    return Layout(
        registers,
        ((0,) * len(shape), *(_along(len(shape), axis, far) for axis, far in steps), _along(len(shape), order[0], 1)),
        tuple(tuple(of_axis) for of_axis in terms),
    )


def _along(rank: int, axis: int, far: int) -> tuple[int, ...]:
    return tuple(far if a == axis else 0 for a in range(rank))


def _power_in(n: int) -> int:
    """The largest power of two that divides n."""
    return n & -n


def chunk_width(shape: tuple[int, ...], axis: int, widest: int, holders: int) -> int:
    """How many neighbours a lane takes: the widest chunk that divides the axis and leaves nobody without one."""
    width = widest
    while width > 1 and (shape[axis] % width or prod(shape) // width < holders):
        width //= 2
    return width


def first_holders(layout: Layout, waves: int, lanes: int) -> tuple[int, int] | None:
    """Bits of the lane's and of the wave's number that move nothing: those who have one set hold copies."""
    moves = lane_moves(layout, waves, lanes)
    if moves is None:
        return None
    lane, wave = (sum(1 << bit for bit, move in enumerate(part) if not any(move)) for part in moves)
    return lane, wave
