"""Slices of vectors: a part of a result is computed from parts of what it is computed from.

%y = mul(%x, cast(%w))                      %x_part = extract_slice(%x) {axis = 0, first = 8}
a slice of %y from 8 on, along axis 0   →   %w_part = load(%weight, …) {begin = [8]}
                                            %y_part = mul(%x_part, cast(%w_part))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from tilewave.ir.build import Builder
from tilewave.ir.core import Op, Value
from tilewave.ir.ops import ExtractSlice, Load, OpaqueCopy, Store
from tilewave.ir.rewrite import substitute
from tilewave.ir.types import Vector
from tilewave.records import dataclass


@dataclass
class Slices:
    """Emits slices of values, each once: those in `divided` are computed or loaded slice by slice, by the op that
    makes them, and others are extracted."""

    builder: Builder
    divided: Mapping[Value, Op]
    made: dict[tuple[Value, int, int, int], Value] = field(default_factory=dict)
    """Slices by value, axis, begin and length."""

    def of(self, v: Value, axis: int, first: int, count: int) -> Value:
        if not isinstance(v.type, Vector):
            return v
        key = v, axis, first, count
        if key not in self.made:
            self.made[key] = self.fresh(*key)
        return self.made[key]

    def fresh(self, v: Value, axis: int, first: int, count: int) -> Value:
        shape, op = v.type.shape, self.divided.get(v)
        kind = Vector((*shape[:axis], count, *shape[axis + 1 :]), v.type.dtype)
        if op is None:
            return self.builder.emit(ExtractSlice, v, axis, first, type=kind)
        if isinstance(op, Load):
            op = replace(op, begin=slice_begin(op, axis, first))
        else:
            op = substitute(op, {x: self.of(x, i, first, count) for x, i in _along(op, axis)})
        result = self.builder.fresh(f"{v.name}_part", kind)
        self.builder.ops.append(replace(op, results=(result,)))
        return result


def slice_begin(op: Load | Store, axis: int, first: int) -> tuple[int, ...]:
    """Return the `begin` of a slice of a load or store, its offset from the position of the whole."""
    before = op.begin or (0,) * len(op.at)
    return tuple(far + first * step for far, step in zip(before, op.steps[axis], strict=True))


def _along(op: Op, axis: int) -> Iterator[tuple[Value, int]]:
    """Yield the operands that run along an axis of the result, each with its corresponding axis."""
    if isinstance(op, OpaqueCopy):
        yield op.x, axis
    for pair in op.corresponding() or ():
        for (v, own), other in (pair, pair[::-1]):
            if other == (op.result, axis):
                yield v, own
