"""Ping-pong: of two consumer warpgroups, one ends its tile some steps earlier and stores it while the other multiplies.

    %sum = loop(%steps, [%zero]) {…}           %most = loop(%steps - 2, [%zero]) {…}
    ‹what is computed from %sum and written›   role(second group) { wait_mbarrier(%passed, 0, ‹tile›) }
                                           →   %sum = loop(2, [%most]) {
                                                 loop(‹1 in the last step›) { role(first group) { arrive(%passed, 0) } }
                                                 …
                                               }
                                               ‹what is computed from %sum and written›

Both warpgroups read the same pipeline stages, step by step, so that by default they end together, and nothing
multiplies during their epilogues. Here the second warpgroup waits before its last `lead` steps until the first one has
reached its last step: alone, each is as fast as the matrix unit, so nothing is lost by that. One warpgroup then stores
during the last products of the other, and the other during the first products of the next tile.

The stages of those steps stay occupied meanwhile, and fewer are left for the next tile: a lead that is longer than the
epilogue only slows down (`PipelineTuning.lead`). The pass applies where the epilogue computes something; a result that
is only rounded and stored is unchanged. Loads of the epilogue, of a bias say, are issued before those steps too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import cast

from tilewave.analysis.ranges import Ranges, ranges_of
from tilewave.analysis.register_pressure import held_bytes
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Arrive,
    Cast,
    Const,
    Elementwise,
    Load,
    Loop,
    MakeMbarriers,
    Role,
    WaitMbarrier,
    Wgmma,
)
from tilewave.ir.placements import is_in
from tilewave.ir.remarks import RemarkKind
from tilewave.ir.rewrite import map_blocks, names, renamed, rewrite_outermost, substitute_block, walk
from tilewave.ir.types import BOOL, INDEX, INDEX_SCALAR, Mbarriers, Scalar, Vector
from tilewave.records import dataclass

GROUPS = 2
REGISTER_BYTES = 4
MOST_LOADED_BYTES = 256
"""Bytes that a lane may hold besides its sums while it multiplies: half as much as of sums of 64 x 256."""

MAYBE_NEVER = RemarkKind(
    "the trip count may be 0, and ping-pong needs a last step, so both consumer warpgroups run their epilogues at the "
    "same time",
    "give the loop's dimension a value in subs",
)


@dataclass(frozen=True)
class PingPong:
    """`lead`: steps by which the first warpgroup ends a tile earlier; as many stages are kept for the second."""

    lead: int
    most_loaded_bytes: int = MOST_LOADED_BYTES

    def __repr__(self) -> str:
        return f"PingPong({self.lead})"

    def __call__(self, kernel: Kernel) -> Kernel:
        roles = [op for op in kernel.body.ops if isinstance(op, Role)]
        multiplying = [op for op in roles if any(isinstance(inner, Wgmma) for inner in walk(op.body))]
        if len(multiplying) != 1 or multiplying[0].last - multiplying[0].first != GROUPS * Wgmma.group.waves:
            return kernel
        (consumers,) = multiplying
        home = _home(consumers.body)
        if home is None or min(self.lead, home.stages - 1) < 1:
            return kernel
        ranges = ranges_of(kernel)
        if ranges.of(home.steps.trips)[0] < 1:
            return kernel.with_remarks(MAYBE_NEVER.at(home.steps.loc))
        made = _PingPong(kernel, self, home, ranges)
        ops = [made.role(op) if op is consumers else op for op in kernel.body.ops]
        ops.insert(next(i for i, op in enumerate(ops) if isinstance(op, MakeMbarriers)), made.mbarriers)
        return replace(kernel, body=replace(kernel.body, ops=tuple(ops)))


@dataclass(frozen=True)
class _Home:
    """The block that computes a tile."""

    block: Block
    turns: Loop | None
    """The loop over tiles, if there is one: its body is `block`, or has a loop that skips tiles without rows."""

    @property
    def at(self) -> int:
        """The position of the K loop in the block."""
        return next(i for i, op in enumerate(self.block.ops) if _multiplies(op))

    @property
    def steps(self) -> Loop:
        return cast(Loop, self.block.ops[self.at])

    @property
    def stages(self) -> int:
        """Stages of the pipeline that each step reads."""
        return min(op.mbarriers.type.shape[0] for op in self.steps.body.ops if isinstance(op, WaitMbarrier))

    @property
    def after(self) -> tuple[Op, ...]:
        return self.block.ops[self.at + 1 :]

    def tile(self, b: Builder) -> Number:
        """Return the number of tiles that were computed before, by the steps that were: each tile has as many."""
        if self.turns is None:
            return Number(b, b.const(0))
        if self.turns.body is self.block:
            return Number(b, self.turns.body.args[0])
        done: Number = Number(b, self.counted[0]) // Number(b, self.steps.trips)
        return done

    @property
    def counted(self) -> list[Value]:
        """The numbers that the K loop begins to count from."""
        return [v for v in self.steps.init if v.type == INDEX_SCALAR]


def _home(body: Block) -> _Home | None:
    """Return the block of a tile with a single K loop, which only multiplies, and an epilogue; else None."""
    around: list[Loop] = []
    block = body
    while not any(_multiplies(op) for op in block.ops):
        loops = [op for op in block.ops if isinstance(op, Loop) and any(_multiplies(x) for x in walk(op.body))]
        if len(loops) != 1:
            return None
        around.append(loops[0])
        block = loops[0].body
    home = _Home(block, around[0] if around else None)
    alone = sum(isinstance(op, Wgmma) for op in walk(body)) == sum(map(_is_product, home.steps.body.ops))
    one_ring = sum(isinstance(op, WaitMbarrier) for op in home.steps.body.ops) == 1
    computes = any(isinstance(op, Elementwise) and isinstance(op.result.type, Vector) for op in home.steps.body.ops)
    known = len(around) < 2 or (len(around) == 2 and _counts_tiles(home, around[1]))
    return home if alone and one_ring and known and not computes and _has_epilogue(home) else None


def _counts_tiles(home: _Home, skipping: Loop) -> bool:
    """Whether the tiles that a loop of at most one trip does not skip follow from the steps that the K loop counts."""
    inside = (op for op in walk(home.turns.body) if not isinstance(op, Const)) if home.turns else ()
    fixed = all(home.steps.trips not in op.results for op in inside)
    return fixed and len(home.counted) == 1 and home.counted == [*skipping.body.args[1:]]


def _multiplies(op: Op) -> bool:
    return isinstance(op, Loop) and any(map(_is_product, op.body.ops))


def _is_product(op: Op) -> bool:
    return isinstance(op, Wgmma)


def _has_epilogue(home: _Home) -> bool:
    """Whether lanes compute something from the sums besides casts; positions and masks of stores are none of it."""
    inside = [op for outer in home.after for op in (outer, *(x for block in outer.blocks for x in walk(block)))]
    kinds = [op.result.type for op in inside if isinstance(op, Elementwise) and not isinstance(op, Cast)]
    return any(isinstance(kind, Vector) and kind.dtype not in (BOOL, INDEX) for kind in kinds)


def mbarriers_for(stages: int) -> int:
    """Return the number of mbarriers: one per tile that the first warpgroup may be ahead, and spares for the parity.

    A tile takes at least one step, and the pipeline has `stages`, so that no mbarrier flips twice unobserved.
    """
    return 2 * stages


class _PingPong:
    def __init__(self, kernel: Kernel, choice: PingPong, home: _Home, ranges: Ranges) -> None:
        self.choice, self.home, self.ranges = choice, home, ranges
        self.builder = Builder(names(kernel), locate=lambda: home.steps.loc)
        self.passed = self.builder.fresh("passed", Mbarriers((mbarriers_for(home.stages),)))
        self.written = {memory for op in walk(kernel.body) for memory in op.written}

    @property
    def mbarriers(self) -> Op:
        return MakeMbarriers(1, results=(self.passed,), loc=self.home.steps.loc)

    def role(self, op: Op) -> Op:
        return map_blocks(op, self.block)

    def block(self, block: Block) -> Block:
        if block is not self.home.block:
            return replace(block, ops=tuple(map_blocks(op, self.block) for op in block.ops))
        ops, loop = block.ops, self.home.steps
        early = self.loaded_early()
        rest = _without(early, Block((), self.home.after)).ops
        return replace(block, ops=(*ops[: self.home.at], *self.in_two(loop, early), *rest))

    def in_two(self, loop: Loop, early: Sequence[Op]) -> list[Op]:
        """Return the K loop in two; the second warpgroup takes the last steps after the first has done them."""
        b, lead = self.builder, min(self.choice.lead, self.home.stages - 1)
        between = tuple(b.fresh(v.name, v.type) for v in loop.results)
        with b.region():
            trips = Number(b, loop.trips)
            most = (trips - lead).larger(0)
            b.ops.append(replace(loop, trips=most.value, results=between))
            b.ops += early
            tile = self.home.tile(b)
            count = mbarriers_for(self.home.stages)
            own, parity = (tile % count).value, (tile // count % 2).value
            self.of_group(1, WaitMbarrier(self.passed, own, parity, loc=loop.loc))
            last = trips - most
            b.ops.append(replace(loop, trips=last.value, init=between, body=self.last_steps(loop, most, last, own)))
            return list(b.ops)

    def of_group(self, group: int, op: Op) -> None:
        self.builder.effect(Role, group * Wgmma.group.waves, (group + 1) * Wgmma.group.waves, Block((), (op,)))

    def last_steps(self, loop: Loop, done: Number, count: Number, own: Value) -> Block:
        """Return the body of the loop for the `count` steps after those that are `done`.

        In the last of them the first warpgroup arrives, and the second may begin. An arrival after the loop would be
        too late: the assembler moves arithmetic of the epilogue before it.
        """
        b = self.builder
        body = renamed(loop.body, lambda v: b.fresh(v.name, v.type))
        counter, *carried = body.args
        i = b.fresh(counter.name, INDEX_SCALAR)
        with b.region():
            step = (Number(b, i) + done).value
            is_last = Number(b, i).equals(count - 1).choose(1, 0).value
            with b.region():
                self.of_group(0, Arrive(self.passed, own, waves=Wgmma.group.waves, loc=loop.loc))
                once = b.block((b.fresh("once", INDEX_SCALAR),), ())
            b.effect(Loop, is_last, (), once)
            start = list(b.ops)
        return Block((i, *carried), (*start, *substitute_block(body, {counter: step}).ops))

    # -- loads of the epilogue, hoisted before the last steps

    def loaded_early(self) -> list[Op]:
        """Return the loads of the epilogue that lanes have registers for, with the scalars of their positions."""
        ops = list(self.epilogue())
        makers = {v: op for op in ops for v in op.results}
        found: set[int] = set()
        room = self.choice.most_loaded_bytes
        for op in ops:
            if not isinstance(op, Load) or not is_in(op.memory, "global") or op.memory in self.written:
                continue
            needed = list(_needed(op, makers))
            taken = _register_bytes(op)
            if taken <= room and all(map(_is_number, needed)):
                room -= taken
                found.update(map(id, (*needed, op)))
        return [op for op in ops if id(op) in found]

    def epilogue(self) -> Iterator[Op]:
        """Yield the ops after the steps, also those in loops of at most one trip, as split tiles have."""
        for op in self.home.after:
            yield op
            if isinstance(op, Loop) and not op.init and self.ranges.of(op.trips)[1] <= 1:
                yield from op.body.ops


def _register_bytes(op: Load) -> int:
    """Return the bytes of a lane's registers for a load: predicated elements are loaded one by one, a register each."""
    return prod(op.result.type.shape) * REGISTER_BYTES if op.guard else held_bytes(op.result)


def _without(gone: Sequence[Op], block: Block) -> Block:
    return rewrite_outermost(block, lambda op: [] if any(op is other for other in gone) else None)


def _needed(op: Op, makers: dict[Value, Op]) -> Iterator[Op]:
    """Yield the ops among `makers` that an op depends on."""
    for v in op.operands:
        if v in makers:
            yield from _needed(makers[v], makers)
            yield makers[v]


def _is_number(op: Op) -> bool:
    return op.is_pure and all(isinstance(v.type, Scalar) for v in op.results)
