"""The accesses of any kernel, found by evaluating its index arithmetic for all workgroups.

The reads of a workgroup between two writes are one task. Where a read is in a loop and every workgroup advances by the
same blocks, all its iterations are one stream; reading the same blocks from the last to the first is that stream
backwards. Any other kernel is simulated step by step, with one task per read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field
from math import prod
from typing import Protocol, runtime_checkable

import numpy as np

from tilewave.analysis.index_trace import (
    CHUNK,
    FOLLOWED,
    Visit,
    made_of_data,
    made_of_reads,
    needed_values,
    visits,
    want_followed,
)
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.launch import bind, is_open, numbers_of, open_sizes
from tilewave.ir.ops import (
    Allocate,
    Gather,
    Loop,
    Mma,
    RaggedTile,
    Read,
    ReadIndexed,
    ReadIndexedShared,
    Scatter,
    TileInGroup,
    Write,
    WriteIndexed,
)
from tilewave.ir.rewrite import walk
from tilewave.records import dataclass
from tilewave.sim.accesses import NO_STREAM, Accesses, Array
from tilewave.sim.blocks import Blocks, cut, tile_of, written_bytes
from tilewave.sim.problem import SimError
from tilewave.sim.ragged import RaggedKernel, ragged_tiles

MOST_VISITS = 1 << 25
"""Reads and writes of all workgroups together: some seconds, and a gigabyte at most."""


class HasKernel(Protocol):
    """Whatever has a kernel on whole tiles: what `wave_compile` returns."""

    @property
    def kernel(self) -> Kernel: ...


@runtime_checkable
class HasConfig(Protocol):
    """A compiled kernel that says which of its tiles were chosen, and for which target."""

    @property
    def config(self) -> str:
        """`BLOCK_M=128, BLOCK_N=256, chosen for …`; nothing where its author gives all tiles."""

    @property
    def chosen_for(self) -> str:
        """The target; nothing where its author gives all tiles."""


class ProvedKernel(Protocol):
    """A kernel with its proof."""

    @property
    def kernel(self) -> Kernel: ...


@runtime_checkable
class HasProof(Protocol):
    """A compiled kernel, which knows the kernel that was proved: there a tile of a ragged grid is one op."""

    @property
    def verdicts(self) -> ProvedKernel: ...


def kernel_of(problem: HasKernel | Kernel) -> Kernel:
    """The kernel of whatever has one; of a ragged grid, the one that was proved."""
    kernel = problem if isinstance(problem, Kernel) else getattr(problem, "kernel", None)
    if not isinstance(kernel, Kernel):
        raise SimError(f"{problem!r} is no kernel", remedy="give a Gemm(…), or what wave_compile returns")
    if isinstance(problem, HasProof) and ragged_tiles(problem.verdicts.kernel):
        return problem.verdicts.kernel
    return kernel


def described(problem: HasKernel | Kernel) -> str:
    """The name of a kernel and its tiles: those that were chosen, and for which target, or those of its products."""
    kernel = kernel_of(problem)
    tile = product_tile(kernel)
    given = f"tiles of {'×'.join(map(str, tile))}" if tile else ""
    config = (problem.config if isinstance(problem, HasConfig) else "") or given
    return f"{kernel.name}, {config}" if config else kernel.name


def product_tile(kernel: Kernel) -> tuple[int, ...]:
    """Rows, columns and depth of the first product of a kernel; nothing where it has none."""
    mma = next((op for op in walk(kernel.body) if isinstance(op, Mma)), None)
    return (*mma.acc.type.shape[-2:], mma.a.type.shape[-1]) if mma else ()


def kernel_accesses(kernel: Kernel, symbols: Mapping[str, int], ends: Sequence[int] | None = None) -> Accesses:
    """What the workgroups of a kernel touch, step by step; `ends` are where the groups of a ragged grid end."""
    _check_symbols(kernel, symbols)
    if is_open(kernel):
        kernel = bind(kernel, {v.name: symbols.get(v.name, 0) for v in numbers_of(kernel)})
    if ends is None:
        _want_known_places(kernel, made_of_data(kernel.body))
        found = visits(kernel, symbols, FOLLOWED)
    else:
        ragged = RaggedKernel.of(kernel, ends)
        kernel = ragged.kernel
        _want_known_places(kernel, made_of_reads(kernel.body))
        found = ragged.visits(symbols, FOLLOWED)
    segments = list(_segments(kernel, found))
    blocks = cut(visit for segment in segments for visit in segment.visits)
    tasks = _streamed(segments, blocks) or _step_by_step(segments, blocks)
    return _Assembly(kernel, segments, blocks).accesses(tasks)


def _check_symbols(kernel: Kernel, symbols: Mapping[str, int]) -> None:
    """Refuse a call whose sizes and symbols do not decide who touches what, or are not the kernel's."""
    known = [v.name for v in numbers_of(kernel)]
    if unknown := next((name for name in symbols if name not in known), ""):
        remedy = f"it has {', '.join(known)}" if known else "it has none: leave symbols out"
        raise SimError(f"{kernel.name} has no symbol {unknown}", remedy=remedy)
    deciding = {v.name for v in needed_values(kernel.body, lambda op: isinstance(op, FOLLOWED))} | {*open_sizes(kernel)}
    missing = [name for name in known if name in deciding and name not in symbols]
    if missing:
        given = ", ".join(f"'{name}': …" for name in missing)
        raise SimError(f"{kernel.name} needs a value for {', '.join(missing)}", remedy=f"write symbols={{{given}}}")


