"""Positions as affine sums: terms that are uniform in a wave, terms that the loop changes, and terms of each lane.

%row = add(mul(%tile, 128), floor_div(%lane, 8))      128 · %tile, uniform, + %lane // 8, which differs by lane
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewave.analysis.affine import Affine, sum_of
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Const, Launch, Loop, Ramp, Wave, While, Workgroup
from tilewave.ir.types import INDEX, Scalar
from tilewave.lower.gpu.ranges import LaneRanges

Computed = tuple[Value, tuple[Value | None, ...]]
"""A value and what it is computed from; None is the lane number."""


class Positions:
    """Every index of a kernel as a sum, and which of its values differ from lane to lane."""

    def __init__(self, kernel: Kernel) -> None:
        self.ranges = LaneRanges(kernel)
        self._sums: dict[Value, Affine] = {}
        self._varies: set[Value] = set()
        self._inside: dict[Value, Value | None] = {}
        self._defs = kernel.defs
        self._visit(kernel.body, None)
        uniform = list(_computed(kernel.body))
        while len(uniform) > len(rest := self._spread(uniform)):
            uniform = rest

    def of(self, v: Value) -> Affine:
        return self._sums.get(v) or Affine(0, {v: 1})

    def varies(self, v: Value) -> bool:
        """Return whether a value may differ between lanes of one wave."""
        return v in self._varies

    def maker(self, v: Value) -> Op | None:
        """Return the op that computes v; None for an argument of a block or of the kernel."""
        return self._defs.get(v)

    def loop_of(self, v: Value) -> Value | None:
        """Return the first argument of the innermost loop that computes v in every step."""
        return self._inside.get(v)

    def _visit(self, block: Block, loop: Value | None) -> None:
        for v in block.args:
            self._inside[v] = loop
        for op in block.ops:
            for v in op.results:
                self._inside[v] = loop
            if len(op.results) == 1 and op.result.type == Scalar(INDEX):
                found = sum_of(op, self.of)
                if found is not None:
                    self._sums[op.result] = found
            for inner in op.blocks:
                self._visit(inner, inner.args[0] if isinstance(op, (Loop, While)) and inner.args else loop)

    def _spread(self, uniform: Sequence[Computed]) -> list[Computed]:
        """Mark values computed from lane-dependent ones; return the others."""
        rest = []
        for v, sources in uniform:
            if None in sources or not self._varies.isdisjoint(sources):
                self._varies.add(v)
            else:
                rest.append((v, sources))
        return rest


def _computed(block: Block) -> Iterator[Computed]:
    """Yield each value and what it is computed from."""
    for op in block.ops:
        match op:
            case Loop(_, init, body):
                yield from _carried(op.results, body.args[1:], init, body)
            case While(init, condition, body):
                yield from _carried(op.results, body.args, init, body)
                yield from zip(condition.args, ((v,) for v in body.args), strict=True)
            case Const() | Workgroup() | Wave() | Ramp() | Launch():
                yield from ((v, ()) for v in op.results)
            case _:  # the results of other ops may differ by lane, as they do not depend on operands alone
                for v in op.results:
                    yield v, op.operands if op.is_pure and op.operands else (None,)
        for inner in op.blocks:
            yield from _computed(inner)


def _carried(
    results: tuple[Value, ...], args: tuple[Value, ...], init: tuple[Value, ...], body: Block
) -> Iterator[Computed]:
    for result, arg, first, later in zip(results, args, init, body.yielded, strict=True):
        yield arg, (first, later)
        yield result, (arg, first, later)
