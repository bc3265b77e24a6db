"""Register layouts of the operands and accumulators of matrix instructions.

A layout maps every bit of the lane's and the register's number to a bit of the row (r), column (c) or depth (d).
16x16x16 on CDNA, for a wave of 64 lanes:

    operand      lanes  r0 r1 r2 r3 d2 d3      registers  d0 d1       row = lane % 16,  depth = lane // 16 · 4 + e
    sums         lanes  c0 c1 c2 c3 r2 r3      registers  r0 r1       column = lane % 16,  row = lane // 16 · 4 + e

A tile is many such blocks, and waves share its rows and columns: `operand` and `sums` give the layout of a whole tile,
with an axis of registers for its blocks of rows, its blocks of columns or depth, and each run of neighbours inside one.

Transposed sums swap row and column, so that a lane's four neighbours are in one row of the result. Several instructions
along the depth are one block (`deepened`): each lane then holds as many times more neighbours, in the same order for
both operands, which does not change the sum.

The mapping of tile rows to block rows is free as well, as long as sums and operand agree. Rows in order (`in_order`)
are numbered so that all rows of a lane are consecutive; 64 rows, four blocks of 16:

    as they come    row = 16 · block + lane // 16 · 4 + e
    in order        row = lane // 16 · 16 + 4 · block + e

An operand of another product has this layout along its depth if its blocks are 64 deep, so no conversion is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tilewave.layouts.blocks import register_axes, tiled
from tilewave.layouts.formulas import Layout, Term
from tilewave.layouts.linear import LinearLayout
from tilewave.records import dataclass

Array = np.ndarray[Any, Any]
SIDES = ("rows", "columns")
NEIGHBOURS = 4
"""Consecutive sums that a lane of a CDNA chip holds."""


@dataclass(frozen=True)
class Fragment:
    """One block of a matrix instruction: its operands a (rows x depth) and b (columns x depth), and its sums."""

    a: LinearLayout
    b: LinearLayout
    acc: LinearLayout
    in_order: str = ""
    """`rows` or `columns`, if all those that a lane holds sums of are consecutive; else empty."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and depth."""
        return self.rows, self.cols, self.depth

    @property
    def rows(self) -> int:
        return self.acc.shape[0]

    @property
    def cols(self) -> int:
        return self.acc.shape[1]

    @property
    def depth(self) -> int:
        return self.a.shape[1]

    @property
    def lanes(self) -> int:
        return 1 << len(self.acc.lanes)

    @property
    def per_lane(self) -> int:
        """Elements of one operand's block that a lane holds: a's, equal to b's for square blocks."""
        return 1 << len(self.a.registers)

    @property
    def neighbours(self) -> int:
        """How many consecutive elements along the depth a lane holds."""
        return 1 << _near(self.a)

    def deepened(self, count: int) -> Fragment:
        """Return the fragment of `count` instructions along the depth, a power of two."""
        return self.with_neighbours(self.neighbours * count)

    def with_neighbours(self, count: int) -> Fragment:
        """Return the fragment whose lanes hold `count` consecutive elements along the depth, a power of two."""
        return replace(self, a=_with_neighbours(self.a, count), b=_with_neighbours(self.b, count))

    def operand(self, shape: tuple[int, ...], waves: tuple[int, int], side: int) -> Layout:
        """Return the layout of a (side 0) or b (side 1): rows per wave, all of the depth; leading axes are batches."""
        own = shape[-2] // waves[side]
        found = tiled((self.a, self.b)[side], shape, (own, shape[-1]), ((_wave(waves, side, own),), ()), 1)
        return self.ordered(found, len(shape) - 2, own) if self.in_order == SIDES[side] else found

    def sums(self, shape: tuple[int, ...], waves: tuple[int, int], transposed: bool) -> Layout:
        """Return the layout of the accumulator; leading axes are batches."""
        own = shape[-2] // waves[0], shape[-1] // waves[1]
        starts = tuple((_wave(waves, side, own[side]),) for side in (0, 1))
        found = tiled(self.acc.permuted((1, 0)) if transposed else self.acc, shape, own, starts, 2)
        if not self.in_order:
            return found
        side = SIDES.index(self.in_order)
        assert transposed == bool(side), f"lanes hold no consecutive {self.in_order}"
        return self.ordered(found, len(shape) - 2 + side, own[side])

    def ordered(self, layout: Layout, axis: int, own: int) -> Layout:
        """Return the layout with the rows of blocks numbered in order along an axis."""
        of_lanes, of_registers = (_row_bits(c, self.acc.shape) for c in (self.acc.lanes, self.acc.registers))
        apart, blocks = 1 << len(of_registers), own // self.rows
        far = {bit: 1 << i for i, bit in enumerate(of_registers)}
        far |= {bit: apart * blocks << i for i, bit in enumerate(of_lanes)}
        steps = tuple(_moved(step, axis, lambda s: far.get(s.bit_length() - 1, apart)) for step in layout.steps)
        terms = [t for term in layout.axes[axis] for t in _renumbered(term, far, self.lanes)]
        return replace(layout, steps=steps, axes=(*layout.axes[:axis], tuple(terms), *layout.axes[axis + 1 :]))

    def consecutive_rows(self, rows: int) -> int:
        """Return how many consecutive rows a lane holds in order."""
        return rows >> len(_row_bits(self.acc.lanes, self.acc.shape))

    # -- from lanes to matrices and back: lanes x registers…, as the layouts above lay them

    def matrix(self, operand: Array, side: int = 0) -> Array:
        """Return batches… x rows x depth of what the lanes of one wave hold of a, or columns x depth of b."""
        return _from_lanes(operand, *_operand_places(self, operand.shape, side))

    def from_sums(self, sums: Array, transposed: bool) -> Array:
        """Return batches… x rows x columns of the sums that the lanes of one wave hold."""
        shape = _whole(sums.shape[1:], self.acc, 2)
        return _from_lanes(sums, _sum_places(self, shape, len(sums), transposed), shape)

    def to_sums(self, matrix: Array, transposed: bool) -> Array:
        """The inverse of `from_sums`."""
        return matrix.reshape(-1).take(_sum_places(self, matrix.shape, self.lanes, transposed))


