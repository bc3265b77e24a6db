"""Vectorize bounds checks: compare a lane's first position with the bound, and cover the other registers by steps.

%places = add(broadcast(%first), ramp() {steps = [256, 1]})     →   %inside = below(%first, %n) {steps = [256, 1]}
%inside = less(%places, broadcast(%n))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewave.ir.build import Builder
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Add, Below, Broadcast, Const, Less, Ramp
from tilewave.ir.rewrite import names, rewrite
from tilewave.ir.types import INDEX, INDEX_SCALAR, Vector


@dataclass(frozen=True)
class _Places:
    """A sum of scalars that all registers share, and the offset of each register from the first."""

    numbers: tuple[Value, ...]
    steps: tuple[int, ...]


def vectorize_bounds_checks(kernel: Kernel) -> Kernel:
    builder = Builder(names(kernel))

    def compare(op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Less) or not isinstance(op.result.type, Vector) or op.a.type.dtype != INDEX:
            return None
        places, bound = _places(op.a, kernel.defs), _number(op.b, kernel.defs)
        if places is None or not places.numbers or bound is None or min(places.steps) < 0:
            return None
        with builder.region():
            builder.locate = lambda: op.loc
            first = places.numbers[0]
            for other in places.numbers[1:]:
                first = builder.binary(Add, first, other)
            end = builder.const(bound) if isinstance(bound, int) else bound
            return [*builder.ops, Below(first, end, places.steps, results=op.results, loc=op.loc)]

    return rewrite(kernel, compare)


def _number(v: Value, defs: Mapping[Value, Op]) -> Value | int | None:
    """Return the scalar that all registers hold, if there is one."""
    match defs.get(v):
        case Broadcast(x) if x.type == INDEX_SCALAR:
            return x
        case Const(value):
            return int(value)
        case _:
            return None


def _places(v: Value, defs: Mapping[Value, Op]) -> _Places | None:
    op, nowhere = defs.get(v), (0,) * len(v.type.shape)
    match op:
        case Broadcast(x) if x.type == INDEX_SCALAR:
            return _Places((x,), nowhere)
        case Ramp(steps):
            return _Places((), steps)
        case Add(a, b):
            one, other = _places(a, defs), _places(b, defs)
            if one is None or other is None:
                return None
            return _Places(one.numbers + other.numbers, tuple(map(sum, zip(one.steps, other.steps, strict=True))))
        case _:
            return None
