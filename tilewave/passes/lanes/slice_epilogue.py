"""Slice the epilogue: where results are stored in slices, they are computed, and what is loaded for them, in slices.

    %r = load(%residual, …) : vector<1x32x2x2xf16>     %r_0 = load(%residual, …) : vector<1x8x2x2xf16>
    %y = add(exp(%sums), %r)                           %y_0 = add(exp(part(%sums)), %r_0)
    store(part(%y), %c_shared, …)                      store(%y_0, %c_shared, …)
    barrier() tma_store(%c_shared, …)              →   %r_1 = load(%residual, …) : vector<1x8x2x2xf16>
    wait_tma_stores() barrier()                        barrier() tma_store(%c_shared, …)
    store(part(%y), %c_shared, …)                      wait_tma_stores() barrier()
    …                                                  %y_1 = add(exp(part(%sums)), %r_1)

Besides its accumulator, a lane has no registers for a whole result or residual. Each slice is loaded before the
barriers that separate it from the previous slice, so that the load is in flight meanwhile. Small operands are loaded at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.analysis.register_pressure import held_bytes
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.dead_code import eliminate_dead_code
from tilewave.ir.ops import Barrier, Broadcast, Elementwise, ExtractSlice, HandOver, Load, Loop, Store, While
from tilewave.ir.placements import is_in
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import map_blocks, names, rewrite_blocks, substitute, walk, with_ops
from tilewave.ir.types import Vector
from tilewave.records import dataclass
from tilewave.transform.slices import Slices, slice_begin

MOST_WHOLE_BYTES = 128
"""Bytes that a lane loads at once at most: a bias of two bytes for 256 columns."""

USED_WHOLE = RemarkKind(
    "this value is stored in slices and also needed whole, so a lane holds all of it in registers",
    "compute it a second time for one of the two",
)


@dataclass(frozen=True)
class SliceEpilogue:
    """`most_bytes`: the bytes of an operand that a lane loads at once at most."""

    most_bytes: int = MOST_WHOLE_BYTES

    def __call__(self, kernel: Kernel) -> Kernel:
        slices = [op for op in walk(kernel.body) if isinstance(op, ExtractSlice)]
        if not slices:
            return kernel
        divided = _used_in_slices(kernel)
        remarks = _used_whole(kernel, slices, divided)
        if any(op.x in divided for op in slices):
            kernel = replace(kernel, body=_computed_in_slices(kernel, divided))
        kernel = eliminate_dead_code(kernel)  # a dead op would count as using a load whole
        loads = _sliced_loads(kernel, self.most_bytes)
        if loads:
            loading = _Loading(kernel, loads)
            kernel = replace(kernel, body=rewrite_blocks(kernel.body, loading.block))
        return kernel.with_remarks(*remarks)


# -- computed in slices ------------------------------------------------------------------------------------------------


def _used_whole(kernel: Kernel, slices: Sequence[ExtractSlice], divided: dict[Value, Op]) -> list[Remark]:
    makers = (kernel.defs.get(op.x) for op in slices if op.x not in divided)
    return [USED_WHOLE.at(op.loc) for op in makers if isinstance(op, (Elementwise, Broadcast))]


def _used_in_slices(kernel: Kernel) -> dict[Value, Op]:
    """Return the values that are computed elementwise and used in slices only, each with its op."""
    users = kernel.users
    found: dict[Value, Op] = {}
    for op in walk(kernel.body):
        if op.is_pure and op.corresponding() is not None and isinstance(op.result.type, Vector):
            found[op.result] = op
    while True:
        whole = [v for v in found if any(not isinstance(u, ExtractSlice) and not _makes(u, found) for u in users[v])]
        if not whole:
            return found
        for v in whole:
            del found[v]


def _makes(op: Op, found: dict[Value, Op]) -> bool:
    return any(v in found for v in op.results)


def _computed_in_slices(kernel: Kernel, divided: dict[Value, Op]) -> Block:
    """Return the body with slices extracted first; a slice is computed once per block."""
    builder = Builder(names(kernel))

    def sliced(block: Block) -> Block:
        slices = Slices(builder, divided)
        new: dict[Value, Value] = {}
        with builder.region():
            for op in block.ops:
                builder.locate = lambda op=op: op.loc  # type: ignore[misc]
                if isinstance(op, ExtractSlice) and op.x in divided:
                    new[op.result] = slices.of(op.x, op.axis, op.first, op.result.type.shape[op.axis])
                else:
                    builder.ops.append(substitute(map_blocks(op, sliced), new))
            return replace(block, ops=tuple(builder.ops))

    return sliced(kernel.body)


# -- loaded in slices --------------------------------------------------------------------------------------------------


def _sliced_loads(kernel: Kernel, most_bytes: int) -> dict[Value, Load]:
    """Return the loads of more than `most_bytes` per lane whose results are used in slices only, by result."""
    ops = list(walk(kernel.body))
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


class _Loading:
    def __init__(self, kernel: Kernel, loads: dict[Value, Load]) -> None:
        self.loads, self.builder = loads, Builder(names(kernel))

    def block(self, block: Block) -> Block:
        ops: list[Op] = []
        new: dict[Value, Value] = {}
        found: dict[tuple[Value, int, int, int], Value] = {}
        for op in block.ops:
            if isinstance(op, ExtractSlice) and op.x in self.loads:
                key = (op.x, op.axis, op.first, op.result.type.shape[op.axis])
                if key not in found:
                    load = self.part(op)
                    ops.insert(_where(ops, load), load)
                    found[key] = load.result
                new[op.result] = found[key]
            elif not any(v in self.loads for v in op.results):
                ops.append(substitute(op, new))
        return with_ops(block, ops)

    def part(self, part: ExtractSlice) -> Load:
        """Return the load of a slice."""
        load = self.loads[part.x]
        result = self.builder.fresh(f"{load.result.name}_part", part.result.type)
        return replace(load, begin=slice_begin(load, part.axis, part.first), results=(result,), loc=part.loc)


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
