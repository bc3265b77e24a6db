"""Sums of a product that are an operand of another are held as that one takes them, so that lanes exchange nothing.

    %s = mma(%k, %q, %zero)         →  %s = mma(%k, %q, %zero) {neighbours = rows, in_order = true}
    %p = cast(…(%s))                   …
    %o = mma(%v, %p, %acc)             %o = mma(%v, %p, %acc) {depth = 64, neighbours = rows}

The rows of %s are the depth of %o. Which of them a lane holds follows from the instruction, but nobody minds in which
order rows are multiplied: %k is read so that each lane has neighbours in its sums, %v so that it has the same ones.
%o holds along lanes what %s does, the columns: a factor for each of them, such as a softmax's, meets both as it is.
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


def chain_products(kernel: Kernel) -> Kernel:
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
    """Whether a wave has all of the depth, and a lane holds as many neighbours as the other instruction takes."""
    one, other = instruction_of(link.source), instruction_of(link.taker)
    if isinstance(one, GroupInstruction) or isinstance(other, GroupInstruction) or one.block != other.block:
        return False
    whole = waves[link.axis] == 1 and link.length & link.length - 1 == 0 and link.length >= one.rows
    return whole and one.fragment().many_behind_each_other(link.length) % other.fragment().neighbours == 0
