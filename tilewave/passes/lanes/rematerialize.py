"""Rematerialize wide values after a barrier from the narrow values that they are computed from.

%x = load(%a, …) : vector<1x8x8xf16>             %x = load(%a, …) : vector<1x8x8xf16>        32 registers
%row = cast(%x) : vector<1x8x8xf32>              %row = cast(%x)                              64, until the sum is there
%sum = reduce_registers(%row) …              →   %sum = reduce_registers(%row) …
barrier()                                        barrier()
%y = mul(%row, %scale)                           %x_1 = opaque_copy(%x)
                                                 %y = mul(cast(%x_1), %scale)

Long rows would not fit into registers otherwise. A cast or an exponential costs less than a spilled register, or than
lower occupancy. Where many values are live across one barrier, such as sums and tiles that a loop carries, shorter ones
are rematerialized, too.
"""

from __future__ import annotations

from dataclasses import replace

from tilewave.analysis.register_pressure import MOST_HELD_BYTES, held_bytes
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Barrier, Broadcast, Elementwise, Load, OpaqueCopy
from tilewave.ir.rewrite import names, rewrite_blocks, substitute, walk
from tilewave.records import dataclass

FEW_BYTES = 16
"""Values of so many bytes stay live: their registers are not worth an instruction."""


@dataclass(frozen=True)
class Rematerialize:
    """Rematerializes values of more than `most_bytes`, and shorter ones where more are live across one barrier."""

    most_bytes: int = MOST_HELD_BYTES

    def __call__(self, kernel: Kernel) -> Kernel:
        builder = Builder(names(kernel))

        def rematerialize(block: Block) -> Block:
            if not any(isinstance(op, Barrier) for op in block.ops):
                return block
            most = FEW_BYTES if _live_across_barriers(block) > self.most_bytes else self.most_bytes
            return _Recomputing(builder, most).block(block)

        return replace(kernel, body=rewrite_blocks(kernel.body, rematerialize))


def _live_across_barriers(block: Block) -> int:
    """Return the most bytes of a lane's vectors that are live across a barrier of a block."""
    own = {*block.args, *(v for op in block.ops for v in op.results)}
    live, most = set[Value](), 0
    for op in reversed(block.ops):
        if isinstance(op, Barrier):
            most = max(most, sum(map(held_bytes, live)))
        inner = (o for region in op.blocks for o in walk(region))
        live.difference_update(op.results)
        live.update(v for o in (op, *inner) for v in o.operands if v in own)
    return most


class _Recomputing:
    """Rematerializes in one block; values from outside of it are live anyway."""

    def __init__(self, builder: Builder, most_bytes: int) -> None:
        self.most_bytes, self.builder = most_bytes, builder
        self.makers: dict[Value, Op] = {}
        self.barriers_before: dict[Value, int] = {}
        """The number of barriers before the definition of each value."""
        self.barriers = 0
        self.repeated: dict[tuple[Value, int], Value] = {}

    def block(self, block: Block) -> Block:
        out = self.builder
        with out.region():
            self.barriers_before.update(dict.fromkeys(block.args, 0))
            for op in block.ops:
                out.locate = lambda op=op: op.loc  # type: ignore[misc]
                self.barriers += isinstance(op, Barrier)
                old = [v for v in dict.fromkeys(op.operands) if self.is_held_over(v) and self.can_be_had(v)]
                out.ops.append(substitute(op, {v: self.rematerialized(v) for v in old}))
                for v in op.results:
                    self.makers[v], self.barriers_before[v] = op, self.barriers
            return Block(block.args, tuple(out.ops))

    def is_held_over(self, v: Value) -> bool:
        is_old = self.barriers_before.get(v, self.barriers) < self.barriers
        return held_bytes(v) > self.most_bytes and is_old and not self.is_given(v)

    def is_given(self, v: Value) -> bool:
        """Whether `v` is loaded, or carried by a loop."""
        return v not in self.makers or isinstance(self.makers[v], Load)

    def can_be_had(self, v: Value) -> bool:
        """Whether `v` is computed elementwise from values that take fewer registers."""
        return self.is_elementwise(v) and self.narrowest(v) < held_bytes(v)

    def is_elementwise(self, v: Value) -> bool:
        """Whether `v` may be computed again: products and sums would be expensive, and read what was overwritten."""
        return isinstance(self.makers[v], (Elementwise, Broadcast))

    def narrowest(self, v: Value) -> int:
        """Return the bytes that must stay live so that `v` can be computed."""
        if not self.is_held_over(v):
            return held_bytes(v) if v in self.barriers_before and self.is_given(v) else 0
        if not self.is_elementwise(v):
            return held_bytes(v)
        return sum(self.narrowest(x) for x in dict.fromkeys(self.makers[v].operands))

    def rematerialized(self, v: Value) -> Value:
        """Return `v` computed after the last barrier, from an `OpaqueCopy` of loads that no compiler sees through."""
        key = v, self.barriers
        if key not in self.repeated:
            self.repeated[key] = self.rematerialized_ops(v)
        return self.repeated[key]

    def rematerialized_ops(self, v: Value) -> Value:
        if self.is_held_over(v) and self.is_elementwise(v):
            op = self.makers[v]
            result = self.builder.fresh(v.name, v.type)
            taken = {x: self.rematerialized(x) for x in op.operands}
            self.builder.ops.append(replace(substitute(op, taken), results=(result,)))
            return result
        is_old = self.barriers_before.get(v, self.barriers) < self.barriers
        if is_old and self.is_given(v):
            return self.builder.emit(OpaqueCopy, v, self.barriers, type=v.type, name=v.name)
        return v
