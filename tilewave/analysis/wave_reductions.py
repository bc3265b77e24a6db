"""Reductions across waves: each wave stores a value in shared memory; after a barrier every wave reduces all of them.

store(%own, %m, [%wave])  …  barrier()  …  %all = load(%m, …)  …  %found = reduce_registers(%all)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Barrier, Load, Reduction, Store
from tilewave.ir.placements import is_in
from tilewave.records import dataclass


@dataclass(frozen=True)
class WaveMeeting:
    """One cross-wave reduction: each wave's store, the barrier, the load, and the reductions of all waves' values."""

    store: Store
    barrier: Barrier
    load: Load
    reductions: tuple[Reduction, ...]

    @property
    def how(self) -> str:
        return self.reductions[0].how

    @property
    def own(self) -> Value:
        """The value that a wave stores."""
        return self.store.x

    @property
    def all(self) -> Value:
        return self.load.result

    @property
    def result(self) -> Value:
        return self.reductions[-1].result

    def is_read_like(self, other: WaveMeeting) -> bool:
        mine, its = self.load, other.load
        return (mine.result.type, mine.at, mine.steps) == (its.result.type, its.at, its.steps)

    def has_same_layout(self) -> bool:
        """Return whether the stored value and the loaded values have the shape of the result."""
        return self.own.type == self.result.type and self.all.type.shape[:1] == self.result.type.shape


class WaveMeetings:
    """Finds the cross-wave reductions of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.defs, self.users = kernel.defs, kernel.users

    def among(self, ops: Sequence[Op], instead: Collection[int]) -> Iterator[WaveMeeting]:
        """Yield reductions whose memory is stored once and loaded once, after the next barrier.

        `instead` has the ids of the ops that never run when `ops` do.
        """
        left: dict[Value, Store] = {}
        handed: dict[Value, tuple[Store, Barrier]] = {}
        for op in ops:
            match op:
                case Barrier(waves=0, over="shared"):
                    handed = {memory: (store, op) for memory, store in left.items()}
                    left = {}
                case Store(_, memory) if is_in(memory, "shared"):
                    if sum(id(user) not in instead for user in self.users[memory]) == 2:
                        left[memory] = op
                case Load(memory) if memory in handed:
                    reductions = tuple(self.reductions_of(op.result))
                    if reductions:
                        yield WaveMeeting(*handed[memory], op, reductions)
                case _:
                    pass  # no other op takes part in a cross-wave reduction

    def reductions_of(self, v: Value) -> Iterator[Reduction]:
        """Yield the chain of reductions of a value, as long as each is the only use."""
        while len(users := self.users[v]) == 1 and isinstance(users[0], Reduction):
            yield users[0]
            v = users[0].result

    def reduced_to(self, v: Value) -> tuple[Value, list[Reduction]]:
        """Return what a value was reduced from, and the reductions, last one first."""
        steps: list[Reduction] = []
        while isinstance(op := self.defs.get(v), Reduction):
            steps.append(op)
            v = op.x
        return v, steps

    def known_from(self, ops: Sequence[Op], first: WaveMeeting, second: WaveMeeting) -> list[Op] | None:
        """Return the ops between two barriers that depend on the first reduction; None where they, or other ops there,
        cannot be delayed until after the second barrier."""
        between = ops[place(ops, first.barrier) + 1 : place(ops, second.barrier)]
        found, made = [], set[Value]()
        for op in between:
            if op is first.load or (made.intersection(op.operands) and op is not second.store):
                found.append(op)
                made.update(op.results)
                if op.has_effect or (op.read and op is not first.load):
                    return None
            elif op is not second.store and (op.blocks or any(is_in(m, "shared") for m in (*op.read, *op.written))):
                return None
        return found


def place(ops: Sequence[Op], wanted: Op) -> int:
    return next(i for i, op in enumerate(ops) if op is wanted)
