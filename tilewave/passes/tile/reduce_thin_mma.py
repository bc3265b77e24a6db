"""Compute products with few rows or columns by lanes: a matrix unit would multiply columns of padding.

    %sum = loop(%steps, [%zero]) : tile<4x1xf32> do (%i: index, %acc: tile<4x1xf32>) {
      %x = read(%a, [%m, %k]) : tile<4x1024xf16>
      %y = read(%b, [%n, %k]) : tile<1x1024xf16>
      %z = mma(%x, %y, %acc) : tile<4x1xf32>
    }
      →
    %sum_terms = loop(%steps, [%zeros]) : tile<4x1x256xf32> do (%i: index, %acc_terms: tile<4x1x256xf32>) {
      %x_slice = read(%a, [%m, %k]) : tile<4x256xf16>
      %y_slice = read(%b, [%n, %k]) : tile<1x256xf16>
      %terms = fma(broadcast(cast(%x_slice)), broadcast(cast(%y_slice)), %acc_terms) : tile<4x1x256xf32>
      …                                                      and so on for the other three slices of the depth
    }
    %sum = add(%zero, reduce(%sum_terms) {axes = [2], how = sum} : tile<4x1xf32>)

Such a product takes few multiplications for each element that is loaded, so it is as fast as memory, and lanes that
load rows need neither shared memory nor barriers. Each lane adds up its own terms, of one slice of the depth after the
other, so that all slices of a step are in flight at once, and lanes meet once, after the loop. Where the longer operand
is contiguous along its rows, and not along the depth, the terms are too: neighbouring lanes load what is contiguous.

Only loops that add up one product are taken; a product whose instruction is named keeps it. Where a kernel has other
products, a matrix unit computes all of them: one may be an operand of the next, in the layout of its instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewave.analysis.thin_products import ThinLanes, made_from, thin_tile
from tilewave.analysis.tile_programs import adds_thin_product, needs_matrix_unit
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.dead_code import eliminate_dead_code
from tilewave.ir.ops import Add, Broadcast, Fma, Loop, Mma, Mul, Permute, Reduce
from tilewave.ir.rewrite import names, rewrite, substitute_block, walk
from tilewave.ir.types import F32, Tile
from tilewave.machine.chips import Chip
from tilewave.records import dataclass


@dataclass(frozen=True)
class ReduceThinMma:
    machine: Chip

    def __repr__(self) -> str:
        return f"ReduceThinMma({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        loops = [op for op in walk(kernel.body) if isinstance(op, Loop) and adds_thin_product(op)]
        if needs_matrix_unit(kernel) or kernel.matrix or not loops:
            return kernel
        builder, shared = Builder(names(kernel)), {loop.results: self.lanes(loop, kernel) for loop in loops}

        def reduce(op: Op) -> Sequence[Op] | None:
            if not isinstance(op, Loop) or op.results not in shared:
                return None
            return _ThinLoop(op, kernel, shared[op.results], builder).ops()

        reduced = eliminate_dead_code(rewrite(kernel, reduce))
        most = max(shared.values(), key=lambda one: one.waves)
        return reduced if kernel.waves else replace(reduced, waves=(most.waves, 1), resident=most.resident)

    def lanes(self, loop: Loop, kernel: Kernel) -> ThinLanes:
        tile = thin_tile(_product(loop), kernel.defs)
        return ThinLanes.of(self.machine, tile, kernel.vector_bytes, prod(kernel.waves or (0,)))


def _product(loop: Loop) -> Mma:
    (product,) = (op for op in loop.body.ops if isinstance(op, Mma))
    return product


class _ThinLoop:
    """A loop that adds up terms instead of a product, and the sum of what it carries."""

    def __init__(self, loop: Loop, kernel: Kernel, lanes: ThinLanes, builder: Builder) -> None:
        self.loop, self.builder, self.product = loop, builder, _product(loop)
        made = (made_from(v, kernel.defs) for v in (self.product.a, self.product.b))
        self.made = [one for one in made if one is not None and not one.read.within]
        self.is_sliced = len(self.made) > 1
        self.depth = lanes.depth if self.is_sliced else self.product.a.type.shape[-1]
        *batch, _, _ = self.product.acc.type.shape
        self.axes = (*range(len(batch)), *(len(batch) + axis for axis in lanes.axes))
        """The axes of the product, with the depth as the last one, in the order of the terms."""
        whole = (*self.product.acc.type.shape, self.depth)
        self.kind = Tile(tuple(whole[axis] for axis in self.axes), self.product.acc.type.dtype)

    def ops(self) -> list[Op]:
        with self.builder.region():
            self.builder.locate = lambda: self.loop.loc
            (init,), (result,), (counter, acc) = self.loop.init, self.loop.results, self.loop.body.args
            zeros = self.builder.const(0 if self.kind.dtype.is_int else 0.0, self.kind)
            carried, terms = (self.builder.fresh(f"{v.name}_terms", self.kind) for v in (acc, result))
            body = self.body(Block((counter, carried), self.loop.body.ops), carried)
            self.builder.ops.append(replace(self.loop, init=(zeros,), body=body, split=1, results=(terms,)))
            total = self.total(terms)
            return [*self.builder.ops, Add(init, total, results=(result,), loc=self.loop.loc)]

    def body(self, old: Block, carried: Value) -> Block:
        """Return the body with the terms of all slices in place of the product."""
        with self.builder.region():
            self.builder.locate = lambda: self.product.loc
            slices = range(0, self.product.a.type.shape[-1], self.depth)
            factors = [[self.factor(side, at) for side in (0, 1)] for at in slices]
            for a, b in factors:
                carried = self.added(a, b, carried)
            added = self.builder.ops
        ops = [new for op in old.ops for new in (added if op is self.product else [op])]
        return substitute_block(replace(old, ops=tuple(ops)), {self.product.result: carried})

    def factor(self, side: int, begin: int) -> Value:
        """Return the terms' factors of one operand, from `begin` on along the depth."""
        x, *batch = (self.product.a, self.product.b)[side], *range(len(self.axes) - 3)
        x = self.builder.cast(self.slice(side, begin) if self.is_sliced else x, self.kind.dtype)
        mine = (*batch, len(batch) + side, len(batch) + 2)
        axes = tuple(sorted(self.axes.index(axis) for axis in mine))
        return self.builder.emit(Broadcast, self.ordered(x, mine), axes, type=self.kind)

    def ordered(self, x: Value, mine: Sequence[int]) -> Value:
        """Return an operand with its axes, which are `mine` of the product's, in the order of the terms."""
        order = tuple(sorted(range(len(mine)), key=lambda i: self.axes.index(mine[i])))
        if order == tuple(range(len(mine))):
            return x
        return self.builder.emit(Permute, x, order, type=Tile(tuple(x.type.shape[i] for i in order), x.type.dtype))

    def slice(self, side: int, begin: int) -> Value:
        """Emit the read of a slice of an operand from `begin` on along the depth, and its casts."""
        b, read = self.builder, self.made[side].read
        *shape, _ = read.result.type.shape
        at, along = list(read.at), read.axes[-1]
        at[along] = (Number(b, at[along]) + begin).value if begin else at[along]
        x = b.fresh(f"{read.result.name}_slice", Tile((*shape, self.depth), read.result.type.dtype))
        b.ops.append(replace(read, at=tuple(at), through="", ahead=(), results=(x,)))
        for cast in self.made[side].casts:
            x = b.cast(x, cast.result.type.dtype)
        return x

    def added(self, a: Value, b: Value, terms: Value) -> Value:
        """Return the terms with the products of two tiles of factors added."""
        if self.kind.dtype == F32:
            return self.builder.elementwise(Fma, a, b, terms)
        return self.builder.binary(Add, terms, self.builder.binary(Mul, a, b))

    def total(self, terms: Value) -> Value:
        """Return the sums of all terms, with rows and columns in the product's order."""
        rank = len(self.axes)
        kept = [axis for axis in self.axes if axis != rank - 1]
        shape = self.product.acc.type.shape
        kind = Tile(tuple(shape[axis] for axis in kept), self.kind.dtype)
        found = self.builder.emit(Reduce, terms, (self.axes.index(rank - 1),), "sum", type=kind)
        if kept == sorted(kept):
            return found
        back = tuple(kept.index(axis) for axis in range(rank - 1))
        return self.builder.emit(Permute, found, back, type=self.product.acc.type)
