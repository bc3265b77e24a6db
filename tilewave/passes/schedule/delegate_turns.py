"""Delegate turns to warps of their own: a watcher waits for the turns of the consumers, and a releaser passes them.

    role(consumers) {            role(consumers) {               role(watcher) {
      loop(%n) {                   loop(%n) {                      loop(%n) {
        ‹products›                   ‹products›                      wait_mbarrier(%passed, %slot, …)
        wait_turn(%x, …)     →       wait_mbarrier(%come, %slot)     wait_turn(%x, …)
        store(…) {combine}           store(…) {combine}              arrive(%come, %slot)
        pass_turn(%x, …)             arrive(%added, %slot)         } }
      }                            } }                           role(releaser) {
    }                                                              loop(%n) {
                                                                     wait_mbarrier(%added, %slot, …)
                                                                     pass_turn(%x, …)
                                                                     arrive(%passed, %slot)
                                                                   } }

A wave that polls a counter in global memory, and one that makes its additions visible before it increases the counter,
waits for about a microsecond. Consumers would do both in every step, and issue no products meanwhile. With mbarriers
between them and two warps that are idle otherwise, they wait only for workgroups that are late.

The roles count turns, each through the same loops: turn n uses slot n % SLOTS of three rings of mbarriers, in the
parity of n // SLOTS. The watcher is at most SLOTS turns ahead of the releaser, so no phase is missed. What is visible
follows a chain: additions, `arrive`, the releaser's wait, its release of the counter, the watcher's acquire of it in
another workgroup, `arrive`, the consumers' wait, their additions. One warp passes a turn, so the counter counts turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod

from tilewave.analysis.program_slices import excerpt
from tilewave.analysis.shared_space import MBARRIER_BYTES, shared_bytes
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Arrive,
    Lane,
    Launch,
    Loop,
    MakeMbarriers,
    PassTurn,
    Role,
    TurnOp,
    WaitMbarrier,
    WaitTurn,
    Wave,
    Wgmma,
    While,
    Yield,
)
from tilewave.ir.remarks import Left, RemarkKind, want
from tilewave.ir.rewrite import blocks_in, names, renamed, walk
from tilewave.ir.types import Mbarriers
from tilewave.machine.chips import Chip
from tilewave.records import dataclass
from tilewave.transform.carried_count import Change, carry_count

SLOTS = 4
"""The turns that the watcher may be ahead of the releaser: a power of two, so that slots and parities are bits."""
RINGS = 3
HELPERS = 2

NO_WARPS = RemarkKind(
    "all {waves} warps of a workgroup have work, so consumers wait for turns at {memory} themselves",
    "use fewer waves",
)
NO_ROOM = RemarkKind(
    "shared memory has no room for {bytes} bytes of mbarriers, so consumers wait for turns at {memory} themselves",
    "use smaller tiles or fewer stages",
)
BY_WAVE = RemarkKind(
    "which turns a warp takes at {memory} depends on the warp, or on memory, so consumers wait for them themselves",
    "take turns at tiles of the whole workgroup",
)
APART = RemarkKind(
    "turns at {memory} are not waited for and passed side by side, so consumers wait for them themselves",
    "use ordered_add, which waits, adds and passes the turn",
)


@dataclass(frozen=True)
class DelegateTurns:
    machine: Chip

    def __repr__(self) -> str:
        return "DelegateTurns()"

    def __call__(self, kernel: Kernel) -> Kernel:
        roles = [op for op in kernel.body.ops if isinstance(op, Role)]
        consumers = next((role for role in roles if any(map(_is_turn, walk(role.body)))), None)
        if consumers is None:
            return kernel
        try:
            self.want_delegable(kernel, consumers, max(role.last for role in roles))
        except Left as left:
            return kernel.with_remarks(left.remarks)
        return _Delegation(kernel, consumers, max(role.last for role in roles)).kernel()

    def want_delegable(self, kernel: Kernel, consumers: Role, busy: int) -> None:
        """Raise `Left` unless two warps are idle, and can find the turns of the consumers, whose mbarriers fit."""
        turn = next(op for op in walk(consumers.body) if isinstance(op, TurnOp))
        loc, memory = turn.loc, turn.memory.name
        waves = prod(kernel.waves)
        is_grouped = not consumers.first and consumers.last % Wgmma.group.waves == 0
        want(is_grouped and busy + HELPERS <= waves, NO_WARPS, loc, waves=waves, memory=memory)
        want(_is_paired(kernel, consumers), APART, loc, memory=memory)
        want(_is_of_workgroup(kernel, consumers), BY_WAVE, loc, memory=memory)
        more = RINGS * SLOTS * MBARRIER_BYTES
        want(shared_bytes(kernel) + more <= self.machine.shared.bytes, NO_ROOM, loc, bytes=more, memory=memory)


def _is_paired(kernel: Kernel, consumers: Role) -> bool:
    """Whether all consumers have the same turns, each passed in the block where it is waited for, and no other has."""
    inside = {id(op) for role in walk(consumers.body) if isinstance(role, Role) for op in walk(role.body)}
    those = {id(op) for op in walk(consumers.body) if _is_turn(op)}
    alone = inside.isdisjoint(those) and not any(_is_turn(op) and id(op) not in those for op in walk(kernel.body))
    return alone and all(map(_passes_what_it_waits_for, blocks_in(consumers.body)))


def _passes_what_it_waits_for(block: Block) -> bool:
    """Whether each wait for a turn in the block is followed by its pass, with no other turns between them."""
    before: Op | None = None
    for op in block.ops:
        if isinstance(op, PassTurn):
            if not isinstance(before, WaitTurn) or (before.turns, before.at) != (op.turns, op.at):
                return False
            before = None
        elif isinstance(op, WaitTurn) or any(_is_turn(inner) for own in op.blocks for inner in walk(own)):
            if before is not None:
                return False
            before = op if isinstance(op, WaitTurn) else None
    return before is None


def _is_of_workgroup(kernel: Kernel, consumers: Role) -> bool:
    """Whether the loops around turns, and their positions, follow from numbers that all warps have."""
    ops = list(walk(excerpt(consumers.body, _is_turn)))
    wanted = {v for op in ops for v in op.operands}
    for op in reversed(kernel.body.ops):
        if not isinstance(op, Role) and not wanted.isdisjoint(op.results):
            ops.append(op)
            wanted.update(op.operands)
    others = [op for op in ops if not isinstance(op, (TurnOp, Loop, While, Yield, Launch))]
    return all(op.is_pure and not isinstance(op, (Wave, Lane)) for op in others)


def _is_turn(op: Op) -> bool:
    return isinstance(op, TurnOp)


class _Delegation:
    """Builds the rings of mbarriers and the three roles."""

    def __init__(self, kernel: Kernel, consumers: Role, watcher: int) -> None:
        self.old, self.consumers, self.watcher = kernel, consumers, watcher
        self.builder = Builder(names(kernel))
        self.loc = next(op.loc for op in walk(consumers.body) if _is_turn(op))
        self.come, self.added, self.passed = (
            self.builder.fresh(name, Mbarriers((SLOTS,))) for name in ("come", "added", "passed")
        )

    def kernel(self) -> Kernel:
        consumers = replace(self.consumers, body=self.counted(self.consumers.body, self.of_consumers))
        watcher = self.helper(self.watcher, WaitTurn, self.of_watcher)
        releaser = self.helper(self.watcher + 1, PassTurn, self.of_releaser)
        ops: list[Op] = []
        for op in self.old.body.ops:
            ops += (
                self.made()
                if isinstance(op, MakeMbarriers) and not any(isinstance(x, MakeMbarriers) for x in ops)
                else ()
            )
            ops.append(consumers if op is self.consumers else op)
        last = max(i for i, op in enumerate(ops) if isinstance(op, Role)) + 1
        return replace(self.old, body=replace(self.old.body, ops=(*ops[:last], watcher, releaser, *ops[last:])))

    def made(self) -> list[Op]:
        groups = self.consumers.last // Wgmma.group.waves
        arrivals = {self.come: 1, self.added: groups, self.passed: 1}
        return [MakeMbarriers(count, results=(v,), loc=self.loc) for v, count in arrivals.items()]

    def helper(self, warp: int, cls: type[TurnOp], change: Change) -> Role:
        """Return the role of a warp that has the ops of a class of the consumers, and what finds their turns."""
        body = self.counted(excerpt(self.consumers.body, lambda op: isinstance(op, cls)), change)
        return Role(warp, warp + 1, renamed(body, lambda v: self.builder.fresh(v.name, v.type)), loc=self.loc)

    def counted(self, body: Block, change: Change) -> Block:
        return carry_count(body, _is_turn, change, self.builder, "turn")

    # -- what each role does in the place of a turn, after `count` others

    def of_consumers(self, op: WaitTurn | PassTurn, count: Value) -> tuple[list[Op], Value]:
        with self.at(op):
            slot, parity, _ = self.place(count)
            if isinstance(op, WaitTurn):
                self.builder.effect(WaitMbarrier, self.come, slot, parity)
                return self.builder.ops, count
            self.builder.effect(Arrive, self.added, slot, 0, Wgmma.group.waves)
            return self.builder.ops, self.next(count)

    def of_watcher(self, op: WaitTurn, count: Value) -> tuple[list[Op], Value]:
        with self.at(op):
            slot, _, other = self.place(count)
            self.builder.effect(WaitMbarrier, self.passed, slot, other)
            self.builder.ops.append(replace(op, waves=1))
            self.builder.effect(Arrive, self.come, slot)
            return self.builder.ops, self.next(count)

    def of_releaser(self, op: PassTurn, count: Value) -> tuple[list[Op], Value]:
        with self.at(op):
            slot, parity, _ = self.place(count)
            self.builder.effect(WaitMbarrier, self.added, slot, parity)
            self.builder.ops.append(op)
            self.builder.effect(Arrive, self.passed, slot)
            return self.builder.ops, self.next(count)

    def place(self, count: Value) -> tuple[Value, Value, Value]:
        """Return the slot of a turn, the parity of its mbarriers, and the other parity."""
        number = Number(self.builder, count)
        parity = number // SLOTS % 2
        other = Number(self.builder, self.builder.const(1)) - parity
        return (number % SLOTS).value, parity.value, other.value

    def next(self, count: Value) -> Value:
        """Return the number of the turn after one; numbers repeat when slots and parities do."""
        after: Value = ((Number(self.builder, count) + 1) % (2 * SLOTS)).value
        return after

    @contextmanager
    def at(self, op: Op) -> Iterator[None]:
        """Collect ops that have the location of `op`."""
        with self.builder.region():
            self.builder.locate = lambda: op.loc
            yield
