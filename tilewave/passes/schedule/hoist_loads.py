"""Hoist the loads of a row's other operands to the load of the row, where a lane holds little of both.

%x = load(%a, …)                              %x = load(%a, …)
%sum = reduce_registers(%x) …             →   %w = load(%weight, …)
%w = load(%weight, …)                         %sum = reduce_registers(%x) …
%y = mul(%x, %w)                              %y = mul(%x, %w)

Between the two loads a lane waits for other lanes, once or several times, with no load in flight. Long rows need the
registers that hoisting takes (`slice_stores`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from tilewave.analysis.register_pressure import loaded_bytes
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Load, Matrix, Reduction, WgmmaShared
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import rewrite_blocks, walk

MOST_LOADED_BYTES = 96
"""The limit for all loads of a lane: two loads of 16 bytes for each of three arrays."""


@dataclass(frozen=True)
class HoistLoads:
    most_bytes: int = MOST_LOADED_BYTES

    def __call__(self, kernel: Kernel) -> Kernel:
        ops = list(walk(kernel.body))
        multiplies = any(isinstance(op, (Matrix, WgmmaShared)) for op in ops)  # software pipelines order their loads
        if multiplies or not any(isinstance(op, Reduction) for op in ops):
            return kernel
        written = {memory for op in ops for memory in op.written}

        early = partial(self.block, written=written, vector_bytes=kernel.vector_bytes)
        return replace(kernel, body=rewrite_blocks(kernel.body, early))

    def block(self, block: Block, written: set[Value], vector_bytes: int) -> Block:
        loads = [op for op in block.ops if isinstance(op, Load) and is_in(op.memory, "global")]
        if len(loads) < 2 or sum(loaded_bytes(op.result, vector_bytes) for op in loads) > self.most_bytes:
            return block
        first = next(i for i, op in enumerate(block.ops) if op is loads[0])
        later = {v for op in block.ops[first:] for v in op.results}
        moved = [op for op in loads[1:] if op.memory not in written and not later.intersection(op.operands)]
        rest = [op for op in block.ops[first + 1 :] if not _is_one_of(op, moved)]
        return replace(block, ops=(*block.ops[: first + 1], *moved, *rest))


def _is_one_of(op: Op, others: list[Load]) -> bool:
    return any(op is other for other in others)
