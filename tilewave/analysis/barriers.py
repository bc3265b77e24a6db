"""Barriers that hand shared memory over: some wave may have stored there, or read, since the barrier before.

loop(%trips) do (%i) {
  barrier()                 # behind a store of the round before: handed over around the loop
  load(%s)
  barrier()                 # nothing was stored since the last one: hands nothing over
  store(%x, %s)
}
barrier()                   # behind the store of the last round: handed over, but not around the loop
"""

from __future__ import annotations

from enum import IntEnum

from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import AwaitAsync, Barrier, CopyAsyncChunks, Load, LoadEach, Loop, Store, StoreEach, While
from tilewave.ir.types import Memory

WRITES: tuple[type[Op], ...] = (Store, StoreEach)
READS_OR_WRITES: tuple[type[Op], ...] = (*WRITES, Load, LoadEach)


class Stored(IntEnum):
    """What may be under way; of two ways to the same place the greater counts."""

    NOTHING = 0
    AHEAD = 1
    """A store that stands ahead in the same round."""
    AROUND = 2
    """A store of an earlier round of a loop."""


class Handovers:
    """The barriers of a kernel in front of which one of these accesses to shared memory may still be under way.

    What is brought from memories named in `by_hand` is loaded into registers and stored, as any other store.
    """

    def __init__(
        self, kernel: Kernel, accesses: tuple[type[Op], ...] = WRITES, by_hand: frozenset[str] = frozenset()
    ) -> None:
        self._accesses, self._by_hand = accesses, by_hand
        self._found: dict[int, Stored] = {}
        self._walk(kernel.body, Stored.NOTHING)

    def __contains__(self, barrier: Barrier) -> bool:
        return self._found.get(id(barrier), Stored.NOTHING) > Stored.NOTHING

    def around_a_loop(self, barrier: Barrier) -> bool:
        """Whether that may be a store of an earlier round."""
        return self._found.get(id(barrier)) is Stored.AROUND

    def _walk(self, block: Block, stored: Stored) -> Stored:
        """What may be under way at the block's end, given that at its start."""
        for op in block.ops:
            if isinstance(op, Barrier) and op.waves != 1:  # one wave hands nothing over
                self._found[id(op)] = max(stored, self._found.get(id(op), Stored.NOTHING))
                stored = Stored.NOTHING
            elif self._is_access(op):
                stored = max(stored, Stored.AHEAD)
            for inner in op.blocks:
                behind = self._walk(inner, stored)
                if isinstance(op, (Loop, While)) and behind:
                    behind = self._walk(inner, Stored.AROUND)  # once more, behind its own end
                if isinstance(op, While) and behind:
                    behind = Stored.AROUND  # it is left at its head, where every round comes by
                stored = max(stored, behind)
        return stored

    def _is_access(self, op: Op) -> bool:
        if isinstance(op, CopyAsyncChunks):
            return op.memory.name in self._by_hand
        return isinstance(op, self._accesses) and any(_is_shared(v) for v in op.operands)


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
                case CopyAsyncChunks():
                    comes = True
                case AwaitAsync(pending):
                    comes = comes and pending > 0
            for inner in op.blocks:
                behind = self._walk(inner, comes)
                if isinstance(op, (Loop, While)):
                    behind = self._walk(inner, comes or behind)  # once more, behind its own end
                comes = comes or behind
        return comes


def _is_shared(memory: Value) -> bool:
    return isinstance(memory.type, Memory) and memory.type.space == "shared"
