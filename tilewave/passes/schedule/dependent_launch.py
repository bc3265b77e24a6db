"""Programmatic dependent launch (PDL): a kernel starts while the previous one ends, and waits before it uses memory.

    role(consumers) { … }          role(consumers) { wait_prior_launch() … }
    role(producer) { … }       →   role(producer) { wait_prior_launch() launch_dependents() … }

Mbarriers, registers and scalars are then ready when the last results of the previous kernel arrive, which takes a while
from kernel to kernel. Every wave that accesses global memory waits itself, so nothing depends on an order of waves.
Where lanes load all tiles, all waves wait before the first access.

It pays for short kernels, in which each workgroup computes one tile. Kernels of several waves are unchanged: they gain
nothing, and stream-K kernels lose a little. Where the launch decides how many waves there are, the
waits are there, and cost nothing unless the launch asks for PDL.

Workgroups that start early take any SM that becomes free, in no order. Where neighbours need the same tiles of an
operand that L2 cannot keep, this costs more than it gains, and the kernel is unchanged, too: it starts when the
previous one has ended, whichever that is (`analysis/l2_residency.py`).
"""

from __future__ import annotations

from dataclasses import replace

from tilewave.analysis.l2_residency import NOTHING_STREAMED, Streamed
from tilewave.analysis.multicast import MulticastPeers
from tilewave.analysis.producer_roles import CopyProgram
from tilewave.ir.core import Block, Kernel, Op
from tilewave.ir.launch import bind
from tilewave.ir.ops import LaunchDependents, Loop, Role, TmaLoad, WaitPriorLaunch, While
from tilewave.ir.remarks import Left
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory
from tilewave.records import dataclass


@dataclass(frozen=True)
class DependentLaunch:
    """Adds PDL to kernels in which each workgroup computes one tile, or several where the launch decides that."""

    streamed: Streamed = NOTHING_STREAMED

    def __repr__(self) -> str:
        return "DependentLaunch()"

    def __call__(self, kernel: Kernel) -> Kernel:
        waits = any(isinstance(op, WaitPriorLaunch) for op in walk(kernel.body))
        most = 2 if isinstance(kernel.workgroups, str) else 1
        loops = _loops_around_copies(kernel.body)
        if waits or (loops or 0) > most or self.streams_to_neighbours(kernel):
            return kernel
        by_lanes = [LaunchDependents()] if loops is None else []
        ops: list[Op] = []
        for at, op in enumerate(kernel.body.ops):
            if not _touches(op):
                ops.append(op)
            elif isinstance(op, Role):
                ops.append(replace(op, body=replace(op.body, ops=(*_waits(op, op.body), *op.body.ops))))
            else:
                rest = kernel.body.ops[at:]
                ops += [*_waits(op, Block((), rest)), *(replace(one, loc=op.loc) for one in by_lanes), *rest]
                break
        return replace(kernel, body=replace(kernel.body, ops=tuple(ops)))

    def streams_to_neighbours(self, kernel: Kernel) -> bool:
        """Whether neighbours need the same tiles of an operand that L2 cannot keep, without multicast."""
        if kernel.cluster > 1 or not self.streamed.arrays or not any(isinstance(op, Role) for op in kernel.body.ops):
            return False
        try:
            program = CopyProgram.of(bind(kernel, self.streamed.sizes))
            large = [memory.name for memory in program.memories if memory.name in self.streamed.arrays]
            found = [program.compared(program.wanted(name)[1], MulticastPeers(2, 2)) for name in large]
        except Left:
            return False
        return any(2 * pairs.agree >= pairs.whole > 0 for pairs in found)


def _loops_around_copies(block: Block) -> int | None:
    """Return the largest number of loops around a TMA load; None where there is none."""
    found = [0] if any(isinstance(op, TmaLoad) for op in block.ops) else []
    for op in block.ops:
        inside = [n for inner in op.blocks if (n := _loops_around_copies(inner)) is not None]
        found += [n + isinstance(op, (Loop, While)) for n in inside]
    return max(found, default=None)


def _waits(where: Op, after: Block) -> list[Op]:
    """Return the wait for the previous launch, and after it, where `after` copies, the launch of dependents."""
    copies = any(isinstance(op, TmaLoad) for op in walk(after))
    return [WaitPriorLaunch(loc=where.loc), *([LaunchDependents(loc=where.loc)] if copies else [])]


def _touches(op: Op) -> bool:
    """Whether `op`, or an op inside it, accesses global memory."""
    inside = (op, *(inner for block in op.blocks for inner in walk(block)))
    memories = (v.type for each in inside for v in each.operands if isinstance(v.type, Memory))
    return any(memory.space == "global" for memory in memories)
