"""Reads that no kernel may do: of what another workgroup writes, and of what lies outside its memory altogether.

Positions are index arithmetic, so they are known before there is data. What the bounds of a position prove costs
nothing; the rest is looked at for every workgroup, up to so many tiles and elements. Beyond them the interpreter alone
judges, when the kernel is run there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from tilewave.analysis.ranges import Range, Ranges, range_of
from tilewave.analysis.schedule import OUTSIDE, Cover, Covered, Schedule
from tilewave.analysis.visits import Visit, WholeRun, element_places, needed_values, tile_shape, want_followed
from tilewave.errors import AccessError
from tilewave.interp.arithmetic import Array
from tilewave.interp.windows import is_empty_axis
from tilewave.ir.core import Kernel, Value
from tilewave.ir.ops import Gather, Read, Yield
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Scalar, dims

Reading = Read | Gather
Bounds = Callable[[Value], Range]

MOST_PLACES = 1 << 24
"""Tiles and elements that are looked at one by one: some tenths of a second."""


def judged_schedule(kernel: Kernel, symbols: Mapping[str, int], remedy: str = "") -> Schedule:
    """The schedule, as `checked_schedule` has it, if no workgroup reads what it may not; else a counterexample."""
    want_followed(kernel, lambda op: op.read)
    reads, ranges = _reads(kernel), Ranges(kernel)
    doubtful = [op for op in reads if _doubtful_axes(op, ranges.of)]
    watched = {op.at[a] for op in doubtful if isinstance(op, Read) for a in _doubtful_axes(op, ranges.of)}
    covered = Covered.by(kernel, symbols, remedy, frozenset(watched))
    doubtful = [op for op in doubtful if _doubtful_axes(op, lambda v: covered.bounds.get(v) or ranges.of(v))]
    suspects = {id(op) for op in (*doubtful, *(op for op in reads if op.memory in covered.covers))}
    if suspects:
        _Judge(kernel, symbols, suspects, covered.covers).judge()
    return covered.schedule


def reads_depend_on(kernel: Kernel) -> list[str]:
    """The dynamic symbols that decide where it reads."""
    symbols = [v for v in kernel.body.args if isinstance(v.type, Scalar)]
    reads = set(map(id, _reads(kernel))) if symbols else set()
    deciding = needed_values(kernel.body, lambda op: id(op) in reads) if symbols else set()
    return [v.name for v in symbols if v in deciding]


def _reads(kernel: Kernel) -> list[Reading]:
    """Those of the kernel's arguments."""
    return [op for op in walk(kernel.body) if isinstance(op, (Read, Gather)) and op.memory in kernel.body.args]


def _doubtful_axes(op: Reading, of: Bounds) -> list[int]:
    """Those along which the bounds of its positions do not prove that some of its tile lies inside."""
    bounds = [of(v) for v in op.at] if isinstance(op, Read) else _bounds_of_formula(op, of)
    sides = zip(bounds, _sizes(op), op.memory.type.shape, strict=True)
    return [a for a, ((low, high), size, extent) in enumerate(sides) if low <= -size or high >= extent]


def _bounds_of_formula(op: Gather, of: Bounds) -> Sequence[Range]:
    known = {v: (0, extent - 1) for v, extent in zip(op.where.args, tile_shape(op), strict=True)}
    for inner in op.where.ops:
        if isinstance(inner, Yield):
            return [known.get(v) or of(v) for v in inner.values]
        known[inner.result] = range_of(inner, lambda v: known.get(v) or of(v))
    raise AssertionError("a formula ends in yield")


def _sizes(op: Reading) -> tuple[int, ...]:
    """What a read covers along each axis of its memory; single elements where a formula places them."""
    along = dict(zip(op.axes, tile_shape(op), strict=True)) if isinstance(op, Read) else {}
    return tuple(along.get(axis, 1) for axis in range(op.memory.type.rank))


class _TooMany(Exception):
    """More places than are looked at."""


