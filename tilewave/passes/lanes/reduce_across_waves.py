"""Reduce across waves through shared memory: each wave combines its own runs of neighbours, then those of all waves.

    %s = reduce(%x) {axes = [1]}   →   %runs = reduce(%x) {axes = [1], run = 256} : tile<1x4xf32>
                                       write(%runs, %s_met, [%c0, %c0])
                                       %met = read(%s_met, [%c0, %c0])
                                       %s = reduce(%met) {axes = [1]}

Every wave reads the partial results of all waves and combines them itself, so that one barrier is enough. A tile that
lanes hold in no order that can be combined is written to shared memory whole. Reductions that do not depend on each
other share a barrier: what a later one writes is computed before the first one reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import prod

from tilewave.analysis.layouts_needed import LayoutsNeeded
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.launch import in_front
from tilewave.ir.ops import Allocate, Const, Read, Reduce, Write
from tilewave.ir.ops.reduction import reduced
from tilewave.ir.rewrite import names, rewrite, rewrite_blocks, walk
from tilewave.ir.types import INDEX_SCALAR, Memory
from tilewave.layouts.reductions import Mover, covers, movers, run_of_wave
from tilewave.records import dataclass


def reduce_across_waves(kernel: Kernel) -> Kernel:
    if not any(isinstance(op, Reduce) for op in walk(kernel.body)):
        return kernel
    kernel = _one_axis_at_a_time(kernel)
    exchanged = set[Value]()
    while (found := _Meetings(kernel)).asked:
        kernel = found.kernel()
        exchanged.update(op.result for op in found.allocations)
    return replace(kernel, body=rewrite_blocks(kernel.body, lambda block: _writes_first(block, exchanged)))


def _writes_first(block: Block, exchanged: set[Value]) -> Block:
    """Move each write of partial results, with what it is computed from, before reads that it does not depend on."""
    ops = list[Op]()
    for op in block.ops:
        ops.append(op)
        if isinstance(op, Write) and op.memory in exchanged:
            reads = (i for i, o in enumerate(ops) if isinstance(o, Read) and o.memory in exchanged)
            moved = next((found for i in reads if (found := _moved(ops[i:]))), None)
            ops = ops if moved is None else [*ops[: -len(moved)], *moved]
    return replace(block, ops=tuple(ops))


def _moved(ops: Sequence[Op]) -> list[Op] | None:
    """Return ops with the last one, and what it is computed from, first; None where that accesses memory."""
    needed = set(ops[-1].operands)
    for op in reversed(ops[:-1]):
        if needed.intersection(op.results):
            needed.update(op.operands)
    taken = [op for op in ops[:-1] if needed.intersection(op.results)]
    if any(op.has_effect or op.read for op in taken):
        return None
    return [*taken, ops[-1], *(op for op in ops[:-1] if not needed.intersection(op.results))]


def _one_axis_at_a_time(kernel: Kernel) -> Kernel:
    """Split reductions into one per axis, the last axis first, which is the order of a sum."""
    builder = Builder(names(kernel))

    def split(op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Reduce) or len(op.axes) == 1:
            return None
        ops: list[Op] = []
        x = op.x
        for axis in sorted(op.axes, reverse=True)[:-1]:
            part = builder.fresh(op.result.name, reduced(x.type, (axis,)))
            ops.append(Reduce(x, (axis,), op.how, results=(part,), loc=op.loc))
            x = part
        return [*ops, replace(op, x=x, axes=(min(op.axes),))]

    return rewrite(kernel, split)


@dataclass(frozen=True)
class _Meeting:
    """What a reduction writes to shared memory: runs of neighbours combined, or, without any, the tile as it is."""

    run: int = 0


class _Meetings:
    """Finds the first reduction that waves cannot do alone; the layouts of later ones may change afterwards."""

    def __init__(self, kernel: Kernel) -> None:
        self.old, self.spreads = kernel, LayoutsNeeded(kernel)
        self.builder = Builder(names(kernel))
        self.zero = self.builder.fresh("c0", INDEX_SCALAR)
        self.allocations: list[Op] = []
        reductions = (op for op in walk(kernel.body) if isinstance(op, Reduce) and not op.run)
        asked = ((op.result, meeting) for op in reductions if (meeting := self.meeting(op)))
        self.asked: dict[Value, _Meeting] = dict(islice(asked, 1))

    def meeting(self, op: Reduce) -> _Meeting | None:
        (axis,), waves = op.axes, prod(self.spreads.waves)
        extent, spread = op.x.type.shape[axis], self.spreads.held(op.x)
        found = [movers(layout, axis, waves, self.spreads.lanes // waves) for layout in spread]
        if all(each is not None and covers(each, extent) and not _between_lanes(each) for each in found):
            return None
        if len(found) > 1 or found[0] is None or not covers(found[0], extent):
            return _Meeting()
        run = run_of_wave(found[0], extent)
        return _Meeting(run) if run < extent else None

    def kernel(self) -> Kernel:
        met = rewrite(self.old, lambda op: self.met(op) if op.results and op.results[0] in self.asked else None)
        first = Const(0, results=(self.zero,), loc=self.allocations[0].loc)
        return replace(met, body=in_front((*self.allocations, first), met.body))

    def met(self, op: Op) -> list[Op]:
        assert isinstance(op, Reduce)
        run, x, ops = self.asked[op.result].run, op.x, list[Op]()
        if run:
            x = self.builder.fresh(f"{op.result.name}_runs", reduced(op.x.type, op.axes, run))
            ops.append(Reduce(op.x, op.axes, op.how, run, results=(x,), loc=op.loc))
        return [*ops, *self.through_shared(x, op)]

    def through_shared(self, x: Value, op: Reduce) -> list[Op]:
        kind, loc = x.type, op.loc
        memory = self.builder.fresh(f"{op.result.name}_met", Memory(kind.shape, kind.dtype, "shared"))
        self.allocations.append(Allocate(results=(memory,), loc=loc))
        at, axes = (self.zero,) * len(kind.shape), tuple(range(len(kind.shape)))
        there = self.builder.fresh(f"{op.result.name}_all", kind)
        return [
            Write(x, memory, at, axes, loc=loc),
            Read(memory, at, axes, results=(there,), loc=loc),
            replace(op, x=there),
        ]


def _between_lanes(found: Sequence[Mover]) -> bool:
    return any(m.of != "registers" for m in found)
