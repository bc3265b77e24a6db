"""Transpose a product whose accumulator is reduced along rows, where waves split the rows of products.

    %s = mma(%k, %q, %zero)             →  %zero_t = permute(%zero);  %s_t = mma(%q, %k, %zero_t)
    %most = reduce(%s) {axes = [0]}        %s = permute(%s_t);  %most = reduce(%s) {axes = [0]}

a · bᵀ is b · aᵀ transposed, and a permute costs nothing: it renames registers. Each wave then has whole columns of %s,
and reduces them without other waves. A product with such an accumulator as its second operand gets it as its first
operand instead: both have the same rows then, in the same waves.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewave.analysis.chains import links, sums_in
from tilewave.ir.build import Builder
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Mma, Permute, Reduce
from tilewave.ir.rewrite import names, rewrite, walk
from tilewave.ir.types import Tile, Type


def transpose_mma(kernel: Kernel) -> Kernel:
    found = set(_candidates(kernel))
    builder = Builder(names(kernel))

    def turn(op: Op) -> list[Op] | None:
        return _transposed_op(op, builder) if isinstance(op, Mma) and op.result in found else None

    return rewrite(kernel, turn) if found else kernel


def _candidates(kernel: Kernel) -> Iterator[Value]:
    """Yield the results of the products to transpose."""
    along: dict[Value, set[int]] = {}
    """The axes along which the accumulator of each product is reduced, directly or through elementwise ops."""
    for op in walk(kernel.body):
        if isinstance(op, Reduce):
            for sums in (sums_in(op.x, axis, kernel.defs) for axis in op.axes):
                if sums:
                    along.setdefault(sums[0].result, set()).add(sums[1])
    for link in links(kernel):
        along.setdefault(link.source.result, set()).add(link.axis)
        if link.side == 1:
            yield link.taker.result
    yield from (v for v, axes in along.items() if 0 in axes and 1 not in axes)


def _transposed_op(op: Mma, builder: Builder) -> list[Op]:
    rank = len(op.acc.type.shape)
    axes = (*range(rank - 2), rank - 1, rank - 2)
    kind = _permuted(op.acc.type, axes)
    begin, sums = builder.fresh(f"{op.acc.name}_transposed", kind), builder.fresh(f"{op.result.name}_transposed", kind)
    return [
        Permute(op.acc, axes, results=(begin,), loc=op.loc),
        Mma(op.b, op.a, begin, op.wish, results=(sums,), loc=op.loc),
        Permute(sums, axes, results=op.results, loc=op.loc),
    ]


def _permuted(kind: Type, axes: tuple[int, ...]) -> Tile:
    return Tile(tuple(kind.shape[axis] for axis in axes), kind.dtype)
