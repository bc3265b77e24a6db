"""Order the TMA loads of a step: a tile that L2 does not keep, or that a cluster multicasts, is issued first.

    tma_load(%a, …)                tma_load(%b, …)  // more than L2 keeps
    tma_load(%b, …)            →   tma_load(%a, …)

Neighbouring workgroups begin a step at about the same time, and their requests for one line are merged on the way to L2
if they arrive together. The first load of a step arrives together most often: later ones wait for as long as the first
one takes, which varies. Where L2 keeps both operands the order does not matter, or the smaller tile is better first,
which is the order in which most kernels are written. `LoadTuning.least_other` has the measurements.
"""

from __future__ import annotations

from dataclasses import replace

from tilewave.analysis.l2_residency import NOTHING_STREAMED, Streamed
from tilewave.ir.core import Block, Kernel, Op
from tilewave.ir.ops import TmaCopy, TmaLoadMulticast
from tilewave.ir.rewrite import rewrite_blocks, with_ops
from tilewave.machine.tuning import LoadTuning
from tilewave.records import dataclass


@dataclass(frozen=True)
class OrderTmaLoads:
    """Orders the TMA loads of producer warps; `streamed`: the arrays that L2 does not keep."""

    tuning: LoadTuning
    streamed: Streamed = NOTHING_STREAMED

    def __repr__(self) -> str:
        return "OrderTmaLoads()"

    def __call__(self, kernel: Kernel) -> Kernel:
        return replace(kernel, body=rewrite_blocks(kernel.body, self.ordered))

    def ordered(self, block: Block) -> Block:
        """Return the block with each run of TMA loads in order."""
        ops: list[Op] = []
        run: list[TmaCopy] = []
        for op in block.ops:
            if isinstance(op, TmaCopy):
                run.append(op)
            else:
                ops += [*self.first_first(run), op]
                run = []
        return with_ops(block, [*ops, *self.first_first(run)])

    def first_first(self, run: list[TmaCopy]) -> list[TmaCopy]:
        whole = sum(copy.box_bytes for copy in run)
        return sorted(run, key=lambda copy: not self.comes_first(copy, whole - copy.box_bytes))

    def comes_first(self, copy: TmaCopy, others: int) -> bool:
        """Whether `copy` is issued first in a step that loads `others` further bytes."""
        streams = copy.memory.name in self.streamed.arrays
        return isinstance(copy, TmaLoadMulticast) or (streams and others >= self.tuning.least_other * copy.box_bytes)
