"""Find tiles ahead: where a persistent workgroup searches memory for its tiles, a warp of its own searches.

    role(consumers) {                          role(consumers) {
      loop(%n) (%turn) {                         loop(%n) (%turn) {
        %ends = load(%e, …)                        wait_mbarrier(%found, %slot, …)
        …                                  →       %first, … = load(%places, [%slot, …])
        %first = add(%start, …)                    arrive(%read, %slot)
        …                                          …
      }                                          }
    }                                          }
    role(producer) { … the same … }            role(producer) { … the same, and arrives on %read_1 … }
                                               role(search) {
                                                 loop(%n) (%turn) {
                                                   … %first = add(%start, …)
                                                   wait_mbarrier(%read, …); wait_mbarrier(%read_1, …)
                                                   store(%first, %places, [%slot, 0])
                                                   arrive(%found, %slot)
                                                 } }

The tile of a ragged grid is found by loads and reductions that depend on each other: some thousand cycles, in which
consumers would not multiply and the producer not load. The search is two tiles ahead of them instead, and what does not
depend on the turn is found once. Only integers are handed over; what follows from the number of the turn alone is
computed where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.effects import touched
from tilewave.ir.ops import (
    Allocate,
    AllOf,
    Arrive,
    Broadcast,
    Cast,
    Lane,
    Load,
    Loop,
    MakeMbarriers,
    Role,
    Store,
    WaitMbarrier,
    Wgmma,
    Yield,
)
from tilewave.ir.placements import is_in, size_bytes
from tilewave.ir.rewrite import made_in, names, rename, walk, with_ops
from tilewave.ir.types import I32, I64, INDEX_SCALAR, Mbarriers, Memory, Scalar, Vector
from tilewave.machine.chips import Chip
from tilewave.records import dataclass

SLOTS = 2
"""The tiles that the search is ahead."""
SPARE_BYTES = 1024
"""Shared memory for places, mbarriers and what alignment takes."""


@dataclass(frozen=True)
class FindTilesAhead:
    machine: Chip

    def __repr__(self) -> str:
        return "FindTilesAhead()"

    def __call__(self, kernel: Kernel) -> Kernel:
        roles = [op for op in kernel.body.ops if isinstance(op, Role)]
        turns = [turn for turn in (_turn_of(role, touched(kernel)[0]) for role in roles) if turn is not None]
        if len(turns) != len(roles) or len(roles) != 2 or turns[0].loop.trips != turns[1].loop.trips:
            return kernel
        first = max(role.last for role in roles)
        kinds = [op.result.type for op in walk(kernel.body) if isinstance(op, Allocate)]
        taken = sum(size_bytes(kind) for kind in kinds if isinstance(kind, Memory))
        if first >= kernel.waves[0] or taken + SPARE_BYTES > self.machine.shared.bytes:
            return kernel
        return _Ahead(kernel, turns).kernel(first)


@dataclass(frozen=True)
class _Turn:
    """A role's loop over tiles."""

    role: Role
    loop: Loop
    before: tuple[Op, ...]
    """The ops of the role before the loop."""
    head: tuple[Op, ...]
    """The ops of the loop before its first effect."""
    search: tuple[Op, ...]
    """Those of them that load from memory, or use what was loaded."""

    @property
    def found(self) -> tuple[Value, ...]:
        """The results of the search that other ops use."""
        return tuple(_used_outside(self.loop.body, self.search))


def _turn_of(role: Role, written: set[Value]) -> _Turn | None:
    """Return a role's loop over tiles, if it finds them by loads from memory that nothing writes."""
    before = _until_effect(role.body.ops)
    loop = next(iter(role.body.ops[len(before) :]), None)
    if not isinstance(loop, Loop):
        return None
    head = _until_effect(loop.body.ops)
    ops = [op for each in (*before, *head) for op in _with_inner(each)]
    loads = [op for op in ops if isinstance(op, Load) and is_in(op.memory, "global")]
    depending = set(_depending((*before, *head), loads))
    search = _handing_integers(loop.body, tuple(op for op in head if op in depending))
    turn = _Turn(role, loop, before, head, search)
    carried = any(v in loop.body.args[1:] for op in _slice(head, turn.found) for v in op.operands)
    is_found = turn.found and not carried and written.isdisjoint(op.memory for op in loads)
    return turn if is_found else None


