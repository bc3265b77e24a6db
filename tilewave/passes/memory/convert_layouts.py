"""Convert a tile from the layout in which lanes hold it to the layout in which they need it, in the cheapest way.

    %y = add(%p, %q)      →  %q_there = convert(%q)                   within lanes, or between lanes of a wave, or
                             %y = add(%p, %q_there)

                             write(%q, %q_moved, [%c0, %c0])          where another wave holds what a lane needs;
                             %q_there = read(%q_moved, [%c0, %c0])    what is read can be had in any layout
                             %y = add(%p, %q_there)

A tile is converted directly after its definition, so that a loop which needs it does not convert it in every iteration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from tilewave.analysis.conversions import stays_in_waves
from tilewave.analysis.layouts_needed import LayoutsNeeded
from tilewave.analysis.shared_rows import StagedAccess, cheapest
from tilewave.errors import NOWHERE, Loc
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.launch import in_front
from tilewave.ir.ops import Allocate, Const, Convert, ExtractSlice, Loop, Read, While, Write
from tilewave.ir.rewrite import map_blocks, names, replace_values, rewrite, substitute, walk
from tilewave.ir.types import INDEX_SCALAR, Memory
from tilewave.machine.banks import Ports, ports
from tilewave.machine.chips import Chip
from tilewave.records import dataclass

MOST_ROUNDS = 100
"""Far more rounds of conversion than any kernel needs."""


@dataclass(frozen=True)
class ConvertLayouts:
    machine: Chip

    def __repr__(self) -> str:
        return f"ConvertLayouts({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        """Insert conversions until no layout mismatch is left, because one conversion decides where others are needed.

        The rounds end: a converted tile has no tied layout, and neither have values that are computed from it alone, so
        each round leaves fewer ops with an operand whose layout is tied.
        """
        for _ in range(MOST_ROUNDS):
            spreads = LayoutsNeeded(kernel)
            if not spreads.mismatches:
                break
            kernel = _without_needless(_Inserting(kernel, spreads.mismatches).kernel())
        else:
            where = next(op.loc for ops in spreads.mismatches.values() for op in ops)
            raise NotImplementedError(f"{where}: {kernel.name} has tiles whose layouts do not settle")
        return _through_shared(kernel, spreads, ports(self.machine.shared))


class _Inserting:
    """Inserts conversions after the definitions of tiles, for the ops that need another layout."""

    def __init__(self, kernel: Kernel, mismatches: dict[Value, list[Op]]) -> None:
        self.old = kernel
        builder = Builder(names(kernel))
        self.new = {v: builder.fresh(f"{v.name}_there", v.type) for v in mismatches}
        self.taken: dict[int, dict[Value, Value]] = {}
        for v, users in mismatches.items():
            for op in users:
                self.taken.setdefault(id(op), {})[v] = self.new[v]

    def kernel(self) -> Kernel:
        return replace(self.old, body=self.block(self.old.body))

    def block(self, block: Block) -> Block:
        ops: list[Op] = self.conversions(block.args, block.ops[0].loc if block.ops else NOWHERE)
        for old in block.ops:
            op = _taking(map_blocks(old, self.block), self.taken.get(id(old), {}))
            ops += [op, *self.conversions(op.results, op.loc)]
        return replace(block, ops=tuple(ops))

    def conversions(self, values: Iterable[Value], loc: Loc) -> list[Op]:
        return [Convert(v, results=(self.new[v],), loc=loc) for v in values if v in self.new]


def _taking(op: Op, new: dict[Value, Value]) -> Op:
    """Return the op with other operands; the body of a loop is unchanged."""
    if isinstance(op, (Loop, While)):
        return replace(op, init=tuple(new.get(v, v) for v in op.init))
    return substitute(op, new)


def _without_needless(kernel: Kernel) -> Kernel:
    """Remove conversions of values that can be computed in any layout."""
    spreads = LayoutsNeeded(kernel)
    needless = {op.result: op.x for op in walk(kernel.body) if isinstance(op, Convert) and not spreads.is_tied(op.x)}
    return replace_values(
        rewrite(kernel, lambda op: [] if op.results and op.results[0] in needless else None), needless
    )


# -- the way ----------------------------------------------------------------------------------------------------------


def _through_shared(kernel: Kernel, spreads: LayoutsNeeded, ports: Ports) -> Kernel:
    """Return the kernel with each exchange between waves as a store to shared memory and a load."""
    builder = Builder(names(kernel))
    zero = builder.fresh("c0", INDEX_SCALAR)
    allocations: list[Op] = []
    parted: dict[Value, Value] = {}
    """Memories of tiles from which several slices are extracted."""

    def move(op: Op) -> list[Op] | None:
        match op:
            case Convert(x) if not stays_in_waves(spreads, op):
                return [write(op, x), read(op, allocations[-1].result, zero)]
            case ExtractSlice(x, axis, first) if spreads.cuts(op) is None:
                writes = [] if x in parted else [write(op, x)]
                memory = parted.setdefault(x, allocations[-1].result)
                start = Const(first, results=(builder.fresh(f"c{first}", INDEX_SCALAR),), loc=op.loc)
                return [*writes, start, read(op, memory, start.result, axis)]
            case _:
                return None

    def write(op: Convert | ExtractSlice, x: Value) -> Op:
        kind = x.type
        rows = cheapest(ports, _access(op, spreads)).placement
        memory = builder.fresh(f"{x.name}_moved", Memory(kind.shape, kind.dtype, "shared", rows))
        allocations.append(Allocate(results=(memory,), loc=op.loc))
        return Write(x, memory, (zero,) * len(kind.shape), tuple(range(len(kind.shape))), loc=op.loc)

    def read(op: Convert | ExtractSlice, memory: Value, start: Value, along: int = 0) -> Op:
        rank = len(op.x.type.shape)
        at = tuple(start if axis == along else zero for axis in range(rank))
        return Read(memory, at, tuple(range(rank)), results=op.results, loc=op.loc)

    moved = rewrite(kernel, move)
    if not allocations:
        return kernel
    first = Const(0, results=(zero,), loc=allocations[0].loc)
    return replace(moved, body=in_front((*allocations, first), moved.body))


def _access(op: Convert | ExtractSlice, spreads: LayoutsNeeded) -> StagedAccess:
    waves, needed = prod(spreads.waves), spreads.needed.get(op.result, [])
    read = tuple(layout for spread in needed for layout in spread)
    return StagedAccess(op.x.type.shape, op.x.type.dtype.bytes, spreads.held(op.x), read, waves, spreads.lanes // waves)
