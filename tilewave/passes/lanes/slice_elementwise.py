"""Slice elementwise ops: where only slices of a vector are used, only slices of it are computed.

%y = exp(%x) : vector<1x32x2x2xf32>                       %part = extract_slice(%x) {axis = 1, first = 0} : …
%part = extract_slice(%y) {axis = 1, first = 0} : …   →   %y_0 = exp(%part) : vector<1x4x2x2xf32>
store(%part, …)                                           store(%y_0, …)

A lane then holds the results of one slice at a time, and not of its whole accumulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Broadcast, Elementwise, ExtractSlice
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import map_blocks, names, substitute, walk
from tilewave.ir.types import Vector

Made = dict[tuple[Value, int, int, int], Value]
"""Slices by value, axis, begin and length."""

WANTED_WHOLE = RemarkKind(
    "this value is stored in slices and also needed whole, so a lane holds all of it in registers",
    "compute it a second time for one of the two",
)


def slice_elementwise(kernel: Kernel) -> Kernel:
    divided = _only_wanted_in_parts(kernel)
    remarks = _wanted_whole(kernel, divided)
    if not any(isinstance(op, ExtractSlice) and op.x in divided for op in walk(kernel.body)):
        return kernel.with_remarks(*remarks)
    return replace(kernel, body=_Parts(kernel, divided).block(kernel.body)).with_remarks(*remarks)


def _wanted_whole(kernel: Kernel, divided: dict[Value, Op]) -> list[Remark]:
    parts = [op for op in walk(kernel.body) if isinstance(op, ExtractSlice) and op.x not in divided]
    wholes = (kernel.defs.get(op.x) for op in parts)
    return [WANTED_WHOLE.at(op.loc) for op in wholes if isinstance(op, (Elementwise, Broadcast))]


def _only_wanted_in_parts(kernel: Kernel) -> dict[Value, Op]:
    users = kernel.users
    found: dict[Value, Op] = {}
    for op in walk(kernel.body):
        if op.is_pure and op.corresponding() is not None and isinstance(op.result.type, Vector):
            found[op.result] = op
    while True:
        whole = [v for v in found if any(not isinstance(u, ExtractSlice) and not _makes(u, found) for u in users[v])]
        if not whole:
            return found
        for v in whole:
            del found[v]


def _makes(op: Op, found: dict[Value, Op]) -> bool:
    return any(v in found for v in op.results)


class _Parts:
    def __init__(self, kernel: Kernel, divided: dict[Value, Op]) -> None:
        self.divided, self.builder = divided, Builder(names(kernel))

    def block(self, block: Block) -> Block:
        """Return the block with slices extracted first; a slice is computed once per block."""
        made: Made = {}
        new: dict[Value, Value] = {}
        with self.builder.region():
            for op in block.ops:
                self.builder.locate = lambda op=op: op.loc  # type: ignore[misc]
                if isinstance(op, ExtractSlice) and op.x in self.divided:
                    new[op.result] = self.part(op.x, op.axis, op.first, op.result.type.shape[op.axis], made)
                else:
                    self.builder.ops.append(substitute(map_blocks(op, self.block), new))
            return replace(block, ops=tuple(self.builder.ops))

    def part(self, x: Value, axis: int, first: int, count: int, made: Made) -> Value:
        """Return a slice of a value, computed from slices of its operands."""
        if not isinstance(x.type, Vector):
            return x
        key = (x, axis, first, count)
        if key not in made:
            made[key] = self.fresh_part(x, axis, first, count, made)
        return made[key]

    def fresh_part(self, x: Value, axis: int, first: int, count: int, made: Made) -> Value:
        kind = Vector(_cut(x.type.shape, axis, count), x.type.dtype)
        match self.divided.get(x):
            case None:
                return self.builder.emit(ExtractSlice, x, axis, first, type=kind)
            case op:
                along = _along(op, axis)
                return self.rebuilt(op, kind, {v: self.part(v, i, first, count, made) for v, i in along.items()})

    def rebuilt(self, op: Op, kind: Vector, operands: dict[Value, Value]) -> Value:
        result = self.builder.fresh(op.result.name, kind)
        self.builder.ops.append(replace(substitute(op, operands), results=(result,)))
        return result


def _along(op: Op, axis: int) -> dict[Value, int]:
    """Return, for each operand that runs along an axis of the result, its corresponding axis."""
    pairs = [pair for both in op.corresponding() or () for pair in (both, both[::-1])]
    return {v: i for (v, i), other in pairs if other == (op.result, axis)}


def _cut(shape: Sequence[int], axis: int, count: int) -> tuple[int, ...]:
    return (*shape[:axis], count, *shape[axis + 1 :])
