"""How lanes hold the operands and the sums of matrix instructions.

A wave of 64 lanes and an instruction of R x R x D (`GroupFragment` is for four waves that compute together):

    operand:     row = lane % R,  depth = lane // R · w + e          w = D · R / 64 neighbours a lane
    sums:        column = lane % R,  row = 256 / R · g + lane // R · 4 + e      groups g, four neighbours e

Turned sums swap row and column, so that a lane's four neighbours lie in one row of the result. Several instructions
that follow each other in depth are one block: each lane then holds as many times more neighbours, in the same order for
both operands, and the sum does not care.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewave.ir.layouts import LANES, Layout, Term

Array = np.ndarray[Any, Any]
NEIGHBOURS = 4


@dataclass(frozen=True)
class Fragment:
    """A block of R x R sums over a depth of D."""

    rows: int
    depth: int

    @property
    def per_lane(self) -> int:
        """Neighbours along the depth that a lane holds of one operand's block."""
        return self.depth * self.rows // LANES

    @property
    def groups(self) -> int:
        return self.rows * self.rows // LANES // NEIGHBOURS

    def operand(self, shape: tuple[int, ...], waves: tuple[int, int], side: int) -> Layout:
        """Rows of a (side 0) or b (side 1) for each wave, and all of the depth; leading axes are batches."""
        *batch, rows, depth = shape
        own = rows // waves[side]
        registers = (*batch, own // self.rows, depth // self.depth, self.per_lane)
        row, column = len(batch), len(batch) + 1
        steps = (
            *_batch_steps(len(batch), len(shape)),
            *_steps(len(shape), (row, self.rows), (column, self.depth), (column, 1)),
        )
        lane_row = Term("lane", 1, 1, self.rows)
        axes = ((),) * len(batch) + ((_wave(waves, side, own), lane_row), (Term("lane", self.per_lane, self.rows),))
        return Layout(registers, steps, axes)

    def sums(self, shape: tuple[int, ...], waves: tuple[int, int], turned: bool) -> Layout:
        """The accumulator of each wave; leading axes are batches."""
        *batch, rows, cols = shape
        own_rows, own_cols = rows // waves[0], cols // waves[1]
        registers = (*batch, own_rows // self.rows, own_cols // self.rows, self.groups, NEIGHBOURS)
        row, column = len(batch), len(batch) + 1
        spread, single = (column, row) if turned else (row, column)
        group = NEIGHBOURS * LANES // self.rows
        steps = (
            *_batch_steps(len(batch), len(shape)),
            *_steps(len(shape), (row, self.rows), (column, self.rows), (spread, group), (spread, 1)),
        )
        by_lane = {single: Term("lane", 1, 1, self.rows), spread: Term("lane", NEIGHBOURS, self.rows)}
        axes = (
            *[()] * len(batch),
            (_wave(waves, 0, own_rows), by_lane[row]),
            (_wave(waves, 1, own_cols), by_lane[column]),
        )
        return Layout(registers, steps, axes)

    # -- from lanes to matrices and back: lanes x registers…, as the layouts above lay them

    def matrix(self, operand: Array) -> Array:
        """batches… x rows x depth of what the lanes of one wave hold."""
        lanes, *batch, row_blocks, depth_blocks, width = operand.shape
        split = operand.reshape(lanes // self.rows, self.rows, *batch, row_blocks, depth_blocks, width)
        n = len(batch)
        order = [*range(2, 2 + n), 2 + n, 1, 3 + n, 0, 4 + n]
        whole: Array = split.transpose(order).reshape(*batch, row_blocks * self.rows, depth_blocks * self.depth)
        return whole

    def from_sums(self, sums: Array, turned: bool) -> Array:
        """batches… x rows x columns of the sums that the lanes of one wave hold."""
        lanes, *batch, row_blocks, col_blocks, groups, four = sums.shape
        n = len(batch)
        split = sums.reshape(lanes // self.rows, self.rows, *batch, row_blocks, col_blocks, groups, four)
        spread, single = (4 + n, 0, 5 + n), (1,)
        of_row, of_col = (single, spread) if turned else (spread, single)
        order = [*range(2, 2 + n), 2 + n, *of_row, 3 + n, *of_col]
        whole: Array = split.transpose(order).reshape(*batch, row_blocks * self.rows, col_blocks * self.rows)
        return whole

    def to_sums(self, matrix: Array, turned: bool) -> Array:
        """The inverse of `from_sums`."""
        *batch, rows, cols = matrix.shape
        n, high = len(batch), LANES // self.rows
        spread, single = (self.groups, high, NEIGHBOURS), (self.rows,)
        of_row, of_col = (single, spread) if turned else (spread, single)
        split = matrix.reshape(*batch, rows // self.rows, *of_row, cols // self.rows, *of_col)
        if turned:  # b… r R c g h 4
            order = [n + 4, n + 1, *range(n), n, n + 2, n + 3, n + 5]
        else:  # b… r g h 4 c R
            order = [n + 2, n + 5, *range(n), n, n + 4, n + 1, n + 3]
        shape = (LANES, *batch, rows // self.rows, cols // self.rows, self.groups, NEIGHBOURS)
        whole: Array = split.transpose(order).reshape(shape)
        return whole


GROUP, GROUP_ROWS = 4, 64
"""Waves of 32 lanes that compute together, and the rows of sums that they compute at once."""


@dataclass(frozen=True)
class GroupFragment:
    """64 rows of sums by a group of four waves of 32 lanes; the operands lie in shared memory, and no lane holds them.

    row = 64 · block + 16 · (wave % 4) + 8 · h + lane // 4,  column = 8 · j + lane % 4 · 2 + e

    Registers are blocks x j x h x e. Groups lie below each other, each with all its blocks.
    """

    depth: int

    def sums(self, shape: tuple[int, ...], waves: tuple[int, int], turned: bool = True) -> Layout:
        """The accumulator of each wave; leading axes are batches."""
        *batch, rows, cols = shape
        own = self.group_rows(rows, waves)
        registers = (*batch, own // GROUP_ROWS, cols // 8, 2, 2)
        row, column = len(batch), len(batch) + 1
        steps = (
            *_batch_steps(len(batch), len(shape)),
            *_steps(len(shape), (row, GROUP_ROWS), (column, 8), (row, 8), (column, 1)),
        )
        of_row = (*self.group(rows, waves), Term("wave", 16, 1, GROUP), Term("lane", 1, 4))
        return Layout(registers, steps, (*[()] * len(batch), of_row, (Term("lane", 2, 1, 4),)))

    def group(self, rows: int, waves: tuple[int, int]) -> tuple[Term, ...]:
        """Where the rows of a wave's group begin."""
        return (Term("wave", self.group_rows(rows, waves), GROUP),) if waves[0] > GROUP else ()

    def group_rows(self, rows: int, waves: tuple[int, int]) -> int:
        return rows * GROUP // waves[0]

    # -- from lanes to matrices and back, for one wave: lanes x registers…, and its own 16 rows of each 64

    def from_sums(self, sums: Array) -> Array:
        """batches… x (blocks · 16) x columns of the sums that the lanes of one wave hold."""
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


def _wave(waves: tuple[int, int], side: int, own: int) -> Term:
    """Where a wave's part begins: waves are numbered along columns first."""
    return Term("wave", own, waves[1], waves[0]) if side == 0 else Term("wave", own, 1, waves[1])


def _batch_steps(batches: int, rank: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(axis == b) for axis in range(rank)) for b in range(batches))


def _steps(rank: int, *moves: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
    """One register axis each: (tile axis, how far)."""
    return tuple(tuple(far if axis == moved else 0 for axis in range(rank)) for moved, far in moves)
