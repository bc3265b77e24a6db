"""The LLVM values of the lane-level lowering: scalars, the vectors of each lane, and loop-carried values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod

import numpy as np

from tilewave.analysis.affine import Affine
from tilewave.ir import ops as ir
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.types import INDEX, Scalar, Vector
from tilewave.lower.elements import literal
from tilewave.lower.gpu.arithmetic import LaneArithmetic, resized
from tilewave.lower.gpu.conversions import Conversions
from tilewave.lower.gpu.positions import Positions
from tilewave.lower.gpu.reductions import Reductions
from tilewave.lower.gpu.target import LaneTarget
from tilewave.lower.gpu.values import (
    Array,
    Held,
    concatenated,
    constant,
    element,
    natural_width,
    packed,
    picked,
    plain,
    rearranged,
    regrouped,
    splatted,
)
from tilewave.lower.llvm import LlvmFunction, Typed
from tilewave.records import dataclass


class Registers:
    """The LLVM value of each value of the kernel."""

    def __init__(self, f: LlvmFunction, kernel: Kernel, target: LaneTarget) -> None:
        self.f, self.target = f, target
        self.positions = Positions(kernel)
        self.arithmetic = LaneArithmetic(f, self.positions.ranges, target.functions, target.float8)
        self.scalars: dict[Value, Typed] = {}
        self.vectors: dict[Value, Held] = {}
        self.constants: dict[Value, int | float | bool] = {}
        """Vectors whose elements are all one known constant."""
        self.multiples: dict[str, int] = {}
        """Launch values by name, and a number that divides each."""
        self.loop: Value | None = None
        """The first argument of the innermost loop that is being emitted."""

    def scalar(self, v: Value) -> str:
        return self.scalars[v][1]

    def truth(self, v: Value) -> str:
        return self.scalars[v][1]

    def vector(self, v: Value) -> Held:
        return self.vectors[v]

    def sum(self, affine: Affine, bits: int) -> str:
        """Return a position in so many bits."""
        found = ""
        for v, factor in affine.terms.items():
            kind, name = self.scalars[v]
            x = resized(self.f, name, kind, f"i{bits}", 1, self.positions.ranges.of(v)[0] < 0)
            x = self.f.value(f"mul i{bits} {x}, {factor}") if factor != 1 else x
            found = self.f.value(f"add i{bits} {found}, {x}") if found else x
        if not found:
            return str(affine.constant)
        return self.f.value(f"add i{bits} {found}, {affine.constant}") if affine.constant else found

    def kind(self, v: Value) -> str:
        """The LLVM type of one element of v."""
        return element(v.type.dtype, self.positions.ranges.bits(v) if v.type.dtype == INDEX else 64)

    def put(self, v: Value, x: str) -> None:
        self.scalars[v] = self.kind(v), x

    # -- vectors

    def make(self, op: Op) -> Held:
        kind, shape = self.kind(op.result), op.result.type.shape
        match op:
            case ir.Const(value):
                self.constants[op.result] = value
                width = natural_width(shape, kind)
                part = constant(self.f, literal(value, op.result.type.dtype), kind, width)
                return Held(shape, kind, width, (part,) * (prod(shape) // width))
            case ir.Unset():
                width = natural_width(shape, kind)
                return Held(shape, kind, width, ("undef",) * (prod(shape) // width))
            case ir.Ramp(steps):
                numbers = sum(
                    (n * step for n, step in zip(np.indices(shape), steps, strict=True)), np.zeros(shape, int)
                )
                return Held(shape, kind, 1, tuple(str(n) for n in numbers.reshape(-1)))
            case ir.Broadcast(x) if isinstance(x.type, Scalar):
                width = natural_width(shape, kind)
                return Held(
                    shape, kind, width, (splatted(self.f, self.scalar(x), kind, width),) * (prod(shape) // width)
                )
            case ir.Broadcast(x, axes):
                places = np.arange(prod(x.type.shape)).reshape(x.type.shape)
                spread = [axes.index(i) if i in axes else None for i in range(len(shape))]
                return rearranged(self.f, self.vector(x), shape, _broadcast(places, spread, shape))
            case ir.Permute(x, axes):
                places = np.arange(prod(x.type.shape)).reshape(x.type.shape)
                return rearranged(self.f, self.vector(x), shape, places.transpose(axes))
            case ir.ExtractSlice(x, axis, first):
                places = np.arange(prod(x.type.shape)).reshape(x.type.shape)
                taken = places.take(range(first, first + shape[axis]), axis)
                return picked(self.f, self.vector(x), shape, taken)
            case ir.Concatenate(vectors, axis):
                return concatenated(self.f, [self.resized_vector(x, kind) for x in vectors], shape, axis)
            case ir.Rearrange(x):
                return Conversions(self.f, self.target).rearranged(op, self.resized_vector(x, kind))
            case ir.Shuffle(x):
                return Conversions(self.f, self.target).shuffled(op, self.resized_vector(x, kind))
            case ir.Below():
                return self.below(op)
            case ir.OpaqueCopy(x, turn):
                return Conversions(self.f, self.target).opaque(self.resized_vector(x, kind), turn)
            case ir.ReduceRegisters(x) | ir.ReduceLanes(x) | ir.ReduceHalves(x):
                return Reductions(self.f, self.target, self.arithmetic).reduced(op, self.resized_vector(x, kind))
            case _:
                raise NotImplementedError(f"{op.loc}: cannot lower {op.name}")

    def below(self, op: ir.Below) -> Held:
        """Emit one comparison for each run of registers that are all below the bound or all not."""
        shape, first, bound = op.result.type.shape, self.positions.of(op.first), self.positions.of(op.bound)
        run = self.compared_together(op, first, bound)
        bits = 32 if self.positions.ranges.bits(op.first) == self.positions.ranges.bits(op.bound) == 32 else 64
        end, parts = self.sum(bound, bits), []
        places = sum((n * step for n, step in zip(np.indices(shape), op.steps, strict=True)), np.zeros(shape, int))
        for far in places.reshape(-1)[::run]:
            here = self.sum(first.plus(int(far)), bits)
            parts += [self.f.value(f"icmp slt i{bits} {here}, {end}")] * run
        return Held(shape, "i1", 1, tuple(parts))

    def compared_together(self, op: ir.Below, first: Affine, bound: Affine) -> int:
        """Return how many neighbours share a comparison: a number that divides their first position and the bound."""
        *others, last = op.steps
        ends = gcd(bound.constant, *(f * self.multiples.get(v.name, 1) for v, f in bound.terms.items()))
        near = op.result.type.shape[-1] if last == 1 else 1
        return gcd(near, first.divisor(), ends, *others)

    def elementwise(self, ops: Sequence[Op], begin: Callable[[Op], None]) -> None:
        """Emit ops on vectors of one shape: all of them on the first part, then on the next, to keep few values live.

        A scalar operand is broadcast; `begin` is called with each op before it is emitted. Where the last op reduces
        rows of what was made, it reduces each as soon as it is complete.
        """
        ends = ops[-1] if isinstance(ops[-1], ir.ReduceRegisters) else None
        ops = ops[:-1] if ends else ops
        first = next(self.vector(v) for v in reversed(ops[0].operands) if isinstance(v.type, Vector))
        width, count = first.width, len(first.parts)
        made: dict[Value, list[str]] = {op.result: [] for op in ops}
        given = {v: self.grouped(v, width, count) for op in ops for v in op.operands if v not in made}
        rows = _Rows(self, ends, width, self.masked_rows(ops[-1], ends)) if ends else None
        for i in range(count):
            for op in ops:
                begin(op)
                taken = [
                    (self.kind(v), plain(self.f, made[v][i], self.kind(v), width))
                    if v in made
                    else (given[v].kind, plain(self.f, given[v].parts[i], given[v].kind, width))
                    for v in op.operands
                ]
                made[op.result].append(
                    packed(self.f, self.arithmetic.apply(op, taken, width), self.kind(op.result), width)
                )
            if rows and ends:
                begin(ends)
                rows.take(made[rows.x][i] if rows.x in made else given[rows.x].parts[i])
        for v, parts in made.items():
            self.vectors[v] = Held(v.type.shape, self.kind(v), width, tuple(parts))
        if rows and ends:
            self.vectors[ends.result] = rows.reduced(self.vectors[ends.x])

    def masked_rows(self, op: Op, ends: ir.ReduceRegisters) -> _MaskedRows | None:
        """Return rows that a select masks as a whole, whose reduction is then its constant; None if not so."""
        if not isinstance(op, ir.Select) or op.result != ends.x or op.b not in self.constants:
            return None
        mask, nothing = self.vectors.get(op.condition), self.constants[op.b]
        if mask is None or mask.width > 1 or {"sum": 0, "prod": 1}.get(ends.how, nothing) != nothing:
            return None
        length = mask.shape[-1]
        rows = [mask.parts[i : i + length] for i in range(0, len(mask.parts), length)]
        if any(len(set(row)) > 1 for row in rows):
            return None
        return _MaskedRows(op.a, tuple(row[0] for row in rows), literal(nothing, ends.result.type.dtype))

    def grouped(self, v: Value, width: int, count: int) -> Held:
        if isinstance(v.type, Vector):
            return regrouped(self.f, self.vector(v), width)
        kind, x = self.scalars[v]
        return Held((), kind, width, (splatted(self.f, x, kind, width),) * count)

    # -- what loops carry

    def carried(self, values: Sequence[Value], like: Sequence[Value]) -> list[Typed]:
        """Return loop-carried values as LLVM values, one after the other, in the types of `like`."""
        found: list[Typed] = []
        for v, other in zip(values, like, strict=True):
            if isinstance(v.type, Vector):
                width = natural_width(v.type.shape, self.kind(other))
                x = regrouped(self.f, self.resized_vector(v, self.kind(other)), width)
                found += [(x.type, part) for part in x.parts]
            else:
                kind, number = self.scalars[v]
                wanted = self.kind(other)
                found.append((wanted, resized(self.f, number, kind, wanted, 1)))
        return found

    def resized_vector(self, v: Value, kind: str) -> Held:
        x = self.vector(v)
        if x.kind == kind:
            return x
        parts = tuple(resized(self.f, part, x.kind, kind, x.width) for part in x.parts)
        return Held(x.shape, kind, x.width, parts)

    def bind(self, values: Sequence[Value], parts: Sequence[Typed]) -> None:
        """Bind values to LLVM values, the inverse of `carried`."""
        rest = list(parts)
        for v in values:
            if isinstance(v.type, Vector):
                width = natural_width(v.type.shape, self.kind(v))
                count = prod(v.type.shape) // width
                self.vectors[v] = Held(v.type.shape, self.kind(v), width, tuple(x for _, x in rest[:count]))
                rest = rest[count:]
            else:
                self.scalars[v] = rest.pop(0)


@dataclass(frozen=True)
class _MaskedRows:
    """Rows of x under a mask each, and the value of masked-out rows."""

    x: Value
    masks: tuple[str, ...]
    otherwise: str


class _Rows:
    """Rows of registers that are reduced one by one as they are computed, with one mask each."""

    def __init__(
        self, registers: Registers, op: ir.ReduceRegisters, width: int, masked: _MaskedRows | None = None
    ) -> None:
        self.op, self.width, self.shape = op, width, op.x.type.shape
        self.reductions = Reductions(registers.f, registers.target, registers.arithmetic)
        self.kind = registers.kind(op.result)
        self.is_cut = self.shape[-1] % width != 0 or registers.kind(op.x) != self.kind
        self.masked = None if self.is_cut else masked
        self.x = self.masked.x if self.masked else op.x
        self.waiting: list[str] = []
        self.found: list[str] = []

    def take(self, part: str) -> None:
        self.waiting.append(part)
        if not self.is_cut and len(self.waiting) * self.width == self.shape[-1]:
            self.found.append(self.in_its_place(self.reductions.row(self.op, self.waiting, self.kind, self.width)))
            self.waiting = []

    def in_its_place(self, row: str) -> str:
        if not self.masked:
            return row
        row = self.reductions.finished(row, self.kind)
        mask, otherwise = self.masked.masks[len(self.found)], self.masked.otherwise
        return self.reductions.f.value(f"select i1 {mask}, {self.kind} {row}, {self.kind} {otherwise}")

    def reduced(self, x: Held) -> Held:
        """Return all rows, reduced along the other axes as well."""
        if self.is_cut:
            return self.reductions.registers(self.op, x)
        others = tuple(axis for axis in self.op.axes if axis != len(self.shape) - 1)
        return self.reductions.along(self.op, self.found, self.shape[:-1] or (1,), others, self.kind)


def _broadcast(places: Array, spread: list[int | None], shape: tuple[int, ...]) -> Array:
    kept = [i for i in spread if i is not None]
    ordered = places.transpose(kept)
    for axis, i in enumerate(spread):
        if i is None:
            ordered = np.expand_dims(ordered, axis)
    return np.broadcast_to(ordered, shape)