def _until_effect(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Return the ops before the first one with an effect, or the end of the block."""
    acting = (i for i, op in enumerate(ops) if isinstance(op, Yield) or any(map(_acts, _with_inner(op))))
    return tuple(ops[: next(acting, len(ops))])


def _with_inner(op: Op) -> Iterator[Op]:
    yield op
    for block in op.blocks:
        yield from walk(block)


def _acts(op: Op) -> bool:
    return op.has_effect and not op.ends_blocks and not op.blocks


def _depending(head: Sequence[Op], loads: Sequence[Op]) -> tuple[Op, ...]:
    """Return the ops that load, or use what was loaded."""
    found: list[Op] = []
    known: set[Value] = set()
    for op in head:
        inner = list(_with_inner(op))
        if any(one in loads for one in inner) or any(v in known for one in inner for v in one.operands):
            found.append(op)
            known.update(op.results)
    return tuple(found)


def _handing_integers(body: Block, search: tuple[Op, ...]) -> tuple[Op, ...]:
    """Return the search without its last ops that give others than integers: these are computed from integers."""
    while True:
        used = _used_outside(body, search)
        others = {v for v in used if v.type not in (INDEX_SCALAR, Scalar(I32))}
        fewer = tuple(op for op in search if others.isdisjoint(op.results))
        if len(fewer) == len(search):
            return search
        search = fewer


def _used_outside(body: Block, ops: Sequence[Op]) -> list[Value]:
    """Return the results of some ops of a block that its other ops use."""
    made = {v for op in ops for v in op.results}
    own = {id(op) for op in ops}
    used = {v for op in body.ops if id(op) not in own for one in _with_inner(op) for v in one.operands}
    return [v for op in ops for v in op.results if v in made & used]


def _slice(head: Sequence[Op], wanted: Sequence[Value]) -> list[Op]:
    """Return the ops that compute some values, in order."""
    needed, found = set(wanted), list[Op]()
    for op in reversed(head):
        if not needed.isdisjoint(op.results):
            found.insert(0, op)
            needed.update(v for one in _with_inner(op) for v in one.operands)
    return found


class _Ahead:
    def __init__(self, kernel: Kernel, turns: Sequence[_Turn]) -> None:
        self.old, self.turns, self.builder = kernel, turns, Builder(names(kernel))
        self.loc = turns[0].search[0].loc
        self.builder.locate = lambda: self.loc
        kind = Mbarriers((SLOTS,))
        self.found = self.builder.fresh("found", kind)
        self.read = [self.builder.fresh("read", kind) for _ in turns]
        self.searching = _Merged(self.builder)
        self.handed = list(dict.fromkeys(v for turn in turns for v in self.searching.of(turn)))
        self.places = self.builder.fresh("places", Memory((SLOTS, len(self.handed)), I64, "shared"))

    def kernel(self, first: int) -> Kernel:
        """Return the kernel, of which wave `first` searches."""
        made = [MakeMbarriers(1, results=(self.found,), loc=self.loc)]
        for turn, read in zip(self.turns, self.read, strict=True):
            waves = turn.role.last - turn.role.first
            made.append(MakeMbarriers(waves // _together(turn.role), results=(read,), loc=self.loc))
        at = next(i for i, op in enumerate(self.old.body.ops) if isinstance(op, MakeMbarriers))
        readers = {id(turn.role): self.reader(turn, read) for turn, read in zip(self.turns, self.read, strict=True)}
        ops = [readers.get(id(op), op) for op in self.old.body.ops]
        places = Allocate(results=(self.places,), loc=self.loc)
        search = Role(first, first + 1, self.search(), loc=self.loc)
        return replace(self.old, body=with_ops(self.old.body, (*ops[:at], places, *made, *ops[at:], search)))

    def slot(self, turn: Value) -> tuple[Value, Number]:
        """Return the slot of a turn, and the parity of its mbarriers."""
        number = Number(self.builder, turn)
        return (number % SLOTS).value, number // SLOTS % 2

    def search(self) -> Block:
        turn, out = self.searching.turn, self.builder
        with out.region():
            slot, parity = self.slot(turn)
            for read in self.read:
                out.effect(WaitMbarrier, read, slot, (1 - parity).value)
            is_first = (Number(out, out.emit(Lane, type=INDEX_SCALAR, name="lane")) < 1).value
            for i, v in enumerate(self.handed):
                x = out.emit(Broadcast, out.cast(v, I64), (), type=Vector((1,), I64))
                out.effect(Store, x, self.places, (slot, out.const(i)), (is_first,), ((0, 1),))
            out.effect(Arrive, self.found, slot)
            ops = (*self.searching.ops, *out.ops, Yield((), loc=self.loc))
        loop = Loop(self.turns[0].loop.trips, (), Block((turn,), ops), loc=self.loc)
        return Block((), (*self.searching.before, loop))

    def reader(self, turn: _Turn, read: Value) -> Role:
        """Return a role that takes what was found from memory instead of searching."""
        out, loaded = self.builder, list[Value]()
        with out.region():
            slot, parity = self.slot(turn.loop.body.args[0])
            out.effect(WaitMbarrier, self.found, slot, parity.value)
            for v in turn.found:
                at = (slot, out.const(self.handed.index(self.searching.new[v])))
                loaded.append(out.emit(Load, self.places, at, (), ((0, 1),), type=Vector((1,), I64)))
                out.effect(Cast, out.emit(AllOf, loaded[-1], type=Scalar(I64)), results=(v,))
            out.effect(Arrive, read, slot, 0, _together(turn.role), 1, tuple(loaded))
            taken = list(out.ops)
        search = {id(op) for op in turn.search}
        body = with_ops(turn.loop.body, (*taken, *(op for op in turn.loop.body.ops if id(op) not in search)))
        ops = (replace(turn.loop, body=body) if op is turn.loop else op for op in turn.role.body.ops)
        return replace(turn.role, body=with_ops(turn.role.body, tuple(ops)))


def _together(role: Role) -> int:
    """Return how many waves of a role arrive as one."""
    return Wgmma.group.waves if (role.last - role.first) % Wgmma.group.waves == 0 else 1


class _Merged:
    """The searches of several roles as ops of one loop over turns; what two of them compute is computed once."""

    def __init__(self, builder: Builder) -> None:
        self.builder, self.turn = builder, builder.fresh("turn", INDEX_SCALAR)
        self.before: list[Op] = []
        self.ops: list[Op] = []
        """The ops before the loop, and those in it, which differ from turn to turn."""
        self.in_turn = {self.turn}
        self.new: dict[Value, Value] = {}
        """The values of the merged search, by those of the roles."""
        self.known: dict[Any, tuple[Value, ...]] = {}

    def of(self, turn: _Turn) -> list[Value]:
        """Add what a role finds, and return it."""
        self.new[turn.loop.body.args[0]] = self.turn
        for op in _slice((*turn.before, *turn.head), turn.found):
            key = _key(op, self.new)
            if key not in self.known:
                fresh = {v: self.builder.fresh(v.name, v.type) for v in made_in(Block((), (op,)))}
                new = rename(op, self.new | fresh)
                is_same = self.in_turn.isdisjoint(v for one in _with_inner(new) for v in one.operands)
                (self.before if is_same else self.ops).append(new)
                self.in_turn.update(() if is_same else new.results)
                self.known[key] = tuple(fresh[v] for v in op.results)
            self.new.update(zip(op.results, self.known[key], strict=True))
        return [self.new[v] for v in turn.found]


def _key(op: Op, of: Mapping[Value, Any], depth: int = 0) -> Any:
    """Return what is equal for ops that compute the same of the same, whatever the values inside are called."""
    parts = tuple(_key_of(part, of) for part in op.operand_parts())
    blocks = tuple(_block_key(block, of, depth + 1) for block in op.blocks)
    return type(op), op.attributes(), parts, blocks, tuple(v.type for v in op.results)


def _key_of(part: Any, of: Mapping[Value, Any]) -> Any:
    return tuple(_key_of(v, of) for v in part) if isinstance(part, tuple) else of.get(part, part)


def _block_key(block: Block, of: Mapping[Value, Any], depth: int) -> Any:
    made = [*block.args, *(v for op in block.ops for v in op.results)]
    known = dict(of) | {v: (depth, i) for i, v in enumerate(made)}
    return tuple(v.type for v in block.args), tuple(_key(op, known, depth) for op in block.ops)
