"""Barriers that hand shared memory over: some wave may have stored there, or read, since the barrier before."""

from __future__ import annotations

from tilewave.ir.core import Block, Kernel, Op
from tilewave.ir.ops import AwaitBrought, Barrier, BringChunks, Load, LoadEach, Loop, Store, StoreEach, While
from tilewave.ir.types import Memory

WRITES: tuple[type[Op], ...] = (Store, StoreEach)
READS_OR_WRITES: tuple[type[Op], ...] = (*WRITES, Load, LoadEach)


class Handovers:
    """The barriers of a kernel in front of which one of these accesses to shared memory may still be under way."""

    def __init__(self, kernel: Kernel, accesses: tuple[type[Op], ...] = WRITES) -> None:
        self._accesses = accesses
        self._found: set[int] = set()
        self._walk(kernel.body, False)

    def __contains__(self, barrier: Barrier) -> bool:
        return id(barrier) in self._found

    def _walk(self, block: Block, stored: bool) -> bool:
        """Whether something may have been stored since the last barrier at the block's end, given that at its start."""
        for op in block.ops:
            if isinstance(op, Barrier) and op.waves != 1:  # one wave hands nothing over
                if stored:
                    self._found.add(id(op))
                stored = False
            elif isinstance(op, self._accesses):
                assert isinstance(op, (Store, StoreEach, Load, LoadEach))
                stored = stored or (isinstance(op.memory.type, Memory) and op.memory.type.space == "shared")
            for inner in op.blocks:
                behind = self._walk(inner, stored)
                if isinstance(op, (Loop, While)):
                    behind = self._walk(inner, stored or behind)  # once more, behind its own end
                stored = stored or behind
        return stored


class Transits:
    """The barriers of a kernel at which something that a wave brings may still be on its way."""

    def __init__(self, kernel: Kernel) -> None:
        self._found: set[int] = set()
        self._walk(kernel.body, False)

    def __contains__(self, barrier: Barrier) -> bool:
        return id(barrier) in self._found

    def _walk(self, block: Block, comes: bool) -> bool:
        """Whether something may be on its way at the block's end, given that at its start."""
        for op in block.ops:
            match op:
                case Barrier() if comes:
                    self._found.add(id(op))
                case BringChunks():
                    comes = True
                case AwaitBrought(pending):
                    comes = comes and pending > 0
            for inner in op.blocks:
                behind = self._walk(inner, comes)
                if isinstance(op, (Loop, While)):
                    behind = self._walk(inner, comes or behind)  # once more, behind its own end
                comes = comes or behind
        return comes
