"""Slice the loads for a result that is stored in slices: each slice is loaded when the previous one is stored.

    %r = load(%residual, …) : vector<1x32x2x2xf16>     %r_0 = load(%residual, …) : vector<1x8x2x2xf16>
    …                                                  …
    %y_0 = add(part(%sums), part(%r))              →   %y_0 = add(part(%sums), %r_0)
    store(%y_0, %c_shared, …)                          store(%y_0, %c_shared, …)
    barrier() tma_store(%c_shared, …)             %r_1 = load(%residual, …) : vector<1x8x2x2xf16>
    wait_tma_stores() barrier()                        barrier() tma_store(%c_shared, …)
    %y_1 = add(part(%sums), part(%r))                  wait_tma_stores() barrier()
    …                                                  %y_1 = add(part(%sums), %r_1)

Besides its accumulator, a lane has no registers for a whole residual. Each slice is loaded before the barriers that
separate it from the previous slice, so that the load is in flight meanwhile. Small operands are loaded at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewave.analysis.register_pressure import held_bytes
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Barrier, ExtractSlice, HandOver, Load, Loop, Store, While
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import map_blocks, names, substitute, walk

MOST_WHOLE_BYTES = 128
"""Bytes that a lane loads at once at most: a bias of two bytes for 256 columns."""


@dataclass(frozen=True)
class SliceLoads:
    most_bytes: int = MOST_WHOLE_BYTES

    def __call__(self, kernel: Kernel) -> Kernel:
        parts = _parts_of_loads(kernel, self.most_bytes)
        if not parts:
            return kernel
        return replace(kernel, body=_Loading(kernel, parts).block(kernel.body))


def _parts_of_loads(kernel: Kernel, most_bytes: int) -> dict[Value, Load]:
    """Return the loads of more than `most_bytes` per lane whose results are used in slices only, by result."""
    ops = list(walk(kernel.body))
    unused = _dead(ops)
    ops = [op for op in ops if not any(v in unused for v in op.results)]
    written = {memory for op in ops for memory in op.written}
    whole = {v for op in ops for v in op.operands if not isinstance(op, ExtractSlice)}
    taken = {op.x for op in ops if isinstance(op, ExtractSlice)}
    return {
        op.result: op
        for op in ops
        if isinstance(op, Load)
        and is_in(op.memory, "global")
        and op.memory not in written
        and not op.own
        and not op.guard  # predicated elements are loaded one by one, and their masks take more registers in slices
        and op.result in taken - whole
        and held_bytes(op.result) > most_bytes
    }


def _dead(ops: Sequence[Op]) -> set[Value]:
    """Return the values that no op uses: those that were used as a whole before they were sliced."""
    found: set[Value] = set()
    users = Counter(v for op in ops for v in op.operands)
    for op in reversed(ops):
        if op.is_pure and op.results and not any(users[v] for v in op.results):
            found.update(op.results)
            users.subtract(op.operands)
    return found


class _Loading:
    def __init__(self, kernel: Kernel, loads: dict[Value, Load]) -> None:
        self.loads, self.builder = loads, Builder(names(kernel))
        self.unused = _dead(list(walk(kernel.body)))

    def block(self, block: Block) -> Block:
        ops: list[Op] = []
        new: dict[Value, Value] = {}
        found: dict[tuple[Value, int, int, int], Value] = {}
        for old in block.ops:
            if isinstance(old, ExtractSlice) and old.x in self.loads:
                key = (old.x, old.axis, old.first, old.result.type.shape[old.axis])
                if key not in found:
                    load = self.part(old)
                    ops.insert(_where(ops, load), load)
                    found[key] = load.result
                new[old.result] = found[key]
            elif not any(v in self.loads or v in self.unused for v in old.results):
                ops.append(substitute(map_blocks(old, self.block), new))
        return replace(block, ops=tuple(ops))

    def part(self, part: ExtractSlice) -> Load:
        """Return the load of a slice; `begin` is its offset from the whole."""
        load = self.loads[part.x]
        before = load.begin or (0,) * len(load.at)
        begin = tuple(x + part.first * step for x, step in zip(before, load.steps[part.axis], strict=True))
        result = self.builder.fresh(f"{load.result.name}_part", part.result.type)
        return replace(load, begin=begin, results=(result,), loc=part.loc)


def _where(ops: list[Op], load: Load) -> int:
    """Return the position after the stores before the last barrier, and after the operands of the load."""
    needed, waits = set(load.operands), False
    for i in range(len(ops) - 1, -1, -1):
        op = ops[i]
        waits = waits or isinstance(op, Barrier)
        is_stored = isinstance(op, (Store, HandOver)) and waits
        if is_stored or isinstance(op, (Loop, While)) or needed.intersection(op.results):
            return i + 1
    return 0
