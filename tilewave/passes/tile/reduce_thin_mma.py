"""Compute products with a single row or column by reductions: a matrix unit would multiply seven columns of padding.

    %sum = loop(%steps, [%zero]) : tile<4x1xf32> do (%i: index, %acc: tile<4x1xf32>) {
      %z = mma(%x, %y, %acc) : tile<4x1xf32>
    }
      →
    %sum_terms = loop(%steps, [%zeros]) : tile<4x1x1024xf32> do (%i: index, %acc_terms: tile<4x1x1024xf32>) {
      %terms = mul(broadcast(cast(%x)), broadcast(cast(%y))) : tile<4x1x1024xf32>
      %z = add(%acc_terms, %terms) : tile<4x1x1024xf32>
    }
    %sum = add(%zero, reduce(%sum_terms) {axes = [2], how = sum}) : tile<4x1xf32>

Such a product takes one multiplication for each element that is loaded, so it is as fast as memory, and lanes that load
rows need neither shared memory nor barriers. Each lane adds up its own terms, and lanes meet once, after the loop. Only
loops that add up one product are taken; a product whose instruction is named keeps it. Where a kernel has other
products, a matrix unit computes all of them: one may be an operand of the next, in the layout of its instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.analysis.tile_programs import adds_thin_product, needs_matrix_unit
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Add, Broadcast, Loop, Mma, Mul, Reduce
from tilewave.ir.rewrite import names, rewrite, substitute_block
from tilewave.ir.types import Tile


def reduce_thin_mma(kernel: Kernel) -> Kernel:
    builder = Builder(names(kernel))
    if needs_matrix_unit(kernel):
        return kernel

    def reduce(op: Op) -> Sequence[Op] | None:
        return _reduced(op, builder) if isinstance(op, Loop) and not kernel.matrix and adds_thin_product(op) else None

    return rewrite(kernel, reduce)


def _reduced(loop: Loop, builder: Builder) -> list[Op]:
    """Return the loop that adds up terms, and the sum of what it carries."""
    with builder.region():
        builder.locate = lambda: loop.loc
        (product,) = (op for op in loop.body.ops if isinstance(op, Mma))
        (init,), (result,), (counter, acc) = loop.init, loop.results, loop.body.args
        kind = Tile((*acc.type.shape, product.a.type.shape[-1]), acc.type.dtype)
        zeros = builder.const(0 if kind.dtype.is_int else 0.0, kind)
        carried, terms = builder.fresh(f"{acc.name}_terms", kind), builder.fresh(f"{result.name}_terms", kind)
        added = _added(product, carried, builder)
        ops = [new for op in loop.body.ops for new in (added if op is product else [op])]
        body = substitute_block(Block((counter, carried), tuple(ops)), {product.result: added[-1].results[0]})
        builder.ops.append(replace(loop, init=(zeros,), body=body, results=(terms,)))
        total = builder.emit(Reduce, terms, (len(kind.shape) - 1,), "sum", type=acc.type)
        return [*builder.ops, Add(init, total, results=(result,), loc=loop.loc)]


def _added(product: Mma, carried: Value, builder: Builder) -> list[Op]:
    """Return the ops that add the terms of a product to those that are carried."""
    with builder.region():
        builder.locate = lambda: product.loc
        *batch, rows, columns, depth = range(len(carried.type.shape))
        wide = [
            builder.emit(Broadcast, builder.cast(x, carried.type.dtype), (*batch, side, depth), type=carried.type)
            for x, side in ((product.a, rows), (product.b, columns))
        ]
        builder.binary(Add, carried, builder.binary(Mul, *wide))
        return builder.ops
