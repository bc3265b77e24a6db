"""Where a workgroup's next tile is stands in a list, instead of being computed by divisions.

    loop(%tiles) do (%turn) {                          loop(%tiles) do (%turn) {
      %number = add(%own, mul(%turn, %c132))             %place = add(mul(%turn, %c132), %own)
      %row = …  floor_div(…, %height) …             →    %m = lookup(%place) {numbers = [0, 128, …]}
      %m = mul(%row, %c128)                              …
      …

The list holds what the arithmetic gives: it is run once, on all workgroups and turns, when the kernel is compiled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewave.ir.arithmetic import constant, elementwise
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import ELEMENTWISE, Const, FloorDiv, Lookup, Loop, Mma, Mod, Workgroup
from tilewave.ir.rewrite import names, walk
from tilewave.ir.types import INDEX_SCALAR, Scalar

MOST_PLACES = 1 << 16
"""Longer lists would take more of the cache than the arithmetic takes time."""


def tabulate_order(kernel: Kernel) -> Kernel:
    rounds = [op for op in kernel.body.ops if isinstance(op, Loop) and not op.init and _multiplies(op)]
    if len(rounds) != 1:
        return kernel
    (loop,) = rounds
    order = _Order(kernel, loop)
    if not order.wanted or order.turns * kernel.workgroups > MOST_PLACES:
        return kernel
    return replace(kernel, body=replace(kernel.body, ops=tuple(order.tabulated(op) for op in kernel.body.ops)))


def _multiplies(op: Loop) -> bool:
    return any(isinstance(inner, Mma) for inner in walk(op.body))


class _Order:
    """What the numbers of a loop over tiles are for each workgroup and turn."""

    def __init__(self, kernel: Kernel, loop: Loop) -> None:
        self.kernel, self.loop = kernel, loop
        self.known: dict[Value, Any] = {}
        owns = np.arange(kernel.workgroups)
        self.learn(kernel.body, owns)
        trips = self.known.get(loop.trips)
        self.turns = 0 if trips is None else int(np.max(trips))
        self.divided: set[Value] = set()
        """What is computed by divisions in the loop."""
        self.wanted: list[Value] = []
        if self.turns:
            self.known[loop.body.args[0]] = np.arange(self.turns)[:, None]
            self.learn(loop.body, owns)
            self.wanted = self.used_outside()

    def learn(self, block: Block, owns: Any) -> None:
        """Run the numbers of a block on all workgroups, without what is inside its loops."""
        for op in block.ops:
            if isinstance(op, Workgroup):
                self.known[op.result] = owns
            elif isinstance(op, Const) and isinstance(op.result.type, Scalar):
                self.known[op.result] = constant(op, op.value)
            elif isinstance(op, ELEMENTWISE) and all(v in self.known for v in op.operands):
                self.known[op.results[0]] = elementwise(op, [self.known[v] for v in op.operands])

    def used_outside(self) -> list[Value]:
        """The numbers that divisions give and that something else than this arithmetic needs."""
        mine = {op.results[0]: op for op in self.loop.body.ops if op.results and op.results[0] in self.known}
        for v, op in mine.items():
            if isinstance(op, (FloorDiv, Mod)) or any(x in self.divided for x in op.operands):
                self.divided.add(v)
        others = (op for op in walk(self.loop.body) if not (op.results and op.results[0] in mine))
        used = {v for op in others for v in op.operands}
        return [v for v in mine if v in self.divided and v in used and v.type == INDEX_SCALAR]

    def tabulated(self, op: Op) -> Op:
        if op is not self.loop:
            return op
        own = next(o.result for o in self.kernel.body.ops if isinstance(o, Workgroup))
        builder = Builder(names(self.kernel), locate=lambda: op.loc)
        turn = Number(builder, self.loop.body.args[0])
        place = (turn * self.kernel.workgroups + Number(builder, own)).value
        ops = list(builder.ops)
        for inner in self.loop.body.ops:
            if inner.results and inner.results[0] in self.wanted:
                ops.append(Lookup(place, self.numbers(inner.results[0]), results=inner.results, loc=inner.loc))
            else:
                ops.append(inner)
        return replace(self.loop, body=replace(self.loop.body, ops=tuple(ops)))

    def numbers(self, v: Value) -> tuple[int, ...]:
        """Turn after turn; what nobody comes to is 0."""
        found = np.broadcast_to(self.known[v], (self.turns, self.kernel.workgroups))
        comes = np.arange(self.turns)[:, None] < np.broadcast_to(self.known[self.loop.trips], found.shape)
        return tuple(np.where(comes, found, 0).reshape(-1).tolist())
