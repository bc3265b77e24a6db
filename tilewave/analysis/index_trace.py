"""Index traces: where reads and writes go, by running a kernel's index arithmetic on all workgroups without data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import field
from math import prod
from typing import Any, NoReturn

import numpy as np

from tilewave.errors import EndlessLoop
from tilewave.interp.arithmetic import Array, constant, elementwise, unmapped_tile
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.faults import CannotCompile
from tilewave.ir.once import once
from tilewave.ir.ops import (
    Const,
    Elementwise,
    Gather,
    Loop,
    RaggedTile,
    Read,
    ReadIndexed,
    ReadIndexedShared,
    Scatter,
    TileInGroup,
    TileOf,
    While,
    Workgroup,
    Write,
    Yield,
)
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Scalar
from tilewave.records import dataclass

CHUNK = 1 << 16
"""Workgroups that run at a time: their numbers fit in a core's L2 cache."""
FEWEST_ROUNDS = 1 << 12
"""A while loop with more iterations than this, and than there are tiles to write, is taken to be endless."""


FORMULA_CHUNK = 1 << 20
"""Elements whose positions a formula computes at a time."""

Wanted = Callable[[Op], bool]
"""Selects the ops that are visited."""


@dataclass(frozen=True)
class Visit:
    """One read or write by some workgroups, and where each one's tile begins.

    Where a formula gives the position of each element, `at` is the position of one element of the tile, for those
    workgroups for which it is in bounds; in a `WholeRun`, of all elements: [workgroup, *element], with length 1 along
    axes that do not matter.
    """

    op: Write | Scatter | Read | Gather
    workgroups: Array
    at: tuple[Array, ...]
    end: Mapping[int, Array] = field(default_factory=dict)
    """Along some axes, the end of what is written, where tiles may extend further."""


MADE_OF_DATA = "where a kernel writes, and how often its loops run, cannot depend on data, which this {op} is made of"
TAKE_ALL = (
    "take every step and write every element, and choose by elements: write(select(condition, x, y), c); "
    "a conditional without a write in it may skip what it computes"
)

FOLLOWED: tuple[type[Op], ...] = (Read, Gather, Write, Scatter)
"""Ops whose positions in memory are known for each workgroup."""
READS: tuple[type[Op], ...] = (Read, Gather, ReadIndexed, ReadIndexedShared)


def want_followed(kernel: Kernel, touched: Callable[[Op], tuple[Value, ...]]) -> None:
    """Refuse ops that access an array of the kernel (as `touched` lists) at positions that are not known."""
    for op in walk(kernel.body):
        if not isinstance(op, FOLLOWED) and any(v in kernel.body.args for v in touched(op)):
            raise CannotCompile(f"{kernel.name}: it is not known which elements {op.name} touches", loc=op.loc)


def visits(kernel: Kernel, symbols: Mapping[str, int], wanted: tuple[type[Op], ...]) -> Iterator[Visit]:
    """Yield every visit of the wanted ops: chunks of workgroups in launch order, each in program order."""
    return IndexRun(kernel, symbols, lambda op: isinstance(op, wanted)).all()


