"""Writes at indices from memory, as writes whose positions are known.

Where a kernel writes `out[slots[t], d]`, the place is known only when there is data. What is known is which workgroup
stores which (t, d). So for the analyses the write goes to a memory of the dims of `slots` and of its windows, and that
memory is judged like any output: each (t, d) is stored, by one workgroup, once. The rows of a ragged grid's tiles are
distinct, and all rows of its groups (`mapping.ragged`), so there the dims are those of the tiles.

That two of them have different places in `out` is another question: they do if what the indices are made of is
`unique`, or if they are in segments between `sorted` offsets (`segments.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from tilewave.analysis.index_trace import made_of_data
from tilewave.analysis.loaded_bounds import over_every_step
from tilewave.analysis.segments import Segments, keeps_apart
from tilewave.errors import AccessError, CoverageError
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Add,
    Broadcast,
    Cast,
    Const,
    Elementwise,
    FloorDiv,
    Iota,
    Less,
    Loop,
    Mod,
    Mul,
    Permute,
    RaggedTile,
    Read,
    ReadIndexed,
    Reduce,
    Select,
    Sub,
    Write,
    WriteIndexed,
    Yield,
)
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import rewrite_block, walk
from tilewave.ir.types import INDEX_SCALAR, Memory, Scalar, Tile

MAY_COLLIDE = (
    "say that they do not, if that is so: {indices}: Memory[…, Indices(unique=True)]; or add where others add: "
    "atomic_add(tile, {memory}, at={{…}})"
)
SEGMENTS = (
    "say that segments do not overlap, if that is so: {indices}: Memory[…, Indices(sorted=True)]; or add where others "
    "add: atomic_add(tile, {memory}, at={{…}})"
)
FORMULA = (
    "distinct indices stay distinct as they are, or as quotient and remainder by one number; a sum of them may not, as "
    "-1 + 1 is a place: store the places in an array with its own contract, or add where others add: "
    "atomic_add(tile, {memory}, at={{…}})"
)
Axis = int | None
IN_SEGMENT: tuple[str, object] = ("segment", None)
NUMBER: tuple[str, object] = ("number", None)


@dataclass(frozen=True)
class _Part:
    """A memory axis of the judged write: its extent, where the tile begins, and the tile's axis along it, if any."""

    extent: int | str
    start: Value
    axis: Axis
    rows: RaggedTile | None = None
    """The tile of a ragged grid whose rows these are; then the extent is the number of tiles."""


@dataclass(frozen=True)
class _Source:
    """What positions along one axis are made of: the elements of a read, or a window."""

    read: Read | None
    parts: tuple[_Part, ...]
    how: tuple[str, object] = ("whole", None)
    """("whole", None) where different elements give different indices, else ("quotient", n), ("remainder", n),
    ("segment", None), ("number", None) or ("", None)."""


def as_windows(kernel: Kernel) -> Kernel:
    """Return a kernel of the same writes, all at known positions; those of which nothing is known are left."""
    kernel = over_every_step(kernel)
    if not _has_indexed(kernel):
        return kernel
    windows = _Windows(kernel)
    body = rewrite_block(kernel.body, windows.rewritten)
    return replace(kernel, body=replace(body, args=(*body.args, *windows.judged)))


def _has_indexed(kernel: Kernel) -> bool:
    of_data = made_of_data(kernel.body)
    return any(_is_indexed(op, of_data) or _is_condition(op, of_data) for op in walk(kernel.body))


def _is_indexed(op: Op, of_data: Set[Value]) -> bool:
    return isinstance(op, WriteIndexed) or (isinstance(op, Write) and any(v in of_data for v in op.at))


def _is_condition(op: Op, of_data: Set[Value]) -> bool:
    """Return whether an op runs its block once or not at all, as data decides."""
    return (
        isinstance(op, Loop)
        and op.trips in of_data
        and any(isinstance(o, (Write, WriteIndexed)) for o in walk(op.body))
    )


