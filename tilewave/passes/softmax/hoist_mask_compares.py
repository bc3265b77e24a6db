"""In loops over tiles, masks compare constant column offsets with a per-tile bound, not one position per register.

    loop(%tiles) {                                            loop(%tiles) {
      …                                                         …
      %places = add(broadcast(%first), ramp() {[8, 1]})     →   %far = sub(%rows, broadcast(%first))
      %seen = less_equal(%places, %rows)                        %seen = less_equal(ramp() {[8, 1]}, %far)

The positions of a lane's columns are the same for all tiles. As values they are hoisted out of the loop over tiles and
occupy 32 registers during the products; as `ramp` steps they are constants of the comparison. Positions do not
overflow, so both comparisons are equal. Where a workgroup computes one tile, comparisons are unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewave.ir.build import Builder
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Add, Broadcast, Less, LessEqual, Loop, Ramp, Sub
from tilewave.ir.rewrite import names, rewrite_block, rewrite_outermost, walk
from tilewave.ir.types import INDEX, INDEX_SCALAR, Vector


def hoist_mask_compares(kernel: Kernel) -> Kernel:
    return replace(kernel, body=rewrite_outermost(kernel.body, _Comparing(kernel).in_tiles))


@dataclass(frozen=True)
class _Places:
    """Scalars that all registers share, and the offset of each register from the first."""

    numbers: tuple[Value, ...]
    steps: tuple[int, ...]
    shape: tuple[int, ...]
    axes: tuple[int, ...] | None = None
    """The axes along which the positions are broadcast; None where they are not."""


class _Comparing:
    def __init__(self, kernel: Kernel) -> None:
        self.defs = kernel.defs
        self.builder = Builder(names(kernel))

    def in_tiles(self, op: Op) -> Sequence[Op] | None:
        """Return a loop over tiles that decide the trips of inner loops, with its comparisons rewritten."""
        if not isinstance(op, Loop) or not any(_steps_differ(inner, op) for inner in op.body.ops):
            return None
        return [replace(op, body=rewrite_block(op.body, self.compared))]

    def compared(self, op: Op) -> Sequence[Op] | None:
        if not isinstance(op, (Less, LessEqual)) or op.a.type.dtype != INDEX or not isinstance(op.a.type, Vector):
            return None
        places = self.places(op.a)
        if places is None or not places.numbers or not any(places.steps):
            return None
        b = self.builder
        with b.region():
            b.locate = lambda: op.loc
            far = self.less(op.b, places.numbers)
            steps = b.emit(Ramp, places.steps, type=Vector(places.shape, INDEX))
            if places.axes is not None:
                steps = b.emit(Broadcast, steps, places.axes, type=op.a.type)
            return [*b.ops, replace(op, a=steps, b=far)]

    def less(self, v: Value, numbers: Sequence[Value]) -> Value:
        """Return `v` minus `numbers`, subtracted before the broadcast where `v` is one."""
        maker, b = self.defs.get(v), self.builder
        if isinstance(maker, Broadcast):
            return b.emit(Broadcast, self.less(maker.x, numbers), maker.axes, type=v.type)
        for number in numbers:
            other = number if v.type == INDEX_SCALAR else b.emit(Broadcast, number, type=v.type)
            v = b.binary(Sub, v, other)
        return v

    def places(self, v: Value) -> _Places | None:
        op, shape = self.defs.get(v), v.type.shape
        match op:
            case Broadcast(x) if x.type == INDEX_SCALAR:
                return _Places((x,), (0,) * len(shape), shape)
            case Broadcast(x, axes):
                found = self.places(x)
                return None if found is None or found.axes is not None else replace(found, axes=axes)
            case Ramp(steps):
                return _Places((), steps, shape)
            case Add(a, b):
                one, other = self.places(a), self.places(b)
                if one is None or other is None or one.axes is not None or other.axes is not None:
                    return None
                steps = tuple(map(sum, zip(one.steps, other.steps, strict=True)))
                return _Places(one.numbers + other.numbers, steps, shape)
            case _:
                return None


def _steps_differ(inner: Op, tiles: Loop) -> bool:
    """Whether `inner` is a loop that contains loops and whose trip count is computed per tile."""
    made = {*tiles.body.args, *(v for op in tiles.body.ops for v in op.results)}
    return isinstance(inner, Loop) and inner.trips in made and any(isinstance(op, Loop) for op in walk(inner.body))
