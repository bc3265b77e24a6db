"""TMA multicast: clusters of workgroups that load the tiles which they all need together, a part each, for all of them.

    wait_mbarrier(%empty, …)                        %same = equal(‹this one's column›, ‹the other one's column›)
    arrive(%full, …) {expect = 49152}  →            …
    tma_load(%a, [%m, %k], …)                       tma_load(%a, [%m, %k], …)
    tma_load(%b, [%n, %k], …)                       tma_load_multicast(%b, [%n, %k], …, %same)

    arrive(%empty, %slot) {waves = 4}          →    arrive(%empty, %slot) {waves = 4, members = 2}

A stage is filled by all members, so consumers arrive on the mbarriers of all when they release it, and all members
begin and end together. All take the same number of turns: where a member has no tile in the last one, it computes the
first member's too, and writes nothing. Whether they need the same tile is computed in every turn, from the arithmetic
of tile positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewave.analysis.multicast import Agreement, MulticastPeers
from tilewave.analysis.producer_roles import CopyProgram
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.launch import at_launch, in_front
from tilewave.ir.ops import (
    And,
    Arrive,
    Barrier,
    ClusterBarrier,
    Equal,
    HandOver,
    Loop,
    MakeMbarriers,
    Role,
    Store,
    StoreEach,
    TakeOver,
    TmaLoad,
    TmaLoadMulticast,
    TmaStore,
    Workgroup,
)
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import names, rewrite_block, substitute, substitute_block, walk
from tilewave.ir.types import BOOL, INDEX_SCALAR, Scalar
from tilewave.records import dataclass


@dataclass(frozen=True)
class Multicast:
    """TMA loads of one operand for multicast, and the positions that decide whether two workgroups need the same."""

    copies: tuple[TmaLoad, ...]
    positions: tuple[Value, ...]
    peers: MulticastPeers
    agreement: Agreement

    @property
    def always(self) -> bool:
        """Whether all members always need the same; in a single turn, all wait for those that do not."""
        found = self.agreement
        return found.is_complete and found.agree == found.whole and not found.uneven

    @property
    def spared(self) -> float:
        """Bytes per step that a workgroup does not request."""
        agreeing = self.agreement.agree / self.agreement.whole
        return agreeing * sum(op.box_bytes for op in self.copies) * (1 - 1 / self.peers.shares)


@dataclass(frozen=True)
class _Tile:
    """The tile that a workgroup computes in a turn."""

    who: Value
    """The number of the workgroup whose tile it is: this one, or the first member where this one has none."""
    is_own: Value
    turn: Value | None


class Clusters:
    """Rebuilds a warp-specialized kernel with clusters that multicast some of its loads."""

    def __init__(self, program: CopyProgram, shared: Sequence[Multicast]) -> None:
        self.p, self.own = program, program.own.result
        self.shared = {one.copies[0].memory: one for one in shared}
        self.members = shared[0].peers.members
        self.uneven = any(one.agreement.uneven for one in shared)
        self.builder = Builder(names(program.kernel), locate=lambda: program.own.loc)
        self.trips: Value | None = None
        """Turns of the first member, which all take; None where all have as many tiles."""

    def kernel(self) -> Kernel:
        p = self.p
        after_own, before_roles, tile = self.start()
        new = {self.own: tile.who} if tile else {}
        notified = {op.mbarriers for op in walk(p.consumer.body) if isinstance(op, Arrive)}
        ops: list[Op] = []
        for op in p.tops:
            match op:
                case Workgroup():
                    ops += [op, *after_own]
                case MakeMbarriers(arrivals) if op.result in notified:
                    ops.append(replace(op, arrivals=self.members * arrivals))
                case Barrier():
                    ops += [*before_roles, ClusterBarrier(loc=op.loc)]
                case Role(body=body):
                    change = self.consumer if op is p.consumer else self.producer
                    ops.append(replace(op, body=change(substitute_block(body, new), tile)))
                case _:
                    ops.append(substitute(op, new))
        ops.append(ClusterBarrier(loc=p.own.loc))
        front, whole = self.grid()
        body = in_front(front, replace(p.kernel.body, ops=tuple(ops)))
        return at_launch(replace(p.kernel, body=body, workgroups=whole, cluster=self.members))

    def grid(self) -> tuple[list[Op], int | str]:
        """Return the ops that compute the number of workgroups, in whole clusters, and that number."""
        if isinstance(self.workgroups, int):
            return [], -(-self.workgroups // self.members) * self.members
        with self.builder.region():
            whole = (self.workgroups + (self.members - 1)) // self.members * self.members
            return list(self.builder.ops), whole.value.name

    @property
    def workgroups(self) -> Any:
        return self.number(self.p.kernel.workgroups)

    def number(self, extent: int | str) -> Any:
        return extent if isinstance(extent, int) else Number(self.builder, Value(extent, INDEX_SCALAR))

    # -- which workgroup computes which tile

    @property
    def first(self) -> Number:
        """The number of the first member of the cluster."""
        number: Number = Number(self.builder, self.own) // self.members * self.members
        return number

    def start(self) -> tuple[list[Op], list[Op], _Tile | None]:
        """Return the ops after the workgroup's number, the ops before the roles, and the tile of a single turn."""
        if not self.uneven:
            return [], [], None
        with self.builder.region():
            if self.p.turns is None:
                tile = self.tile_of(Number(self.builder, self.own), None)
                return list(self.builder.ops), [], tile
            self.trips = self.turns_of(self.first)
            return [], list(self.builder.ops), None

    def turns_of(self, number: Number) -> Value:
        """Return how many tiles the workgroup `number` has."""
        assert self.p.turns is not None
        trips = self.p.turns.trips
        return trips if number.value == self.own else self.repeated([trips], number.value)[0]

    def tile_of(self, number: Number, turn: Value | None) -> _Tile:
        """Return the tile that member `number` computes in a turn: its own, or the first member's where it has none."""
        if turn is None:
            has = number < self.workgroups
        else:
            has = Number(self.builder, turn) < Number(self.builder, self.turns_of(number))
        return _Tile(has.choose(number, self.first).value, has.value, turn)

    def repeated(self, values: Sequence[Value], number: Value) -> list[Value]:
        """Return `values` as they are for the workgroup `number`."""
        new = {self.own: number}

        def of(v: Value) -> Value:
            if v not in new and v in self.p.differs:
                op = self.p.kernel.defs[v]
                inner = {x: of(x) for x in op.operands}
                new[v] = self.builder.fresh(v.name, v.type)
                self.builder.ops.append(replace(substitute(op, inner), results=(new[v],)))
            return new.get(v, v)

        return [of(v) for v in values]

    def in_turns(self, body: Block, tile: _Tile | None, change: Change) -> Block:
        """Apply `change` to a turn, or to the whole body where there is one turn only."""
        if self.p.turns is None:
            return change(body, tile)
        (loop,) = (op for op in body.ops if isinstance(op, Loop) and op.trips == self.p.turns.trips)
        if self.trips is None:
            new = replace(loop, body=change(loop.body, None))
        else:
            with self.builder.region():
                tile = self.tile_of(Number(self.builder, self.own), loop.body.args[0])
                start = list(self.builder.ops)
            inner = change(substitute_block(loop.body, {self.own: tile.who}), tile)
            new = replace(loop, trips=self.trips, body=replace(inner, ops=(*start, *inner.ops)))
        return replace(body, ops=tuple(new if op is loop else op for op in body.ops))

    # -- the roles

    def consumer(self, body: Block, tile: _Tile | None) -> Block:
        def everywhere(op: Op) -> Sequence[Op] | None:
            return [replace(op, members=self.members)] if isinstance(op, Arrive) else None

        notified = rewrite_block(body, everywhere)
        return self.in_turns(notified, tile, self.writing_own) if self.uneven else notified

    def writing_own(self, body: Block, tile: _Tile | None) -> Block:
        """Return the body that writes, and exchanges partial sums, only where the tile is this workgroup's."""
        assert tile is not None
        writes = tile.is_own

        def clip(op: Op) -> Sequence[Op] | None:
            match op:
                case TmaStore(at=at, axes=axes):
                    return self.outside(op, at, axes[0], writes)
                case Store(memory=memory, mask=mask) | StoreEach(memory=memory, mask=mask) if is_in(memory, "global"):
                    with self.builder.region():
                        self.builder.locate = lambda: op.loc
                        allowed = self.builder.binary(And, mask[0], writes) if mask else writes
                        return [*self.builder.ops, replace(op, mask=(allowed,))]
                case Loop(trips=trips, body=inner) if any(isinstance(o, (HandOver, TakeOver)) for o in inner.ops):
                    with self.builder.region():
                        self.builder.locate = lambda: op.loc
                        times = Number(self.builder, writes).choose(Number(self.builder, trips), 0).value
                        return [*self.builder.ops, replace(op, trips=times)]
                case _ if any(is_in(v, "global") for v in op.written):
                    raise NotImplementedError(f"{op.loc}: {op.name} cannot be kept from writing")
                case _:
                    return None

        return rewrite_block(body, clip)

    def outside(self, op: TmaStore, at: tuple[Value, ...], axis: int, writes: Value) -> list[Op]:
        """Return the TMA store; where nothing may be written, its box is outside the memory."""
        with self.builder.region():
            self.builder.locate = lambda: op.loc
            inside, end = Number(self.builder, at[axis]), self.number(op.memory.type.extents[axis])
            where = Number(self.builder, writes).choose(inside, end).value
            return [*self.builder.ops, replace(op, at=(*at[:axis], where, *at[axis + 1 :]))]

    def producer(self, body: Block, tile: _Tile | None) -> Block:
        return self.in_turns(body, tile, self.bringing)

    def bringing(self, body: Block, tile: _Tile | None) -> Block:
        """Return the body with multicast loads; before the steps of a tile, it computes whether members agree."""
        where = [self.brings(op) for op in body.ops].index(True)
        with self.builder.region():
            together = {memory: self.together(shared, tile) for memory, shared in self.shared.items()}
            decided = list(self.builder.ops)
        (step,) = rewrite_block(Block((), (body.ops[where],)), lambda op: self.shared_copy(op, together)).ops
        return replace(body, ops=(*body.ops[:where], *decided, step, *body.ops[where + 1 :]))

    def brings(self, op: Op) -> bool:
        return any(isinstance(inner, TmaLoad) for block in op.blocks for inner in walk(block))

    def together(self, shared: Multicast, tile: _Tile | None) -> Value:
        """Return whether all workgroups that may share a multicast need the same."""
        found: Value | None = None
        for other in self.others(shared.peers):
            who = self.tile_of(other, tile.turn).who if tile else other.value
            for mine, theirs in zip(shared.positions, self.repeated(shared.positions, who), strict=True):
                same = self.builder.binary(Equal, mine, theirs)
                found = same if found is None else self.builder.binary(And, found, same)
        return self.builder.const(True, Scalar(BOOL)) if found is None else found

    def others(self, peers: MulticastPeers) -> Iterator[Number]:
        """Yield the numbers of the workgroups that may share a box with this one."""
        own, span = Number(self.builder, self.own), peers.apart * peers.shares
        group = own // span * span
        for further in range(1, peers.shares):
            yield group + (own - group + further * peers.apart) % span

    def shared_copy(self, op: Op, together: Mapping[Value, Value]) -> Sequence[Op] | None:
        if not isinstance(op, TmaLoad) or op.memory not in together:
            return None
        peers, where = self.shared[op.memory].peers, (op.memory, op.at, op.to, op.to_at, op.mbarriers, op.mbarrier)
        cut = (peers.shares, peers.apart)
        return [TmaLoadMulticast(*where, together[op.memory], op.axes, *cut, loc=op.loc)]


Change = Callable[[Block, _Tile | None], Block]
