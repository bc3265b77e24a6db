"""Writes at indices from memory, as writes whose positions are known.

Where a kernel writes `out[slots[t], d]`, the place is unknown before there is data. What is known is which workgroup
stores which (t, d). So for the analyses the write goes to a memory of the dims of `slots` and of its windows, and that
memory is judged like any output: each (t, d) is stored, by one workgroup, once.

That two of them have different places in `out` is another question: they do if what the indices are made of is
`unique`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tilewave.analysis.index_trace import made_of_data
from tilewave.errors import AccessError, CoverageError
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import (
    Add,
    Broadcast,
    Cast,
    Const,
    Elementwise,
    FloorDiv,
    Iota,
    Loop,
    Mod,
    Mul,
    Permute,
    Read,
    ReadIndexed,
    Reduce,
    Select,
    Sub,
    Write,
    WriteIndexed,
)
from tilewave.ir.rewrite import rewrite_block, walk
from tilewave.ir.types import Memory, Scalar

MAY_COLLIDE = (
    "say that they do not, if that is so: {indices}: Memory[…, Indices(unique=True)]; or add where others add: "
    "atomic_add(tile, {memory}, at={{…}})"
)
Axis = int | None


@dataclass(frozen=True)
class _Part:
    """A memory axis of the judged write: its extent, where the tile begins, and the tile's axis along it, if any."""

    extent: int | str
    start: Value
    axis: Axis


@dataclass(frozen=True)
class _Source:
    """What positions along one axis are made of: the elements of a read, or a window."""

    read: Read | None
    parts: tuple[_Part, ...]
    how: tuple[str, object] = ("whole", None)
    """("whole", None) where different elements give different indices, else ("quotient", n), ("remainder", n) or
    ("", None)."""


def as_windows(kernel: Kernel) -> Kernel:
    """Return a kernel of the same writes, all at known positions; those of which nothing is known are left."""
    if not _has_indexed(kernel):
        return kernel
    windows = _Windows(kernel)
    body = rewrite_block(kernel.body, windows.rewritten)
    return replace(kernel, body=replace(body, args=(*body.args, *windows.judged)))


def _has_indexed(kernel: Kernel) -> bool:
    of_data = made_of_data(kernel.body)
    return any(_is_indexed(op, of_data) or _is_condition(op, of_data) for op in walk(kernel.body))


def _is_indexed(op: Op, of_data: set[Value]) -> bool:
    return isinstance(op, WriteIndexed) or (isinstance(op, Write) and any(v in of_data for v in op.at))


def _is_condition(op: Op, of_data: set[Value]) -> bool:
    """Return whether an op runs its block once or not at all, as data decides."""
    return (
        isinstance(op, Loop)
        and op.trips in of_data
        and any(isinstance(o, (Write, WriteIndexed)) for o in walk(op.body))
    )


def _want_unwritten(kernel: Kernel) -> None:
    """Refuse reads by index from an array that the kernel writes: which of them comes first is unknown."""
    written = {v for op in walk(kernel.body) for v in op.written}
    for op in walk(kernel.body):
        if isinstance(op, ReadIndexed) and op.memory in written:
            what = f"{kernel.name} reads {op.memory.name} at indices from memory, and writes it too"
            raise AccessError(what, loc=op.loc, remedy="write to another array")


def want_no_order(kernel: Kernel) -> None:
    """Refuse indices from memory where the order of workgroups may decide the result."""
    _want_unwritten(kernel)
    _want_distinct(kernel)


def _want_distinct(kernel: Kernel) -> None:
    """Refuse writes at indices of which two may be equal."""
    of_data = made_of_data(kernel.body)
    unique = {name for name, _, *flags in kernel.contracts if "unique" in flags}
    sources = _Windows(kernel)
    for op in walk(kernel.body):
        is_added = isinstance(op, WriteIndexed) and op.combine
        if is_added or not isinstance(op, (Write, WriteIndexed)) or not _is_indexed(op, of_data):
            continue
        for read, hows in sources.by_read(op).items():
            name = read.memory.name if read is not None else ""
            if name not in unique or not _are_distinct(hows):
                indices = name or "indices"
                what = f"{kernel.name} writes {op.memory.name} at indices from {indices}, of which two may be equal"
                remedy = MAY_COLLIDE.format(indices=indices, memory=op.memory.name)
                raise CoverageError(what, loc=op.loc, remedy=remedy)


def _are_distinct(hows: set[tuple[str, object]]) -> bool:
    """Return whether different elements give different positions, by one axis or by quotient and remainder."""
    numbers = {n for how, n in hows if how == "quotient"} & {n for how, n in hows if how == "remainder"}
    return any(how == "whole" for how, _ in hows) or bool(numbers)


