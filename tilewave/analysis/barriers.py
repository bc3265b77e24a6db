"""Barriers that order accesses to shared memory: some wave may have stored or read there since the previous barrier.

loop(%trips) do (%i) {
  barrier()                 # after a store of the previous iteration: needed, across the back edge
  load(%s)
  barrier()                 # nothing was stored since the previous barrier: not needed for stores
  store(%x, %s)
}
barrier()                   # after the store of the last iteration: needed, but not across the back edge
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Barrier, CopyAsyncChunks, Loop, WaitAsync, While
from tilewave.ir.placements import is_in

Touched = Callable[[Op], tuple[Value, ...]]


def written_by_lanes(op: Op) -> tuple[Value, ...]:
    """Return the memories that lanes store to; asynchronous copies that bypass registers are left out."""
    return () if op.passes_lanes_by else op.written


def touched_by_lanes(op: Op) -> tuple[Value, ...]:
    return () if op.passes_lanes_by else (*op.written, *op.read)


class Stored(IntEnum):
    """Which accesses may be pending; where two paths join, the greater one counts."""

    NOTHING = 0
    AHEAD = 1
    """A store earlier in the same iteration."""
    AROUND = 2
    """A store of an earlier iteration of a loop."""


class Handovers:
    """The barriers of a kernel at which an access to shared memory, as selected by `touched`, may be pending.

    Asynchronous copies from memories named in `by_hand` are loads into registers and stores, so they count as stores.
    """

    def __init__(
        self, kernel: Kernel, touched: Touched = written_by_lanes, by_hand: frozenset[str] = frozenset()
    ) -> None:
        self._touched, self._by_hand = touched, by_hand
        self._found: dict[int, Stored] = {}
        self._walk(kernel.body, Stored.NOTHING)

    def __contains__(self, barrier: Barrier) -> bool:
        return self._found.get(id(barrier), Stored.NOTHING) > Stored.NOTHING

    def around_a_loop(self, barrier: Barrier) -> bool:
        """Return whether a store of an earlier iteration may be pending at a barrier."""
        return self._found.get(id(barrier)) is Stored.AROUND

    def _walk(self, block: Block, stored: Stored) -> Stored:
        """Return which accesses may be pending at the block's end, given those at its start."""
        for op in block.ops:
            if isinstance(op, Barrier) and op.waves != 1:  # a barrier of one wave orders nothing between waves
                self._found[id(op)] = max(stored, self._found.get(id(op), Stored.NOTHING))
                stored = Stored.NOTHING
            elif self._is_access(op):
                stored = max(stored, Stored.AHEAD)
            for inner in op.blocks:
                after = self._walk(inner, stored)
                if isinstance(op, (Loop, While)) and after:
                    after = self._walk(inner, Stored.AROUND)  # a second pass, for accesses across the back edge
                if isinstance(op, While) and after:
                    after = Stored.AROUND  # a while loop exits at its condition, after the back edge
                stored = max(stored, after)
        return stored

    def _is_access(self, op: Op) -> bool:
        if isinstance(op, CopyAsyncChunks):
            return op.memory.name in self._by_hand
        return any(is_in(v, "shared") for v in self._touched(op))


class Transits:
    """The barriers of a kernel at which an asynchronous copy may still be in flight."""

    def __init__(self, kernel: Kernel) -> None:
        self._found: set[int] = set()
        self._walk(kernel.body, False)

    def __contains__(self, barrier: Barrier) -> bool:
        return id(barrier) in self._found

    def _walk(self, block: Block, comes: bool) -> bool:
        """Return whether a copy may be in flight at the block's end, given whether one is at its start."""
        for op in block.ops:
            match op:
                case Barrier() if comes:
                    self._found.add(id(op))
                case CopyAsyncChunks():
                    comes = True
                case WaitAsync(pending):
                    comes = comes and pending > 0
                case _:
                    pass  # no other op starts an asynchronous copy or waits for one
            for inner in op.blocks:
                after = self._walk(inner, comes)
                if isinstance(op, (Loop, While)):
                    after = self._walk(inner, comes or after)  # a second pass, for copies across the back edge
                comes = comes or after
        return comes
