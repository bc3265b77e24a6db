"""How far apart the positions of a lane's registers are: the same in every lane, or not known.

A position is a sum of numbers that all registers share, and a distance for each register. A quotient or remainder by a
constant is computed for every lane of every wave: it has distances if these are the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from tilewave.analysis.affine import Affine, Sums
from tilewave.analysis.ranges import ranges_of
from tilewave.interp.arithmetic import Array
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Add, Binary, Broadcast, Const, FloorDiv, Lane, Mod, Mul, Ramp, Sub, Wave
from tilewave.ir.types import Scalar
from tilewave.records import dataclass

ARRAYS: dict[type[Op], Callable[[Array, Array], Array]] = {
    Add: np.add,
    Sub: np.subtract,
    Mul: np.multiply,
    FloorDiv: np.floor_divide,
    Mod: np.mod,
}


@dataclass(frozen=True)
class Spaced:
    """The positions `shared` + `far`, where `far` has the shape of the registers."""

    shared: Affine
    far: Array
    bounds: tuple[int, int] = (0, 0)

    def first(self, builder: Builder) -> Value:
        """Return the position of the first register."""
        return value_of(self.shared.plus(int(self.far.flat[0])), builder)

    def along(self, shape: tuple[int, ...], axes: tuple[int, ...]) -> Spaced:
        """Return the positions broadcast to a shape, of which they have some axes."""
        missing = tuple(axis for axis in range(len(shape)) if axis not in axes)
        far = np.expand_dims(self.far.reshape([shape[axis] for axis in axes]), missing) if axes else self.far
        return Spaced(self.shared, np.broadcast_to(far, shape))


def value_of(shared: Affine, builder: Builder) -> Value:
    """Return the value of a sum, whose ops are emitted."""
    found: Number | None = None
    for v, factor in shared.terms.items():
        term = Number(builder, v) * factor if factor != 1 else Number(builder, v)
        found = term if found is None else found + term
    if found is None:
        return builder.const(shared.constant)
    return (found + shared.constant).value if shared.constant else found.value


class RegisterDistances:
    """The positions of a kernel's vectors of indices; numbers that they need are emitted to a builder."""

    def __init__(self, kernel: Kernel, builder: Builder) -> None:
        self.builder, self.sums, self.ranges = builder, Sums(kernel), ranges_of(kernel)
        self.defs: dict[Value, Op] = dict(kernel.defs)
        self.waves, self.lanes = prod(kernel.waves), kernel.lanes
        self._by_lane: dict[Value, Array | None] = {}

    def of(self, v: Value) -> Spaced | None:
        """Return the positions that a vector of indices has, with their bounds; None where lanes differ."""
        found = self._of(v)
        return None if found is None else Spaced(found.shared, found.far, self._bounds(found))

    def _of(self, v: Value) -> Spaced | None:
        op = self.defs.get(v)
        if isinstance(v.type, Scalar):
            known = Affine(int(op.value)) if isinstance(op, Const) else Affine(0, {v: 1})
            return Spaced(known, np.zeros((), np.int64))
        shape = v.type.shape
        match op:
            case Const(value):
                return Spaced(Affine(int(value)), np.zeros(shape, np.int64))
            case Ramp(steps):
                far = sum(step * index for step, index in zip(steps, np.indices(shape), strict=True))
                return Spaced(Affine(), np.broadcast_to(np.asarray(far), shape))
            case Broadcast(x, axes):
                inner = self._of(x)
                return None if inner is None else inner.along(shape, axes)
            case Add(a, b) | Sub(a, b) | Mul(a, b) | FloorDiv(a, b) | Mod(a, b):
                one, other = self._of(a), self._of(b)
                return None if one is None or other is None else self._combined(op, one, other)
            case _:
                return None

    def _combined(self, op: Op, a: Spaced, b: Spaced) -> Spaced | None:
        if isinstance(op, (Add, Sub)):
            sign = 1 if isinstance(op, Add) else -1
            return Spaced(a.shared + b.shared.times(sign), a.far + sign * b.far)
        if isinstance(op, Mul) and _constant(b) is None:
            a, b = b, a
        by = _constant(b)
        if by is None:
            return None
        if isinstance(op, Mul):
            return Spaced(a.shared.times(by), a.far * by)
        return self._divided(op, a, by) if by > 0 else None

    def _divided(self, op: Op, a: Spaced, by: int) -> Spaced | None:
        """Return quotients or remainders by a positive constant."""
        whole, rest = Affine(), Affine(a.shared.constant)
        for v, factor in a.shared.terms.items():
            term = self.sums.of(v).times(factor)
            divides = not term.divisor() % by
            whole, rest = (whole + term, rest) if divides else (whole, rest + Affine(0, {v: factor}))
        first = rest.plus(int(a.far.flat[0]))
        known = self._in_lanes(first)
        if known is None:
            return None
        is_quotient = isinstance(op, FloorDiv)
        of: Callable[[Array], Array] = (lambda x: x // by) if is_quotient else (lambda x: x % by)
        far = a.far - a.far.flat[0]
        each = of(known[..., None] + far.ravel()) - of(known)[..., None]
        if (each != each[:1, :1]).any():
            return None
        shared = self._shared(FloorDiv if is_quotient else Mod, first, by, of(known))
        whole = Affine(whole.constant // by, {v: f // by for v, f in whole.terms.items()}) if is_quotient else Affine()
        return Spaced(whole + shared, each[0, 0].reshape(far.shape))

    def _shared(self, cls: type[Binary], first: Affine, by: int, in_lanes: Array) -> Affine:
        """Return a quotient or remainder that has these values in lanes."""
        if not np.ptp(in_lanes):
            return Affine(int(in_lanes.flat[0]))
        found = self.builder.binary(cls, value_of(first, self.builder), self.builder.const(by))
        self._by_lane[found] = in_lanes
        return Affine(0, {found: 1})

    # -- numbers in all lanes

    def _in_lanes(self, shared: Affine) -> Array | None:
        """Return a sum in each lane of each wave, if it depends on their numbers alone."""
        found = np.full((self.waves, self.lanes), shared.constant, np.int64)
        for v, factor in shared.terms.items():
            known = self._lanes_of(v)
            if known is None:
                return None
            found = found + factor * known
        return found

    def _lanes_of(self, v: Value) -> Array | None:
        if v not in self._by_lane:
            self._by_lane[v] = self._computed(self.defs.get(v))
        return self._by_lane[v]

    def _computed(self, op: Op | None) -> Array | None:
        match op:
            case Lane():
                return np.broadcast_to(np.arange(self.lanes), (self.waves, self.lanes))
            case Wave():
                return np.broadcast_to(np.arange(self.waves)[:, None], (self.waves, self.lanes))
            case Const(value):
                return np.full((self.waves, self.lanes), int(value), np.int64)
            case Add() | Sub() | Mul() | FloorDiv() | Mod():
                a, b = (self._lanes_of(v) for v in op.operands)
                divides = isinstance(op, (FloorDiv, Mod))
                return None if a is None or b is None or (divides and not b.all()) else ARRAYS[type(op)](a, b)
            case _:
                return None

    def _bounds(self, place: Spaced) -> tuple[int, int]:
        """Return the smallest and the largest position of any register in any lane."""
        in_lanes = place.shared.where(lambda v: self._lanes_of(v) is not None)
        known = self._in_lanes(in_lanes.plus(place.shared.constant))
        assert known is not None
        low, high = int(known.min() + place.far.min()), int(known.max() + place.far.max())
        for v, factor in place.shared.terms.items():
            if v not in in_lanes.terms:
                ends = [factor * end for end in self.ranges.of(v)]
                low, high = low + min(ends), high + max(ends)
        return low, high


def _constant(x: Spaced) -> int | None:
    return x.shared.constant + int(x.far.flat[0]) if not x.shared.terms and not np.ptp(x.far) else None
