"""Asynchronous copies of tiles to shared memory by the lanes of all waves, the same number of rows per wave."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewave.analysis.layouts_needed import WIDEST_BYTES
from tilewave.ir.build import Number
from tilewave.ir.core import Value
from tilewave.ir.ops import Add, CopyAsync, CopyAsyncChunks
from tilewave.ir.placements import in_its_place
from tilewave.ir.types import INDEX_SCALAR, Memory, Swizzle, Swizzled
from tilewave.layouts.formulas import Term
from tilewave.transform.lane_program import LaneProgram


def copy_async(lanes: LaneProgram, op: CopyAsync) -> None:
    """Emit asynchronous copies to shared memory, the same number of rows per wave.

    In one round the lanes of a wave fill a contiguous range of shared memory, in lane order.
    """
    to = op.to.type
    assert isinstance(to, Memory)
    width = WIDEST_BYTES // to.dtype.bytes
    high = lanes.lanes * width // to.shape[-1]
    rounds = to.shape[-2] // prod(lanes.spreads.waves) // high
    together = 1 if isinstance(to.placement, Swizzled) and high % to.placement.rows else rounds
    for first in range(0, rounds, together):
        bring_rounds(lanes, op, to, width, first * high, (together, high))


def bring_rounds(
    lanes: LaneProgram, op: CopyAsync, to: Memory, width: int, first: int, rounds: tuple[int, int]
) -> None:
    """Emit `rounds[0]` rounds of `rounds[1]` rows each, from row `first` of a wave's part on."""
    row, column = chunk(lanes, to, width, first)
    columns: list[Value] = []
    if any(in_its_place(to, r * rounds[1], 0) for r in range(rounds[0])):
        each = (chunk(lanes, to, width, first + r * rounds[1])[1] for r in range(rounds[0]))
        columns = [lanes.out.emit(Add, op.at[op.axes[-1]], far, type=INDEX_SCALAR) for far in each]
    at = list(op.at)
    for axis, far in zip(op.axes[-2:], (row, column), strict=True):
        at[axis] = lanes.out.emit(Add, at[axis], far, type=INDEX_SCALAR)
    rank = len(at)
    of_round = tuple(rounds[1] if axis == op.axes[-2] else 0 for axis in range(rank))
    begin = row_of_wave(lanes, to)
    begin = (Number(lanes.out, begin) + first).value if first else begin
    zeros = (lanes.out.const(0) for _ in to.shape[len(op.to_at) : -2])
    steps = (of_round, tuple(int(axis == rank - 1) for axis in range(rank)))
    lanes.out.effect(
        CopyAsyncChunks,
        op.memory,
        tuple(at),
        op.to,
        (*op.to_at, *zeros, begin),
        (rounds[0], width),
        steps,
        tuple(columns),
        op.guard,
    )


def row_of_wave(lanes: LaneProgram, to: Memory) -> Value:
    """Return the first row that this wave copies."""
    return lanes.place((Term("wave", to.shape[-2] // prod(lanes.spreads.waves)),))


def chunk(lanes: LaneProgram, to: Memory, width: int, first: int) -> tuple[Value, Value]:
    """Return row and column of the chunk that this lane copies, in the range that begins `first` rows later."""
    key = (to.shape[-2:], to.placement, width, first)
    if key not in lanes.chunks:
        per_row = to.shape[-1] // width
        lane, begin = Number(lanes.top, lanes.number("lane")), Number(lanes.top, row_of_wave(lanes, to))
        row = begin + lane // per_row + first
        placement = to.placement
        if isinstance(placement, Swizzle):
            placement = replace(placement, chunk=placement.chunk // width)
        column = in_its_place(replace(to, placement=placement), row, lane % per_row) * width
        lanes.chunks[key] = row.value, column.value
    return lanes.chunks[key]
