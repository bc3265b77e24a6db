"""Two neighbouring workgroups bring a tile that both need half each, and each half goes to both.

    await(%empty, …)                        %same = equal(‹this one's column›, ‹the other one's column›)
    arrive(%full, …) {expect = 49152}  →    …
    copy_async_signal(%a, [%m, %k], …)      copy_async_signal(%a, [%m, %k], …)
    copy_async_signal(%b, [%n, %k], …)      copy_async_cluster(%b, [%n, %k], …, %same)

    arrive(%empty, %slot) {waves = 4}  →    arrive(%empty, %slot) {waves = 4, members = 2}

A slot is now filled by two, so consumers tell both when they leave it, and both workgroups begin and end together. Both
take the same turns: where the last tile has no partner, the other workgroup computes that tile too, and writes nothing.
Whether the two need the same is computed turn by turn, from the arithmetic that says where a workgroup's tile is.

It halves the requests for one operand, and costs a little waiting for each other. It pays in two cases, and elsewhere
the kernel is left as it is:

- Rows do not begin on cache lines, so that each row of a copy touches two of them.
- L2 cannot keep the operand, so that all of it comes from memory, and nothing takes longer: `analysis/streaming.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tilewave.analysis.pairs import Pairs, compare, following
from tilewave.analysis.ranges import workgroup_range
from tilewave.analysis.streaming import NOTHING_STREAMED, Streamed
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
    CopyAsyncCluster,
    CopyAsyncOut,
    CopyAsyncSignal,
    Elementwise,
    Equal,
    HandOver,
    Loop,
    MakeSignals,
    Or,
    Role,
    Store,
    StoreEach,
    TakeOver,
    Workgroup,
)
from tilewave.ir.placements import lies_in, lies_on_lines, row_elements
from tilewave.ir.reasons import Declined, Left, Reason, want
from tilewave.ir.rewrite import names, rewrite_block, substitute, substitute_block, walk
from tilewave.ir.types import BOOL, INDEX_SCALAR, Memory, Scalar, dims
from tilewave.machine.chips import Chip

MEMBERS = 2
SAMPLE, SAMPLE_BATCHES = 4104, 2
"""Open sizes for which it is looked at which operand neighbours share: some rounds of tiles."""

OPEN_SIZES = Reason(
    "{symbol} is known at the call only, so it is not known which neighbours want the same, and copies are not shared",
    "give {symbol} a value in subs",
)
OTHER_FORM = Reason(
    "tiles are not brought in one loop that is equally long for all workgroups, so neighbours do not share copies"
)
ELSEWHERE = Reason(
    "where {memory} is read depends on more than the workgroup's number and the step, so its copies are not shared"
)
NO_HALVES = Reason(
    "a tile of {memory}, {box}, has no halves of whole {bytes:,} bytes, so its copies are not shared",
    "take larger tiles",
)
ODD = Reason(
    "{workgroups} workgroups go from tile to tile, and one of them has no neighbour, so copies are not shared",
    "let them be an even number",
)
FEW = Reason(
    "neighbouring workgroups want the same tile of {memory} {agree} times in {both}, so its copies are not shared",
    "let neighbours have tiles of one row or column: WorkgroupMapping(grouped(…))",
)
UNEVEN = Reason(
    "one neighbour has a tile more than the other, and nobody can compute it twice, so copies are not shared",
    "let two divide the number of tiles",
)


@dataclass(frozen=True)
class ShareCopies:
    """`machine` says how long a cache line is; of the pairs of neighbours, at least `least_part` must agree."""

    machine: Chip
    streamed: Streamed = NOTHING_STREAMED
    least_part: float = 0.5
    open_on_lines: bool = True
    """Of memories whose rows are open, whether the code is for such as begin on lines."""

    def __repr__(self) -> str:
        return f"ShareCopies({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        engine = self.machine.copy_engine
        if engine is None or engine.largest_cluster < MEMBERS or not self.pays(kernel):
            return kernel
        declined: list[Declined] = []
        try:
            program = _program(kernel, engine.pattern_bytes)
            sizes = {**sample_sizes(kernel), **self.streamed.sizes}
            sample = _program(bind(kernel, sizes), engine.pattern_bytes)
            shares_any = self.crosses_lines(sample.memories)
            worth = [memory for memory in sample.memories if shares_any or memory.name in self.streamed.arrays]
            found = [shared for memory in worth if (shared := self.shared(sample, memory, declined))]
            if not found:
                return self.left(kernel, *declined)
            best = max(found, key=lambda s: s.pairs.agree / s.pairs.both * s.bytes)
            shared = program.of_any_size(best) if is_open(kernel) else best
        except Left as why:
            return self.left(kernel, why.declined)
        return _Sharing(program, shared).kernel()

    def left(self, kernel: Kernel, *declined: Declined) -> Kernel:
        """As it is; where rows begin on lines, nobody misses much."""
        return kernel.declining(*declined) if self.crosses_lines(_copied(kernel)) else kernel

    def pays(self, kernel: Kernel) -> bool:
        """Whether it may, for one operand or another."""
        if not any(isinstance(op, Role) for op in kernel.body.ops):
            return False
        copied = _copied(kernel)
        return self.crosses_lines(copied) or any(memory.name in self.streamed.arrays for memory in copied)

    def crosses_lines(self, memories: Sequence[Value]) -> bool:
        return not all(lies_on_lines(memory, self.machine.line_bytes, self.open_on_lines) for memory in memories)

    def shared(self, program: _Program, memory: Value, declined: list[Declined]) -> _Shared | None:
        try:
            return program.shared(memory, self.least_part)
        except Left as left:
            declined.append(left.declined)
            return None


def _copied(kernel: Kernel) -> list[Value]:
    return [op.memory for op in walk(kernel.body) if isinstance(op, CopyAsyncSignal)]


def sample_sizes(kernel: Kernel) -> dict[str, int]:
    """Of what is copied one by one, batch after batch, there are few: all of them have the same tiles."""
    found: dict[str, int] = {}
    for op in walk(kernel.body):
        if isinstance(op, CopyAsyncSignal):
            box = dict(zip(op.axes, op.to.type.shape[len(op.to_at) :], strict=True))
            for axis, size in enumerate(op.memory.type.extents):
                if isinstance(size, str):
                    here = SAMPLE if box.get(axis, 1) > 1 else SAMPLE_BATCHES
                    found[size] = max(here, found.get(size, 0))
    return {size: found.get(size, SAMPLE) for size in open_sizes(kernel)}


@dataclass(frozen=True)
class _Shared:
    """Copies of one operand that workgroups can share, and what tells whether two want the same."""

    copies: tuple[CopyAsyncSignal, ...]
    positions: tuple[Value, ...]
    pairs: Pairs

    @property
    def bytes(self) -> int:
        return sum(_box_bytes(op) for op in self.copies)


@dataclass(frozen=True)
class _Program:
    """A kernel whose waves have two roles, and the loop in which a workgroup goes from tile to tile, if it has one."""

    kernel: Kernel
    own: Workgroup
    consumer: Role
    producer: Role
    turns: Loop | None
    steps: Loop
    differs: frozenset[Value]
    """What depends on the workgroup's number."""
    pattern_bytes: int

    @property
    def copies(self) -> list[CopyAsyncSignal]:
        return [op for op in walk(self.producer.body) if isinstance(op, CopyAsyncSignal)]

    @property
    def memories(self) -> list[Value]:
        return list(dict.fromkeys(op.memory for op in self.copies))

    @property
    def tops(self) -> tuple[Op, ...]:
        return self.kernel.body.ops

    @property
    def made(self) -> dict[Value, Op]:
        """How numbers outside of the steps are made."""
        inside = [*self.producer.body.ops, *(self.turns.body.ops if self.turns else ())]
        outside = [op for op in (*self.tops, *inside) if isinstance(op, (Const, Workgroup, Elementwise))]
        return {op.result: op for op in outside if all(isinstance(v.type, Scalar) for v in op.results)}

    @property
    def takes_equal_steps(self) -> bool:
        """Whether neighbours have equally many steps in every turn: all of these are looked at."""
        if self.steps.trips not in self.differs:
            return True
        if is_open(self.kernel) or not _computed([self.steps.trips], self.made, self.differs):
            return False
        pairs = self.compared([self.steps.trips])
        return pairs.is_complete and pairs.agree == pairs.both

    def compared(self, values: Sequence[Value]) -> Pairs:
        """How numbers outside of the steps compare between neighbours."""
        made = self.made.values()
        before = [op for op in made if op in self.tops or op in self.producer.body.ops]
        inside = [op for op in made if self.turns and op in self.turns.body.ops]
        return compare(self.kernel, before, self.turns, inside, values)

    def shared(self, memory: Value, least_part: float) -> _Shared:
        """Raises `Left` where copies of this operand cannot be shared, or too few workgroups would."""
        copies, positions = self.wanted(memory.name)
        facts = {"memory": memory.name, "box": dims(_box(copies[0])), "bytes": self.pattern_bytes}
        want(all(_has_halves(op, self.pattern_bytes) for op in copies), NO_HALVES, copies[0].loc, **facts)
        pairs = self.compared(positions)
        self.check(pairs, copies[0], least_part)
        return _Shared(copies, positions, pairs)

    def of_any_size(self, sample: _Shared) -> _Shared:
        """What was found for some sizes, where these are open: then pairs may always be uneven."""
        copies, positions = self.wanted(sample.copies[0].memory.name)
        want(_is_repeatable(self), UNEVEN, copies[0].loc)
        want(
            self.turns is None or workgroup_range(self.kernel)[1] % MEMBERS,
            ODD,
            copies[0].loc,
            workgroups="an odd number of",
        )
        return _Shared(copies, positions, replace(sample.pairs, uneven=True))

    def wanted(self, memory: str) -> tuple[tuple[CopyAsyncSignal, ...], tuple[Value, ...]]:
        """The copies of an operand, and what decides where they begin."""
        copies, made = tuple(op for op in self.copies if op.memory.name == memory), self.made
        positions = self.decisive([v for op in copies for v in op.at], made)
        if positions is None or not _computed(positions, made, self.differs):
            raise Left(ELSEWHERE.at(copies[0].loc, memory=memory))
        return copies, positions

    def check(self, pairs: Pairs, copy: CopyAsyncSignal, least_part: float) -> None:
        workgroups, loc = self.kernel.workgroup_count, copy.loc
        want(workgroups % MEMBERS == 0 or self.turns is None, ODD, loc, workgroups=workgroups)
        enough = pairs.both and pairs.agree >= least_part * pairs.both
        want(enough, FEW, loc, memory=copy.memory.name, agree=pairs.agree, both=pairs.both)
        want(not pairs.backwards and (not pairs.uneven or _is_repeatable(self)), UNEVEN, loc)

    def decisive(self, values: Sequence[Value], made: dict[Value, Op]) -> tuple[Value, ...] | None:
        """What is `made` in front of the steps, differs, and with the step alone decides `values`; None if more does.

        Where these are the same for two workgroups, so are the values in every step.
        """
        inner = {v: op for op in walk(self.producer.body) if isinstance(op, Elementwise) for v in op.results}
        found: dict[Value, None] = {}
        for v in values:
            if v in made and v in self.differs:
                found[v] = None
            elif v in self.differs:
                before = self.decisive(inner[v].operands, made) if v in inner else None
                if before is None:
                    return None
                found.update(dict.fromkeys(before))
        return tuple(found)


