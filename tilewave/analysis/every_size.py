"""Proof that a kernel is correct for every size, so that nothing is left to check when it is called.

The proof looks at the kernel as traced: a workgroup's tile is (b, m, n), whatever the order of tiles, and an order that
is valid on every grid gives each tile to one workgroup. Along each axis of a memory a window then begins at

    m · 64         where the grid has (M + 63) // 64 rows and the axis is M long, or
    k · 32         in a loop of (K + 31) // 32 iterations, along an axis of length K, or
    0              if the window is as long as the axis, or as the axis may be.

One tile coordinate may encode several positions, as b does for heads and batches: b % H and b // H are then two
numbers, from 0 to H - 1 and from 0 to B - 1, since there are H · B of them.

Such windows are adjacent and reach the end: each element is written once if every axis of the grid, and every loop
around the write, is the position along one axis. Reads may be anywhere, unless their memory is written too. A kernel of
another form may be correct as well: it is checked tile by tile, once for each new set of sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from tilewave.analysis.forms import Form, Forms, add, divided, number, number_of
from tilewave.analysis.indexed_writes import as_windows, relied_on
from tilewave.analysis.turns import takes_turns
from tilewave.forks import cached_property
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.host_program import Number
from tilewave.ir.launch import MOST_OPEN, limits_of
from tilewave.ir.ops import (
    Gather,
    Launch,
    Loop,
    Mod,
    RaggedTile,
    Read,
    ReadIndexed,
    Scatter,
    TileOf,
    While,
    Workgroup,
    Write,
)
from tilewave.ir.ops.workgroup import MOST_WORKGROUPS
from tilewave.ir.rewrite import walk
from tilewave.ir.types import INDEX_SCALAR, Memory
from tilewave.records import dataclass

FIXED = "its sizes are fixed"
Window = tuple[int, ...]


@dataclass(frozen=True)
class WrittenWindow:
    """An array that is written, and the extents of its windows."""

    array: str
    window: Window


@dataclass(frozen=True)
class EverySize:
    """What is proven of a kernel for all sizes: that it is correct, or why each size is checked."""

    because: str = FIXED
    doubts: tuple[str, ...] = ()
    windows: tuple[WrittenWindow, ...] = ()
    positive: tuple[str, ...] = ()
    """Symbols of the call that must be at least 1 for the order of tiles."""
    contracts: tuple[str, ...] = ()
    """The arrays of indices without whose contracts two writes might have one place."""

    @cached_property
    def holds(self) -> bool:
        return not self.doubts and self.because != FIXED

    def holds_at(self, shapes: Sequence[Sequence[int]], symbols: Sequence[int], workgroups: int) -> bool:
        """Return whether the proof covers a call: tiles can be numbered, and some workgroup computes them.

        `shapes` are those of the arrays of its windows, `symbols` are those that must be positive.
        """
        if not self.holds or (symbols and min(symbols) < 1):
            return False
        tiles = [_tiles(shape, written.window) for shape, written in zip(shapes, self.windows, strict=True)]
        return max([workgroups, *tiles]) <= MOST_WORKGROUPS and (workgroups >= 1 or not any(tiles))

    def surely(self, shapes: Sequence[Sequence[Number]], symbols: Sequence[Number], workgroups: Number) -> list[Number]:
        """Return conditions, recordable, that imply `holds_at`; there are at most as many tiles as elements."""
        most = [prod(lengths) <= MOST_WORKGROUPS for lengths in shapes]
        return [workgroups >= 1, workgroups <= MOST_WORKGROUPS, *most, *(x >= 1 for x in symbols)]

    @property
    def verdict(self) -> str:
        if self.doubts:
            return "checked once for each new set of sizes"
        return "right for every size" if self.holds else "checked when it was compiled"

    def __str__(self) -> str:
        by_contract = f", by the contract of {' and '.join(self.contracts)}" if self.contracts else ""
        return f"{self.verdict}{by_contract}, because {' and '.join(self.doubts) or self.because}"


def _tiles(shape: Sequence[int], window: Window) -> int:
    return prod([-(-length // size) for length, size in zip(shape, window, strict=True)])


def every_size(traced: Kernel, order: str, doubt: str, positive: Sequence[str]) -> EverySize:
    """Return what is proven of a traced kernel; `order` describes its order of tiles, `doubt` an objection to it."""
    contracts = relied_on(traced)
    if not any(v.type == INDEX_SCALAR for v in traced.body.args):
        return EverySize(contracts=contracts)
    return replace(_looked_at(traced, order, doubt, positive), contracts=contracts)


def is_right_unseen(traced: Kernel, doubt: str) -> bool:
    """Return whether a kernel of static sizes is correct by the same proof, so that no tile needs a check."""
    found = _looked_at(traced, "", doubt, ())
    shapes = {v.name: v.type.shape for v in traced.body.args if isinstance(v.type, Memory)}
    return found.holds_at([shapes[written.array] for written in found.windows], (), traced.workgroup_count)


def _looked_at(traced: Kernel, order: str, doubt: str, positive: Sequence[str]) -> EverySize:
    found = _Look(traced)
    found.look()
    has_tiles = any(isinstance(op, TileOf) for op in walk(traced.body))
    doubts = tuple(dict.fromkeys([doubt] * bool(doubt and has_tiles) + found.doubts))
    because = f"{order} is right on every grid, and windows are adjacent along the grid and along loops"
    return EverySize(because, doubts, () if doubts else found.windows(), tuple(positive))


@dataclass(frozen=True)
class _Counter:
    """A number from 0 to count - 1: a coordinate of the tile, or the index of a loop."""

    at: Form
    count: Form
    divided: tuple[Form, Form] | None = None
    """The dividend and the divisor, where it is a quotient."""


@dataclass(frozen=True)
class _Scope:
    """The scope of an op: the grid of its tile, and the loops around it once the tile is known."""

    grid: tuple[_Counter, ...] | None = None
    loops: tuple[_Counter, ...] = ()

    @property
    def counters(self) -> tuple[_Counter, ...]:
        return (*(self.grid or ()), *self.loops)


@dataclass(frozen=True)
class _Access:
    """A window: its start and extent along each axis of its memory."""

    at: tuple[Form, ...]
    window: Window


class _Look:
    def __init__(self, kernel: Kernel) -> None:
        self.given, self.forms = kernel.body.args, Forms()
        self.kernel, self.in_turns = as_windows(kernel), takes_turns(kernel)
        self.known: dict[Value, Form] = {}
        self.named: dict[str, Form] = {}
        self.doubts: list[str] = []
        self.writes: dict[Value, list[_Access]] = {}
        self.reads: dict[Value, list[tuple[_Access | None, Op]]] = {}
        """Windows; None where a formula gives the position of each element."""
        self.workgroup = self.forms.named("workgroup")
        self.limits = limits_of(kernel)

    def look(self) -> None:
        for v in self.kernel.body.args:
            if v.type == INDEX_SCALAR:
                self.learn(v, self.forms.named("argument", v.name))
        self.block(self.kernel.body, _Scope())
        if self.in_turns:
            self.doubt("the turns of workgroups depend on its sizes")
        for memory, accesses in self.writes.items():
            if len(accesses) > 1:
                self.doubt(f"{memory.name} is written at {len(accesses)} places")
            for access, op in self.reads.get(memory, ()):
                if access != accesses[0]:
                    self.doubt(f"{memory.name} is read and written", op)
        if not self.writes and not self.doubts:
            self.doubt("no window is written")

    def windows(self) -> tuple[WrittenWindow, ...]:
        given = ((memory, accesses) for memory, accesses in self.writes.items() if memory in self.given)
        return tuple(WrittenWindow(memory.name, accesses[0].window) for memory, accesses in given)

    def doubt(self, what: str, op: Op | None = None) -> None:
        self.doubts.append(f"{what} ({op.loc})" if op is not None and op.loc.line else what)

    # what numbers are -------------------------------------------------------------------------------------------------

    def learn(self, v: Value, form: Form) -> None:
        self.known[v] = form
        self.named[v.name] = form

    def of(self, v: Value) -> Form:
        if v not in self.known:
            self.learn(v, self.forms.fresh())
        return self.known[v]

    def extent(self, memory: Value, axis: int) -> Form:
        extent = memory.type.extents[axis]
        return number(extent) if isinstance(extent, int) else self.named[extent]

    def workgroups(self) -> Form:
        said = self.kernel.workgroups
        return number(said) if isinstance(said, int) else self.named[said]

    # the kernel, op by op ---------------------------------------------------------------------------------------------

    def block(self, block: Block, scope: _Scope) -> None:
        for op in block.ops:
            scope = self.op(op, scope)

    def op(self, op: Op, scope: _Scope) -> _Scope:
        """Record what an op shows about its values, and return the scope of the ops after it."""
        match op:
            case Launch():
                self.launch(op)
            case Workgroup():
                self.learn(op.result, self.workgroup)
            case TileOf():
                return self.tile(op, scope)
            case Loop():
                counter = _Counter(self.of(op.body.args[0]), self.of(op.trips))
                self.block(op.body, replace(scope, loops=(*scope.loops, counter)))
            case Read() if op.memory in self.kernel.body.args:
                self.reads.setdefault(op.memory, []).append((self.access(op, op.result), op))
            case ReadIndexed() | RaggedTile():
                pass  # anywhere in an array that is not written
            case Gather() if op.memory in self.kernel.body.args:
                self.reads.setdefault(op.memory, []).append((None, op))
            case Write() if op.memory in self.kernel.body.args:
                self.write(op, scope)
            case Mod():
                self.other(op)
                return self.digits(op, scope)
            case _:
                self.other(op)
        return scope

    def launch(self, op: Launch) -> None:
        self.block(op.body, _Scope())
        for result, v in zip(op.results, op.body.yielded, strict=True):
            self.learn(result, self.of(v))

    def other(self, op: Op) -> None:
        touched = [v for one in _all_of(op) for v in (*one.read, *one.written) if v in self.kernel.body.args]
        if isinstance(op, While) and touched:
            self.doubt("its own while loop decides which tiles it computes", op)
        elif touched:
            how = "written through an index mapping" if isinstance(op, Scatter) else f"touched by {op.name}"
            self.doubt(f"{touched[0].name} is {how}", op)
        if len(op.results) == 1 and op.result.type == INDEX_SCALAR and not op.blocks:
            self.learn(op.result, self.forms.of(op, [self.of(v) for v in op.operands]))

    def tile(self, op: TileOf, scope: _Scope) -> _Scope:
        rows, cols, batches, workgroups = op.with_sides([self.of(v) for v in op.sides])
        sides = [number(n) if isinstance(n, int) else n for n in (batches, rows, cols)]
        launched = number(workgroups) if isinstance(workgroups, int) else workgroups
        if scope.grid is not None or not self.is_dealt(self.of(op.number), sides, launched, scope):
            self.doubt("its tiles are not assigned to workgroups by the language", op)
        grid = tuple(_Counter(self.of(v), side) for v, side in zip(op.results, sides, strict=True))
        return _Scope(grid)

    def digits(self, op: Mod, scope: _Scope) -> _Scope:
        """Return the scope with a grid coordinate that is divided split in two: remainder and quotient."""
        if scope.grid is None or op.result.type != INDEX_SCALAR:
            return scope
        which, by = (self.of(v) for v in op.operands)
        grid: list[_Counter] = []
        for counter in scope.grid:
            rest = divided(counter.count, by) if counter.at == which and number_of(by) != 1 else None
            grid += [counter] if rest is None else self.two_of(counter, self.of(op.result), by, rest)
        return replace(scope, grid=tuple(grid))

    def two_of(self, counter: _Counter, left_over: Form, by: Form, rest: Form) -> list[_Counter]:
        """Return a counter's remainder, and its quotient with `rest` values, unless that is one."""
        whole, divisor = counter.divided or (counter.at, number(1))
        divisor = self.forms.mul(divisor, by)
        quotient = _Counter(self.forms.floor_div(whole, divisor), rest, (whole, divisor))
        return [_Counter(left_over, by), *([] if number_of(rest) == 1 else [quotient])]

    def is_dealt(self, dealt: Form, sides: list[Form], workgroups: Form, scope: _Scope) -> bool:
        """Return whether each workgroup takes every workgroups-th tile: one, or one per iteration."""
        tiles = number(1)
        for side in sides:
            tiles = self.forms.mul(tiles, side)
        if workgroups != self.workgroups():
            return False
        if not scope.loops:
            return dealt == self.workgroup and workgroups == tiles
        (rounds, *more) = scope.loops
        left = add(add(add(tiles, workgroups), number(1), -1), self.workgroup, -1)
        number_of_tile = add(self.workgroup, self.forms.mul(rounds.at, workgroups))
        return not more and dealt == number_of_tile and rounds.count == self.forms.floor_div(left, workgroups)

    # windows ----------------------------------------------------------------------------------------------------------

    def write(self, op: Write, scope: _Scope) -> None:
        access = self.access(op, op.tile)
        self.writes.setdefault(op.memory, []).append(access)
        if scope.grid is None:
            self.doubt(f"{op.memory.name} is written outside its tile", op)
            return
        used = [self.walker(op.memory, axis, access, scope) for axis in range(op.memory.type.rank)]
        for axis, found in enumerate(used):
            if found is None and not self.is_whole(op.memory, axis, access):
                self.doubt(f"what is written of {op.memory.name} along axis {axis} is not cut as the grid is", op)
        for counter in scope.counters:
            if number_of(counter.count) != 1 and used.count(counter) != 1:
                self.doubt(f"{op.memory.name} is written for tiles or steps that are no part of it", op)

    def walker(self, memory: Value, axis: int, access: _Access, scope: _Scope) -> _Counter | None:
        """Return the counter with which a write's windows run along an axis, adjacent and to its end."""
        size, begin = access.window[axis], access.at[axis]
        steps = self.forms.steps(self.extent(memory, axis), size)
        fitting = (c for c in scope.counters if self.forms.mul(c.at, number(size)) == begin and c.count == steps)
        return next(fitting, None)

    def is_whole(self, memory: Value, axis: int, access: _Access) -> bool:
        return number_of(access.at[axis]) == 0 and self.longest(memory, axis) <= access.window[axis]

    def longest(self, memory: Value, axis: int) -> int:
        """Return the largest extent an axis may have."""
        extent = memory.type.extents[axis]
        if isinstance(extent, str) and extent in self.limits:
            return self.limits[extent][1]
        known = number_of(self.extent(memory, axis))
        return MOST_OPEN if known is None else known

    def access(self, op: Read | Write, tile: Value) -> _Access:
        along = dict(zip(op.axes, tile.type.shape, strict=True))
        kind = op.memory.type
        assert isinstance(kind, Memory)
        return _Access(tuple(map(self.of, op.at)), tuple(along.get(axis, 1) for axis in range(kind.rank)))


def _all_of(op: Op) -> Iterator[Op]:
    yield op
    for block in op.blocks:
        yield from walk(block)