def _want_known_places(kernel: Kernel, of_data: Set[Value]) -> None:
    """Refuse a kernel whose accesses depend on what its arrays hold: their traffic is not known before a launch."""
    for op in walk(kernel.body):
        memory = next(iter((*op.read, *op.written)), None)
        at = op.at if isinstance(op, (Read, Write)) else ()
        if isinstance(op, (ReadIndexed, ReadIndexedShared, WriteIndexed)) or not of_data.isdisjoint(at):
            assert memory is not None
            verb = "writes" if op.written else "reads"
            what = (
                f"{kernel.name} {verb} {memory.name} at indices from memory, so its traffic is known only at a launch"
            )
            raise SimError(what, loc=op.loc, remedy=WITHOUT_INDICES)
        if isinstance(op, RaggedTile) and op.results[0] in of_data:
            what = f"{kernel.name} has groups that end where {op.memory.name} says, and no example of it is given"
            raise SimError(what, loc=op.loc, remedy=WITH_COUNTS)
        if isinstance(op, Loop) and op.trips in of_data:
            what = (
                f"{kernel.name} has a loop or a condition that data decides, so its traffic is known only at a launch"
            )
            raise SimError(what, loc=op.loc, remedy=WITHOUT_INDICES)


WITH_COUNTS = "give the rows of each group: tilewave sim FILE --counts 300,0,512, or simulate(…, ends=[300, 300, 812])"
WITHOUT_INDICES = (
    "simulate a copy of it that reads and writes tiles, without at= and conditions, for the traffic of indices in "
    "order; or time it: tilewave bench"
)


@dataclass
class Segment:
    """What some workgroups do from one task's first read to its last write."""

    visits: list[Visit] = field(default_factory=list)

    @property
    def reads(self) -> list[Visit]:
        return [v for v in self.visits if not v.op.written]

    @property
    def writes(self) -> list[Visit]:
        return [v for v in self.visits if v.op.written]


