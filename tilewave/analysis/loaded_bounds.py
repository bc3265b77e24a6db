"""Loops whose bounds are loaded, as loops over every step: what they write is a part of what every step writes.

    first = max(begin, 0) // 16                       begin and end are loaded
    loop(max(min(ceil(end / 16), steps) - first, 0)) do (i) { … (i + first) · 16 … }
                                                  →   loop(steps) do (i) { … i · 16 … }, which may leave steps out

If no two workgroups write one element in all of the steps, none do in some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.analysis.index_trace import made_of_data
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.match import constant
from tilewave.ir.ops import Add, Const, Loop, Max, Min, Sub, Write, WriteIndexed
from tilewave.ir.rewrite import rewrite, walk


def over_every_step(kernel: Kernel) -> Kernel:
    """Return the kernel with loops over every step where loaded numbers bound a loop that writes."""
    bounds = _LoadedBounds(kernel)
    return rewrite(kernel, bounds.rewritten) if bounds.loops else kernel


class _LoadedBounds:
    def __init__(self, kernel: Kernel) -> None:
        self.defs, self.users, self.of_data = kernel.defs, kernel.users, made_of_data(kernel.body)
        self.loops: set[Value] = set()
        """The trip counts of the loops that take every step."""
        self.new: dict[Value, Op] = {}
        """The ops that give bounds instead of the loaded ones, by their results."""
        for op in walk(kernel.body):
            if isinstance(op, Loop) and op.trips in self.of_data and _writes(op):
                self.relax(op)

    def relax(self, loop: Loop) -> None:
        """Note how a loop takes every step, if its bounds are those of `iterate`."""
        match self.defs.get(loop.trips):
            case Min() as end if self.is_only_for(end.result, loop):
                self.note(loop, end)
            case Max(Value() as steps, zero) as trips if constant(zero, self.defs) == 0:
                taken = self.defs.get(steps)
                if not isinstance(taken, Sub) or not self.is_only_for(trips.result, loop):
                    return
                last, first = self.defs.get(taken.a), taken.b
                ends = isinstance(last, Min) or taken.a not in self.of_data
                if ends and (first not in self.of_data or self.is_first_step(first, taken, loop)):
                    self.note(loop, last if isinstance(last, Min) else None, first)

    def note(self, loop: Loop, last: Min | None, first: Value | None = None) -> None:
        if last is not None and last.result in self.of_data:
            known = [v for v in (last.a, last.b) if v not in self.of_data]
            if len(known) != 1:
                return
            self.new[last.result] = replace(last, a=known[0], b=known[0])
        if first is not None and first in self.of_data:
            self.new[first] = Const(0, results=(first,))
        self.loops.add(loop.trips)

    def is_only_for(self, trips: Value, loop: Loop) -> bool:
        return all(op == loop for op in self.users[trips])

    def is_first_step(self, first: Value, taken: Sub, loop: Loop) -> bool:
        """Return whether a loop counts its steps from `first`, which decides nothing else, nor does the count alone."""
        count = loop.body.args[0]
        steps = [op for op in self.users[count] if isinstance(op, Add) and {op.a, op.b} == {count, first}]
        others = (op for v in (count, first) for op in self.users[v] if op not in steps)
        return bool(steps) and all(op == taken for op in others)

    def rewritten(self, op: Op) -> Sequence[Op] | None:
        if isinstance(op, Loop) and op.trips in self.loops:
            return [replace(op, optional=True)]
        return [replace(self.new[op.results[0]], loc=op.loc)] if op.results and op.results[0] in self.new else None


def _writes(loop: Loop) -> bool:
    return any(isinstance(op, (Write, WriteIndexed)) for op in walk(loop.body))