def _want_unwritten(kernel: Kernel) -> None:
    """Refuse arrays that are read and written, one of them at indices: which access comes first is not known."""
    of_data = made_of_data(kernel.body)
    accesses = (op for op in walk(kernel.body) if op.read or op.written)
    ops = [op for op in accesses if not any(is_in(v, "shared") for v in (*op.read, *op.written))]
    written = {v for op in ops for v in op.written}
    at_indices = {v for op in ops if _is_indexed(op, of_data) for v in op.written}
    for op in ops:
        if isinstance(op, (ReadIndexed, RaggedTile)) and op.memory in written:
            what = f"{kernel.name} reads {op.memory.name} at indices from memory, and writes it too"
            raise AccessError(what, loc=op.loc, remedy="write to another array, or read it in another kernel")
        for memory in at_indices.intersection(op.read):
            what = f"{kernel.name} reads {memory.name}, and writes it at indices, or by atomics"
            raise AccessError(what, loc=op.loc, remedy="write to another array, or read it in another kernel")


def want_no_order(kernel: Kernel) -> None:
    """Refuse indices from memory where the order of workgroups may decide the result."""
    _want_unwritten(kernel)
    _want_distinct(kernel)


def _want_distinct(kernel: Kernel) -> None:
    """Refuse writes at indices of which two may be equal."""
    kernel = over_every_step(kernel)
    of_data = made_of_data(kernel.body)
    windows = _Windows(kernel)
    for op in walk(kernel.body):
        if isinstance(op, (Write, WriteIndexed)) and _is_indexed(op, of_data) and not _is_added(op):
            colliding = windows.colliding(op)
            if colliding is not None:
                what = f"{kernel.name} writes {op.memory.name} at indices from {colliding}, of which two may be equal"
                remedy = windows.remedy(op, colliding).format(indices=colliding, memory=op.memory.name)
                raise CoverageError(what, loc=op.loc, remedy=remedy)


def _is_added(op: Op) -> bool:
    return isinstance(op, WriteIndexed) and bool(op.combine)


def relied_on(kernel: Kernel) -> tuple[str, ...]:
    """Return the names of the arrays of indices without whose contracts two writes might collide."""
    kernel = over_every_step(kernel)
    if not _has_indexed(kernel):
        return ()
    windows, of_data = _Windows(kernel), made_of_data(kernel.body)
    writes = [op for op in walk(kernel.body) if isinstance(op, (Write, WriteIndexed)) and _is_indexed(op, of_data)]
    places = [windows.places(op) for op in writes if not _is_added(op)]
    memories = [read.memory for one in places for read in one.deciding]
    memories += [part.rows.memory for one in places for part in one.parts if part.rows is not None]
    return tuple(dict.fromkeys(memory.name for memory in memories))


def _are_distinct(hows: set[tuple[str, object]]) -> bool:
    """Return whether different elements give different positions, by one axis or by quotient and remainder."""
    numbers = {n for how, n in hows if how == "quotient"} & {n for how, n in hows if how == "remainder"}
    return any(how == "whole" for how, _ in hows) or bool(numbers)


@dataclass(frozen=True)
class _Places:
    """What the positions of a write's elements are made of, of which `parts` tell the elements apart."""

    rank: int
    parts: tuple[_Part, ...]
    deciding: tuple[Read, ...]
    """The arrays of distinct indices that some of the parts come from."""
    others: Mapping[Read, tuple[_Part, ...]]
    """The reads of indices of which two may be equal."""
    in_part: bool = False
    """Whether some elements of the parts are not stored: in no segment, or at none of the numbers."""

    @property
    def axes(self) -> list[int]:
        return [part.axis for part in self.parts if part.axis is not None]

    @property
    def are_known(self) -> bool:
        """Whether the parts span each axis of the tile once."""
        return bool(self.parts) and sorted(self.axes) == list(range(self.rank))


