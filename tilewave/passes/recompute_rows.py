"""What is held over a barrier in wide numbers, and comes from narrow ones, is computed again behind it.

%x = load(%a, …) : vector<1x8x8xf16>             %x = load(%a, …) : vector<1x8x8xf16>        32 registers
%row = cast(%x) : vector<1x8x8xf32>              %row = cast(%x)                              64, until the sum is there
%sum = reduce_registers(%row) …              →   %sum = reduce_registers(%row) …
barrier()                                        barrier()
%y = mul(%row, %scale)                           %x_1 = renew(%x)
                                                 %y = mul(cast(%x_1), %scale)

Long rows would not fit into registers otherwise. A cast or an exponential costs less than a register that is spilled,
or a workgroup that finds no room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Barrier, Broadcast, Elementwise, Load, Renew
from tilewave.ir.rewrite import names, substitute, uses
from tilewave.ir.types import Vector

MOST_HELD_BYTES = 192
"""Of one vector over a barrier: a lane has 256 bytes of registers where a thousand of them share a processor."""


@dataclass(frozen=True)
class RecomputeRows:
    most_bytes: int = MOST_HELD_BYTES

    def __call__(self, kernel: Kernel) -> Kernel:
        ops = kernel.body.ops
        if not any(isinstance(op, Barrier) for op in ops) or not any(map(self.is_wide, _made(ops))):
            return kernel
        body = _Recomputing(kernel, self.most_bytes).block(kernel.body)
        return replace(kernel, body=body)

    def is_wide(self, v: Value) -> bool:
        return _bytes(v) > self.most_bytes


def _made(ops: tuple[Op, ...]) -> list[Value]:
    return [v for op in ops for v in op.results]


def _bytes(v: Value) -> int:
    """That a lane holds."""
    return prod(v.type.shape) * v.type.dtype.bytes if isinstance(v.type, Vector) else 0


class _Recomputing:
    def __init__(self, kernel: Kernel, most_bytes: int) -> None:
        self.most_bytes, self.builder, self.used = most_bytes, Builder(names(kernel)), uses(kernel)
        self.makers: dict[Value, Op] = {}
        self.made_behind: dict[Value, int] = {}
        """How many barriers stand in front of where each value is made."""
        self.barriers = 0
        self.again: dict[tuple[Value, int], Value] = {}

    def block(self, block: Block) -> Block:
        out = self.builder
        for op in block.ops:
            out.locate = lambda op=op: op.loc  # type: ignore[misc]
            self.barriers += isinstance(op, Barrier)
            old = [v for v in dict.fromkeys(op.operands) if self.is_held_over(v) and self.can_be_had(v)]
            out.ops.append(substitute(op, {v: self.had_again(v) for v in old}))
            for v in op.results:
                self.makers[v], self.made_behind[v] = op, self.barriers
        return Block(block.args, tuple(out.ops))

    def is_held_over(self, v: Value) -> bool:
        is_old = self.made_behind.get(v, self.barriers) < self.barriers
        return _bytes(v) > self.most_bytes and is_old and not isinstance(self.makers[v], Load)

    def can_be_had(self, v: Value) -> bool:
        """Whether it is computed one by one from what takes fewer registers."""
        return isinstance(self.makers[v], (Elementwise, Broadcast)) and self.narrowest(v) < _bytes(v)

    def narrowest(self, v: Value) -> int:
        """The bytes of what has to be held so that it can be computed."""
        if not self.is_held_over(v):
            return _bytes(v) if isinstance(self.makers.get(v), Load) else 0
        op = self.makers[v]
        if not isinstance(op, (Elementwise, Broadcast)):
            return _bytes(v)
        return sum(self.narrowest(x) for x in dict.fromkeys(op.operands))

    def had_again(self, v: Value) -> Value:
        """v, computed behind the last barrier; narrow numbers in such a way that nobody keeps the wide ones."""
        key = v, self.barriers
        if key not in self.again:
            self.again[key] = self.made_again(v)
        return self.again[key]

    def made_again(self, v: Value) -> Value:
        if self.is_held_over(v):
            op = self.makers[v]
            result = self.builder.fresh(v.name, v.type)
            taken = {x: self.had_again(x) for x in op.operands}
            self.builder.ops.append(replace(substitute(op, taken), results=(result,)))
            return result
        is_old = self.made_behind.get(v, self.barriers) < self.barriers
        if is_old and isinstance(self.makers[v], Load):
            return self.builder.emit(Renew, v, self.barriers, type=v.type, name=v.name)
        return v
