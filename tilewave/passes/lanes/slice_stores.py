"""Slice the stores of long rows: results are computed and stored slice by slice, with the loads for them alone.

%w = load(%weight, …) : vector<8x8xf16>            %w_0 = load(%weight, …) : vector<1x8xf16>
%y = mul(%row, cast(%w)) : vector<8x8xf32>     →   %y_0 = mul(part(%row), cast(%w_0)) : vector<1x8xf32>
store(%y, %c, …)                                   store(%y_0, %c, …)
                                                   %w_1 = load(%weight, …) : vector<1x8xf16>
                                                   …

A lane then holds one slice of the weights and results, besides the row. Where all of them are small, it is better to
load them at once, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewave.analysis.register_pressure import MOST_HELD_BYTES, held_bytes
from tilewave.ir.build import Builder
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.dead_code import eliminate_dead_code
from tilewave.ir.ops import ExtractSlice, Load, Matrix, OpaqueCopy, Store, WgmmaShared
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import names, rewrite, substitute, walk
from tilewave.ir.types import Vector


@dataclass(frozen=True)
class SliceStores:
    most_bytes: int = MOST_HELD_BYTES

    def __call__(self, kernel: Kernel) -> Kernel:
        if any(isinstance(op, (Matrix, WgmmaShared)) for op in walk(kernel.body)):
            return kernel  # accumulators are sliced where distribute_lanes transposes them into rows
        kernel = eliminate_dead_code(kernel)  # a dead op would count as using a result whole
        slices = _Kernel(kernel, self.most_bytes)
        return rewrite(kernel, lambda op: slices.store(op) if isinstance(op, Store) else None)


class _Kernel:
    def __init__(self, kernel: Kernel, most_bytes: int) -> None:
        self.builder, self.most_bytes = Builder(names(kernel)), most_bytes
        self.defs, self.users = kernel.defs, kernel.users
        self.written = {memory for op in walk(kernel.body) for memory in op.written}

    def store(self, op: Store) -> list[Op]:
        """Return a store in slices along the first axis that has several, if its values take too many registers."""
        shape = op.x.type.shape
        axis = next((i for i, n in enumerate(shape[:-1]) if n > 1), None)
        own = {v for v in self.made_for(op) if isinstance(v.type, Vector)}
        if axis is None or op.own or not is_in(op.memory, "global") or self.needed_bytes(own) <= self.most_bytes:
            return [op]
        out = self.builder
        out.locate = lambda: op.loc
        with out.region():
            for i in range(shape[axis]):
                x = _OnePart(self, own, i).of(op.x, axis)
                out.ops.append(replace(op, x=x, begin=self.begin(op, axis, i)))
            return out.ops

    def needed_bytes(self, own: set[Value]) -> int:
        """Return the bytes that a lane holds of results, and of the loads for them."""
        loaded = sum(held_bytes(v) for v in own if isinstance(self.defs[v], Load))
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

    def begin(self, op: Load | Store, axis: int, i: int) -> tuple[int, ...]:
        """Return the offset of the i-th slice of a load or store."""
        before = op.begin or (0,) * len(op.at)
        return tuple(far + i * step for far, step in zip(before, op.steps[axis], strict=True))


class _OnePart:
    """One slice of a result, and of the values that are computed for it alone."""

    def __init__(self, kernel: _Kernel, own: set[Value], i: int) -> None:
        self.kernel, self.own, self.i = kernel, own, i
        self.made: dict[tuple[Value, int], Value] = {}

    def of(self, v: Value, axis: int) -> Value:
        if (v, axis) not in self.made:
            self.made[v, axis] = self.fresh(v, axis)
        return self.made[v, axis]

    def fresh(self, v: Value, axis: int) -> Value:
        out, shape = self.kernel.builder, v.type.shape
        kind = Vector((*shape[:axis], 1, *shape[axis + 1 :]), v.type.dtype)
        if v not in self.own:
            return out.emit(ExtractSlice, v, axis, self.i, type=kind)
        op = self.kernel.defs[v]
        if isinstance(op, Load):
            op = replace(op, begin=self.kernel.begin(op, axis, self.i))
        else:
            op = substitute(op, {x: self.of(x, along) for x, along in _along(op, axis)})
        result = out.fresh(f"{v.name}_part", kind)
        out.ops.append(replace(op, results=(result,)))
        return result


def _along(op: Op, axis: int) -> Iterator[tuple[Value, int]]:
    """Yield the operands that run along an axis of the result, each with its corresponding axis."""
    if isinstance(op, OpaqueCopy):
        yield op.x, axis
    for pair in op.corresponding() or ():
        for (v, own), other in (pair, pair[::-1]):
            if other == (op.result, axis):
                yield v, own