def _program(kernel: Kernel, pattern_bytes: int) -> _Program:
    """The parts of a kernel that can be shared; `Left` where it has others."""
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
    program = _Program(kernel, owns[0], consumer, producer, turns, steps, differs, pattern_bytes)
    want(program.takes_equal_steps, OTHER_FORM, loc)
    return program


def _path(block: Block) -> list[Op] | None:
    """The loops around the copies, from the outermost on; None where copies stand in several places."""
    found = [op for op in block.ops if any(isinstance(inner, CopyAsyncSignal) for b in op.blocks for inner in walk(b))]
    here = any(isinstance(op, CopyAsyncSignal) for op in block.ops)
    if here or not found:
        return [] if here and not found else None
    inner = _path(found[0].blocks[-1]) if len(found) == 1 else None
    return None if inner is None else [found[0], *inner]


def _is_repeatable(p: _Program) -> bool:
    """Whether a turn can be run for another workgroup's number: nothing else that depends on it comes from outside.

    What that workgroup writes in it, nobody else may read meanwhile.
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


def _computed(values: Sequence[Value], made: Mapping[Value, Op], differs: frozenset[Value]) -> bool:
    """Whether all these numbers can be computed again for another workgroup."""
    return all(
        v in made and (isinstance(made[v], Workgroup) or _computed(made[v].operands, made, differs))
        for v in values
        if v in differs
    )


def _box(op: CopyAsyncSignal) -> tuple[int, ...]:
    shape: tuple[int, ...] = op.to.type.shape[len(op.to_at) :]
    return shape


def _box_bytes(op: CopyAsyncSignal) -> int:
    size: int = prod(_box(op)) * op.to.type.dtype.bytes
    return size


def _has_halves(op: CopyAsyncSignal, pattern_bytes: int) -> bool:
    """Whether each half is a whole number of patterns, in which chunks change places."""
    box, memory = _box(op), op.to.type
    assert isinstance(memory, Memory)
    if len(box) < 2 or prod(box[:-2]) != 1 or box[-2] % MEMBERS:
        return False
    return box[-2] // MEMBERS * row_elements(memory) * memory.dtype.bytes % pattern_bytes == 0


@dataclass(frozen=True)
class _Members:
    """A workgroup and its partner, in some turn."""

    who: Value
    """Whose tile this one computes: its own, or its partner's where it has none."""
    other: Value
    """Whose tile the partner computes."""
    writes: Value | None
    """Whether the tile is its own; None where it always is."""


