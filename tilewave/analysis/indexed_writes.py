"""Writes at indices from memory, as writes whose positions are known.

Where a kernel writes `out[slots[t], d]`, the place is known only when there is data. What is known is which workgroup
stores which (t, d). So for the analyses the write goes to a memory of the dims of `slots` and of its windows, and that
memory is judged like any output: each (t, d) is stored, by one workgroup, once. The rows of a ragged grid's tiles are
distinct, and all rows of its groups (`mapping.ragged`), so there the dims are those of the tiles.

That two of them have different places in `out` is another question: they do if what the indices are made of is
`unique`, or if they are in segments between `sorted` offsets (`segments.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from tilewave.analysis.index_sources import IN_SEGMENT, NUMBER, IndexSources, PositionPart
from tilewave.analysis.index_trace import made_of_data
from tilewave.analysis.loaded_bounds import over_every_step
from tilewave.analysis.segments import WindowPlaces
from tilewave.errors import AccessError, CoverageError
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Broadcast,
    Cast,
    Const,
    Elementwise,
    Loop,
    Permute,
    RaggedTile,
    Read,
    ReadIndexed,
    Reduce,
    Select,
    TurnOp,
    Write,
    WriteIndexed,
    Yield,
)
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import rewrite_block, walk
from tilewave.ir.types import INDEX_SCALAR, Memory, Scalar, Tile
from tilewave.records import dataclass

MAY_COLLIDE = (
    "say that they do not, if that is so: {indices}: Memory[…, Indices(unique=True)]; or add where others add: "
    "atomic_add(tile, {memory}, at={{…}})"
)
SEGMENTS = (
    "say that segments do not overlap, if that is so: {indices}: Memory[…, Indices(sorted=True)]; or add where others "
    "add: atomic_add(tile, {memory}, at={{…}})"
)
NO_END = (
    "no contract says that rows from {indices} on end before others begin: end them there, {indices}: Memory[…, "
    "Indices(sorted=True)] with one element more, end = minimum(begin + length, read({indices}, at={{…: s + 1}})), and "
    "write at select(m < end - begin, begin + m, -1); or store the place of each row in an array with "
    "Indices(unique=True); or add where others add: atomic_add(tile, {memory}, at={{…}})"
)
IN_PLACE = (
    "write to another array, or read {memory} in another kernel. A state that is updated in place is read and written "
    "at one number of the workgroup: slot = read(slots, at={{S: first_index(S)}}), with tiles of one element along S, "
    "and at={{…: slot}} in both"
)
PLACES = (
    "store the places in an array with a contract, slots: Memory[…, i32, Indices(unique=True)]: at={{…: slots}}, or "
    "for pages of n rows at={{…: slots // n, …: slots % n}}; or add where others add: atomic_add(tile, {memory}, "
    "at={{…}})"
)
FORMULA = (
    "distinct indices stay distinct as they are, or as quotient and remainder by one number; a sum of them may not, as "
    "-1 + 1 is a place: store the places in an array with its own contract, or add where others add: "
    "atomic_add(tile, {memory}, at={{…}})"
)


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
    """Refuse arrays that are read and written, one of them at indices: which access comes first is not known.

    A window at a number from memory may be read and written by its workgroup, as a state that is updated in place: no
    other workgroup writes there, or the write itself is refused.
    """
    of_data = made_of_data(kernel.body)
    accesses = (op for op in walk(kernel.body) if op.read or op.written)
    ops = [op for op in accesses if not any(is_in(v, "shared") for v in (*op.read, *op.written))]
    written = {v for op in ops for v in op.written}
    at_indices = {v for op in ops if _is_indexed(op, of_data) for v in op.written}
    places = WindowPlaces(kernel)
    for op in ops:
        if isinstance(op, (ReadIndexed, RaggedTile)) and op.memory in written:
            what = f"{kernel.name} reads {op.memory.name} at indices from memory, and writes it too"
            raise AccessError(what, loc=op.loc, remedy=IN_PLACE.format(memory=op.memory.name))
        for memory in at_indices.intersection(op.read):
            if not places.are_one([other for other in ops if memory in (*other.read, *other.written)]):
                what = f"{kernel.name} reads {memory.name}, and writes it at indices, or by atomics"
                raise AccessError(what, loc=op.loc, remedy=IN_PLACE.format(memory=memory.name))


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
                which = f" from {colliding}," if colliding else ""
                what = f"{kernel.name} writes {op.memory.name} at indices{which} of which two may be equal"
                remedy = windows.remedy(op, colliding).format(indices=colliding, memory=op.memory.name)
                raise CoverageError(what, loc=op.loc, remedy=remedy)


def leaves_out_by_data(kernel: Kernel) -> bool:
    """Return whether a write stores some of its elements, and numbers from memory decide which."""
    windows = _Windows(kernel)
    ops = (op for op in walk(kernel.body) if isinstance(op, WriteIndexed) and not op.combine)
    return any(map(windows.leaves_out, ops))


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
    parts: tuple[PositionPart, ...]
    deciding: tuple[Read, ...]
    """The arrays of distinct indices that some of the parts come from."""
    others: Mapping[Read, tuple[PositionPart, ...]]
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


class _Windows(IndexSources):
    """The writes of a kernel with their positions known."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.unique = {name for name, _, *flags in kernel.contracts if "unique" in flags}
        self.sorted = {name for name, _, *flags in kernel.contracts if "sorted" in flags}
        self.judged: list[Value] = []
        """The memories of the writes."""

    def rewritten(self, op: Op) -> list[Op]:
        if _is_condition(op, self.of_data):
            assert isinstance(op, Loop)
            defined = self.defs.get(op.trips)
            once = Const(1, results=(replace(op.trips, name=f"{op.trips.name}.once"),), loc=op.loc)
            is_truth = isinstance(defined, Cast) and defined.x.type.dtype.name == "bool"
            return [once, replace(op, trips=once.result)] if is_truth else [op]
        if isinstance(op, TurnOp):
            return []  # its counters are no output, and `turns.py` judges it
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
        """Return the name of the indices by which two elements may have one position, if one array has them; None where
        none have."""
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
        return next((read.memory.name for read in (*apart, *places.others)), "")

    def remedy(self, op: Write | WriteIndexed, colliding: str) -> str:
        """Return what to do about indices of which two may be equal."""
        sources = [*self.sources(op)]
        if None in sources or any(self.is_looked_up(v) for v in op.at):
            return PLACES
        blamed = [s for s in sources if s is not None and s.read is not None and s.read.memory.name == colliding]
        if any(s.how == IN_SEGMENT for s in blamed):
            return SEGMENTS
        if any(s.how[0] == "" and all(part.axis is None for part in s.parts) for s in blamed):
            return NO_END
        return FORMULA if colliding in self.unique else MAY_COLLIDE

    def is_looked_up(self, v: Value) -> bool:
        """Return whether an index is made of elements of an array, at indices from memory in their turn."""
        op = self.defs.get(v)
        if isinstance(op, (ReadIndexed, Read)):
            return any(at in self.of_data for at in op.at)
        return isinstance(op, (Elementwise, Broadcast, Permute, Reduce)) and any(map(self.is_looked_up, op.operands))

    def leaves_out(self, op: Write | WriteIndexed) -> bool:
        """Return whether numbers from memory decide, other than by segments, which elements are stored."""
        sources = (self.defs.get(v) for v in op.at)
        chosen = (x for x in map(self.unrepeated, sources) if isinstance(x, Select) and self.is_nowhere(x.b))
        return any(x.condition in self.of_data and self.segments.of(x.condition, x.a) is None for x in chosen)

    def unrepeated(self, op: Op | None) -> Op | None:
        """Return the op whose tile a broadcast or a cast repeats."""
        return self.unrepeated(self.defs.get(op.x)) if isinstance(op, (Broadcast, Cast)) else op

    def places(self, op: Write | WriteIndexed) -> _Places:
        """Return what tells a write's elements apart: its windows first, then distinct indices."""
        sources = [source for source in self.sources(op) if source is not None]
        parts = [part for source in sources if source.read is None for part in source.parts]
        reads: dict[Read, tuple[PositionPart, ...]] = {}
        hows: dict[Read, set[tuple[str, object]]] = {}
        for source in sources:
            if source.read is not None:
                reads[source.read] = source.parts
                hows.setdefault(source.read, set()).add(source.how)
        others = {read: parts for read, parts in reads.items() if not self.is_trusted(op, read, hows[read])}
        deciding: dict[Read, None] = {}
        trusted = [(read, part) for read, each in reads.items() if read not in others for part in each]
        for read, part in sorted(trusted, key=lambda one: one[1].axis is None):  # a number may be the start of an axis
            if self.tells_apart(part, parts):
                parts.append(part)
                deciding[read] = None
        in_part = any(IN_SEGMENT in hows[read] for read in deciding) or any(s.how == NUMBER for s in sources)
        return _Places(len(op.tile.type.shape), _of_numbers(parts), tuple(deciding), others, in_part)

    def is_trusted(self, op: Write | WriteIndexed, read: Read, hows: set[tuple[str, object]]) -> bool:
        """Return whether different elements of an array of indices may be taken to be stored at different positions."""
        by_segment = read.memory.name in self.sorted and IN_SEGMENT in hows
        return _is_added(op) or by_segment or (read.memory.name in self.unique and _are_distinct(hows))

    def tells_apart(self, part: PositionPart, others: list[PositionPart]) -> bool:
        """Return whether a part spans an axis of the tile that others do not, or is moved by a number of its own."""
        if part.axis is None:
            return not self.is_constant(part.start) and self.plain(part.start) not in self.starts(others)
        return part.axis not in {other.axis for other in others}

    def starts(self, parts: Iterable[PositionPart]) -> set[Value]:
        return {self.plain(part.start) for part in parts}


def _optional(write: Write, memory: Value) -> list[Op]:
    """Return a write some of whose elements are not stored."""
    once = Value(f"{memory.name}.once", INDEX_SCALAR)
    number = Value(f"{memory.name}.number", INDEX_SCALAR)
    body = Block((number,), (write, Yield(())))
    return [Const(1, results=(once,), loc=write.loc), Loop(once, (), body, optional=True, loc=write.loc)]


def _of_numbers(parts: list[PositionPart]) -> tuple[PositionPart, ...]:
    """Return the parts; none where the start of one is no number."""
    return tuple(parts) if all(isinstance(part.start.type, Scalar) for part in parts) else ()
