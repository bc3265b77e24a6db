"""LICM for reads: a read whose position does not change in a loop is hoisted before the loop.

    loop(%trips, …) do (%i, …) {        →  %x = read(%q, [%m, %c0])
      %x = read(%q, [%m, %c0])             loop(%trips, …) do (%i, …) {
      %y = read(%k, [%i, %c0])               %y = read(%k, [%i, %c0])

Only reads of memories that the kernel does not write, and values computed from such reads alone, are hoisted. Before a
loop of zero trips such a read is useless but in bounds, because it is predicated like any read. Reads stay in loops
over tiles, which write more than addends, where some workgroups may have no tile and so nothing to read, and in loops
of one iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.analysis.multicast import following
from tilewave.analysis.ranges import ranges_of
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Const, Elementwise, Loop, Permute, Read, TurnOp, WriteIndexed
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.types import Scalar


def licm_reads(kernel: Kernel) -> Kernel:
    written = {v for op in walk(kernel.body) if op.has_effect for v in op.operands}
    ranges, differing = ranges_of(kernel), following(kernel)
    left_out = {
        op.trips
        for op in walk(kernel.body)
        if isinstance(op, Loop) and op.trips in differing and ranges.of(op.trips)[0] < 1 and _writes(op)
    }
    left_out |= {op.trips for op in walk(kernel.body) if isinstance(op, Loop) and ranges.of(op.trips)[1] <= 1}

    def hoist(op: Op) -> Sequence[Op] | None:
        return _hoisted(op, written) if isinstance(op, Loop) and op.trips not in left_out else None

    return rewrite(kernel, hoist)


def _writes(loop: Loop) -> bool:
    return any(op.has_effect and not op.ends_blocks and not _adds(op) for op in walk(loop.body))


def _adds(op: Op) -> bool:
    """Whether `op` adds to a sum of many workgroups, as steps of one tile do."""
    return isinstance(op, TurnOp) or (isinstance(op, WriteIndexed) and op.is_atomic)


def _hoisted(loop: Loop, written: set[Value]) -> list[Op] | None:
    """Return the ops to hoist before a loop, and the loop without them; None where it has no read to hoist."""
    inside = {*loop.body.args, *(v for op in walk(loop.body) for v in op.results)}
    reads: set[Value] = set()
    taken: list[Op] = []
    for op in loop.body.ops:
        if op.blocks or any(v in inside for v in op.operands):
            continue
        if _is_read(op, written) or _is_of(op, reads):
            reads.update(op.results)
        elif not _is_number(op):
            continue
        inside.difference_update(op.results)
        taken.append(op)
    if not reads:
        return None
    rest = tuple(op for op in loop.body.ops if op not in taken)
    return [*taken, replace(loop, body=replace(loop.body, ops=rest))]


def _is_read(op: Op, written: set[Value]) -> bool:
    return isinstance(op, Read) and is_in(op.memory, "global") and op.memory not in written


def _is_of(op: Op, reads: set[Value]) -> bool:
    """Whether `op` is computed from hoisted reads."""
    return isinstance(op, (Elementwise, Permute)) and any(v in reads for v in op.operands)


def _is_number(op: Op) -> bool:
    """Whether `op` is scalar arithmetic, as positions need, or a constant, which costs nothing anywhere."""
    return isinstance(op, Const) or (isinstance(op, Elementwise) and isinstance(op.results[0].type, Scalar))
