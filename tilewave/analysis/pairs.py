"""Neighbouring workgroups two by two: in how many turns they want the same, and whether both have as many.

turn            0    1    2
workgroup 0   (0,0)(2,0)(4,0)      columns: 0 and 0, 0 and 0, 0 and none: they agree in 2 of 2 pairs,
workgroup 1   (1,0)(3,0)           and the second has a turn less
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewave.analysis.visits import CHUNK, IndexRun, Visit
from tilewave.interp.arithmetic import Array
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import CopyAsyncSignal, Loop, Workgroup, Yield
from tilewave.ir.rewrite import walk

MOST_TURNS = 256
"""In which workgroups are compared: what they share, they share from the first turns on."""


@dataclass(frozen=True)
class Pairs:
    """Of all turns in which both members of a pair have a tile: how many there are, and in how many they agree."""

    both: int
    agree: int
    uneven: bool
    """Some first member has a turn more than the second."""
    backwards: bool
    """Some second member has a turn more than the first."""
    is_complete: bool
    """Whether all turns of all workgroups were looked at."""


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
    body, count = Block(kernel.body.args, (*before, *ops)), kernel.workgroup_count
    run = _FirstTurns(Kernel(kernel.name, body, count))
    last = count if turns is not None else min(count, CHUNK)  # without turns, all have one
    found = [run.pairs(np.arange(start, min(start + CHUNK, last))) for start in range(0, last, CHUNK)]
    uneven = any(p.uneven for p in found) or (turns is None and count % 2 == 1)
    agree, both, backwards = sum(p.agree for p in found), sum(p.both for p in found), any(p.backwards for p in found)
    return Pairs(both, agree, uneven, backwards, count <= CHUNK and all(p.is_complete for p in found))


class _FirstTurns(IndexRun):
    """Looks at the first workgroups in their first turns, and at how many turns each of the others has."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel, {}, lambda op: isinstance(op, CopyAsyncSignal))
        self.turns = np.zeros(0, np.int64)

    def loop(self, op: Loop, env: dict[Value, Any], w: Array) -> None:
        self.turns = np.broadcast_to(np.asarray(env[op.trips]), w.shape)
        few = np.minimum(self.turns, 0 if w[0] else MOST_TURNS)
        super().loop(op, {**env, op.trips: few}, w)

    def pairs(self, workgroups: Array) -> Pairs:
        self.turns = np.ones(len(workgroups), np.int64)
        looked_at = [_compared(visit, workgroups) for visit in self.chunk(workgroups)]
        one, other = _in_pairs(self.turns)
        both, agree = (sum(counts) for counts in zip((0, 0), *looked_at, strict=True))
        few = bool((self.turns <= MOST_TURNS).all())
        return Pairs(both, agree, bool((one > other).any()), bool((one < other).any()), few)


def _compared(visit: Visit, workgroups: Array) -> tuple[int, int]:
    """Of the pairs that both have this turn, how many there are, and how many agree."""
    here = np.zeros(len(workgroups), np.int64)
    here[visit.workgroups - workgroups[0]] = 1
    one, other = _in_pairs(here)
    same = both = (one & other).astype(bool)
    for positions in visit.at:
        here[visit.workgroups - workgroups[0]] = positions
        one, other = _in_pairs(here)
        same = same & (one == other)
    return int(both.sum()), int(same.sum())


def _in_pairs(numbers: Array) -> tuple[Array, Array]:
    """The numbers of the first of each pair, and of the second, which is 0 where there is none."""
    whole = np.append(numbers, np.zeros(len(numbers) % 2, numbers.dtype))
    return whole[0::2], whole[1::2]


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
