"""Writes of a tile that is the same in several workgroups: the first of them stores it.

Where the grid divides M and N, and `c: Memory[M, …]` gets a tile that depends on no tile of N, the workgroups along N
all have the same values. Then those of the first column store them, and every element still has one owner.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial, reduce

from tilewave.ir import ops as ir
from tilewave.ir.core import Op, Value
from tilewave.ir.rewrite import walk
from tilewave.ir.types import INDEX_SCALAR, Memory
from tilewave.trace import Trace


def write_once(
    trace: Trace, tile: Value, memory: Value, at: tuple[Value, ...], axes: tuple[int, ...], width: int
) -> None:
    """Store a tile, by the first of the workgroups that certainly store the same elements at the same place."""
    left_out = _sides_left_out(trace, (tile, *at))
    if not left_out:
        trace.effect(ir.Write, tile, memory, at, axes, width)
        return
    are_first = [trace.binary(ir.Equal, side, trace.const(0)) for side in left_out]
    trips = trace.cast(reduce(partial(trace.binary, ir.And), are_first), INDEX_SCALAR.dtype)
    with trace.region():
        trace.effect(ir.Write, tile, memory, at, axes, width)
        block = trace.block([trace.fresh("once", INDEX_SCALAR)], [])
    trace.effect(ir.Loop, trips, (), block, True)


def _sides_left_out(trace: Trace, of: Sequence[Value]) -> list[Value]:
    """Return the coordinates of the workgroup's tile that values do not depend on, of sides with several tiles."""
    where = next((op for op in trace.ops if isinstance(op, ir.TileOf)), None)
    is_outermost = any(isinstance(op, ir.Workgroup) for op in trace.ops)
    if where is None or not is_outermost or trace.mask is not None:
        return []
    batch, row, col = where.results
    sides = {batch: where.batches, row: where.rows, col: where.cols}
    several = [v for v, count in sides.items() if count > 1]
    needed = _needed(trace.ops, of, where.results) if several else set()
    return [v for v in several if v not in needed]


def _needed(ops: Sequence[Op], of: Sequence[Value], ends: Collection[Value]) -> set[Value]:
    """Return which of some values others are computed from; all of them, where that is not known."""
    made = {v: op for op in ops for v in op.results}
    waiting, seen = list(of), set[Value]()
    while waiting:
        v = waiting.pop()
        if v in seen:
            continue
        seen.add(v)
        if isinstance(v.type, Memory) and v.type.space != "global":
            return set(ends)
        op = made.get(v)
        if op is None or v in ends:
            continue
        if isinstance(op, ir.Workgroup):
            return set(ends)
        waiting += op.operands
        waiting += [x for block in op.blocks for inner in walk(block) for x in inner.operands]
    return seen & set(ends)
