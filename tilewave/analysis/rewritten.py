"""Memories of which a workgroup may write some element more than once.

Before any pass of a target runs it is known that every tile of the output is written, and by one workgroup. So where
the writes run exactly as often as there are tiles, each tile is written once, in whatever order:

    loop(‹565 iterations, or 564›) do (%turn) { 132 workgroups take 74,530 iterations in all,
      …
      write(%sums, %c, [%m, %n])                and there are 257 x 290 tiles
    }

Only where the counts differ, every iteration is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

import numpy as np

from tilewave.analysis.index_trace import IndexRun, made_of_data, needed_values, tile_count, window
from tilewave.analysis.positions import BlockScalars, scalars_of
from tilewave.analysis.ranges import ranges_of
from tilewave.analysis.shared_tiles import hands_over
from tilewave.interp.arithmetic import Array
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Loop, Scatter, While, Write, WriteIndexed, WriteThrough
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import walk

STORES = (Write, WriteIndexed, WriteThrough, Scatter)
Around = tuple[Op, ...]
"""The loops around an op, the outermost first."""


def written_again(kernel: Kernel) -> set[Value]:
    """Return the arrays of which a workgroup may write some element more than once.

    With dynamic symbols, a loop is assumed to write elsewhere in each iteration if any value made in it decides the
    position.
    """
    stores = [(op, around) for op, around in _with_loops(kernel.body) if isinstance(op, STORES)]
    stores = [(op, around) for op, around in stores if is_in(op.memory, "global")]
    often = Counter(op.memory for op, _ in stores)
    found = {op.memory for op, _ in stores if isinstance(op, Scatter) or often[op.memory] > 1}
    found |= {op.memory for op, around in stores if isinstance(op, WriteIndexed) and not _follows(kernel, op, around)}
    looped = [(op, around) for op, around in stores if isinstance(op, Write) and around and op.memory not in found]
    if not looped or hands_over(kernel):  # stream-K and split-K write each tile once, after its last part
        return found
    if not needed_values(kernel.body, lambda op: isinstance(op, Write)).isdisjoint(kernel.body.args):
        outside = {v for op in kernel.body.ops if not op.blocks for v in op.results} | set(kernel.body.args)
        return found | {op.memory for op, _ in looped if outside.issuperset(op.at)}
    scalars = scalars_of(kernel.body)
    of_data = made_of_data(kernel.body)
    unknown = {id(op) for op, around in looped if not of_data.isdisjoint((*op.at, *_trips(around)))}
    found |= {op.memory for op, _ in looped if id(op) in unknown}
    doubtful = [op for op, around in looped if id(op) not in unknown and not _fills(kernel, op, around, scalars)]
    return found | _met_again(kernel, doubtful)


def _trips(around: Around) -> Iterator[Value]:
    return (loop.trips for loop in around if isinstance(loop, Loop))


def _follows(kernel: Kernel, op: WriteIndexed, around: Around) -> bool:
    """Return whether the positions of a write depend on the counters of all loops around it that repeat it."""
    ranges = ranges_of(kernel)
    repeating = (loop for loop in around if not (isinstance(loop, Loop) and ranges.of(loop.trips)[1] <= 1))
    return all(_depends_on(loop, op.at) for loop in repeating)


def _depends_on(loop: Op, values: Iterable[Value]) -> bool:
    """Return whether values that are made in a loop follow from its counter, or from what it carries."""
    (*_, body) = loop.blocks
    following = set(body.args)
    for op in walk(body):
        if following.intersection(op.operands, *(inner.operands for block in op.blocks for inner in walk(block))):
            following.update(op.results)
            following.update(v for block in op.blocks for v in block.args)
    return not following.isdisjoint(values)


def _with_loops(block: Block, around: Around = ()) -> Iterator[tuple[Op, Around]]:
    for op in block.ops:
        yield op, around
        for inner in op.blocks:
            yield from _with_loops(inner, (*around, op) if isinstance(op, (Loop, While)) else around)


def _fills(kernel: Kernel, op: Write, around: Around, scalars: BlockScalars) -> bool:
    """Return whether a write runs as often as its memory has tiles, each time at the start of a tile."""
    loops = [loop for loop in around if isinstance(loop, Loop) and not loop.optional]
    if len(loops) < len(around):
        return False
    on_grid = all(scalars.divisor(v) % size == 0 for v, size in zip(op.at, window(op), strict=True))
    return on_grid and _rounds(kernel, loops, scalars) == tile_count(op)


def _rounds(kernel: Kernel, loops: list[Loop], scalars: BlockScalars) -> int | None:
    """Return the iterations of nested loops over all workgroups; None where they depend on each other."""
    counts = [scalars.constant(loop.trips) for loop in loops]
    known = prod(count for count in counts if count is not None)
    if None not in counts:
        return known * kernel.workgroup_count
    outer = loops[0]
    if counts.count(None) > 1 or counts[0] is not None or all(op is not outer for op in kernel.body.ops):
        return None
    return known * _Trips(kernel, outer).total()


class _Trips(IndexRun):
    """Computes each workgroup's trip count of a loop at the top level."""

    def __init__(self, kernel: Kernel, loop: Loop) -> None:
        super().__init__(kernel, {}, lambda op: op is loop)
        self.found: list[Array] = []

    def visit(self, op: Any, env: dict[Value, Any], w: Array) -> None:
        self.found.append(np.broadcast_to(np.asarray(env[op.trips]), w.shape))

    def total(self) -> int:
        for _ in self.all():
            pass
        return sum(int(np.maximum(trips, 0).sum()) for trips in self.found)


def _met_again(kernel: Kernel, writes: Iterable[Write]) -> set[Value]:
    """Return the memories of which some workgroup writes a tile of the grid twice."""
    wanted = {id(op): op for op in writes}
    places: dict[int, list[Array]] = {}
    found: set[Value] = set()
    for visit in IndexRun(kernel, {}, lambda op: id(op) in wanted).all() if wanted else ():
        op = wanted[id(visit.op)]
        at = np.stack(visit.at, axis=1)
        found |= {op.memory} if (at % window(op)).any() else set()
        places.setdefault(id(op), []).append(np.concatenate([visit.workgroups[:, None], at], axis=1))
    for number, there in places.items():
        rows = np.concatenate(there)
        found |= {wanted[number].memory} if len(np.unique(rows, axis=0)) < len(rows) else set()
    return found