class _Judge(WholeRun):
    """Looks at every place that the suspects read."""

    def __init__(
        self, kernel: Kernel, symbols: Mapping[str, int], suspects: set[int], covers: Mapping[Value, Cover]
    ) -> None:
        super().__init__(kernel, symbols, lambda op: id(op) in suspects)
        self.covers, self.left = covers, MOST_PLACES

    def judge(self) -> None:
        try:
            for _ in self.all():
                pass
        except _TooMany:
            return

    def spend(self, places: int) -> None:
        self.left -= places
        if self.left < 0:
            raise _TooMany

    def visit(self, op: Any, env: dict[Value, Any], w: Array) -> None:
        super().visit(op, env, w)
        for visit in self.out:
            self.spend(sum(p.size for p in visit.at))
            self.judge_formula(visit) if isinstance(op, Gather) else self.judge_window(visit)
        self.out.clear()

    def judge_window(self, visit: Visit) -> None:
        op, shape = visit.op, visit.op.memory.type.shape
        sizes = _sizes(op)  # type: ignore[arg-type]
        start = [np.maximum(p, 0) for p in visit.at]
        stop = [np.minimum(p + size, extent) for p, size, extent in zip(visit.at, sizes, shape, strict=True)]
        axes = getattr(op, "axes", ())
        spans = [is_empty_axis(p, extent, a in axes) for a, (p, extent) in enumerate(zip(visit.at, shape, strict=True))]
        empty = np.any([(a >= b) & ~np.asarray(c) for a, b, c in zip(start, stop, spans, strict=True)], axis=0)
        if empty.any():
            which = int(np.argmax(empty))
            self.refuse_outside(visit, which, [int(p[which]) for p in visit.at], dims(tile_shape(op)))
        if op.memory in self.covers:
            self.look_up(visit, self.covers[op.memory], start, stop)

    def look_up(self, visit: Visit, cover: Cover, start: list[Array], stop: list[Array]) -> None:
        """Whose each tile is that the windows touch."""
        cut = cover.cut
        first = [start[a] // size for a, size in zip(cut.axes, cut.tile, strict=True)]
        last = [(stop[a] - 1) // size for a, size in zip(cut.axes, cut.tile, strict=True)]
        spans = [int((b - a).max()) + 1 for a, b in zip(first, last, strict=True)]
        self.spend(len(visit.workgroups) * int(np.prod(spans)))
        for steps in np.ndindex(*spans):
            tile = [np.minimum(a + step, b) for a, b, step in zip(first, last, steps, strict=True)]
            number = np.ravel_multi_index(tile, cut.grid)
            foreign = cover.owner[number] != visit.workgroups
            if foreign.any():
                which = int(np.argmax(foreign))
                corners = zip(cut.axes, cut.tile, tile, strict=True)
                found = {a: max(int(start[a][which]), int(t[which]) * size) for a, size, t in corners}
                self.refuse_foreign(visit, which, [found[a] for a in range(len(found))], cover, int(number[which]))

    def judge_formula(self, visit: Visit) -> None:
        """Boxes first; elements only where a box is not wholly inside, or in one tile that is the workgroup's own."""
        memory = visit.op.memory
        cover = self.covers.get(memory)
        fine = np.ones(len(visit.workgroups), bool)
        numbers: Any = 0
        sizes = dict(zip(cover.cut.axes, cover.cut.tile, strict=True)) if cover else {}
        for axis in cover.cut.axes if cover else range(len(visit.at)):
            p, rank = visit.at[axis], visit.at[axis].ndim
            low, high = (f(p, axis=tuple(range(1, rank))) for f in (np.min, np.max))
            fine &= (low >= 0) & (high < memory.type.shape[axis])
            if cover:
                fine &= low // sizes[axis] == high // sizes[axis]
                numbers = numbers * cover.cut.grid[cover.cut.axes.index(axis)] + low // sizes[axis]
        if cover:
            whose = cover.owner[np.where(fine, numbers, 0)]
            fine &= whose == visit.workgroups
        if not fine.all():
            self.judge_elements(_some(visit, ~fine))

    def judge_elements(self, visit: Visit) -> None:
        op, at = visit.op, element_places(visit)
        self.spend(at[0].size)
        inside = np.all([(p >= 0) & (p < n) for p, n in zip(at, op.memory.type.shape, strict=True)], axis=0)
        if not inside.any(1).all():
            which = int(np.argmin(inside.any(1)))
            self.refuse_outside(visit, which, [int(p[which, 0]) for p in at], dims(tile_shape(op)))
        if op.memory in self.covers:
            self.look_up_elements(visit, self.covers[op.memory], at, inside)

    def look_up_elements(self, visit: Visit, cover: Cover, at: Sequence[Array], inside: Array) -> None:
        parts = zip(cover.cut.axes, cover.cut.tile, strict=True)
        number = np.ravel_multi_index([np.where(inside, at[a], 0) // size for a, size in parts], cover.cut.grid)
        foreign = inside & (cover.owner[number] != visit.workgroups[:, None])
        if foreign.any():
            row, element = np.unravel_index(int(np.argmax(foreign)), foreign.shape)
            self.refuse_foreign(visit, int(row), [int(p[row, element]) for p in at], cover, int(number[row, element]))

    def refuse_outside(self, visit: Visit, which: int, at: list[int], tile: str) -> NoReturn:
        memory = visit.op.memory
        raise AccessError(
            f"workgroup {visit.workgroups[which]} reads a tile of {tile} at {memory.name}{at}, all of it outside "
            f"{memory.name}, which is {dims(memory.type.shape)}",
            loc=visit.op.loc,
            remedy=OUTSIDE,
        )

    def refuse_foreign(self, visit: Visit, which: int, at: list[int], cover: Cover, number: int) -> NoReturn:
        reader, writer = int(visit.workgroups[which]), int(cover.owner[number])
        mine = (op for op, w, tiles in cover.by_write() if ((w == writer) & (tiles == number)).any())
        raise AccessError(
            f"workgroup {reader} reads {visit.op.memory.name}{at}, which workgroup {writer} writes",
            loc=visit.op.loc,
            remedy=f"it is written at {next(mine).loc}. Workgroups run in no order: write to another memory, or read "
            "it in a kernel of its own",
        )


def _some(visit: Visit, which: Array) -> Visit:
    """What some of the workgroups visit."""
    at = tuple(p[which] if len(p) == len(which) else p for p in visit.at)
    return Visit(visit.op, visit.workgroups[which], at)
