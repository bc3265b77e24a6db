"""From the layout of a call's arrays to the specialization key of its code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd

from tilewave.analysis.loads import moved_in_chunks
from tilewave.backend.nvidia.code import BY_LANES, CACHE_LINE, NvidiaCode, Specialization
from tilewave.ir.core import Kernel, Value
from tilewave.ir.effects import touched
from tilewave.ir.launch import is_open
from tilewave.ir.ops import TmaLoad, TmaLoadMulticast, TmaStore
from tilewave.ir.placements import box_axes
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory
from tilewave.machine.chips import TENSOR_MAPS, Chip
from tilewave.records import dataclass
from tilewave.runtime.array_view import ArrayView
from tilewave.runtime.gpu_launch import TiledArray
from tilewave.runtime.launch_template import tensor_map

COPIES = (TmaLoad, TmaLoadMulticast, TmaStore)
Named = Mapping[str, ArrayView]
"""The arrays of a call, by the names of their parameters."""


@dataclass(frozen=True, eq=False)
class ArrayAccesses:
    """How the code of a kernel accesses its arrays, where they are aligned."""

    names: tuple[str, ...]
    rows: Mapping[str, int | str]
    """The length of each array's rows: arrays with rows along one dimension have lanes take as many neighbours."""
    written: frozenset[str]
    copied: tuple[tuple[str, tuple[int, ...]], ...]
    """The arrays that TMA moves, each with the order of its axes."""
    chunked: frozenset[str]
    """The arrays that must be aligned for wide loads, stores or TMA; lanes move single elements of the others."""
    is_open: bool
    """Whether sizes are dynamic."""
    alignments: frozenset[int]
    """The alignments of rows for which there is a lane-level kernel: `Specialization.rows`."""
    chip: Chip

    @staticmethod
    def of(tiles: Kernel, lanes: Kernel, chip: Chip, alignments: frozenset[int]) -> ArrayAccesses:
        """Return the accesses of a lane-level kernel, without its code."""
        moves = [op for op in walk(lanes.body) if isinstance(op, COPIES)]
        copied = [(op.memory.name, box_axes(_rank(op.memory), op.axes)) for op in moves]
        return _accesses(tiles, copied, moved_in_chunks(lanes), chip, alignments)

    @staticmethod
    def of_code(tiles: Kernel, code: NvidiaCode, chip: Chip, alignments: frozenset[int]) -> ArrayAccesses:
        """Return the accesses of code."""
        return _accesses(tiles, [(m.name, m.axes) for m in code.maps], code.chunked, chip, alignments)

    @property
    def transposed(self) -> frozenset[str]:
        """The arrays that TMA loads transposed, and that lanes do not access."""
        return frozenset(name for name, axes in self.copied if axes != tuple(range(len(axes))))

    @property
    def beside(self) -> tuple[str, ...]:
        """The arrays that lanes load and store while TMA moves others; their layout is known at each call."""
        copied = dict(self.copied)
        return tuple(x for x in self.names if x not in copied) if self.copied and self.is_open else ()

    @property
    def fallback(self) -> Specialization:
        """The key of code for all arrays: it moves single elements and needs neither contiguous rows nor alignment."""
        rows = BY_LANES if BY_LANES in self.alignments else CACHE_LINE
        return Specialization(rows, tuple((name, 0) for name in self.names))

    def contiguous(self, element_bytes: Sequence[int]) -> Specialization:
        """Return the key of code for contiguous rows, one for all alignments."""
        return replace(self.fallback, widths=tuple(zip(self.names, element_bytes, strict=True)))

    def key(self, views: Sequence[ArrayView]) -> Specialization:
        """Return the key of the code for arrays with these layouts."""
        named = self.named(views)
        return self._open_key(named) if self.is_open else self.fitting(named)

    def named(self, views: Sequence[ArrayView]) -> Named:
        return dict(zip(self.names, views, strict=True))

    def fitting(self, named: Named) -> Specialization:
        """Return the key by the alignment of each array alone."""
        by_lanes = BY_LANES in self.alignments and bool(self.not_copied(named))
        widest, widths = self.chip.widest_load_bytes, []
        for name, v in named.items():
            if name in self.transposed and not by_lanes:
                continue
            if v.shape[-1] > 1 and v.strides[-1] != v.dtype.bytes:
                widths.append((name, 0))
            elif (by_lanes or name in self.chunked) and (found := alignment(v, widest)) < widest:
                widths.append((name, found))
        in_order = sorted(widths, key=lambda width: width[1] > 0)  # as files have them, whose keys must be equal
        return Specialization(BY_LANES if by_lanes else CACHE_LINE, tuple(in_order))

    def not_copied(self, named: Named) -> dict[str, str]:
        """Return the arrays that TMA cannot load or store, and why."""
        found = {name: self.problem(axes, named[name], name in self.written) for name, axes in self.copied}
        return {name: problem for name, problem in found.items() if problem}

    def problem(self, axes: tuple[int, ...], view: ArrayView, is_written: bool) -> str:
        """Return why TMA cannot move an array, as said after its name; empty if it can."""
        grain, row = TENSOR_MAPS.grain_bytes, view.shape[-1] * view.dtype.bytes
        if is_written and row % grain:
            return f"has rows of {row} bytes, and TMA stores need a multiple of {grain}"
        return tensor_map(TiledArray(0, axes, ()), view).problem(view.pointer)

    # -- dynamic shapes

    def _open_key(self, named: Named) -> Specialization:
        """Return the key for dynamic shapes: rows on cache lines, on TMA's grain, in vectors, contiguous, or any."""
        fitting = self.fitting(named)
        if self.transposed and fitting == Specialization(BY_LANES) and not self._has_unaligned_rows(named):
            return fitting  # lanes load whole chunks of arrays that TMA would need transposed
        anywhere = [name for name, _ in fitting.widths]
        if fitting.is_by_lanes or not dict(self.copied).keys().isdisjoint(anywhere):
            return self._by_lanes(named)
        chunked = {name: v for name, v in named.items() if name in self.chunked}
        if not self.copied and (anywhere or self._has_unaligned_rows(chunked)):
            return self.fallback if fitting.any_strides else self._in_vectors(named, chunked)
        return Specialization(self._copied_rows(named), tuple((name, 0) for name in anywhere))

    def _copied_rows(self, named: Named) -> int:
        """Return the alignment of the rows that TMA loads, as far as there is a kernel for it."""
        loaded = [(named[x], axes[-2]) for x, axes in self.copied if x not in self.written and len(axes) > 1]
        rows = [v.strides[axis] for v, axis in loaded if v.shape[axis] > 1]
        on_lines = all(row % self.chip.line_bytes == 0 for row in rows)
        grain = TENSOR_MAPS.grain_bytes
        return grain if grain in self.alignments and not on_lines else CACHE_LINE

    def _by_lanes(self, named: Named) -> Specialization:
        """Return the key for arrays that lanes load: contiguous rows in aligned blocks, any others by elements.

        Arrays without elements have no block that could be loaded.
        """
        if self.fitting(named).any_strides or any(0 in v.shape for v in named.values()):
            return self.fallback
        return self.contiguous([v.dtype.bytes for v in named.values()])

    def _in_vectors(self, named: Named, chunked: Named) -> Specialization:
        """Return the key for rows aligned to fewer bytes than the widest load.

        Rows of another length keep their own alignment.
        """
        grains: dict[int | str, int] = {}
        for name, v in chunked.items():
            rows, whole = self.rows[name], v.shape[-1] * v.dtype.bytes if v.shape else 0
            grains[rows] = gcd(grains.get(rows, 0), alignment(v, self.chip.widest_load_bytes), whole)
        least = min(grains.values())
        if least not in self.alignments:
            return self._by_lanes(named)
        return Specialization(least, tuple((x, max(grains[self.rows[x]], v.dtype.bytes)) for x, v in chunked.items()))

    def _has_unaligned_rows(self, named: Named) -> bool:
        """Return whether a row ends within a load: code for dynamic rows loaded by lanes assumes that none does."""
        rows = (v.shape[-1] * v.dtype.bytes for v in named.values() if v.shape)
        return any(row % self.chip.widest_load_bytes for row in rows)


def _accesses(
    tiles: Kernel,
    copied: Sequence[tuple[str, tuple[int, ...]]],
    chunked: Sequence[str],
    chip: Chip,
    alignments: frozenset[int],
) -> ArrayAccesses:
    rows = {v.name: (1, *v.type.extents)[-1] for v in tiles.body.args if isinstance(v.type, Memory)}
    written = written_arrays(tiles)
    once = tuple(dict.fromkeys(copied))
    return ArrayAccesses(tuple(rows), rows, written, once, frozenset(chunked), is_open(tiles), alignments, chip)


def written_arrays(tiles: Kernel) -> frozenset[str]:
    return frozenset(v.name for v in touched(tiles)[0])


def _rank(memory: Value) -> int:
    assert isinstance(memory.type, Memory)
    return memory.type.rank


def alignment(v: ArrayView, widest_bytes: int) -> int:
    """Return the alignment of an array's address and row strides: a power of two, at most `widest_bytes`."""
    found = widest_bytes | v.pointer
    for extent, stride in zip(v.shape[:-1], v.strides[:-1], strict=True):
        if extent > 1:
            found |= stride
    return found & -found
