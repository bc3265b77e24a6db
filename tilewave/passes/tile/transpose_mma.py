"""Transpose products: a · bᵀ is computed as b · aᵀ, with a permute, which costs nothing: it renames registers.

Three reasons, for a matrix unit whose groups of waves split the rows of products:

*Few rows.* A unit that takes 64 rows and any number of columns computes four times as much as 16 rows of activations
need; with the weights as its rows nothing is wasted. A loop that only accumulates keeps transposed sums:

    %sum = loop(%steps, [%zero]) : tile<16x64xf32> {      %sum_t = loop(%steps, [%zero_t]) : tile<64x16xf32> {
      %z = mma(%x, %w, %acc)                           →    %z_t = mma(%w, %x, %acc_t)
    }                                                     }
                                                          %sum = permute(%sum_t)

*Rows before an end.* The rows of a ragged grid's tile become columns although nothing is saved so, because
`narrow_mma` then leaves out those after the end of their group: a unit takes any number of columns, but 64 rows. Not
where lanes store the result, which takes their waves more stores for a transposed one.

*Reductions along rows.* Each wave then has whole columns of %s, and reduces them without other waves. A product with
such an accumulator as its second operand gets it as its first: both have the same rows then, in the same waves. Not
where rows of the accumulator stay the K of the product, which other waves then need, too.

    %s = mma(%k, %q, %zero)             →  %zero_t = permute(%zero);  %s_t = mma(%q, %k, %zero_t)
    %most = reduce(%s) {axes = [0]}        %s = permute(%s_t);  %most = reduce(%s) {axes = [0]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewave.analysis.bounded_rows import bounded_use
from tilewave.analysis.chains import links, sums_in
from tilewave.analysis.tile_programs import only_adds_up
from tilewave.ir.build import Builder
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Const, Loop, Mma, Permute, Reduce
from tilewave.ir.placements import is_row_aligned
from tilewave.ir.rewrite import names, rewrite, substitute_block, walk
from tilewave.ir.types import Tile
from tilewave.machine.chips import Chip
from tilewave.machine.matrix import GROUP_INSTRUCTIONS, instructions_for
from tilewave.records import dataclass

ONE_WAVE = (1, 1)


@dataclass(frozen=True)
class TransposeMma:
    """`by_tma`: whether TMA may store results."""

    machine: Chip
    by_tma: bool = True

    def __repr__(self) -> str:
        return f"TransposeMma({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        builder = Builder(names(kernel))
        ragged = set(self.with_bounded_rows(kernel))
        narrow = _with_transposed_loops(kernel, lambda op: self.saves(op) > -int(op.result in ragged), builder)
        found = set(_reduced_along_rows(narrow))
        if not found:
            return narrow

        def transpose(op: Op) -> list[Op] | None:
            return _transposed_op(op, builder) if isinstance(op, Mma) and op.result in found else None

        return rewrite(_with_transposed_loops(narrow, lambda op: op.result in found, builder), transpose)

    def with_bounded_rows(self, kernel: Kernel) -> Iterator[Value]:
        """Yield the products in loops whose rows are stored by TMA, before an end."""
        for op in walk(kernel.body):
            if isinstance(op, Loop) and only_adds_up(op):
                uses = [bounded_use(v, kernel) for v in op.results]
                if all(use is not None and self.stores_transposed(use.memory) for use in uses):
                    yield from (inner.result for inner in op.body.ops if isinstance(inner, Mma))

    def stores_transposed(self, memory: Value) -> bool:
        """Whether TMA may store tiles of a memory that are computed transposed: see `stage_epilogue`."""
        if not self.by_tma or self.machine.tma is None:
            return False
        rows_bytes = GROUP_INSTRUCTIONS[0].group.rows * memory.type.dtype.bytes
        is_chunk = rows_bytes == max(GROUP_INSTRUCTIONS[0].row_bytes)
        return is_chunk and is_row_aligned(memory, self.machine.tma.grain_bytes)

    def saves(self, op: Mma) -> int:
        """Return how many multiply-adds fewer the matrix unit computes for the transposed product."""
        rows, cols = op.acc.type.shape[-2:]
        a, b, acc = (v.type.dtype.name for v in (op.a, op.b, op.acc))
        depth = op.a.type.shape[-1]
        as_is, transposed = self.work((rows, cols, depth), (a, b, acc)), self.work((cols, rows, depth), (b, a, acc))
        return as_is - transposed if transposed is not None and as_is is not None else -1

    def work(self, box: tuple[int, int, int], dtypes: tuple[str, str, str]) -> int | None:
        """Return the multiply-adds that the matrix unit computes; None where it has no instruction for the dtypes."""
        found = instructions_for(self.machine.matrix, *dtypes)
        return min((prod(i.padded(box, i.waves(box[:2], ONE_WAVE, 1))) for i in found), default=None)


def _reduced_along_rows(kernel: Kernel) -> Iterator[Value]:
    """Yield the results of products whose accumulators are reduced along rows only, or are another's second operand."""
    along: dict[Value, set[int]] = {}
    """The axes along which the accumulator of each product is reduced, directly or through elementwise ops."""
    for op in walk(kernel.body):
        if isinstance(op, Reduce):
            for sums in (sums_in(op.x, axis, kernel.defs) for axis in op.axes):
                if sums:
                    along.setdefault(sums[0].result, set()).add(sums[1])
    chained = list(links(kernel))
    for link in chained:
        along.setdefault(link.source.result, set()).add(link.axis)
    found = {v for v, axes in along.items() if 0 in axes and 1 not in axes}
    yield from found
    for link in chained:  # as the first operand it has the taker's rows, unless its rows are the taker's K
        if link.side == 1 and (link.axis == 1 or link.source.result in found):
            yield link.taker.result


