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
from dataclasses import replace

from tilewave.analysis.register_positions import RegisterPositions
from tilewave.ir.build import Builder
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Broadcast, Less, LessEqual, Loop, Ramp, Sub
from tilewave.ir.rewrite import names, rewrite_block, rewrite_outermost, walk
from tilewave.ir.types import INDEX, INDEX_SCALAR, Vector


def hoist_mask_compares(kernel: Kernel) -> Kernel:
    return replace(kernel, body=rewrite_outermost(kernel.body, _Comparing(kernel).in_tiles))


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
        places = RegisterPositions.of(op.a, self.defs)
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


def _steps_differ(inner: Op, tiles: Loop) -> bool:
    """Whether `inner` is a loop that contains loops and whose trip count is computed per tile."""
    made = {*tiles.body.args, *(v for op in tiles.body.ops for v in op.results)}
    return isinstance(inner, Loop) and inner.trips in made and any(isinstance(op, Loop) for op in walk(inner.body))
