"""A reduction is a layout divided by an axis: which registers, lanes and waves combine, and which have the result.

Rows of 1024, two waves of 32 lanes, eight neighbours a lane (`rows_in_lanes`): which bit of the column is whose

    column    0  1  2    3  4  5  6  7    8    9
    held by   registers  lanes            reg  wave

Neighbours first is from the left to the right: registers within a lane, lanes within a wave, registers again; waves
come last, through shared memory. Every lane that took part has the result, so that its layout is that of the other
axes. Where the order does not matter, all registers come first, so that lanes exchange one number.

Where it does, and registers come after lanes, pairs of lanes divide the registers between them, so that each continues
with half as many: of four registers a and b, c and d, the lanes 0 and 1 have

    lane 0    a0 b0 c0 d0   →   a01 b01   →   a0123   …   and in the end lanes add the registers that they continued
    lane 1    a1 b1 c1 d1       c01 d01       c0123       with: first by bit 1 of the lane's number, which selects a or
    lane 2    a2 b2 c2 d2       a23 b23       b0123       b and c or d, then by bit 0

Three registers are divided as four, of which the last changes no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import gcd, prod
from typing import Any, Literal

import numpy as np

from tilewave.layouts.formulas import Layout, Term
from tilewave.records import dataclass

MANY_TO_COMBINE = 16
"""Numbers that one lane loads four at a time and combines one by one; more are combined faster across lanes."""


@dataclass(frozen=True)
class Mover:
    """A mover along an axis: an axis of registers, a bit of the lane's number, or a digit of the wave's.

    `which` is the number of the axis or the bit, or the divisor of the digit in the wave's number.
    """

    of: Literal["registers", "lane", "wave"]
    which: int
    step: int
    count: int = 2


@dataclass(frozen=True)
class Digit:
    """One digit of a wave's number, waves // divisor % count, and how far it moves along each axis."""

    divisor: int
    count: int
    move: tuple[int, ...]


@dataclass(frozen=True)
class Combining:
    """One step of a reduction: axes of registers within each lane, bits of the lane's number across lanes, or, with
    `halves`, an axis of registers that lanes which differ in a bit divide between them: these two numbers."""

    of: Literal["registers", "lane", "halves"]
    which: tuple[int, ...]


def movers(layout: Layout, axis: int, waves: int, lanes: int) -> tuple[Mover, ...] | None:
    """Return all movers along an axis, nearest first; None where lanes do not move bit by bit, or along two axes."""
    by_lanes = bool(layout.axes[axis])
    bits = lane_moves(layout, waves, lanes) if by_lanes else []
    digits = wave_digits(layout, waves, lanes) if by_lanes else []
    if bits is None or digits is None:
        return None
    found = [Mover("registers", i, step[axis], layout.registers[i]) for i, step in enumerate(layout.steps)]
    found = [m for m in found if m.step and m.count > 1]
    moves = [(Mover("lane", bit, move[axis]), move) for bit, move in enumerate(bits)]
    moves += [(Mover("wave", d.divisor, d.move[axis], d.count), d.move) for d in digits]
    for mover, move in moves:
        if mover.step and sum(map(bool, move)) > 1:
            return None
        found += [mover] if mover.step else []
    return tuple(sorted(found, key=lambda m: m.step))


def lane_moves(layout: Layout, waves: int, lanes: int) -> list[tuple[int, ...]] | None:
    """Return the move of each bit of the lane's number along each axis; None where moves do not add up."""
    if layout.limit or lanes & (lanes - 1):
        return None
    held = _held(layout, waves, lanes)
    found = [tuple(int(n) for n in held[0, 1 << i]) for i in range(lanes.bit_length() - 1)]
    numbers, sums = np.arange(lanes), np.zeros((lanes, layout.rank), np.int64)
    for bit, move in enumerate(found):
        sums = sums + (numbers >> bit & 1)[:, None] * np.array(move)
    return found if (held[:, :1] + sums == held).all() and not held[0, 0].any() else None