def _row_bits(columns: Sequence[int], shape: tuple[int, ...]) -> list[int]:
    """Return the bits of the row that these columns are."""
    return [(column // shape[1]).bit_length() - 1 for column in columns if column >= shape[1]]


def _moved(step: tuple[int, ...], axis: int, far: Callable[[int], int]) -> tuple[int, ...]:
    return tuple(far(s) if s and a == axis else s for a, s in enumerate(step))


def _renumbered(term: Term, far: dict[int, int], lanes: int) -> list[Term]:
    """Return terms with a new move for each bit of a row's number; the beginning of a wave's part stays."""
    if term.of != "lane":
        return [term]
    first, row = term.divisor.bit_length() - 1, term.factor.bit_length() - 1
    end = first + (term.modulus or lanes // term.divisor).bit_length() - 1
    found: list[Term] = []
    for bit in range(first, end):
        moved = far[row + bit - first]
        last = found[-1] if found else None
        if last and moved == last.factor * last.modulus:
            found[-1] = replace(last, modulus=2 * last.modulus)
        else:
            found.append(Term("lane", moved, 1 << bit, 2))
    return [replace(t, modulus=0) if t.divisor * t.modulus == lanes else t for t in found]


def held(axes: str, shape: tuple[int, int], registers: str = "", lanes: str = "", waves: str = "") -> LinearLayout:
    """Return a layout by its bits: held("rd", (16, 16), registers="d0 d1", lanes="r0 r1 r2 r3 d2 d3"); - is a copy."""

    def column(bit: str) -> int:
        return 0 if bit == "-" else (shape[1] if bit[0] == axes[0] else 1) << int(bit[1:])

    def columns(text: str) -> tuple[int, ...]:
        return tuple(map(column, text.split()))

    return LinearLayout(shape, columns(registers), columns(lanes), columns(waves))


@lru_cache(maxsize=64)
def mfma(rows: int, depth: int) -> Fragment:
    """Return the fragment of rows x rows sums over a depth, by the 64 lanes of a wave of a CDNA chip."""
    high, deep = rows.bit_length() - 1, depth.bit_length() - 1
    above = 6 - high  # bits of the lane's number that do not count rows
    near = deep - above
    operand = held(
        "rd",
        (rows, depth),
        registers=_bits("d", 0, near),
        lanes=f"{_bits('r', 0, high)} {_bits('d', near, deep)}",
    )
    sums = held(
        "rc",
        (rows, rows),
        registers=f"r0 r1 {_bits('r', 2 + above, high)}",
        lanes=f"{_bits('c', 0, high)} {_bits('r', 2, 2 + above)}",
    )
    return Fragment(operand, operand, sums)


def _bits(axis: str, first: int, end: int) -> str:
    return " ".join(f"{axis}{i}" for i in range(first, end))


@dataclass(frozen=True)
class GroupFragment:
    """Sums of an instruction that a group of `waves` executes together, below each other, with operands in shared
    memory; several groups are below each other, too, each with all its blocks. Where the rows are those of one group,
    several are beside each other, and share the columns. For a warpgroup:

    row = 64 · block + 16 · (wave % 4) + 8 · h + lane // 4,  column = 8 · j + lane % 4 · 2 + e

    Registers are blocks x j x h x e.
    """

    waves: int
    block: LinearLayout
    """The rows that a group computes at once, and eight columns of their sums."""
    depth_bytes: int
    """What one instruction takes of a row of an operand."""

    @property
    def rows(self) -> int:
        return self.block.shape[0]

    def sums(self, shape: tuple[int, ...], waves: tuple[int, int], transposed: bool = True) -> Layout:
        """Return the layout of the accumulator; leading axes are batches."""
        rows, cols = shape[-2:]
        return tiled(self.block, shape, self.part(rows, cols, waves), self.starts(rows, cols, waves), 2)

    def starts(self, rows: int, cols: int, waves: tuple[int, int]) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
        """Return the terms of the first row and of the first column of a wave's group."""
        part = self.part(rows, cols, waves)
        of_rows, of_cols = (
            (Term("wave", own, self.waves),) if own < whole else ()
            for own, whole in zip(part, (rows, cols), strict=True)
        )
        return of_rows, of_cols

    def part(self, rows: int, cols: int, waves: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of a group's part."""
        groups = waves[0] // self.waves
        return (rows, cols // groups) if rows == self.rows else (rows // groups, cols)

    # -- from lanes to matrices and back, for one wave: lanes x registers…, and its own 16 rows of each 64

    def from_sums(self, sums: Array) -> Array:
        """Return batches… x (blocks · 16) x columns of the sums that the lanes of one wave hold."""
        lanes, *batch, blocks, eights, _, _ = sums.shape
        n = len(batch)
        split = sums.reshape(lanes // 4, 4, *batch, blocks, eights, 2, 2)
        order = [*range(2, 2 + n), 2 + n, 4 + n, 0, 3 + n, 1, 5 + n]
        whole: Array = split.transpose(order).reshape(*batch, blocks * 16, eights * 8)
        return whole

    def to_sums(self, matrix: Array) -> Array:
        """The inverse of `from_sums`."""
        *batch, rows, cols = matrix.shape
        n = len(batch)
        split = matrix.reshape(*batch, rows // 16, 2, 8, cols // 8, 4, 2)  # b… block h l/4 j l%4 e
        order = [n + 2, n + 4, *range(n), n, n + 3, n + 1, n + 5]
        whole: Array = split.transpose(order).reshape(32, *batch, rows // 16, cols // 8, 2, 2)
        return whole


WARPGROUP = GroupFragment(
    waves=4, block=held("rc", (64, 8), registers="c0 r3", lanes="c1 c2 r0 r1 r2", waves="r4 r5"), depth_bytes=32
)
"""The four waves of 32 lanes that execute wgmma."""


def _near(one: LinearLayout) -> int:
    """Return the number of register bits that are the lowest bits of the depth."""
    found = 0
    while found < len(one.registers) and one.registers[found] == 1 << found < one.shape[1]:
        found += 1
    return found


def _with_neighbours(one: LinearLayout, count: int) -> LinearLayout:
    """Return the layout with `count` neighbours per lane; moves beyond a lane's neighbours are scaled."""
    (rows, depth), near = one.shape, 1 << _near(one)

    def moved(columns: Sequence[int]) -> tuple[int, ...]:
        return tuple(c * count // near for c in columns)

    of_neighbours = tuple(1 << i for i in range(count.bit_length() - 1))
    registers = (*of_neighbours, *moved(one.registers[_near(one) :]))
    return LinearLayout((rows, depth * count // near), registers, moved(one.lanes), moved(one.waves))


@lru_cache(maxsize=256)
def _whole(registers: tuple[int, ...], one: LinearLayout, least: int) -> tuple[int, ...]:
    """Return the shape of one wave's tile with these registers in blocks of `one`."""
    *batch, high, wide = registers[: len(registers) - len(register_axes(one, least))]
    return (*batch, high * one.shape[0], wide * one.shape[1])


def _from_lanes(x: Array, places: Array, shape: tuple[int, ...]) -> Array:
    whole = np.empty(prod(shape), x.dtype)
    whole[places] = x
    return whole.reshape(shape)


@lru_cache(maxsize=256)
def _operand_places(fragment: Fragment, held: tuple[int, ...], side: int) -> tuple[Array, tuple[int, ...]]:
    """Return where lanes x registers of a (side 0) or b (side 1) are in the matrix of one wave, and its shape."""
    shape = _whole(held[1:], (fragment.a, fragment.b)[side], 1)
    return _places(fragment.operand(shape, (1, 1), side), shape, held[0]), shape


@lru_cache(maxsize=256)
def _sum_places(fragment: Fragment, shape: tuple[int, ...], lanes: int, transposed: bool) -> Array:
    """Return where lanes x registers of sums are in the matrix of one wave."""
    return _places(fragment.sums(shape, (1, 1), transposed), shape, lanes)


def _places(layout: Layout, shape: tuple[int, ...], lanes: int) -> Array:
    """Return the number of the element in each register of each lane of the first wave."""
    found: Array = np.ravel_multi_index(tuple(np.moveaxis(layout.positions(1, lanes), -1, 0)), shape)
    return found


def _wave(waves: tuple[int, int], side: int, own: int) -> Term:
    """Return the term of the beginning of a wave's part: waves are numbered along columns first."""
    return Term("wave", own, waves[1], waves[0]) if side == 0 else Term("wave", own, 1, waves[1])
