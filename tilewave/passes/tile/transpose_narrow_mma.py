"""Compute sums with fewer rows than a wgmma has as a transposed product, where that is less work.

    %sum = loop(%steps, [%zero]) : tile<16x64xf32> {      %sum_t = loop(%steps, [%zero_t]) : tile<64x16xf32> {
      %z = mma(%x, %w, %acc)                           →    %z_t = mma(%w, %x, %acc_t)
    }                                                     }
                                                          %sum = permute(%sum_t)

a · bᵀ is b · aᵀ transposed. A matrix unit that takes 64 rows and any number of columns computes four times as much as
16 rows of activations need; with the weights as its rows nothing is wasted. The permute costs nothing: it renames
registers, and lanes store what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewave.analysis.tile_programs import only_adds_up
from tilewave.ir.build import Builder
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Const, Loop, Mma, Permute
from tilewave.ir.rewrite import names, rewrite, substitute_block
from tilewave.ir.types import Tile
from tilewave.machine.chips import Chip
from tilewave.machine.matrix import instructions_for

ONE_WAVE = (1, 1)


@dataclass(frozen=True)
class TransposeNarrowMma:
    machine: Chip

    def __repr__(self) -> str:
        return f"TransposeNarrowMma({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        builder = Builder(names(kernel))

        def turn(op: Op) -> Sequence[Op] | None:
            if not isinstance(op, Loop) or not only_adds_up(op):
                return None
            products = {inner.result: inner for inner in op.body.ops if isinstance(inner, Mma)}
            adds_to_all = products.keys() >= set(op.body.ops[-1].operands)  # other carried values have no transpose
            if not adds_to_all or not all(map(self.pays, products.values())):
                return None
            return _transposed_loop(op, kernel.defs, builder)

        return rewrite(kernel, turn)

    def pays(self, op: Mma) -> bool:
        """Whether the matrix unit computes less for the transposed product."""
        rows, cols = op.acc.type.shape[-2:]
        a, b, acc = (v.type.dtype.name for v in (op.a, op.b, op.acc))
        depth = op.a.type.shape[-1]
        as_is, transposed = self.work((rows, cols, depth), (a, b, acc)), self.work((cols, rows, depth), (b, a, acc))
        return transposed is not None and as_is is not None and transposed < as_is

    def work(self, box: tuple[int, int, int], dtypes: tuple[str, str, str]) -> int | None:
        """Return the multiply-adds that the matrix unit computes; None where it has no instruction for the dtypes."""
        found = instructions_for(self.machine.matrix, *dtypes)
        return min((prod(i.padded(box, i.waves(box[:2], ONE_WAVE, 1))) for i in found), default=None)


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