def _segments(kernel: Kernel, visits: Iterable[Visit]) -> Iterator[Segment]:
    """Cut the visits after every write that a read follows, and where the next workgroups begin."""
    own = {v for op in walk(kernel.body) if isinstance(op, Allocate) for v in op.results}
    now, count, last, has_written = Segment(), 0, -1, False
    want_followed(kernel, lambda op: () if isinstance(op, (RaggedTile, TileInGroup)) else (*op.read, *op.written))
    for visit in visits:
        if visit.op.memory in own or not len(visit.workgroups):
            continue
        count += len(visit.workgroups)
        if count > MOST_VISITS:
            raise SimError(
                f"{kernel.name} reads and writes more than {MOST_VISITS:,} tiles",
                remedy="simulate a smaller size, or the GEMM itself: sim.Gemm(…)",
            )
        writes = bool(visit.op.written)
        reading_on = has_written and not writes
        if now.visits and (reading_on or int(visit.workgroups[0]) // CHUNK != last):
            yield now
            now, has_written = Segment(), False
        has_written |= writes
        last = int(visit.workgroups[0]) // CHUNK
        now.visits.append(visit)
    if not now.visits:
        raise SimError(f"{kernel.name} touches no memory")
    yield now


@dataclass(frozen=True, eq=False)
class Tasks:
    """Tasks of all segments: who, what is read, and the blocks of each stream."""

    workgroup: list[Array]
    reads: list[Array]
    written: list[Array]
    backwards: list[bool]
    """For each entry of the lists above, whether its streams are read from the end to the start."""
    steps: int
    starts: dict[tuple[int, ...], list[Array]]
    """The first blocks of streams, keyed by the offsets of their further blocks; a first block identifies a stream."""

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """Yield (first blocks, all blocks) for the streams with the same offsets, each stream once."""
        for offsets, found in self.starts.items():
            first = np.unique(np.concatenate(found))
            yield first, first[:, None] + np.array(offsets)


def _streamed(segments: list[Segment], blocks: dict[Value, Blocks]) -> Tasks | None:
    """Return tasks in which every read in a loop is one stream; None if workgroups do not advance in step."""
    tasks = Tasks([], [], [], [], max(_max_sizes(s) for s in segments), {})
    for segment in segments:
        workgroups = segment.visits[0].workgroups
        if any(not np.array_equal(v.workgroups, workgroups) for v in segment.visits):
            return None
        columns, directions = [], set()
        for site in _sites(segment):
            if isinstance(site[0].op, Gather):
                return None
            found = _stream(site, blocks[site[0].op.memory], tasks.starts)
            if found is None:
                return None
            columns.append(found.first)
            directions |= {found.backwards} if len(site) > 1 else set()
        if len(directions) > 1:
            return None
        tasks.backwards.append(directions == {True})
        tasks.workgroup.append(workgroups)
        tasks.reads.append(np.concatenate(columns, 1) if columns else np.zeros((len(workgroups), 0), np.int64))
        tasks.written.append(_written(segment, workgroups))
    every = np.concatenate([np.zeros(0, np.int64), *(walked.reshape(-1) for _, walked in tasks.blocks())])
    return tasks if len(np.unique(every)) == len(every) else None


def _max_sizes(segment: Segment) -> int:
    return max((len(site) for site in _sites(segment)), default=1)


def _sites(segment: Segment) -> list[list[Visit]]:
    """The visits of each read, in order."""
    found: dict[int, list[Visit]] = {}
    for visit in segment.reads:
        found.setdefault(id(visit.op), []).append(visit)
    return list(found.values())


@dataclass(frozen=True, eq=False)
class Walked:
    """The streams of a read, `first[workgroup, i]` with one for each block of its tile, and their direction."""

    first: Array
    backwards: bool


def _stream(site: list[Visit], blocks: Blocks, known: dict[tuple[int, ...], list[Array]]) -> Walked | None:
    """Return the streams of a read; None if workgroups advance by different blocks."""
    first = blocks.numbers(site[0].op, site[0].at)
    inside = first != NO_STREAM  # a tile may extend past the end of its memory
    if not inside[:1].any():
        return None
    # Where all workgroups advance by the same blocks, the first workgroup represents all: one look-up for all visits.
    first_workgroup = tuple(np.array([visit.at[axis][0] for visit in site]) for axis in range(len(site[0].at)))
    offsets = []
    for visit, row in zip(site, blocks.numbers(site[0].op, first_workgroup), strict=True):
        same = all(_same_place(a, b) for a, b in zip(visit.at, site[0].at, strict=True))
        here = row[None] if same else blocks.numbers(visit.op, visit.at)
        within = inside[:1] if same else inside
        moved = (here - (first[:1] if same else first))[within]
        if ((here != NO_STREAM) != within).any() or (moved != moved[0]).any():
            return None
        offsets.append(int(moved[0]))
    backwards = offsets[-1] < 0
    if backwards:
        first = np.where(inside, first + offsets[-1], NO_STREAM)
        offsets = [offset - offsets[-1] for offset in reversed(offsets)]
    known.setdefault(tuple(offsets), []).append(np.unique(first[inside]))
    return Walked(first, backwards)


def _same_place(a: Array, b: Array) -> bool:
    """Whether two positions are one array, or each is one number for all workgroups."""
    if _is_number(a) and _is_number(b):
        return True
    return a.strides == b.strides and a.ctypes.data == b.ctypes.data


def _is_number(at: Array) -> bool:
    return len(at) == 1 or at.strides[0] == 0


def _step_by_step(segments: list[Segment], blocks: dict[Value, Blocks]) -> Tasks:
    """Return tasks in which every read and every write is a separate task."""
    tasks = Tasks([], [], [], [], 1, {})
    for segment in segments:
        for execution in _executions(segment):
            who = np.unique(np.concatenate([visit.workgroups for visit in execution]))
            reading = not execution[0].op.written
            tasks.workgroup.append(who)
            tasks.backwards.append(False)
            tasks.reads.append(_touched(execution, blocks, who) if reading else np.zeros((len(who), 0), np.int64))
            tasks.written.append(np.zeros(len(who)) if reading else _written(Segment(execution), who))
    numbers = np.unique(np.concatenate([r.reshape(-1) for r in tasks.reads]))
    tasks.starts[(0,)] = [numbers[numbers != NO_STREAM]]
    return tasks


def _executions(segment: Segment) -> list[list[Visit]]:
    """The visits of one execution each: a gather or scatter visits its elements one by one."""
    found: list[list[Visit]] = []
    for visit in segment.visits:
        if isinstance(visit.op, (Gather, Scatter)) and found and found[-1][0].op is visit.op:
            found[-1].append(visit)
        else:
            found.append([visit])
    return found


def _touched(execution: list[Visit], blocks: dict[Value, Blocks], workgroups: Array) -> Array:
    """[workgroup, i]: the different blocks that one execution of a read touches."""
    columns = []
    for visit in execution:
        numbers = blocks[visit.op.memory].numbers(visit.op, visit.at)
        wide = np.full((len(workgroups), numbers.shape[1]), NO_STREAM)
        wide[np.searchsorted(workgroups, visit.workgroups)] = numbers
        columns.append(wide)
    numbers = np.sort(np.concatenate(columns, 1), 1)
    numbers[:, 1:][numbers[:, 1:] == numbers[:, :-1]] = NO_STREAM
    return numbers[:, (numbers != NO_STREAM).any(0)]


def _written(segment: Segment, workgroups: Array) -> Array:
    total = np.zeros(len(workgroups))
    for visit in segment.writes:
        np.add.at(total, np.searchsorted(workgroups, visit.workgroups), written_bytes(visit))
    return total


@dataclass(frozen=True, eq=False)
class _Assembly:
    """Tasks, put together."""

    kernel: Kernel
    segments: list[Segment]
    blocks: dict[Value, Blocks]

    def accesses(self, tasks: Tasks) -> Accesses:
        starts, sizes, arrays = self._streams(tasks)
        workgroup = np.concatenate(tasks.workgroup)
        reads = self._reads(tasks, starts)
        written = np.concatenate(tasks.written)
        backwards = np.repeat(tasks.backwards, [len(who) for who in tasks.workgroup])
        order = np.argsort(workgroup, kind="stable")
        turn = np.arange(len(order)) - np.searchsorted(workgroup[order], workgroup[order])
        products = self._products()
        work = sum(flops * times for flops, times in products)
        mma = next((op for op in walk(self.kernel.body) if isinstance(op, Mma)), None)
        return Accesses(
            arrays=tuple(memory.name for memory in self.blocks),
            array_written_bytes=self._array_written(),
            stream_bytes=sizes,
            stream_array=arrays,
            workgroups=self.kernel.workgroup_count,
            workgroup=workgroup[order],
            turn=turn,
            reads=reads[order],
            written_bytes=written[order],
            steps=tasks.steps,
            flops=work * self._whole_share(),
            step_flops=work / (len(order) * tasks.steps),
            dtype=mma.a.type.dtype.name if mma else "",
            backwards=backwards[order] if backwards.any() else None,
            tile=product_tile(self.kernel),
            tasks_a_tile=len(order) / sum(_workgroups_of(segment) for segment in self.segments),
        )

    def _reads(self, tasks: Tasks, starts: Array) -> Array:
        width = max((r.shape[1] for r in tasks.reads), default=0)
        parts = [np.pad(r, ((0, 0), (0, width - r.shape[1])), constant_values=NO_STREAM) for r in tasks.reads]
        numbers = np.concatenate(parts)
        return np.where(numbers == NO_STREAM, NO_STREAM, np.searchsorted(starts, numbers))

    def _streams(self, tasks: Tasks) -> tuple[Array, Array, Array]:
        """(first block, bytes, array) of each stream, by its first block."""
        memories = list(self.blocks.values())
        firsts = np.array([memory.first for memory in memories])
        starts, sizes = [np.zeros(0, np.int64)], [np.zeros(0)]
        for first, walked in tasks.blocks():
            of_memory = np.searchsorted(firsts, first, "right") - 1
            for at, memory in enumerate(memories):
                starts.append(first[of_memory == at])
                sizes.append(memory.bytes_of(walked[of_memory == at]).sum(1))
        start = np.concatenate(starts)
        order = np.argsort(start)
        return start[order], np.concatenate(sizes)[order], np.searchsorted(firsts, start[order], "right") - 1

    def _array_written(self) -> Array:
        total = dict.fromkeys(self.blocks, 0.0)
        for segment in self.segments:
            for visit in segment.writes:
                total[visit.op.memory] += float(written_bytes(visit).sum())
        return np.array(list(total.values()))

    def _whole_share(self) -> float:
        """Return the in-bounds share of the tiles that are written."""
        full = sum(
            len(v.workgroups) * prod(tile_of(v.op)) * v.op.memory.type.dtype.bytes
            for segment in self.segments
            for v in segment.writes
        )
        return float(self._array_written().sum()) / full if full else 1.0

    def _products(self) -> list[tuple[float, int]]:
        """(flops, how often) of each product: as often as whatever touches memory in the same block."""
        times: dict[int, int] = {}
        for segment in self.segments:
            for visit in segment.visits:
                times[id(visit.op)] = times.get(id(visit.op), 0) + len(visit.workgroups)
        found = []
        for ops in _blocks_of(self.kernel.body):
            beside = max((times.get(id(op), 0) for op in ops), default=0) or self.kernel.workgroup_count
            for op in ops:
                if isinstance(op, Mma):
                    found.append((2.0 * prod(op.acc.type.shape) * op.a.type.shape[-1], beside))
        return found


def _workgroups_of(segment: Segment) -> int:
    return len(np.unique(np.concatenate([visit.workgroups for visit in segment.visits])))


def _blocks_of(block: Block) -> Iterator[tuple[Op, ...]]:
    yield block.ops
    for op in block.ops:
        for inner in op.blocks:
            yield from _blocks_of(inner)
