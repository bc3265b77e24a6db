"""Warp-specialized kernels: what decides which tiles a workgroup's producer loads, for multicast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tilewave.analysis.multicast import Agreement, MulticastPeers, compare, following
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.launch import is_open, open_sizes
from tilewave.ir.ops import Barrier, Const, Elementwise, Loop, Role, TmaLoad, Workgroup
from tilewave.ir.remarks import Left, RemarkKind, want
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory, Scalar
from tilewave.records import dataclass

OPEN_SIZES = RemarkKind(
    "{symbol} is dynamic, so it is not known which neighbours need the same tiles, and loads are not multicast",
    "give {symbol} a value in subs",
)
OTHER_FORM = RemarkKind(
    "tiles are not loaded in one loop with the same trip count in all workgroups, so loads are not multicast"
)
ELSEWHERE = RemarkKind(
    "the position of tiles of {memory} depends on more than the workgroup index and the step, so its loads are not "
    "multicast"
)
AnyProgram = TypeVar("AnyProgram", bound="CopyProgram")


@dataclass(frozen=True)
class CopyProgram:
    """A warp-specialized kernel with two roles, and its loop over tiles, if it is persistent."""

    kernel: Kernel
    own: Workgroup
    consumer: Role
    producer: Role
    turns: Loop | None
    steps: Loop
    differs: frozenset[Value]
    """Values that depend on the workgroup id."""

    @classmethod
    def of(cls: type[AnyProgram], kernel: Kernel) -> AnyProgram:
        """Return the parts of a kernel; raise `Left` where it has another form."""
        roles = [op for op in kernel.body.ops if isinstance(op, Role)]
        owns = [op for op in walk(kernel.body) if isinstance(op, Workgroup)]
        barriers = [op for op in kernel.body.ops if isinstance(op, Barrier)]
        for v in kernel.body.args:
            want(isinstance(v.type, Memory) or v.name in open_sizes(kernel), OPEN_SIZES, roles[0].loc, symbol=v.name)
        loc = roles[0].loc
        one = len(roles) == 2 and len(owns) == 1 and owns[0] in kernel.body.ops and len(barriers) == 1
        want(one, OTHER_FORM, loc)
        consumer, producer = roles
        differs = frozenset(following(kernel))
        path = _path(producer.body)
        if not path:
            raise Left(OTHER_FORM.at(loc))
        want(all(isinstance(op, Loop) for op in path), OTHER_FORM, loc)
        *around, steps = path
        turns = around[0] if around else None
        want(not any(isinstance(op, Loop) and op.trips in differs for op in around[1:]), OTHER_FORM, loc)
        assert isinstance(steps, Loop) and (turns is None or isinstance(turns, Loop))
        program = cls(kernel, owns[0], consumer, producer, turns, steps, differs)
        want(program.takes_equal_steps, OTHER_FORM, loc)
        return program

    @property
    def copies(self) -> list[TmaLoad]:
        return [op for op in walk(self.producer.body) if isinstance(op, TmaLoad)]

    @property
    def memories(self) -> list[Value]:
        return list(dict.fromkeys(op.memory for op in self.copies))

    @property
    def tops(self) -> tuple[Op, ...]:
        return self.kernel.body.ops

    @property
    def made(self) -> dict[Value, Op]:
        """The ops that compute scalars outside of the K loop."""
        inside = [*self.producer.body.ops, *(self.turns.body.ops if self.turns else ())]
        outside = [op for op in (*self.tops, *inside) if isinstance(op, (Const, Workgroup, Elementwise))]
        return {op.result: op for op in outside if all(isinstance(v.type, Scalar) for v in op.results)}

    @property
    def takes_equal_steps(self) -> bool:
        """Whether neighbours have equally many steps in every iteration of the tile loop; all are checked."""
        if self.steps.trips not in self.differs:
            return True
        if is_open(self.kernel) or not _computed([self.steps.trips], self.made, self.differs):
            return False
        of_all = self.compared([self.steps.trips], MulticastPeers(2, 2))
        return of_all.is_complete and of_all.agree == of_all.whole

    def compared(self, values: Sequence[Value], peers: MulticastPeers) -> Agreement:
        """Return how scalars outside of the K loop compare between neighbours."""
        made = self.made.values()
        before = [op for op in made if op in self.tops or op in self.producer.body.ops]
        inside = [op for op in made if self.turns and op in self.turns.body.ops]
        return compare(self.kernel, before, self.turns, inside, values, peers)

    def wanted(self, memory: str) -> tuple[tuple[TmaLoad, ...], tuple[Value, ...]]:
        """Return the TMA loads of an operand, and the values that decide their positions."""
        copies, made = tuple(op for op in self.copies if op.memory.name == memory), self.made
        positions = self.decisive([v for op in copies for v in op.at], made)
        if positions is None or not _computed(positions, made, self.differs):
            raise Left(ELSEWHERE.at(copies[0].loc, memory=memory))
        return copies, positions

    def decisive(self, values: Sequence[Value], made: dict[Value, Op]) -> tuple[Value, ...] | None:
        """Return the values of `made`, different between workgroups, that with the step alone determine `values`.

        Where these agree for two workgroups, so do `values` in every step. None where anything else has a part in it.
        """
        found: dict[Value, None] = {}
        for v in values:
            if v in made and v in self.differs:
                found[v] = None
            elif v in self.differs:
                op = self.producer.body.defs.get(v)
                before = self.decisive(op.operands, made) if isinstance(op, Elementwise) else None
                if before is None:
                    return None
                found.update(dict.fromkeys(before))
        return tuple(found)


def _path(block: Block) -> list[Op] | None:
    """Return the loops around the TMA loads, outermost first; None where loads are in several places."""
    found = [op for op in block.ops if any(isinstance(inner, TmaLoad) for b in op.blocks for inner in walk(b))]
    here = any(isinstance(op, TmaLoad) for op in block.ops)
    if here or not found:
        return [] if here and not found else None
    inner = _path(found[0].blocks[-1]) if len(found) == 1 else None
    return None if inner is None else [found[0], *inner]


def _computed(values: Sequence[Value], made: Mapping[Value, Op], differs: frozenset[Value]) -> bool:
    """Return whether all these scalars can be computed for another workgroup too."""
    return all(
        v in made and (isinstance(made[v], Workgroup) or _computed(made[v].operands, made, differs))
        for v in values
        if v in differs
    )
