"""Coalesce the loads of staged tiles: neighbouring lanes load neighbouring chunks, as wide as possible.

    %x = read(%a, [%m, %k]) {per_lane = 4, spread = rows}       every wave its own part, some of it loaded twice
    %x = read(%a, [%m, %k]) {per_lane = 8, spread = linear}     each element once

The matrix instruction reads its operands from shared memory, whichever lane loaded them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewave.analysis.loads import is_crossed, lane_block, memory_order, widest_chunk
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Elementwise, Read, Write
from tilewave.ir.placements import is_in
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.uses import uses_through
from tilewave.records import dataclass

USED_BESIDE = RemarkKind(
    "this tile of {memory} is also used outside shared memory, so each wave loads its own part",
    "read it a second time for that",
)
OTHER_ORDER = RemarkKind(
    "{memory} is read with another order of dimensions than what it is combined with, so each wave loads its own part",
    "declare both memories with the same order of dimensions",
)
NARROW = RemarkKind(
    "loads of {memory} are vectorized to {bytes} bytes, not {widest}: the tile's rows are not a multiple of {widest}",
    "let the tile have a multiple of {elements} elements along the last dimension of {memory}",
)


@dataclass(frozen=True)
class CoalesceLoads:
    """`deepest_bytes`: the most bytes that a lane stores at once of a tile that is transposed on its way from global to
    shared memory; 0: one element."""

    widest_bytes: int
    deepest_bytes: int = 0

    def __call__(self, kernel: Kernel) -> Kernel:
        groups: dict[Write, list[Read]] = {}
        remarks: list[Remark] = []
        for op in walk(kernel.body):
            if isinstance(op, Read) and is_in(op.memory, "global"):
                ends = _ends(op.result, kernel.users)
                staging = [end for end in ends if isinstance(end, Write) and is_in(end.memory, "shared")]
                if len(staging) == len(ends):
                    for write in staging:
                        groups.setdefault(write, []).append(op)
                elif staging:
                    remarks.append(USED_BESIDE.at(op.loc, memory=op.memory.name))
        lanes = kernel.lanes * prod(kernel.waves)
        linear = {op.result: op for write, reads in groups.items() for op in self.linear(write, reads, lanes)}
        remarks += [OTHER_ORDER.at(op.loc, memory=op.memory.name) for op in _others(groups, linear)]
        remarks += self.narrow(linear.values())

        def minimize(op: Op) -> Sequence[Op] | None:
            return [linear[op.result]] if isinstance(op, Read) and op.result in linear else None

        return rewrite(kernel, minimize).with_remarks(*remarks)

    def narrow(self, reads: Iterable[Read]) -> Iterator[Remark]:
        for op in reads:
            size = op.memory.type.dtype.bytes
            # Where a tile has few elements per lane, lanes load less of each row, and longer rows would not help.
            loaded = op.per_lane if op.spread == "linear" else widest_chunk(op, self.widest_bytes)
            if loaded * size < self.widest_bytes:
                facts = {"memory": op.memory.name, "widest": self.widest_bytes, "elements": self.widest_bytes // size}
                yield NARROW.at(op.loc, bytes=loaded * size, **facts)

    def linear(self, write: Write, reads: Sequence[Read], lanes: int) -> list[Read]:
        """Return the reads of one staged tile in one layout: the memory order of the first, in chunks that suit all."""
        first = memory_order(reads[0])
        same = [op for op in reads if memory_order(op) == first and op.result.type.shape == reads[0].result.type.shape]
        blocks = [lane_block(op, self.deepest_bytes, lanes) for op in same]
        if is_crossed(write, first) and blocks == blocks[:1] * len(blocks) and (block := blocks[0]):
            return [replace(op, per_lane=block.width, rows_per_lane=block.rows, spread="blocks") for op in same]
        width = min(widest_chunk(op, self.widest_bytes) for op in same)
        return [replace(op, per_lane=width, spread="linear") for op in same]


def _others(groups: Mapping[Write, list[Read]], linear: dict[Value, Read]) -> Iterator[Read]:
    return (op for reads in groups.values() for op in reads if op.result not in linear)


def _ends(v: Value, users: Mapping[Value, Sequence[Op]]) -> list[Op]:
    """Return the ops that use `v` in the end, directly or through elementwise ops, each once."""
    found = {id(op): op for _, op in uses_through(Elementwise, v, users) if not isinstance(op, Elementwise)}
    return list(found.values())
