"""Reads that go to shared memory are shared evenly: neighbouring lanes load neighbouring chunks, as wide as can be.

    %x = read(%a, [%m, %k]) {per_lane = 4, spread = rows}       every wave its own part, some of it loaded twice
    %x = read(%a, [%m, %k]) {per_lane = 8, spread = linear}     each element once

The matrix instruction finds its elements in shared memory, whoever brought them there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewave.analysis.loads import memory_order, widest_chunk
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Elementwise, Read, Write
from tilewave.ir.placements import lies_in
from tilewave.ir.rewrite import rewrite, walk


@dataclass(frozen=True)
class MinimizeGlobalLoads:
    widest_bytes: int

    def __call__(self, kernel: Kernel) -> Kernel:
        users: dict[Value, list[Op]] = {}
        for op in walk(kernel.body):
            for v in dict.fromkeys(op.operands):
                users.setdefault(v, []).append(op)
        groups: dict[Op, list[Read]] = {}
        for op in walk(kernel.body):
            if isinstance(op, Read) and lies_in(op.memory, "global"):
                for write in _stagings(op.result, users) or ():
                    groups.setdefault(write, []).append(op)
        linear = {op.result: op for reads in groups.values() for op in self.linear(reads)}

        def minimize(op: Op) -> Sequence[Op] | None:
            return [linear[op.result]] if isinstance(op, Read) and op.result in linear else None

        return rewrite(kernel, minimize)

    def linear(self, reads: Sequence[Read]) -> list[Read]:
        """Reads that meet in one tile are held alike: in the order of the first, and in chunks that fit them all."""
        first = memory_order(reads[0])
        alike = [op for op in reads if memory_order(op) == first and op.result.type.shape == reads[0].result.type.shape]
        width = min(widest_chunk(op, self.widest_bytes) for op in alike)
        return [replace(op, per_lane=width, spread="linear") for op in alike]


def _stagings(v: Value, users: dict[Value, list[Op]]) -> list[Op] | None:
    """The writes to shared memory that v ends in, element by element; None where it goes anywhere else."""
    found: list[Op] = []
    for op in users.get(v, ()):
        match op:
            case Write(memory=memory) if lies_in(memory, "shared"):
                found.append(op)
            case Elementwise():
                further = _stagings(op.result, users)
                if further is None:
                    return None
                found += further
            case _:
                return None
    return found
