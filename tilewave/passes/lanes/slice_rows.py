"""Load the operands of rows when a lane has registers for them: early where they are few, else slice by slice.

*Short rows* leave registers free. Their other operands are loaded with the row: between the two loads a lane would wait
for other lanes, once or several times, with no load in flight.

%x = load(%a, …)                              %x = load(%a, …)
%sum = reduce_registers(%x) …             →   %w = load(%weight, …)
%w = load(%weight, …)                         %sum = reduce_registers(%x) …
%y = mul(%x, %w)                              %y = mul(%x, %w)

*Long rows* do not. Results are computed and stored slice by slice, with the loads for them alone, so that a lane holds
one slice of the weights and results, besides the row:

%w = load(%weight, …) : vector<8x8xf16>            %w_part = load(%weight, …) : vector<1x8xf16>
%y = mul(%row, cast(%w)) : vector<8x8xf32>     →   %y_part = mul(part(%row), cast(%w_part)) : vector<1x8xf32>
store(%y, %c, …)                                   store(%y_part, %c, …)
                                                   %w_part_1 = load(%weight, …) : vector<1x8xf16>
                                                   …
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tilewave.analysis.register_pressure import MOST_HELD_BYTES, held_bytes, loaded_bytes
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.dead_code import eliminate_dead_code
from tilewave.ir.ops import Load, Matrix, OpaqueCopy, Reduction, Store, WgmmaShared
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import names, rewrite, rewrite_blocks, walk
from tilewave.ir.types import Vector
from tilewave.records import dataclass
from tilewave.transform.slices import Slices, slice_begin

MOST_EARLY_BYTES = 96
"""The limit for all loads of a lane: two loads of 16 bytes for each of three arrays."""


@dataclass(frozen=True)
class SliceRows:
    """`most_bytes`: what a lane holds at most for a store without slices; `most_early`: what it loads early at most."""

    most_bytes: int = MOST_HELD_BYTES
    most_early: int = MOST_EARLY_BYTES

    def __call__(self, kernel: Kernel) -> Kernel:
        if any(isinstance(op, (Matrix, WgmmaShared)) for op in walk(kernel.body)):
            return kernel  # accumulators are sliced by distribute_lanes, and software pipelines order their loads
        kernel = eliminate_dead_code(kernel)  # a dead op would count as using a result whole
        slicing = _Slicing(kernel, self.most_bytes)
        sliced = rewrite(kernel, lambda op: slicing.store(op) if isinstance(op, Store) else None)
        return self.loaded_early(sliced)

    def loaded_early(self, kernel: Kernel) -> Kernel:
        ops = list(walk(kernel.body))
        if not any(isinstance(op, Reduction) for op in ops):
            return kernel
        early = partial(self.block, written=_written(kernel), vector_bytes_of=kernel.vector_bytes_of)
        return replace(kernel, body=rewrite_blocks(kernel.body, early))

    def block(self, block: Block, written: set[Value], vector_bytes_of: Callable[[Value], int]) -> Block:
        """Return the block with all loads after its first one, if a lane has registers for them."""
        loads = [op for op in block.ops if isinstance(op, Load) and is_in(op.memory, "global")]
        held = (loaded_bytes(op.result, vector_bytes_of(op.memory)) for op in loads)
        if len(loads) < 2 or sum(held) > self.most_early:
            return block
        first = next(i for i, op in enumerate(block.ops) if op is loads[0])
        later = {v for op in block.ops[first:] for v in op.results}
        moved = [op for op in loads[1:] if op.memory not in written and not later.intersection(op.operands)]
        rest = [op for op in block.ops[first + 1 :] if not any(op is other for other in moved)]
        return replace(block, ops=(*block.ops[: first + 1], *moved, *rest))


def _written(kernel: Kernel) -> set[Value]:
    return {memory for op in walk(kernel.body) for memory in op.written}


class _Slicing:
    """Slices the stores of a kernel whose values take more than `most_bytes` of a lane's registers."""

    def __init__(self, kernel: Kernel, most_bytes: int) -> None:
        self.builder, self.most_bytes = Builder(names(kernel)), most_bytes
        self.defs, self.users, self.written = kernel.defs, kernel.users, _written(kernel)

    def store(self, op: Store) -> list[Op]:
        """Return a store in slices along the first axis that has several, if its values take too many registers."""
        shape = op.x.type.shape
        axis = next((i for i, n in enumerate(shape[:-1]) if n > 1), None)
        if axis is None or op.own or not is_in(op.memory, "global"):
            return [op]
        own = {v: self.defs[v] for v in self.made_for(op) if isinstance(v.type, Vector)}
        if self.needed_bytes(own) <= self.most_bytes:
            return [op]
        out = self.builder
        out.locate = lambda: op.loc
        with out.region():
            for i in range(shape[axis]):
                x = Slices(out, own).of(op.x, axis, i, 1)
                out.ops.append(replace(op, x=x, begin=slice_begin(op, axis, i)))
            return out.ops

    def needed_bytes(self, own: dict[Value, Op]) -> int:
        """Return the bytes that a lane holds of results, and of the loads for them."""
        loaded = sum(held_bytes(v) for v, op in own.items() if isinstance(op, Load))
        return loaded + max(map(held_bytes, own), default=0)

    def made_for(self, store: Store) -> set[Value]:
        """Return the values that are computed elementwise, or loaded, for this store alone."""
        found = {store.x}
        waiting = [store.x]
        while waiting:
            op = self.defs.get(waiting.pop())
            if op is None or not self.is_divided(op):
                continue
            for v in op.operands:
                if v not in found and all(user is store or found.issuperset(user.results) for user in self.users[v]):
                    found.add(v)
                    waiting.append(v)
        return {v for v in found if v in self.defs and self.is_divided(self.defs[v])}

    def is_divided(self, op: Op) -> bool:
        if isinstance(op, Load):
            return is_in(op.memory, "global") and op.memory not in self.written and not op.own
        return isinstance(op, OpaqueCopy) or (op.is_pure and op.corresponding() is not None)
