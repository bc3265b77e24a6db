"""Compute an accumulator in the layout that the next product needs for its operand, so that lanes exchange nothing.

    %s = mma(%k, %q, %zero)         →  %s = mma(%k, %q, %zero) {neighbours = rows, in_order = true}
    %p = cast(…(%s))                   …
    %o = mma(%v, %p, %acc)             %o = mma(%v, %p, %acc) {depth = 64, neighbours = rows}

The rows of %s are the depth (K) of %o. The instruction decides which of them a lane holds, but the order in which K is
summed is free: %k is read so that each lane has neighbouring rows in its accumulator, and %v is read in the same order.
%o has the columns along lanes, as %s has: a factor per column, such as a softmax's, applies to both without conversion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.analysis.chains import Link, links
from tilewave.analysis.instructions import instruction_of
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Mma
from tilewave.ir.rewrite import rewrite
from tilewave.layouts.fragments import SIDES
from tilewave.machine.matrix import GroupInstruction


def chain_mma(kernel: Kernel) -> Kernel:
    chosen: dict[Value, Mma] = {}
    for link in links(kernel):
        if link.source.result not in chosen and _fits(link, kernel.waves):
            chosen[link.source.result] = replace(link.source, neighbours=SIDES[link.axis], in_order=True)
            taker = chosen.get(link.taker.result, link.taker)
            chosen[taker.result] = replace(taker, depth=link.length, neighbours=SIDES[1 - link.side])

    def choose(op: Op) -> Sequence[Op] | None:
        return [chosen[op.result]] if isinstance(op, Mma) and op.result in chosen else None

    return rewrite(kernel, choose) if chosen else kernel


def _fits(link: Link, waves: tuple[int, ...]) -> bool:
    """Whether one wave has the whole depth, and a lane holds as many neighbours as the other instruction needs."""
    one, other = instruction_of(link.source), instruction_of(link.taker)
    if isinstance(one, GroupInstruction) or isinstance(other, GroupInstruction) or one.block != other.block:
        return False
    whole = waves[link.axis] == 1 and link.length & link.length - 1 == 0 and link.length >= one.rows
    return whole and one.fragment().consecutive_rows(link.length) % other.fragment().neighbours == 0