def wave_digits(layout: Layout, waves: int, lanes: int) -> list[Digit] | None:
    """Return the digits of the wave's number that move along axes; None where no digits explain the layout."""
    held = _held(layout, waves, lanes)[:, 0]
    found: list[Digit] = []
    divisor = 1
    for count in _factors(layout, waves):
        found.append(Digit(divisor, count, tuple(int(n) for n in held[divisor])))
        divisor *= count
    sums = sum((np.arange(waves)[:, None] // d.divisor % d.count * np.array(d.move) for d in found), np.zeros(1, int))
    return found if (sums == held).all() else None


def _factors(layout: Layout, waves: int) -> list[int]:
    """Return the number of values of each digit of the wave's number: bits if possible, else the layout's divisors."""
    if waves & (waves - 1) == 0:
        return [2] * (waves.bit_length() - 1)
    cuts = {t.divisor for terms in layout.axes for t in terms if t.of == "wave"}
    cuts |= {t.divisor * t.modulus for terms in layout.axes for t in terms if t.of == "wave" and t.modulus}
    places = sorted({1, waves, *(c for c in cuts if waves % c == 0)})
    return [above // below for below, above in pairwise(places)]


def _held(layout: Layout, waves: int, lanes: int) -> np.ndarray[Any, Any]:
    """Return the position of the first register of each lane of each wave: waves x lanes x axes."""
    one = Layout((1,), ((0,) * layout.rank,), layout.axes)
    return one.positions(waves, lanes)[:, 0, :].reshape(waves, lanes, layout.rank)


def covers(found: Sequence[Mover], extent: int) -> bool:
    """Return whether movers reach every element of an axis once."""
    far = 1
    for m in found:
        if m.step != far:
            return False
        far *= m.count
    return far == extent


def run_of_wave(found: Sequence[Mover], extent: int) -> int:
    """Return the length of the runs of neighbours that a wave combines; all where no wave moves along the axis.

    Where waves have other lengths than a power of two, a run is the longest power of two that lanes hold whole: of
    neighbours that are combined in pairs, runs of other lengths would have halves in two waves.
    """
    part = min((m.step for m in found if m.of == "wave"), default=extent)
    if part == extent or not part & (part - 1):
        return part
    return max(m.step for m in found if m.step <= part and not m.step & (m.step - 1))


def neighbours_first(found: Sequence[Mover], run: int) -> list[Combining]:
    """Return the steps that combine each run of neighbours, in order."""
    steps: list[Combining] = []
    for m in found:
        if m.step >= run or m.of == "wave":
            continue
        last = steps[-1] if steps and steps[-1].of == "lane" else None
        if m.of == "lane" and last:
            steps[-1] = Combining("lane", (*last.which, m.which))
        elif m.of == "registers" and last:
            steps[-1:] = shared_registers(m, last.which)
        else:
            steps.append(Combining(m.of, (m.which,)))
    return steps


def shared_registers(registers: Mover, bits: tuple[int, ...]) -> list[Combining]:
    """Return steps for lane bits, then a register axis: the first bits halve the axis, its farthest halves first.

    An axis of another length than a power of two is padded to the next: an element without a neighbour moves up.
    """
    halvings = bits[: (registers.count - 1).bit_length()]
    steps = [Combining("halves", (registers.which, bit)) for bit in halvings]
    after = (*bits[len(halvings) :], *halvings[::-1])  # the axis is combined before the lanes that halved it
    return [*steps, Combining("registers", (registers.which,)), Combining("lane", after)]


def registers_first(found: Sequence[Mover], run: int) -> list[Combining]:
    """Return the steps of a reduction whose order does not matter: lanes exchange as little as possible."""
    mine = [m for m in found if m.step < run]
    registers = tuple(m.which for m in mine if m.of == "registers")
    lanes = tuple(m.which for m in mine if m.of == "lane")
    steps = [Combining("registers", registers)] if registers else []
    return [*steps, Combining("lane", lanes)] if lanes else steps


def runs(layout: Layout, axis: int, run: int, found: Sequence[Mover]) -> Layout:
    """Return the layout of a tile with one element for each run of neighbours along an axis."""
    assert all(m.step < run for m in found if m.of == "lane"), f"lanes of a wave hold several runs of {run}"
    gone = {m.which for m in found if m.of == "registers" and m.step < run}
    kept = [i for i in range(len(layout.registers)) if i not in gone] or [min(gone)]
    steps = tuple(_divided(layout.steps[i], axis, run) for i in kept)
    waves = tuple(Term("wave", m.step // run, m.which, m.count) for m in found if m.of == "wave")
    axes = tuple(waves if a == axis else terms for a, terms in enumerate(layout.axes))
    counts = tuple(1 if i in gone else layout.registers[i] for i in kept)
    return Layout(counts, steps, axes)


def _divided(step: tuple[int, ...], axis: int, run: int) -> tuple[int, ...]:
    return tuple(far // run if a == axis else far for a, far in enumerate(step))


def with_axis_in_registers(layout: Layout, axis: int, extent: int) -> Layout:
    """Return the layout of a tile with one more axis, all of which is in registers of every lane."""

    def wider(step: tuple[int, ...], far: int) -> tuple[int, ...]:
        return (*step[:axis], far, *step[axis:])

    steps = (*(wider(step, 0) for step in layout.steps), wider((0,) * layout.rank, 1))
    axes = (*layout.axes[:axis], (), *layout.axes[axis:])
    return Layout((*layout.registers, extent), steps, axes, layout.limit)


def with_axis_met(layout: Layout, axis: int, extent: int, lanes: int) -> Layout:
    """Return the layout of the partial results of waves: every lane holds all of them, or, where they are many and
    lanes hold nothing else, lanes share them."""
    is_shared = MANY_TO_COMBINE <= extent <= lanes and extent & extent - 1 == 0
    if not is_shared or any(layout.axes) or layout.limit or prod(layout.registers) > 1:
        return with_axis_in_registers(layout, axis, extent)
    inserted = with_axis_in_registers(layout, axis, 1)
    mine = (Term("lane", 1, 1, 0 if extent == lanes else extent),)
    return replace(inserted, axes=(*layout.axes[:axis], mine, *layout.axes[axis:]))


def rows_in_lanes(
    shape: tuple[int, ...], order: Sequence[int], width: int, lanes: int, waves: int, reduced: Sequence[int]
) -> Layout:
    """Return a layout in which neighbouring lanes take neighbouring chunks; waves split axes, the `reduced` ones last.

    `order` lists the axes from the one along which chunks run to the slowest. Lanes and waves that remain hold copies,
    as all of them do for a tile without axes.
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
        count = gcd(shape[axis] // taken[axis], waves // divisor)
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
    """Return the largest power of two that divides n."""
    return n & -n


def chunk_width(shape: tuple[int, ...], axis: int, widest: int, lanes: int, waves: int) -> int:
    """Return the neighbours per lane: the widest chunk that divides the axis and leaves no lane without one.

    Lanes of a wave share axes in powers of two: of 31 rows of 64 elements, each of 64 lanes takes a column.
    """
    width, chunks, shared = widest, prod(shape), prod(map(_power_in, shape))
    while width > 1 and (shape[axis] % width or chunks // width < lanes * waves or shared // width < lanes):
        width //= 2
    return width


@dataclass(frozen=True)
class Copies:
    """Holders of the same element differ in these bits of the lane's number, or in these digits of the wave's."""

    lane_bits: tuple[int, ...]
    wave_digits: tuple[tuple[int, int], ...]
    """The divisor of each digit in the wave's number, and its number of values."""


@lru_cache(maxsize=1024)
def copies(layout: Layout, waves: int, lanes: int) -> Copies | None:
    """Return the copies of a layout; None where they are no bits and digits."""
    bits, digits = lane_moves(layout, waves, lanes), wave_digits(layout, waves, lanes)
    if bits is None or digits is None:
        return None
    still = tuple(bit for bit, move in enumerate(bits) if not any(move))
    return Copies(still, tuple((d.divisor, d.count) for d in digits if not any(d.move)))


@lru_cache(maxsize=1024)
def holding(layout: Layout, waves: int, lanes: int) -> int | None:
    """Return how many lanes of a workgroup, from the first on, hold all its elements without copies; None where the
    first lanes do not."""
    if not layout.axes:
        return 1
    rows = _held(layout, waves, lanes).reshape(-1, layout.rank)[: layout.limit or None]
    count = len(np.unique(rows, axis=0))
    return count if len(np.unique(rows[:count], axis=0)) == count else None
