"""The plan of a call: the specialization key of its code, and the arrays that are packed for it, with the reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tilewave.analysis.packing import TileLoads
from tilewave.backend.nvidia.code import ALIGNED, Specialization
from tilewave.backend.nvidia.packing import (
    ALLOCATED_BYTES,
    PACK,
    TRANSPOSE,
    UNPACK,
    PackedArray,
    Unaligned,
    packed_copies,
    padded_row,
)
from tilewave.backend.nvidia.specialize import ArrayAccesses, alignment
from tilewave.errors import NOWHERE, CallError, here
from tilewave.forks import cached_property
from tilewave.ir.core import Kernel
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.machine.chips import TENSOR_MAPS
from tilewave.runtime.array_view import ArrayView
from tilewave.runtime.arrays import view
from tilewave.runtime.foreign_arrays import in_padded_rows

NOT_COPIED = RemarkKind("{array} {problem}, so lanes load all tiles in this call")
REPACKED = RemarkKind(
    "{array} {problem}, so it {moved} rows of {pitch} bytes {when} each launch",
    "align its base and its row stride to {grain} bytes",
)
ONE_BY_ONE = RemarkKind(
    "the stride of the last axis of {array} is {bytes} bytes, so lanes load and store single elements",
    "make it contiguous",
)
ELEMENTS = RemarkKind(
    "the base or row stride of {array} is aligned to {bytes} bytes, not {widest}, so lanes load and store single "
    "elements",
    "align its base and its row stride to {widest} bytes",
)
NARROW_ROWS = "has a base or row stride aligned to {bytes} bytes, not {widest}"
NARROW = RemarkKind(
    "the base or row stride of {array} is aligned to {bytes} bytes, not {widest}, so each load becomes two, and "
    "stores have {bytes} bytes",
    "align its base and its row stride to {widest} bytes",
)


class LaunchPlan(NamedTuple):
    """The plan of a call."""

    key: Specialization
    packed_copies: tuple[PackedArray, ...] = ()

    def views(self, views: Sequence[ArrayView], memory: int = ALLOCATED_BYTES) -> list[ArrayView]:
        """Return the arrays as the code sees them, with private memory at `memory`."""
        found = list(views)
        for r in self.packed_copies:
            found[r.array] = r.padded(found[r.array], memory)
        return found


class LaunchPlans:
    """The plans of a kernel's calls, by the layouts of their arrays."""

    def __init__(
        self,
        tiles: Kernel,
        accesses: ArrayAccesses,
        served: Callable[[Specialization], Specialization],
        packs: bool,
    ) -> None:
        """`served` returns the key of code that there is, or that can be compiled, for arrays with a key.

        `packs`: whether unaligned arrays may be packed for TMA.
        """
        self.tiles, self.accesses, self.served, self.packs = tiles, accesses, served, packs

    def key_for(self, views: Sequence[ArrayView]) -> Specialization:
        """Return the key of the code for arrays with these layouts, without packing."""
        return self.served(self.accesses.key(views))

    def plan_for(self, views: Sequence[ArrayView]) -> LaunchPlan:
        """Return the plan for these arrays; unaligned ones are packed where TMA can then load them and it pays."""
        plain = LaunchPlan(self.key_for(views))
        unaligned_arrays = self.unaligned_arrays(views) if self.packs else []
        shapes = {name: v.shape for name, v in self.accesses.named(views).items()}
        if not unaligned_arrays or not all(x.copied_by(views[x.array]) for x in unaligned_arrays):
            return plain
        in_place = self._read_in_place(plain.key, unaligned_arrays)
        if not self._loads.are_worth_it(shapes, self.accesses.chip.tuning.packing, in_place):
            return plain
        arrays = packed_copies(views, unaligned_arrays)
        key = self.key_for(LaunchPlan(ALIGNED, tuple(one.on_lines for one in arrays)).views(views))
        return plain if key.is_by_lanes else LaunchPlan(key, arrays)

    def _read_in_place(self, key: Specialization, unaligned_arrays: Sequence[Unaligned]) -> tuple[str, ...]:
        """Return the arrays that lanes load well in place; none where the code loads columns, by elements."""
        if key.any_strides or self.accesses.transposed.intersection(x.name for x in unaligned_arrays):
            return ()
        return tuple(x.name for x in unaligned_arrays)

    @cached_property
    def _loads(self) -> TileLoads:
        return TileLoads.of(self.tiles)

    def prepacked(self, array: object, name: str) -> object:
        """Return a packed copy of the operand of that name; the array itself if it is aligned or cannot be packed."""
        v = view(array, f"{self.tiles.name}: array")
        order = self._order_of(name, len(v.shape))
        problem = self.accesses.problem(order, v, is_written=False) if order else ""
        unaligned = Unaligned(0, name, problem, False, order)
        if not problem or not self.packs or not unaligned.copied_by(v):
            return array
        return in_padded_rows(array, order, padded_row(unaligned.seen(v)))

    def _order_of(self, name: str, rank: int) -> tuple[int, ...]:
        """Return the order of axes in which TMA loads the operand of that name, or all if ""; () if it loads none."""
        copied, written = self.accesses.copied, self.accesses.written
        loaded = {n: axes for n, axes in copied if n not in written and len(axes) == rank}
        orders = {axes for n, axes in loaded.items() if name in ("", n)}
        if len(orders) > 1:
            what = f"{self.tiles.name}: {' and '.join(loaded)} are prepacked in different ways"
            raise CallError(what, loc=here(), remedy=f'say which it is: prepack(array, "{next(iter(loaded))}")')
        return orders.pop() if orders else ()

    def unaligned_arrays(self, views: Sequence[ArrayView]) -> list[Unaligned]:
        """Return the arrays to pack: those that TMA cannot load, and those that lanes load in small pieces."""
        accesses = self.accesses
        named, widest = accesses.named(views), accesses.chip.widest_load_bytes
        problems = accesses.not_copied(named)
        if accesses.is_open:  # code for dynamic shapes loads whole chunks, or single elements
            narrow = [(name, size) for name, size in accesses.fitting(named).narrow if name not in accesses.written]
            problems = {name: NARROW_ROWS.format(bytes=size, widest=widest) for name, size in narrow} | problems
        return [self._unaligned(name, problems[name], views) for name in named if name in problems]

    def _unaligned(self, name: str, problem: str, views: Sequence[ArrayView]) -> Unaligned:
        array = self.accesses.names.index(name)
        order = dict(self.accesses.copied).get(name) or tuple(range(len(views[array].shape)))
        return Unaligned(array, name, problem, name in self.accesses.written, order)

    def remarks(self, views: Sequence[ArrayView]) -> tuple[Remark, ...]:
        """Return remarks on what these arrays keep the code from."""
        accesses, plan = self.accesses, self.plan_for(views)
        named, widest = accesses.named(views), accesses.chip.widest_load_bytes
        key = plan.key if plan.packed_copies else accesses.key(views)
        copied = accesses.not_copied(named) if key.is_by_lanes else {}
        found = [_packing_of(r, r.copied_by(views[r.array])) for r in plan.packed_copies]
        found += [NOT_COPIED.at(NOWHERE, array=name, problem=problem) for name, problem in copied.items()]
        found += [_one_by_one(name, named[name], widest) for name in key.any_strides]
        narrow = key.narrow if plan.packed_copies else accesses.fitting(named).narrow
        chunked = ((name, size) for name, size in narrow if name not in key.any_strides)
        found += [NARROW.at(NOWHERE, array=name, bytes=size, widest=widest) for name, size in chunked]
        return tuple(found)


MOVED = {PACK: "is copied into", TRANSPOSE: "is transposed into", UNPACK: "is copied back from"}


def _packing_of(r: PackedArray, kind: str) -> Remark:
    """Return the remark on a packed array."""
    when = "after" if r.is_written else "before"
    facts = {"moved": MOVED[kind], "when": when, "pitch": r.pitch_bytes, "grain": TENSOR_MAPS.grain_bytes}
    return REPACKED.at(NOWHERE, array=r.name, problem=r.problem, **facts)


def _one_by_one(name: str, v: ArrayView, widest_bytes: int) -> Remark:
    """Return the remark on an array that lanes move by single elements."""
    bytes_ = alignment(v, widest_bytes)
    if v.strides[-1] != v.dtype.bytes or bytes_ == widest_bytes:
        return ONE_BY_ONE.at(NOWHERE, array=name, bytes=v.strides[-1])
    return ELEMENTS.at(NOWHERE, array=name, bytes=bytes_, widest=widest_bytes)