class _Windows:
    """The writes of a kernel with their positions known."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.defs, self.of_data = kernel, kernel.defs, made_of_data(kernel.body)
        self.unique = {name for name, _, *flags in kernel.contracts if "unique" in flags}
        self.sorted = {name for name, _, *flags in kernel.contracts if "sorted" in flags}
        self.segments = Segments(kernel)
        self.sizes = {n for v in kernel.body.args if isinstance(v.type, Memory) for n in v.type.extents}
        self.judged: list[Value] = []
        """The memories of the writes."""

    def rewritten(self, op: Op) -> list[Op]:
        if _is_condition(op, self.of_data):
            assert isinstance(op, Loop)
            defined = self.defs.get(op.trips)
            once = Const(1, results=(replace(op.trips, name=f"{op.trips.name}.once"),), loc=op.loc)
            is_truth = isinstance(defined, Cast) and defined.x.type.dtype.name == "bool"
            return [once, replace(op, trips=once.result)] if is_truth else [op]
        if not _is_indexed(op, self.of_data):
            return [op]
        assert isinstance(op, (Write, WriteIndexed))
        if is_in(op.memory, "shared"):
            return []  # each workgroup has its own
        places = self.places(op)
        if _is_added(op) and not (places.are_known and places.deciding):
            return []  # many workgroups may add to one element
        if not places.are_known:
            return [op]
        return self.judged_write(op, places)

    def judged_write(self, op: Write | WriteIndexed, places: _Places) -> list[Op]:
        """Return a write to a memory of the places' parts; a tile of a ragged grid is one element along its axis."""
        dtype, shape = op.memory.type.dtype, op.tile.type.shape
        memory = Value(
            f"{op.memory.name}.stored", Memory((*(part.extent for part in places.parts), 1), dtype, "global")
        )
        self.judged.append(memory)
        along = {part.axis: i for i, part in enumerate(places.parts) if part.axis is not None and part.rows is None}
        kept = [axis for axis in range(places.rank) if axis in along]
        stored = Value(f"{memory.name}.tile", Tile((*(shape[a] for a in kept), 1), dtype))
        zero = Const(0, results=(Value(f"{memory.name}.at", INDEX_SCALAR),), loc=op.loc)
        at = (*(part.start for part in places.parts), zero.result)
        axes = (*(along[axis] for axis in kept), len(places.parts))
        tile = Const(0, results=(stored,), loc=op.loc)
        write = Write(stored, memory, at, axes, loc=op.loc)
        return [tile, zero, *(_optional(write, memory) if places.in_part else [write])]

    def colliding(self, op: Write | WriteIndexed) -> str | None:
        """Return the name of the indices by which two elements may have one position; None where none have."""
        places = self.places(op)
        starts = {part.start for part in places.parts}
        apart = [
            read
            for read, parts in places.others.items()
            if any(
                part.axis is None and part.start not in starts and not self.is_constant(part.start) for part in parts
            )
        ]
        if places.are_known and not apart:
            return None
        return next((read.memory.name for read in (*apart, *places.others)), "indices")

    def remedy(self, op: Write | WriteIndexed, colliding: str) -> str:
        """Return what to do about indices of which two may be equal."""
        if colliding in self.unique:
            return FORMULA
        sources = (source for source in self.sources(op) if source is not None and source.read is not None)
        in_segments = any(s.how == IN_SEGMENT and s.read and s.read.memory.name == colliding for s in sources)
        return SEGMENTS if in_segments else MAY_COLLIDE

    def places(self, op: Write | WriteIndexed) -> _Places:
        """Return what tells a write's elements apart: its windows first, then distinct indices."""
        sources = [source for source in self.sources(op) if source is not None]
        parts = [part for source in sources if source.read is None for part in source.parts]
        reads: dict[Read, tuple[_Part, ...]] = {}
        hows: dict[Read, set[tuple[str, object]]] = {}
        for source in sources:
            if source.read is not None:
                reads[source.read] = source.parts
                hows.setdefault(source.read, set()).add(source.how)
        others = {read: parts for read, parts in reads.items() if not self.is_trusted(op, read, hows[read])}
        deciding = []
        for read in (read for read in reads if read not in others):
            more = [part for part in reads[read] if self.tells_apart(part, parts)]
            parts += more
            deciding += [read] if more else []
        in_part = any(IN_SEGMENT in hows[read] for read in deciding) or any(s.how == NUMBER for s in sources)
        return _Places(len(op.tile.type.shape), _of_numbers(parts), tuple(deciding), others, in_part)

    def is_trusted(self, op: Write | WriteIndexed, read: Read, hows: set[tuple[str, object]]) -> bool:
        """Return whether different elements of an array of indices may be taken to be stored at different positions."""
        by_segment = read.memory.name in self.sorted and IN_SEGMENT in hows
        return _is_added(op) or by_segment or (read.memory.name in self.unique and _are_distinct(hows))

    def tells_apart(self, part: _Part, others: list[_Part]) -> bool:
        """Return whether a part spans an axis of the tile that others do not, or is moved by a number of its own."""
        if part.axis is None:
            return not self.is_constant(part.start) and self.plain(part.start) not in self.starts(others)
        return part.axis not in {other.axis for other in others}

    def starts(self, parts: Iterable[_Part]) -> set[Value]:
        return {self.plain(part.start) for part in parts}

    def plain(self, v: Value) -> Value:
        """Return an index before it was cast."""
        op = self.defs.get(v)
        return self.plain(op.x) if isinstance(op, Cast) else v

    def is_constant(self, v: Value) -> bool:
        return isinstance(self.defs.get(v), Const)

    def sources(self, op: Write | WriteIndexed) -> Iterator[_Source | None]:
        """Yield what the positions along each axis of the memory are made of; None: not known."""
        extents = op.memory.type.extents
        if isinstance(op, WriteIndexed):
            rank = len(op.tile.type.shape)
            for v, extent in zip(op.at, extents, strict=True):
                yield self.source(v, tuple(range(rank)), extent)
            return
        along = {axis: i for i, axis in enumerate(op.axes)}
        for axis, (v, extent) in enumerate(zip(op.at, extents, strict=True)):
            if v in self.of_data:
                yield self.source(v, (), extent)
            else:
                yield _Source(None, (_Part(extent, v, along.get(axis)),))

    def source(self, v: Value, axes: tuple[Axis, ...], extent: int | str) -> _Source | None:
        """Return what positions are made of; `axes` are the written tile's axes for each axis of `v`."""
        op = self.defs.get(v)
        match op:
            case _ if isinstance(v.type, Scalar) and v not in self.of_data and not self.is_constant(v):
                return _Source(None, (_Part(extent, v, None),), NUMBER)
            case Broadcast(x, over) if not isinstance(x.type, Scalar):
                return self.source(x, tuple(axes[a] for a in over), extent)
            case Broadcast(x):
                return self.source(x, (), extent)
            case Permute(x, order):
                return self.source(x, tuple(axes[order.index(a)] for a in range(len(order))), extent)
            case Cast(x):
                source = self.source(x, axes, extent)
                return source if source is None or keeps_apart(op) else replace(source, how=("", None))
            case Select(holds, x, other) if self.is_nowhere(other):
                rows = self.rows_of(holds, x)
                if rows is not None:
                    return _Source(None, (self.part_of(rows, axes[0]),))
                return self.in_segment(holds, x, axes, extent) or self.source(x, axes, extent)
            case Reduce(x) if all(n == 1 for n in x.type.shape):
                kept = iter(axes)
                return self.source(
                    x, tuple(None if a in op.axes else next(kept) for a in range(len(x.type.shape))), extent
                )
            case Iota():
                return _Source(None, (_Part(extent, v, axes[0]),))  # `added` gives it its start
            case Add(a, b) | Sub(a, b) | Mul(a, b) | FloorDiv(a, b) | Mod(a, b):
                return self.combined(op, a, b, axes, extent)
            case Read() if op.memory in self.kernel.body.args and self.of_data.isdisjoint(op.at):
                along = dict(zip(op.axes, axes, strict=True))
                facts = zip(op.memory.type.extents, op.at, strict=True)
                return _Source(op, tuple(_Part(n, at, along.get(i)) for i, (n, at) in enumerate(facts)))
            case Elementwise():
                each = [self.source(x, axes, extent) for x in op.operands if x in self.of_data]
                return replace(each[0], how=("", None)) if len(each) == 1 and each[0] else None
            case _:
                return None

    def in_segment(self, condition: Value, x: Value, axes: tuple[Axis, ...], extent: int | str) -> _Source | None:
        """Return what indices in a segment are made of: its number, and what counts within it."""
        segment = self.segments.of(condition, x)
        if segment is None:
            return None
        counted = self.source(segment.counted, axes, extent)
        if counted is None or counted.read is not None:
            return None
        number = _Part(segment.begin.memory.type.extents[0], segment.begin.at[0], None)
        return _Source(segment.begin, (number, *counted.parts), IN_SEGMENT)

    def rows_of(self, holds: Value, x: Value) -> RaggedTile | None:
        """Return the tile of a ragged grid whose rows x counts, those before the end of their group."""
        counted, below = self.defs.get(x), self.defs.get(holds)
        if not isinstance(counted, Add) or not isinstance(below, Less) or below.a != x:
            return None
        starts = [self.scalar(v) for v in (counted.a, counted.b) if not isinstance(self.defs.get(v), Iota)]
        start, end = starts[0] if len(starts) == 1 else None, self.scalar(below.b)
        rows = self.defs.get(start) if start is not None else None
        if not isinstance(rows, RaggedTile) or (start, end) != rows.results[1:] or x.type.shape != (rows.block,):
            return None
        return rows

    def part_of(self, rows: RaggedTile, axis: Axis) -> _Part:
        count = self.known(rows.count)
        return _Part(count if isinstance(count, int) else rows.count.name, rows.number, axis, rows)

    def combined(self, op: Op, a: Value, b: Value, axes: tuple[Axis, ...], extent: int | str) -> _Source | None:
        """Return what an operation on indices and one number gives."""
        of_a, of_b = a in self.of_data, b in self.of_data
        if not of_a and not of_b:
            first, start = (a, b) if isinstance(self.defs.get(a), Iota) else (b, a)
            scalar = self.scalar(start)
            found = self.source(first, axes, extent)
            if not isinstance(op, Add) or scalar is None or found is None or found.read is not None:
                return None
            if any(part.axis is None for part in found.parts):
                return None  # a sum of two numbers
            return replace(found, parts=tuple(replace(part, start=scalar) for part in found.parts))
        if of_a and of_b:
            return None
        found = self.source(a if of_a else b, axes, extent)
        number = self.scalar(b if of_a else a)
        if found is None or number is None or found.how[0] != "whole":
            return found and replace(found, how=("", None))
        match op:
            case FloorDiv() if of_a and self.is_positive(self.known(number)):
                return replace(found, how=("quotient", self.known(number)))
            case Mod() if of_a and self.is_positive(self.known(number)):
                return replace(found, how=("remainder", self.known(number)))
            case _:  # a sum too: equal negative indices, which are no place, may become one place
                return replace(found, how=("", None))

    def scalar(self, v: Value) -> Value | None:
        """Return the number that a tile holds everywhere."""
        if isinstance(v.type, Scalar):
            return v
        op = self.defs.get(v)
        return (
            op.x
            if isinstance(op, Broadcast) and isinstance(op.x.type, Scalar)
            else v
            if isinstance(op, Const)
            else None
        )

    def is_positive(self, n: object) -> bool:
        """Return whether a divisor is certainly not negative: a positive number or the size of an array."""
        return n > 0 if isinstance(n, int) else isinstance(n, Value) and n.name in self.sizes

    def is_nowhere(self, v: Value) -> bool:
        """Return whether an index is negative everywhere, which is no place."""
        number = self.scalar(v)
        value = None if number is None else self.known(number)
        return isinstance(value, int) and value < 0

    def known(self, v: Value) -> object:
        op = self.defs.get(v)
        return op.value if isinstance(op, Const) else self.known(op.x) if isinstance(op, Cast) else v


def _optional(write: Write, memory: Value) -> list[Op]:
    """Return a write some of whose elements are not stored."""
    once = Value(f"{memory.name}.once", INDEX_SCALAR)
    number = Value(f"{memory.name}.number", INDEX_SCALAR)
    body = Block((number,), (write, Yield(())))
    return [Const(1, results=(once,), loc=write.loc), Loop(once, (), body, optional=True, loc=write.loc)]


def _of_numbers(parts: list[_Part]) -> tuple[_Part, ...]:
    """Return the parts; none where the start of one is no number."""
    return tuple(parts) if all(isinstance(part.start.type, Scalar) for part in parts) else ()
