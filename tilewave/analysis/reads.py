"""Check that no workgroup reads what another workgroup writes.

Positions are index arithmetic, so they are known before there is data. They are checked for every workgroup, up to a
limit of tiles and elements; beyond it only the interpreter checks, when the kernel runs there. Out-of-bounds elements,
of part of a tile or all of it, read as 0 and belong to no workgroup.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from tilewave.analysis.coverage import Cover, Covered
from tilewave.analysis.index_trace import Visit, WholeRun, element_places, needed_values, want_followed, window
from tilewave.analysis.indexed_writes import as_windows
from tilewave.analysis.schedule import NO_CORRECTION, Correction, Schedule
from tilewave.analysis.turns import want_ordered
from tilewave.errors import AccessError
from tilewave.interp.arithmetic import Array
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Gather, RaggedTile, Read, ReadIndexed
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Scalar

Reading = Read | Gather

MOST_PLACES = 1 << 24
"""The most tiles and elements that are checked one by one: some tenths of a second."""


def judged_schedule(kernel: Kernel, symbols: Mapping[str, int], remedy: Correction = NO_CORRECTION) -> Schedule:
    """Return the schedule of `checked_schedule`; raise with a counterexample if a workgroup reads another's writes."""
    want_followed(kernel, lambda op: () if isinstance(op, (RaggedTile, ReadIndexed)) else op.read)
    covered = Covered.by(kernel, symbols, remedy)
    want_ordered(kernel, symbols, remedy)
    kernel = as_windows(kernel)
    if any(_reads_from(op, covered.covers) for op in walk(kernel.body)):
        _Judge(kernel, symbols, covered.covers).judge()
    return covered.schedule


def reads_depend_on(kernel: Kernel) -> list[str]:
    """Return the dynamic symbols that decide where a kernel reads memories that it writes too."""
    symbols = [v for v in kernel.body.args if isinstance(v.type, Scalar)]
    written = {v for op in walk(kernel.body) for v in op.written if v in kernel.body.args}
    is_judged = any(_reads_from(op, written) for op in walk(kernel.body))
    deciding = needed_values(kernel.body, lambda op: _reads_from(op, written)) if symbols and is_judged else set()
    return [v.name for v in symbols if v in deciding]


def _reads_from(op: Op, memories: Collection[Value]) -> bool:
    return isinstance(op, Reading) and op.memory in memories


class _TooMany(Exception):
    """Raised when there are more places than MOST_PLACES."""


class _Judge(WholeRun):
    """Checks every place that a workgroup reads in memories that are written."""

    def __init__(self, kernel: Kernel, symbols: Mapping[str, int], covers: Mapping[Value, Cover]) -> None:
        super().__init__(kernel, symbols, lambda op: _reads_from(op, covers))
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
        start = [np.maximum(p, 0) for p in visit.at]
        ends = zip(visit.at, window(op), shape, strict=True)  # type: ignore[arg-type]  # no formula places it
        stop = [np.minimum(p + size, extent) for p, size, extent in ends]
        inside = np.all([a < b for a, b in zip(start, stop, strict=True)], axis=0)
        if inside.any():
            self.look_up(_some(visit, inside), self.covers[op.memory], *([p[inside] for p in q] for q in (start, stop)))

    def look_up(self, visit: Visit, cover: Cover, start: list[Array], stop: list[Array]) -> None:
        """Look up which workgroup writes each tile that the windows touch."""
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
        """Check bounding boxes first; elements only where a box is not in one tile of the same workgroup."""
        memory = visit.op.memory
        cut, owner = self.covers[memory].cut, self.covers[memory].owner
        fine = np.ones(len(visit.workgroups), bool)
        numbers: Any = 0
        for axis, size, count in zip(cut.axes, cut.tile, cut.grid, strict=True):
            p, rank = visit.at[axis], visit.at[axis].ndim
            low, high = (f(p, axis=tuple(range(1, rank))) for f in (np.min, np.max))
            fine &= (low >= 0) & (high < memory.type.shape[axis]) & (low // size == high // size)
            numbers = numbers * count + low // size
        fine &= owner[np.where(fine, numbers, 0)] == visit.workgroups
        if not fine.all():
            self.judge_elements(_some(visit, ~fine))

    def judge_elements(self, visit: Visit) -> None:
        op, at = visit.op, element_places(visit)
        self.spend(at[0].size)
        inside = np.all([(p >= 0) & (p < n) for p, n in zip(at, op.memory.type.shape, strict=True)], axis=0)
        self.look_up_elements(visit, self.covers[op.memory], at, inside)

    def look_up_elements(self, visit: Visit, cover: Cover, at: Sequence[Array], inside: Array) -> None:
        parts = zip(cover.cut.axes, cover.cut.tile, strict=True)
        number = np.ravel_multi_index([np.where(inside, at[a], 0) // size for a, size in parts], cover.cut.grid)
        foreign = inside & (cover.owner[number] != visit.workgroups[:, None])
        if foreign.any():
            row, element = np.unravel_index(int(np.argmax(foreign)), foreign.shape)
            self.refuse_foreign(visit, int(row), [int(p[row, element]) for p in at], cover, int(number[row, element]))

    def refuse_foreign(self, visit: Visit, which: int, at: list[int], cover: Cover, number: int) -> NoReturn:
        reader, writer = int(visit.workgroups[which]), int(cover.owner[number])
        mine = (op for op, w, tiles in cover.by_write() if ((w == writer) & (tiles == number)).any())
        raise AccessError(
            f"workgroup {reader} reads {visit.op.memory.name}{at}, which workgroup {writer} writes",
            loc=visit.op.loc,
            remedy=f"it is written at {next(mine).loc}. Workgroups run in no order: write to another memory, or read "
            "it in a separate kernel",
        )


def _some(visit: Visit, which: Array) -> Visit:
    """Return the part of a visit for some of its workgroups."""
    at = tuple(p[which] if len(p) == len(which) else p for p in visit.at)
    return Visit(visit.op, visit.workgroups[which], at)
