"""Reductions by lanes: among the registers of a lane, and among the lanes of a wave."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewave.ir.core import Value
from tilewave.ir.ops import Broadcast, Concatenate, ExtractSlice, Reduce, ReduceHalves, ReduceLanes, ReduceRegisters
from tilewave.ir.ops.reduction import padding
from tilewave.ir.types import Vector
from tilewave.layouts.reductions import covers, movers, neighbours_first, registers_first
from tilewave.transform.lane_program import LaneProgram


def reduced(lanes: LaneProgram, op: Reduce, i: int) -> Value:
    """Return a part of a reduction's result in each lane; lanes that took part in it have the same values."""
    (x, layout), (axis,), waves = lanes.held(op.x)[i], op.axes, prod(lanes.spreads.waves)
    extent = op.x.type.shape[axis]
    found = movers(layout, axis, waves, lanes.lanes)
    assert found is not None and covers(found, extent), f"{op.loc}: lanes hold {op.x} in no order to combine"
    in_order = op.how in ("sum", "prod") and not lanes.spreads.is_of_product(op.x)
    steps = (neighbours_first if in_order else registers_first)(found, op.run or extent)
    axes = list(range(len(layout.registers)))
    for step in steps:
        if step.of == "lane":
            x = lanes.out.emit(ReduceLanes, x, step.which, op.how, type=x.type, name=op.result.name)
        elif step.of == "halves":
            x = halved(lanes, op, x, axes.index(step.which[0]), step.which[1])
        else:
            x = without_registers(lanes, op, x, tuple(axes.index(i) for i in step.which))
            axes = [i for i in axes if i not in step.which]
    return x


def halved(lanes: LaneProgram, op: Reduce, x: Value, axis: int, bit: int) -> Value:
    x = padded(lanes, op, x, axis)
    shape = tuple(n // 2 if i == axis else n for i, n in enumerate(x.type.shape))
    kind = Vector(shape, x.type.dtype)
    return lanes.out.emit(ReduceHalves, x, axis, bit, op.how, type=kind, name=op.result.name)


def padded(lanes: LaneProgram, op: Reduce, x: Value, axis: int) -> Value:
    """Return `x` with a power of two registers along an axis; those that are added change no result."""
    count = x.type.shape[axis]
    more = (1 << (count - 1).bit_length()) - count
    if not more:
        return x

    def kind(n: int) -> Vector:
        return Vector((*x.type.shape[:axis], n, *x.type.shape[axis + 1 :]), x.type.dtype)

    rest = lanes.out.const(padding(op.how, x.type.dtype), kind(more))
    return lanes.out.emit(Concatenate, (x, rest), axis, type=kind(count + more), name=x.name)


def first_register(lanes: LaneProgram, x: Value) -> Value:
    """Return one of the registers that hold the same value."""
    for axis, n in enumerate(x.type.shape):
        if n > 1:
            shape = (*x.type.shape[:axis], 1, *x.type.shape[axis + 1 :])
            x = lanes.out.emit(ExtractSlice, x, axis, 0, type=Vector(shape, x.type.dtype), name=x.name)
    return x


def without_registers(lanes: LaneProgram, op: Reduce, x: Value, gone: Sequence[int]) -> Value:
    shape = tuple(n for axis, n in enumerate(x.type.shape) if axis not in gone) or (1,)
    kind = Vector(shape, x.type.dtype)
    return lanes.out.emit(ReduceRegisters, x, tuple(gone), op.how, type=kind, name=op.result.name)


def in_registers(lanes: LaneProgram, op: Reduce, x: Value, held: Vector) -> Value:
    """Return `x` in the registers of `held`: the others were along reduced axes, or are copies."""
    if x.type == held:
        return x
    if ones := [axis for axis, n in enumerate(x.type.shape) if n == 1]:
        x = without_registers(lanes, op, x, ones)
    if prod(x.type.shape) == 1 < prod(held.shape):
        copies = Vector((1, *held.shape), held.dtype)
        wider = lanes.out.emit(Broadcast, x, (0,), type=copies, name=op.result.name)
        return without_registers(lanes, op, wider, (0,))
    if x.type == held:
        return x
    more = [axis for axis, n in enumerate(held.shape) if n > 1] or [0]
    return lanes.out.emit(Broadcast, x, tuple(more), type=held, name=op.result.name)
