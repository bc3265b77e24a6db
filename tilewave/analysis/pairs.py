"""Neighbouring workgroups two by two: in how many turns they want the same, and whether both have as many.

turn            0    1    2
workgroup 0   (0,0)(2,0)(4,0)      columns: 0 and 0, 0 and 0, 0 and none: they agree in 2 of 2 pairs,
workgroup 1   (1,0)(3,0)           and the second has a turn less
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewave.analysis.visits import visits
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import CopyAsyncSignal, Loop, Workgroup, Yield
from tilewave.ir.rewrite import walk


@dataclass(frozen=True)
class Pairs:
    """Of all turns in which both members of a pair have a tile: how many there are, and in how many they agree."""

    both: int
    agree: int
    uneven: bool
    """Some first member has a turn more than the second."""
    backwards: bool
    """Some second member has a turn more than the first."""


def compare(
    kernel: Kernel, before: Sequence[Op], turns: Loop | None, inside: Sequence[Op], at: Sequence[Value]
) -> Pairs:
    """How the values `at` compare, which ops `before` and `inside` the loop over turns compute."""
    loc = (turns or kernel.body.ops[0]).loc
    first = next(op for op in walk(kernel.body) if isinstance(op, CopyAsyncSignal))
    probe = CopyAsyncSignal(first.memory, tuple(at), first.to, (), first.signals, first.signal, (), loc=loc)
    ops: tuple[Op, ...] = (*inside, probe)
    if turns is not None:
        ops = (Loop(turns.trips, (), Block(turns.body.args[:1], (*ops, Yield((), loc=loc))), loc=loc),)
    body = Block(kernel.body.args, (*before, *ops))
    both = agree = 0
    uneven = backwards = False
    for visit in visits(Kernel(kernel.name, body, kernel.workgroup_count), {}, (CopyAsyncSignal,)):
        here = np.zeros(kernel.workgroup_count + kernel.workgroup_count % 2, bool)
        here[visit.workgroups] = True
        one, other = here[0::2], here[1::2]
        uneven, backwards = uneven or bool((one & ~other).any()), backwards or bool((other & ~one).any())
        same = one & other
        both += int(same.sum())
        for positions in visit.at:
            whole = np.zeros(len(here), np.int64)
            whole[visit.workgroups] = positions
            same = same & (whole[0::2] == whole[1::2])
        agree += int(same.sum())
    return Pairs(both, agree, uneven, backwards)


def following(kernel: Kernel) -> set[Value]:
    """The values that may differ from workgroup to workgroup, beside what is loaded; turns and steps do not."""
    found: set[Value] = set()
    size = -1
    while size != len(found):
        size = len(found)
        for op in walk(kernel.body):
            if isinstance(op, Workgroup) or any(v in found for v in op.operands):
                found.update(op.results)
            if isinstance(op, Loop):
                ends = op.body.ops[-1]
                assert isinstance(ends, Yield)
                carried = zip(op.init, op.body.args[1:], ends.values, strict=True)
                found.update(arg for start, arg, later in carried if start in found or later in found)
                found.update(v for v, arg in zip(op.results, op.body.args[1:], strict=True) if arg in found)
    return found
