"""K loops that read their memories to the end: a step after the last one would read only zeros."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewave.ir.core import Block, Kernel, Value
from tilewave.ir.launch import launch_of
from tilewave.ir.match import constant
from tilewave.ir.ops import Add, FloorDiv, Loop, Max, Mma, Mul, Read


class Depths:
    """Finds, for tiles that a loop reads one step further each iteration, the axis that ends with the loop."""

    def __init__(self, kernel: Kernel) -> None:
        self.defs = kernel.defs
        launch = launch_of(kernel)
        ends = launch.body.ops[-1].operands if launch else ()
        self.launched: Mapping[Value, Value] = dict(zip(launch.results, ends, strict=True)) if launch else {}

    def of(self, loop: Loop) -> dict[Value, int]:
        index = loop.body.args[0]
        found: dict[Value, int] = {}
        for op in loop.body.ops:
            for axis, position in enumerate(op.at if isinstance(op, Read) else ()):
                by = self.defs.get(position)
                far = self.constant(by.b) if isinstance(by, Mul) and by.a == index else None
                if far is not None and self.reaches(loop.trips, far, op.memory.type.extents[axis]):  # type: ignore[attr-defined]
                    found[op.results[0]] = axis
        return found

    def end_in_zeros(self, loop: Loop) -> bool:
        """Return whether all MMA operands of steps after the last one are out of bounds, and so zero."""
        factors = {v for op in loop.body.ops if isinstance(op, Mma) for v in (op.a, op.b)}
        return factors <= self.of(loop).keys()

    def running_on(self, loop: Loop) -> Block:
        """Return the loop's body with predicated reads, so that steps after the last one read zeros."""
        depths = self.of(loop)
        ops = [
            replace(op, guard=(depths[op.result],)) if isinstance(op, Read) and op.result in depths else op
            for op in loop.body.ops
        ]
        return replace(loop.body, ops=tuple(ops))

    def reaches(self, trips: Value, far: int, extent: int | str) -> bool:
        """Return whether `trips` steps of `far` cover an extent."""
        count = self.constant(trips)
        if isinstance(extent, int):
            return count is not None and far * count >= extent
        match self.defs.get(self.launched.get(trips, trips)):
            case Max(a, b):
                return self.reaches(a, far, extent) or self.reaches(b, far, extent)
            case FloorDiv(a, b) if self.constant(b) == far:
                return self.is_above(a, extent, far - 1)
            case _:
                return False

    def is_above(self, v: Value, extent: str, most: int) -> bool:
        """Return whether a value is the extent plus a constant of at least `most`."""
        match self.defs.get(v):
            case Add(a, b):
                return a.name == extent and (self.constant(b) or 0) >= most
            case _:
                return v.name == extent and most <= 0

    def constant(self, v: Value) -> int | None:
        found = constant(v, self.defs)
        return None if found is None else int(found)