class _Sharing:
    """Writes the kernel of a cluster."""

    def __init__(self, program: _Program, shared: _Shared) -> None:
        self.p, self.shared, self.own = program, shared, program.own.result
        self.builder = Builder(names(program.kernel), locate=lambda: program.own.loc)
        self.makers = {op.result: op for op in walk(program.kernel.body) if len(op.results) == 1}
        self.trips: Value | None = None
        """Turns of the first member, which both take; None where both have as many tiles."""
        self.seconds: Value | None = None
        """Tiles of the second; None where each turn computes it again, which leaves registers to others."""
        self.members: _Members | None = None
        """Where there is one turn and it is uneven; else each turn decides."""

    def kernel(self) -> Kernel:
        p = self.p
        behind_own, before_roles = self.start()
        new = {self.own: self.members.who} if self.members else {}
        told = {op.signals for op in walk(p.consumer.body) if isinstance(op, Arrive)}
        ops: list[Op] = []
        for op in p.tops:
            match op:
                case Workgroup():
                    ops += [op, *behind_own]
                case MakeSignals(arrivals) if op.result in told:
                    ops.append(replace(op, arrivals=MEMBERS * arrivals))
                case Barrier():
                    ops += [*before_roles, ClusterBarrier(loc=op.loc)]
                case Role(body=body):
                    change = self.consumer if op is p.consumer else self.producer
                    ops.append(replace(op, body=change(body, new)))
                case _:
                    ops.append(substitute(op, new))
        ops.append(ClusterBarrier(loc=p.own.loc))
        front, whole = self.grid()
        body = in_front(front, replace(p.kernel.body, ops=tuple(ops)))
        return at_launch(replace(p.kernel, body=body, workgroups=whole, cluster=MEMBERS))

    def grid(self) -> tuple[list[Op], int | str]:
        """Pairs of workgroups, and what computes how many."""
        if isinstance(self.workgroups, int):
            return [], -(-self.workgroups // MEMBERS) * MEMBERS
        with self.builder.region():
            whole = (self.workgroups + (MEMBERS - 1)) // MEMBERS * MEMBERS
            return list(self.builder.ops), whole.value.name

    @property
    def workgroups(self) -> Any:
        return self.number(self.p.kernel.workgroups)

    def number(self, extent: int | str) -> Any:
        return extent if isinstance(extent, int) else Number(self.builder, Value(extent, INDEX_SCALAR))

    # -- who computes what

    def start(self) -> tuple[list[Op], list[Op]]:
        """What stands behind the workgroup's number, and what in front of the roles."""
        if not self.shared.pairs.uneven:
            return [], []
        with self.builder.region():
            first = Number(self.builder, self.own) // MEMBERS * MEMBERS
            if self.p.turns is None:
                self.members = self.pair(first + 1 < self.workgroups)
                return list(self.builder.ops), []
            second = first + 1
            self.trips = self.tiles_of(first)
            self.seconds = None if is_open(self.p.kernel) else self.tiles_of(second)
            return [], list(self.builder.ops)

    def tiles_of(self, number: Number) -> Value:
        """How many tiles the workgroup of a number has."""
        assert self.p.turns is not None
        return self.again([self.p.turns.trips], number.value)[0]

    def pair(self, has_second: Number | None) -> _Members:
        """`has_second`: whether the second member has a tile of its own."""
        own = Number(self.builder, self.own)
        is_first = (own % MEMBERS).equals(0)
        first = own // MEMBERS * MEMBERS
        if has_second is None:
            return _Members(self.own, is_first.choose(first + 1, first).value, None)
        second = has_second.choose(first + 1, first)
        who, other = is_first.choose(first, second), is_first.choose(second, first)
        writes = self.builder.binary(Or, is_first.value, has_second.value)
        return _Members(who.value, other.value, writes)

    def again(self, values: Sequence[Value], number: Value) -> list[Value]:
        """These numbers as they are for the workgroup of another number."""
        new = {self.own: number}

        def of(v: Value) -> Value:
            if v not in new and v in self.p.differs:
                op = self.makers[v]
                inner = {x: of(x) for x in op.operands}
                new[v] = self.builder.fresh(v.name, v.type)
                self.builder.ops.append(replace(substitute(op, inner), results=(new[v],)))
            return new.get(v, v)

        return [of(v) for v in values]

    def in_turns(self, body: Block, change: Change) -> Block:
        """`change` a turn, or the whole where there is one turn only."""
        turns = self.p.turns
        if turns is None or self.trips is None:
            return change(body, self.members)
        ops = [op for op in body.ops if isinstance(op, Loop) and op.trips == turns.trips]
        (loop,) = ops
        with self.builder.region():
            turn = Number(self.builder, loop.body.args[0])
            tiles = self.seconds or self.tiles_of(Number(self.builder, self.own) // MEMBERS * MEMBERS + 1)
            members = self.pair(turn < Number(self.builder, tiles))
            start = list(self.builder.ops)
        inner = change(substitute_block(loop.body, {self.own: members.who}), members)
        new = replace(loop, trips=self.trips, body=replace(inner, ops=(*start, *inner.ops)))
        return replace(body, ops=tuple(new if op is loop else op for op in body.ops))

    # -- the roles

    def consumer(self, body: Block, new: dict[Value, Value]) -> Block:
        def both(op: Op) -> Sequence[Op] | None:
            return [replace(op, members=MEMBERS)] if isinstance(op, Arrive) else None

        return self.in_turns(rewrite_block(substitute_block(body, new), both), self.writing_own)

    def writing_own(self, body: Block, members: _Members | None) -> Block:
        """Only a tile of its own is written, and only parts of such are handed over and taken."""
        writes = members.writes if members else None
        if writes is None:
            return body

        def clip(op: Op) -> Sequence[Op] | None:
            match op:
                case CopyAsyncOut(at=at, axes=axes):
                    return self.outside(op, at, axes[0], writes)
                case Store(memory=memory, mask=mask) | StoreEach(memory=memory, mask=mask) if lies_in(memory, "global"):
                    with self.builder.region():
                        self.builder.locate = lambda: op.loc
                        allowed = self.builder.binary(And, mask[0], writes) if mask else writes
                        return [*self.builder.ops, replace(op, mask=(allowed,))]
                case Loop(trips=trips, body=inner) if any(isinstance(o, (HandOver, TakeOver)) for o in inner.ops):
                    with self.builder.region():
                        self.builder.locate = lambda: op.loc
                        times = Number(self.builder, writes).choose(Number(self.builder, trips), 0).value
                        return [*self.builder.ops, replace(op, trips=times)]
                case _ if any(lies_in(v, "global") for v in op.written):
                    raise NotImplementedError(f"{op.loc}: {op.name} cannot be kept from writing")
                case _:
                    return None

        return rewrite_block(body, clip)

    def outside(self, op: CopyAsyncOut, at: tuple[Value, ...], axis: int, writes: Value) -> list[Op]:
        """The copy, or where nothing may be written, one whose box lies outside the memory."""
        with self.builder.region():
            self.builder.locate = lambda: op.loc
            inside, end = Number(self.builder, at[axis]), self.number(op.memory.type.extents[axis])
            where = Number(self.builder, writes).choose(inside, end).value
            return [*self.builder.ops, replace(op, at=(*at[:axis], where, *at[axis + 1 :]))]

    def producer(self, body: Block, new: dict[Value, Value]) -> Block:
        if self.p.turns is not None and self.trips is None:
            (loop,) = (op for op in body.ops if op is self.p.turns)
            inner = replace(loop, body=self.bringing(loop.body, None))
            return replace(body, ops=tuple(inner if op is loop else op for op in body.ops))
        return self.in_turns(substitute_block(body, new), self.bringing)

    def bringing(self, body: Block, members: _Members | None) -> Block:
        """In front of the steps of a tile it is decided whether both bring it together."""
        where = [self.brings(op) for op in body.ops].index(True)
        with self.builder.region():
            partner = members or self.pair(None)
            together = self.together(partner.other)
            decided = list(self.builder.ops)
        (step,) = rewrite_block(Block((), (body.ops[where],)), lambda op: self.shared_copy(op, together)).ops
        return replace(body, ops=(*body.ops[:where], *decided, step, *body.ops[where + 1 :]))

    def brings(self, op: Op) -> bool:
        return any(isinstance(inner, CopyAsyncSignal) for block in op.blocks for inner in walk(block))

    def together(self, other: Value) -> Value:
        """Whether the partner wants the same."""
        mine, theirs = self.shared.positions, self.again(self.shared.positions, other)
        same = [self.builder.binary(Equal, a, b) for a, b in zip(mine, theirs, strict=True)]
        found = same[0] if same else self.builder.const(True, Scalar(BOOL))
        for more in same[1:]:
            found = self.builder.binary(And, found, more)
        return found

    def shared_copy(self, op: Op, together: Value) -> Sequence[Op] | None:
        if not isinstance(op, CopyAsyncSignal) or op.memory != self.shared.copies[0].memory:
            return None
        return [
            CopyAsyncCluster(op.memory, op.at, op.to, op.to_at, op.signals, op.signal, together, op.axes, loc=op.loc)
        ]


Change = Callable[[Block, _Members | None], Block]