class IndexRun:
    """Runs the scalar part of a kernel on arrays, one element per workgroup; tiles are not computed."""

    def __init__(self, kernel: Kernel, symbols: Mapping[str, int], wanted: Wanted) -> None:
        self.kernel, self.wanted = kernel, wanted
        self.needed, self.of_data = needed_values(kernel.body, wanted), made_of_data(kernel.body)
        numbers = [v for v in kernel.body.args if isinstance(v.type, Scalar)]
        self.symbols = {v: symbols[v.name] for v in numbers if v in self.needed or v.name in symbols}
        self.out: list[Visit] = []
        tiles = sum(tile_count(op) for op in walk(kernel.body) if isinstance(op, Write))
        self.most_rounds = max(FEWEST_ROUNDS, 2 * tiles)

    def all(self) -> Iterator[Visit]:
        for first in range(0, self.kernel.workgroup_count, CHUNK):
            yield from self.chunk(np.arange(first, min(first + CHUNK, self.kernel.workgroup_count)))

    def chunk(self, workgroups: Array) -> list[Visit]:
        self.out = []
        self.block(self.kernel.body, dict(self.symbols), workgroups)
        return self.out

    def block(self, block: Block, env: dict[Value, Any], w: Array, *args: Any) -> tuple[Any, ...]:
        env.update(zip(block.args, args, strict=False))
        for op in block.ops:
            if isinstance(op, Yield):
                return tuple(env.get(v) for v in op.values)
            if self.wanted(op):
                self.visit(op, env, w)
            elif op.blocks or any(v in self.needed for v in op.results):
                self.op(op, env, w)
        return ()

    def op(self, op: Op, env: dict[Value, Any], w: Array) -> None:
        match op:
            case Elementwise():
                env[op.result] = elementwise(op, [env[v] for v in op.operands])
            case Const(value):
                env[op.result] = constant(op, value)
            case Workgroup():
                env[op.result] = w
            case TileOf(number, rows, cols):
                env.update(zip(op.results, unmapped_tile(env[number], rows, cols), strict=True))
            case Loop() if self.matters(op):
                self.loop(op, env, w)
            case While() if self.matters(op) or self.is_known(op):
                self.loop_while(op, env, w)
            case Loop() | While() | Gather() | Scatter():
                pass  # skipped: no wanted op depends on it
            case _:
                raise CannotCompile(MADE_OF_DATA.format(op=op.name), loc=op.loc, remedy=TAKE_ALL)

    def is_known(self, op: While) -> bool:
        """Return whether a loop's condition does not depend on data, so that it can be run to see that it ends."""
        return not any(v in self.of_data for v in op.condition.yielded)

    def matters(self, op: Loop | While) -> bool:
        return any(v in self.needed for v in op.results) or any(map(self.wanted, walk(op.body)))

    def visit(self, op: Any, env: dict[Value, Any], w: Array) -> None:
        if isinstance(op, (Gather, Scatter)):
            self.visit_formula(op, env, w)
        else:
            self.out.append(Visit(op, w, tuple(np.broadcast_to(np.asarray(env[v]), w.shape) for v in op.at)))

    def visit_formula(self, op: Gather | Scatter, env: dict[Value, Any], w: Array) -> None:
        for indices in np.ndindex(*tile_shape(op)):
            where = self.block(op.where, dict(env), w, *indices)
            inside = np.ones(len(w), bool)
            for p, extent in zip(where, op.memory.type.shape, strict=True):
                inside &= (np.asarray(p) >= 0) & (np.asarray(p) < extent)
            at = tuple(np.broadcast_to(np.asarray(p), w.shape)[inside] for p in where)
            self.out.append(Visit(op, w[inside], at))

    def loop(self, op: Loop, env: dict[Value, Any], w: Array) -> None:
        trips = np.broadcast_to(np.asarray(env[op.trips]), w.shape)
        carried = tuple(env.get(v) for v in op.init)
        for i in range(int(trips.max(initial=0))):
            carried = self.round(op.body, env, w, trips > i, (i, *carried), carried)
        env.update(zip(op.results, carried, strict=True))

    def loop_while(self, op: While, env: dict[Value, Any], w: Array) -> None:
        carried = tuple(env.get(v) for v in op.init)
        for _ in range(self.most_rounds):
            (goes_on,) = self.block(op.condition, env, w, *carried)
            active = np.broadcast_to(np.asarray(goes_on, dtype=bool), w.shape)
            if not active.any():
                env.update(zip(op.results, carried, strict=True))
                return
            before = carried
            carried = self.round(op.body, env, w, active, carried, carried)
            self.check_progress(op, w[active], active, before, carried)
        self.endless(op, int(w[active][0]))

    def check_progress(
        self, op: While, w: Array, active: Array, before: tuple[Any, ...], after: tuple[Any, ...]
    ) -> None:
        """Raise where an iteration changed nothing that decides the condition, because the loop is then endless."""
        known = (isinstance(v.type, Scalar) and v in self.needed for v in op.init)
        pairs = [(b, a) for b, a, v in zip(before, after, known, strict=True) if v]
        stuck = active.copy()
        for b, a in pairs:
            stuck &= np.broadcast_to(np.asarray(b) == np.asarray(a), active.shape)
        if stuck.any():
            self.endless(op, int(w[np.argmax(stuck[active])]))

    def endless(self, op: While, workgroup: int) -> NoReturn:
        raise EndlessLoop(
            f"the loop never ends for workgroup {workgroup}",
            loc=op.loc,
            remedy="let every iteration advance the loop's symbol toward the end of its condition, with set_symbol",
        )

    def round(
        self, body: Block, env: dict[Value, Any], w: Array, active: Array, args: tuple[Any, ...], old: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Run a loop's body once for the active workgroups; the others keep what they carry."""
        if active.all():
            return self.block(body, env, w, *args)
        narrow = {v: x[active] if isinstance(x, np.ndarray) and x.shape else x for v, x in env.items()}
        args = tuple(x[active] if isinstance(x, np.ndarray) and x.shape else x for x in args)
        new = self.block(body, narrow, w[active], *args)
        return tuple(_merge(active, n, o) for n, o in zip(new, old, strict=True))


class WholeRun(IndexRun):
    """Runs formulas on all elements of a tile at once, for some workgroups at a time."""

    def visit_formula(self, op: Gather | Scatter, env: dict[Value, Any], w: Array) -> None:
        tile = tile_shape(op)
        indices = [axis[np.newaxis] for axis in np.indices(tile, sparse=True)]
        used = {v for o in walk(op.where) for v in o.operands if v in env}
        step = max(1, FORMULA_CHUNK // prod(tile))
        for first in range(0, len(w), step):
            part = slice(first, first + step)
            columns = {v: _column(env[v], part, len(tile)) for v in used}
            where = (np.asarray(p) for p in self.block(op.where, columns, w[part], *indices))
            at = tuple(p if p.ndim else p.reshape((1,) * (1 + len(tile))) for p in where)
            self.out.append(Visit(op, w[part], at))


def _column(x: Any, part: slice, rank: int) -> Any:
    return x[part].reshape(-1, *(1,) * rank) if isinstance(x, np.ndarray) and x.shape else x


def element_places(visit: Visit) -> tuple[Array, ...]:
    """Return the positions of the elements of a tile with a formula, as [workgroup, element]."""
    tile = tile_shape(visit.op)
    shape = (len(visit.workgroups), *tile)
    return tuple(np.broadcast_to(p, shape).reshape(len(visit.workgroups), prod(tile)) for p in visit.at)


def tile_shape(op: Write | Scatter | Read | Gather) -> tuple[int, ...]:
    """Return the shape of the tile that is read or written."""
    shape: tuple[int, ...] = (op.tile if isinstance(op, (Write, Scatter)) else op.result).type.shape
    return shape


def window(op: Write | Read) -> tuple[int, ...]:
    """Return the extents of what a write stores, or a read loads, along each axis of its memory."""
    along = dict(zip(op.axes, op.within or tile_shape(op), strict=True))
    return tuple(along.get(axis, 1) for axis in range(op.memory.type.rank))


def tile_count(op: Write) -> int:
    """Return how many tiles cover the memory that a write writes."""
    return prod(-(-extent // size) for extent, size in zip(op.memory.type.shape, window(op), strict=True))


def _merge(active: Array, new: Any, old: Any) -> Any:
    if new is None:
        return None
    merged = np.array(np.broadcast_to(np.asarray(old), active.shape))
    merged[active] = new
    return merged


def needed_values(body: Block, wanted: Wanted, watched: frozenset[Value] = frozenset()) -> set[Value]:
    """Return the scalars that decide positions of wanted ops and trip counts of loops, and those of `watched`."""
    needed: set[Value] = set(watched)
    ops, of_data = list(walk(body)), made_of_data(body)
    size = -1
    while size != len(needed):
        size = len(needed)
        for op in reversed(ops):
            chosen = wanted(op)
            if isinstance(op, (Loop, While)):
                needed |= _decides(op, needed, wanted, of_data)
                continue
            if chosen or any(v in needed for v in op.results):
                needed.update(v for v in op.operands if isinstance(v.type, Scalar))
            if isinstance(op, (Gather, Scatter)):
                if chosen:
                    needed.update(v for o in walk(op.where) for v in o.operands)
            elif op.blocks:
                needed.update(v for b in op.blocks for v in b.yielded if isinstance(v.type, Scalar))
    return needed


@once
def made_of_data(body: Block) -> frozenset[Value]:
    """Return the values that depend on data read from memory."""
    return _made_by(body, (*READS, RaggedTile, TileInGroup))


@once
def made_of_reads(body: Block) -> frozenset[Value]:
    """Return the values that depend on data read from memory, where the groups of ragged grids are known."""
    return _made_by(body, READS)


def _made_by(body: Block, reads: tuple[type[Op], ...]) -> frozenset[Value]:
    found: set[Value] = set()
    size = -1
    while size != len(found):
        size = len(found)
        for op in walk(body):
            if isinstance(op, (Loop, While)):
                for result, *names, last, init in op.carried:
                    found.update((result, *names) if found.intersection((init, last)) else ())
            elif isinstance(op, reads) or found.intersection(op.operands):
                found.update(op.results)
    return frozenset(found)


def _decides(op: Loop | While, needed: set[Value], wanted: Wanted, of_data: Set[Value]) -> set[Value]:
    """Return the values that decide how often a loop runs, if that matters, and what of its carried values is needed.

    Carried numbers that are made of data are left out where they are not needed.
    """
    runs = (op.trips,) if isinstance(op, Loop) else op.condition.yielded
    asked = wanted(op) or any(v in needed for v in op.results) or any(wanted(o) or o.blocks for o in walk(op.body))
    found = set(runs) if asked or (isinstance(op, While) and of_data.isdisjoint(runs)) else set()
    for result, *names, last, init in op.carried:
        if any(v in needed for v in (result, *names)):
            found |= {init, last}
    return found
