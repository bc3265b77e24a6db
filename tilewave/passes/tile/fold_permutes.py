"""Fold a permute into the read before it: the tile is read in the permuted order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Gather, Permute, Read
from tilewave.ir.rewrite import rewrite, uses, walk


def fold_permutes(kernel: Kernel) -> Kernel:
    used = uses(kernel)
    reads = {op.result for op in walk(kernel.body) if isinstance(op, (Read, Gather)) and used[op.result] == 1}
    transposed: dict[Value, Permute] = {
        op.x: op for op in walk(kernel.body) if isinstance(op, Permute) and op.x in reads
    }

    def orient(op: Op) -> Sequence[Op] | None:
        match op:
            case Permute(x) if x in transposed:
                return []
            case Read() if op.result in transposed:
                permute = transposed[op.result]
                axes = tuple(op.axes[a] for a in permute.axes)
                return [replace(op, axes=axes, results=permute.results)]
            case Gather(where=where) if op.result in transposed:
                permute = transposed[op.result]
                args = tuple(where.args[a] for a in permute.axes)
                return [replace(op, where=Block(args, where.ops), results=permute.results)]
            case _:
                return None

    # Again, because a read with two permutes has one left now.
    return fold_permutes(rewrite(kernel, orient)) if transposed else kernel
