"""Multicast: in how many iterations workgroups of a cluster load the same tile, and whether all have as many.

turn            0    1    2
workgroup 0   (0,0)(2,0)(4,0)      columns: 0 and 0, 0 and 0, 0 and none: they agree in 2 of 2 turns that both have,
workgroup 1   (1,0)(3,0)           and the second has a turn less
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewave.analysis.index_trace import CHUNK, IndexRun, Visit
from tilewave.interp.arithmetic import Array
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Loop, TmaLoad, Workgroup, Yield
from tilewave.ir.rewrite import walk
from tilewave.records import dataclass

MOST_TURNS = 256
"""The most iterations in which workgroups are compared; multicast groups agree from the first iterations on."""


@dataclass(frozen=True)
class MulticastPeers:
    """A multicast group: `shares` workgroups of a cluster, whose ranks are `apart` from each other."""

    members: int
    shares: int
    apart: int = 1

    def clusters(self, numbers: Array) -> Array:
        """Return numbers of workgroups, one row for each cluster, 0 for missing workgroups."""
        missing = np.zeros(-len(numbers) % self.members, numbers.dtype)
        rows: Array = np.concatenate([numbers, missing]).reshape(-1, self.members)
        return rows

    def groups(self, numbers: Array) -> Array:
        """Return numbers of workgroups, one row for each group that shares a multicast."""
        apart = self.clusters(numbers).reshape(-1, self.shares, self.apart)
        rows: Array = apart.swapaxes(1, 2).reshape(-1, self.shares)
        return rows


@dataclass(frozen=True)
class Agreement:
    """How many iterations all members of a multicast group have (`whole`), and in how many they load the same tile."""

    whole: int
    agree: int
    uneven: bool
    """Whether the first member of some cluster has an iteration more than another."""
    backwards: bool
    """Whether another member has an iteration more than the first."""
    is_complete: bool
    """Whether all iterations of all workgroups were compared."""


def compare(
    kernel: Kernel,
    before: Sequence[Op],
    turns: Loop | None,
    inside: Sequence[Op],
    at: Sequence[Value],
    peers: MulticastPeers,
) -> Agreement:
    """Return how the values `at` agree; ops `before` and `inside` the tile loop compute them."""
    loc = (turns or kernel.body.ops[0]).loc
    first = next(op for op in walk(kernel.body) if isinstance(op, TmaLoad))
    probe = TmaLoad(first.memory, tuple(at), first.to, (), first.mbarriers, first.mbarrier, (), loc=loc)
    ops: tuple[Op, ...] = (*inside, probe)
    if turns is not None:
        ops = (Loop(turns.trips, (), Block(turns.body.args[:1], (*ops, Yield((), loc=loc))), loc=loc),)
    body, count = Block(kernel.body.args, (*before, *ops)), kernel.workgroup_count
    run = _FirstTurns(Kernel(kernel.name, body, count), peers)
    last = count if turns is not None else min(count, CHUNK)  # without a tile loop, all have one iteration
    found = [run.agreement(np.arange(start, min(start + CHUNK, last))) for start in range(0, last, CHUNK)]
    uneven = any(a.uneven for a in found) or (turns is None and count % peers.members > 0)
    agree, whole, backwards = sum(a.agree for a in found), sum(a.whole for a in found), any(a.backwards for a in found)
    return Agreement(whole, agree, uneven, backwards, count <= CHUNK and all(a.is_complete for a in found))


class _FirstTurns(IndexRun):
    """Compares the first workgroups in their first iterations, and counts the iterations of all."""

    def __init__(self, kernel: Kernel, peers: MulticastPeers) -> None:
        super().__init__(kernel, {}, lambda op: isinstance(op, TmaLoad))
        self.peers = peers
        self.turns = np.zeros(0, np.int64)

    def loop(self, op: Loop, env: dict[Value, Any], w: Array) -> None:
        self.turns = np.broadcast_to(np.asarray(env[op.trips]), w.shape)
        few = np.minimum(self.turns, 0 if w[0] else MOST_TURNS)
        super().loop(op, {**env, op.trips: few}, w)

    def agreement(self, workgroups: Array) -> Agreement:
        self.turns = np.ones(len(workgroups), np.int64)
        looked_at = [self.compared(visit, workgroups) for visit in self.chunk(workgroups)]
        whole, agree = (sum(counts) for counts in zip((0, 0), *looked_at, strict=True))
        few, clusters = bool((self.turns <= MOST_TURNS).all()), self.peers.clusters(self.turns)
        first = clusters[:, :1]
        return Agreement(whole, agree, bool((clusters < first).any()), bool((clusters > first).any()), few)

    def compared(self, visit: Visit, workgroups: Array) -> tuple[int, int]:
        """Return how many groups have this iteration in all members, and how many of them agree."""
        here = np.zeros(len(workgroups), np.int64)
        here[visit.workgroups - workgroups[0]] = 1
        same = whole = self.peers.groups(here).astype(bool).all(1)
        for positions in visit.at:
            here[visit.workgroups - workgroups[0]] = positions
            groups = self.peers.groups(here)
            same = same & (groups == groups[:, :1]).all(1)
        return int(whole.sum()), int(same.sum())


def following(kernel: Kernel) -> set[Value]:
    """Return the values computed from the workgroup id; loop indices are not among them."""
    found: set[Value] = set()
    size = -1
    while size != len(found):
        size = len(found)
        for op in walk(kernel.body):
            if isinstance(op, Workgroup) or any(v in found for v in op.operands):
                found.update(op.results)
            if isinstance(op, Loop):
                found.update(arg for _, arg, later, start in op.carried if start in found or later in found)
                found.update(v for v, arg, *_ in op.carried if arg in found)
    return found