class _Windows:
    """The writes of a kernel with their positions known."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.defs, self.of_data = kernel, kernel.defs, made_of_data(kernel.body)
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
        sources = list(self.sources(op))
        parts = _each_once(sources)
        axes = [part.axis for part in parts if part.axis is not None]
        is_known = bool(parts) and sorted(axes) == list(range(len(op.tile.type.shape)))
        is_added = isinstance(op, WriteIndexed) and bool(op.combine)
        if is_added and not (is_known and any(source and source.read for source in sources)):
            return []  # many workgroups may add to one element
        if not is_known:
            return [op]
        kind = Memory(tuple(part.extent for part in parts), op.memory.type.dtype, "global")
        memory = Value(f"{op.memory.name}.stored", kind)
        self.judged.append(memory)
        along = {part.axis: i for i, part in enumerate(parts) if part.axis is not None}
        at = tuple(part.start for part in parts)
        return [Write(op.tile, memory, at, tuple(along[axis] for axis in range(len(axes))), loc=op.loc)]

    def by_read(self, op: Write | WriteIndexed) -> Mapping[Read | None, set[tuple[str, object]]]:
        """Return how positions are made, by the read that they are made of; None: by what is not known."""
        found: dict[Read | None, set[tuple[str, object]]] = {}
        for source in self.sources(op):
            if source is None:
                found[None] = set()
            elif source.read is not None:
                found.setdefault(source.read, set()).add(source.how)
        return found

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
            case Broadcast(x, over) if not isinstance(x.type, Scalar):
                return self.source(x, tuple(axes[a] for a in over), extent)
            case Broadcast(x):
                return self.source(x, (), extent)
            case Permute(x, order):
                return self.source(x, tuple(axes[order.index(a)] for a in range(len(order))), extent)
            case Cast(x) | Select(_, x, _):
                return self.source(x, axes, extent)
            case Reduce(x) if all(n == 1 for n in x.type.shape):
                kept = iter(axes)
                return self.source(
                    x, tuple(None if a in op.axes else next(kept) for a in range(len(x.type.shape))), extent
                )
            case Iota():
                return _Source(None, (_Part(extent, v, axes[0]),))  # `added` gives it its start
            case Add(a, b) | Sub(a, b) | Mul(a, b) | FloorDiv(a, b) | Mod(a, b):
                return self.combined(op, a, b, axes, extent)
            case Read() if op.memory in self.kernel.body.args:
                along = dict(zip(op.axes, axes, strict=True))
                facts = zip(op.memory.type.extents, op.at, strict=True)
                return _Source(op, tuple(_Part(n, at, along.get(i)) for i, (n, at) in enumerate(facts)))
            case Elementwise():
                found = [self.source(x, axes, extent) for x in op.operands if x in self.of_data]
                return replace(found[0], how=("", None)) if len(found) == 1 and found[0] else None
            case _:
                return None

    def combined(self, op: Op, a: Value, b: Value, axes: tuple[Axis, ...], extent: int | str) -> _Source | None:
        """Return what an operation on indices and one number gives."""
        of_a, of_b = a in self.of_data, b in self.of_data
        if not of_a and not of_b:
            first, start = (a, b) if isinstance(self.defs.get(a), Iota) else (b, a)
            scalar = self.scalar(start)
            found = self.source(first, axes, extent)
            if not isinstance(op, Add) or scalar is None or found is None or found.read is not None:
                return None
            return replace(found, parts=tuple(replace(part, start=scalar) for part in found.parts))
        if of_a and of_b:
            return None
        found = self.source(a if of_a else b, axes, extent)
        number = self.scalar(b if of_a else a)
        if found is None or number is None or found.how[0] != "whole":
            return found and replace(found, how=("", None))
        match op:
            case Add() | Sub():
                return found
            case FloorDiv() if of_a:
                return replace(found, how=("quotient", self.known(number)))
            case Mod() if of_a:
                return replace(found, how=("remainder", self.known(number)))
            case _:
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

    def known(self, v: Value) -> object:
        op = self.defs.get(v)
        return op.value if isinstance(op, Const) else self.known(op.x) if isinstance(op, Cast) else v


def _each_once(sources: list[_Source | None]) -> tuple[_Part, ...]:
    """Return the axes of all sources, each read once; none where a source is not known."""
    if None in sources:
        return ()
    reads: dict[Value, tuple[_Part, ...]] = {}
    parts: list[_Part] = []
    for source in sources:
        assert source is not None
        if source.read is None:
            parts += source.parts
        else:
            reads[source.read.result] = source.parts
    found = (*(part for each in reads.values() for part in each), *parts)
    return found if all(isinstance(part.start.type, Scalar) for part in found) else ()