def _with_transposed_loops(kernel: Kernel, chosen: Callable[[Mma], bool], builder: Builder) -> Kernel:
    """Return the kernel with transposed sums in the loops that only accumulate, if all their products are chosen."""

    def transpose(op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Loop) or not only_adds_up(op):
            return None
        products = {inner.result: inner for inner in op.body.ops if isinstance(inner, Mma)}
        adds_to_all = products.keys() >= set(op.body.yielded)  # other carried values have no transpose
        if not adds_to_all or not all(map(chosen, products.values())):
            return None
        return _transposed_loop(op, kernel.defs, builder)

    return rewrite(kernel, transpose)


def _transposed_op(op: Mma, builder: Builder) -> list[Op]:
    kind = _transposed(op.acc)
    begin, sums = builder.fresh(f"{op.acc.name}_t", kind), builder.fresh(f"{op.result.name}_t", kind)
    return [
        Permute(op.acc, _axes(op.acc), results=(begin,), loc=op.loc),
        Mma(op.b, op.a, begin, op.wish, results=(sums,), loc=op.loc),
        Permute(sums, _axes(sums), results=op.results, loc=op.loc),
    ]


def _transposed_loop(loop: Loop, defs: Mapping[Value, Op], builder: Builder) -> list[Op]:
    """Return the loop on transposed sums, and the permutes that transpose them back after it."""
    counter, *carried = loop.body.args
    others = {v: builder.fresh(f"{v.name}_t", _transposed(v)) for v in carried}
    begins = [_begin(v, defs.get(v), loop, builder) for v in loop.init]
    for op in loop.body.ops:
        if isinstance(op, Mma):
            others[op.result] = builder.fresh(f"{op.result.name}_t", _transposed(op.result))
    ops = [
        Mma(op.b, op.a, others[op.acc], op.wish, results=(others[op.result],), loc=op.loc)
        if isinstance(op, Mma)
        else op
        for op in loop.body.ops
    ]
    body = substitute_block(replace(loop.body, args=(counter, *(others[v] for v in carried)), ops=tuple(ops)), others)
    results = tuple(builder.fresh(f"{v.name}_t", _transposed(v)) for v in loop.results)
    transposed = replace(loop, init=tuple(v for op in begins for v in op.results), body=body, results=results)
    ends = [Permute(t, _axes(t), results=(v,), loc=loop.loc) for t, v in zip(results, loop.results, strict=True)]
    return [*begins, transposed, *ends]


def _begin(v: Value, made: Op | None, loop: Loop, builder: Builder) -> Op:
    """Return the transposed initial value; a constant stays a constant, which later passes look for."""
    result = builder.fresh(f"{v.name}_t", _transposed(v))
    if isinstance(made, Const):
        return replace(made, results=(result,))
    return Permute(v, _axes(v), results=(result,), loc=loop.loc)


def _axes(v: Value) -> tuple[int, ...]:
    rank = len(v.type.shape)
    return (*range(rank - 2), rank - 1, rank - 2)


def _transposed(v: Value) -> Tile:
    return Tile(tuple(v.type.shape[axis] for axis in _axes(v)), v.type.dtype)
