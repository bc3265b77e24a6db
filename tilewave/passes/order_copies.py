"""Of the tiles that a step brings, one that L2 does not keep, or that a cluster shares, is asked for first.

    copy_async_signal(%a, …)                copy_async_signal(%b, …)  // more than L2 keeps
    copy_async_signal(%b, …)            →   copy_async_signal(%a, …)

Workgroups that stand side by side begin a step at about the same time, and their requests for one line become one on
their way to L2 if they come together. What is asked for first comes together most: what stands behind it waits for as
long as that one takes, which differs. On an H200, 256x8192x8192 by 128x128 asks L2 for 7.8 million sectors where the
weights come first and for 8.7 where they come last, and is 1 to 2 % quicker; 256x4096x14336 by 64x128 is 8 % quicker,
and 1120x1888x6152, whose clusters share b, 2 to 3 %. Where L2 keeps both operands the order does not matter, or it is
the smaller tile that better comes first (1 % of 4096³ by 128x256), which is how kernels are written mostly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewave.analysis.streaming import NOTHING_STREAMED, Streamed
from tilewave.ir.core import Block, Kernel, Op
from tilewave.ir.ops import CopyAsyncCluster, SignalledCopy
from tilewave.ir.rewrite import map_blocks

LEAST_OTHER = 1 / 4
"""Of a tile's bytes, those of the others: smaller ones come before anybody has waited for them."""


@dataclass(frozen=True)
class OrderCopies:
    """Kernels one of whose waves brings tiles."""

    streamed: Streamed = NOTHING_STREAMED

    def __repr__(self) -> str:
        return "OrderCopies()"

    def __call__(self, kernel: Kernel) -> Kernel:
        return replace(kernel, body=self.ordered(kernel.body))

    def ordered(self, block: Block) -> Block:
        """With every run of copies in its order."""
        ops: list[Op] = []
        run: list[SignalledCopy] = []
        for op in block.ops:
            if isinstance(op, SignalledCopy):
                run.append(op)
            else:
                ops += [*self.first_first(run), map_blocks(op, self.ordered)]
                run = []
        return replace(block, ops=(*ops, *self.first_first(run)))

    def first_first(self, run: list[SignalledCopy]) -> list[SignalledCopy]:
        whole = sum(copy.box_bytes for copy in run)
        return sorted(run, key=lambda copy: not self.comes_first(copy, whole - copy.box_bytes))

    def comes_first(self, copy: SignalledCopy, others: int) -> bool:
        """Of a step that brings so many other bytes."""
        streams = copy.memory.name in self.streamed.arrays
        return isinstance(copy, CopyAsyncCluster) or (streams and others >= LEAST_OTHER * copy.box_bytes)
