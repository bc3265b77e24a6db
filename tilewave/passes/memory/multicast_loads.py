"""TMA multicast: neighbouring workgroups load a tile that they all need together, a part each, for all of them.

    wait_mbarrier(%empty, …)                        %same = equal(‹this one's column›, ‹the other one's column›)
    arrive(%full, …) {expect = 49152}  →    …
    tma_load(%a, [%m, %k], …)      tma_load(%a, [%m, %k], …)
    tma_load(%b, [%n, %k], …)      tma_load_multicast(%b, [%n, %k], …, %same)

    arrive(%empty, %slot) {waves = 4}  →    arrive(%empty, %slot) {waves = 4, members = 2}

A stage is now filled by two workgroups, so consumers arrive on the mbarriers of both when they release it, and both
workgroups begin and end together. Both take the same number of turns: where the last tile has no partner, the other
workgroup computes that tile too, and writes nothing. Whether the two need the same tile is computed in every turn, from
the arithmetic of tile positions.

Multicast halves the requests for one operand, and costs some waiting between workgroups. It pays where rows do not
begin on cache lines, so that each row of a load touches two of them: TMA takes a fixed time for each line that its own
workgroup requests. Elsewhere the kernel is unchanged, as neighbours' requests for one line are merged on their
way to L2 (`analysis/l2_residency.py`). Where all tiles run in one wave and have many steps, clusters have four
workgroups: they load one operand in quarters, or, as two rows of two, both operands in halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import prod
from typing import Any

from tilewave.analysis.multicast import Agreement, MulticastPeers
from tilewave.analysis.producer_roles import CopyProgram
from tilewave.analysis.ranges import workgroup_range
from tilewave.interp.tiles import touched
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.launch import at_launch, bind, in_front, is_open, open_sizes
from tilewave.ir.ops import (
    And,
    Arrive,
    Barrier,
    ClusterBarrier,
    Const,
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
from tilewave.ir.placements import is_in, is_line_aligned, row_elements
from tilewave.ir.remarks import Left, Remark, RemarkKind, want
from tilewave.ir.rewrite import names, rewrite_block, substitute, substitute_block, walk
from tilewave.ir.types import BOOL, INDEX_SCALAR, Memory, Scalar, dims
from tilewave.machine.chips import Chip, Tma
from tilewave.machine.tuning import LoadTuning

FOUR = 4
SAMPLE, SAMPLE_BATCHES = 4104, 2
"""Assumed dynamic sizes, for which the operand that neighbours share is determined: some waves of tiles."""

NO_HALVES = RemarkKind(
    "a tile of {memory}, {box}, cannot be halved into multiples of {bytes:,} bytes, so its loads are not multicast",
    "use larger tiles",
)
ODD = RemarkKind(
    "{workgroups} persistent workgroups do not form whole clusters, so loads are not multicast",
    "let their number be even",
)
FEW = RemarkKind(
    "neighbouring workgroups need the same tile of {memory} {agree} times in {both}, so its loads are not multicast",
    "give neighbours tiles of the same row or column: WorkgroupMapping(grouped(…))",
)
UNEVEN = RemarkKind(
    "one workgroup of a cluster has a tile more than the other, and it cannot be computed twice, so loads are not "
    "multicast",
    "let the number of tiles be even",
)


@dataclass(frozen=True)
class MulticastLoads:
    """`machine` gives the size of a cache line; at least `least_part` of the neighbours must need the same tile."""

    machine: Chip
    tuning: LoadTuning
    least_part: float = 0.5
    open_on_lines: bool = True
    """Whether the code is for arrays of dynamic row length whose rows begin on cache lines."""

    def __repr__(self) -> str:
        return f"MulticastLoads({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        engine = self.machine.tma
        if engine is None or not self.pays(kernel):
            return kernel
        remarks: list[Remark] = []
        try:
            program = _Program.of(kernel)
            sample = _Program.of(bind(kernel, sample_sizes(kernel)))
            best = self.best(sample, remarks, 2 if is_open(kernel) else FOUR)
            if not best:
                return kernel.with_remarks(*remarks)
            shared = [program.of_any_size(one) for one in best] if is_open(kernel) else best
        except Left as why:
            return kernel.with_remarks(why.remarks)
        return _Sharing(program, shared).kernel()

    def pays(self, kernel: Kernel) -> bool:
        """Whether rows of some operand cross cache lines."""
        copied = [op.memory for op in walk(kernel.body) if isinstance(op, TmaLoad)]
        on_lines = all(is_line_aligned(memory, self.machine.line_bytes, self.open_on_lines) for memory in copied)
        return not on_lines and any(isinstance(op, Role) for op in kernel.body.ops)

    def best(self, program: _Program, remarks: list[Remark], most: int) -> list[_Shared]:
        """Return the multicasts that save most requests, in clusters of up to `most`; none where none is possible."""
        pairs = ([self.shared(program, memory, MulticastPeers(2, 2), remarks)] for memory in program.memories)
        quads = self.quads(program, program.memories) if most >= FOUR else []
        ways = [[one for one in way if one] for way in (*pairs, *quads) if all(way)]
        return max(ways, key=lambda way: sum(shared.spared for shared in way), default=[])

    def quads(self, program: _Program, memories: list[Value]) -> list[list[_Shared | None]]:
        """Return choices for clusters of four: one operand in quarters, or two in halves; None: not possible."""
        engine = self.machine.tma
        if engine is None or not program.fits_quads(engine, self.tuning):
            return []

        def of(memory: Value, *cut: int) -> _Shared | None:
            shared = self.shared(program, memory, MulticastPeers(FOUR, *cut), [])
            return shared if shared and shared.always else None

        quarters = [[of(memory, FOUR)] for memory in memories]
        return quarters + [[of(one, 2, 1), of(other, 2, 2)] for one, other in permutations(memories, 2)]

    def shared(self, program: _Program, memory: Value, peers: MulticastPeers, remarks: list[Remark]) -> _Shared | None:
        engine = self.machine.tma
        assert engine is not None
        try:
            return program.shared(memory, peers, self.least_part, engine.pattern_bytes)
        except Left as left:
            remarks.append(left.remarks)
            return None


def fits_quads(tiles: int, steps: int, engine: Tma, tuning: LoadTuning) -> bool:
    """Whether tiles have enough steps for clusters of four, and all of these clusters run at once."""
    return steps >= tuning.quad_steps and tiles <= FOUR * engine.clusters_of_four


def sample_sizes(kernel: Kernel) -> dict[str, int]:
    """Return assumed sizes for dynamic ones, small along batches: all batches have the same tiles."""
    found: dict[str, int] = {}
    for op in walk(kernel.body):
        if isinstance(op, TmaLoad):
            box = dict(zip(op.axes, op.box, strict=True))
            for axis, size in enumerate(op.memory.type.extents):
                if isinstance(size, str):
                    here = SAMPLE if box.get(axis, 1) > 1 else SAMPLE_BATCHES
                    found[size] = max(here, found.get(size, 0))
    return {size: found.get(size, SAMPLE) for size in open_sizes(kernel)}


@dataclass(frozen=True)
class _Shared:
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
class _Program(CopyProgram):
    """A `CopyProgram` with the checks whether its loads can be multicast."""

    def fits_quads(self, engine: Tma, tuning: LoadTuning) -> bool:
        steps = self.made.get(self.steps.trips)
        if self.turns is not None or not isinstance(steps, Const):
            return False
        return fits_quads(self.kernel.workgroup_count, int(steps.value), engine, tuning)

    def shared(self, memory: Value, peers: MulticastPeers, least_part: float, pattern_bytes: int) -> _Shared:
        """Return the multicast of an operand; raise `Left` where it is not possible, or too few workgroups agree."""
        copies, positions = self.wanted(memory.name)
        facts = {"memory": memory.name, "box": dims(copies[0].box), "bytes": pattern_bytes}
        cut = all(_has_parts(op, peers.shares, pattern_bytes) for op in copies)
        want(cut, NO_HALVES, copies[0].loc, **facts)
        agreement = self.compared(positions, peers)
        self.check(agreement, copies[0], peers, least_part)
        return _Shared(copies, positions, peers, agreement)

    def of_any_size(self, sample: _Shared) -> _Shared:
        """Return a multicast found for sample sizes as one for dynamic shapes, where pairs may always be uneven."""
        copies, positions = self.wanted(sample.copies[0].memory.name)
        want(_is_repeatable(self), UNEVEN, copies[0].loc)
        want(
            self.turns is None or workgroup_range(self.kernel)[1] % sample.peers.members,
            ODD,
            copies[0].loc,
            workgroups="an odd number of",
        )
        return replace(sample, copies=copies, positions=positions, agreement=replace(sample.agreement, uneven=True))

    def check(self, found: Agreement, copy: TmaLoad, peers: MulticastPeers, least_part: float) -> None:
        workgroups, loc = self.kernel.workgroup_count, copy.loc
        want(workgroups % peers.members == 0 or self.turns is None, ODD, loc, workgroups=workgroups)
        enough = found.whole and found.agree >= least_part * found.whole
        want(enough, FEW, loc, memory=copy.memory.name, agree=found.agree, both=found.whole)
        want(not found.backwards and (not found.uneven or _is_repeatable(self)), UNEVEN, loc)


def _is_repeatable(p: _Program) -> bool:
    """Whether a turn can be run for another workgroup's number: it uses no other outside value that depends on it.

    A kernel that reads what it writes is not repeatable.
    """
    written, read = touched(p.kernel)
    if written & read:
        return False
    if p.turns is None:
        return True
    twin = [op for op in p.consumer.body.ops if isinstance(op, Loop) and op.trips == p.turns.trips]
    around = {v for op in (*p.tops, *p.consumer.body.ops, *p.producer.body.ops) for v in op.results}
    given = p.differs & around - {p.own.result, p.turns.trips}
    bodies = [op for role in (p.consumer, p.producer) for op in walk(role.body)]
    return len(twin) == 1 and not any(v in given for op in bodies for v in op.operands)


def _has_parts(op: TmaLoad, parts: int, pattern_bytes: int) -> bool:
    """Whether each part is a whole number of swizzle patterns."""
    box, memory = op.box, op.to.type
    assert isinstance(memory, Memory)
    if len(box) < 2 or prod(box[:-2]) != 1 or box[-2] % parts:
        return False
    return box[-2] // parts * row_elements(memory) * memory.dtype.bytes % pattern_bytes == 0


@dataclass(frozen=True)
class _Tile:
    """The tile that a workgroup computes in a turn."""

    who: Value
    """The number of the workgroup whose tile it is: this one, or the first member where this one has none."""
    is_own: Value
    turn: Value | None


class _Sharing:
    """Writes the kernel with clusters and multicast."""

    def __init__(self, program: _Program, shared: Sequence[_Shared]) -> None:
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

    def together(self, shared: _Shared, tile: _Tile | None) -> Value:
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
