"""Classes of call sizes that a kernel's tile order and accesses cannot tell apart: each class is checked once.

Index arithmetic depends on the numbers that it computes with: mostly those of the launch, such as the rows and columns
of the grid. An extent is only compared with, and for a window of t elements that begins at a multiple of t only the
number of windows that cover the extent matters: with tiles of 128 rows, M = 129 and M = 256 are one class. Reads that
run along an axis in a loop, from start to end, are in bounds for any extent: of K, only whether it is 0 matters.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.analysis.index_trace import needed_values
from tilewave.analysis.positions import scalars_of
from tilewave.analysis.schedule import stores
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.launch import MOST_OPEN, HostLaunch, launch_and_rest, numbers_of, picked
from tilewave.ir.ops import Gather, Loop, Read, Scatter, Write
from tilewave.ir.rewrite import rewrite_block, walk
from tilewave.ir.types import Memory, Scalar
from tilewave.records import dataclass

Key = tuple[int, ...]
Access = Read | Write | Gather | Scatter


class SeenSizes:
    """Size classes of one kernel on whole tiles."""

    def __init__(self, kernel: Kernel) -> None:
        look = _Look(kernel)
        names = HostLaunch.of(kernel).names
        needed = look.needed | {name for name, window in look.lengths if window == 1}
        self._numbers = picked([at for at, name in enumerate(names) if name in needed])
        lengths = sorted(look.lengths)
        self._covered = [(names.index(name), window) for name, window in lengths if name not in needed]

    def key(self, workgroups: int, numbers: Sequence[int]) -> Key:
        """Return a key that is equal for calls of one size class; `numbers` are all scalar arguments of the launch."""
        covered = [-(-numbers[at] // window) for at, window in self._covered]
        return workgroups, *self._numbers(numbers), *covered


@dataclass(frozen=True)
class _Axis:
    """One axis of an access: its extent, and the start and extent of the window."""

    extent: int | str
    at: Value | None
    """None where a formula gives the position of each element."""
    window: int


class _Look:
    def __init__(self, kernel: Kernel) -> None:
        self.scalars, self.arrays = scalars_of(kernel.body), set(kernel.body.args)
        self.written = {op.memory for op in walk(kernel.body) if isinstance(op, (Write, Scatter))}
        self.lengths: set[tuple[str, int]] = set()
        """Dynamic extents of arrays, with the window by which they are divided; 1: the extent itself matters."""
        self.watched: set[Value] = set()
        """Starts of windows of reads in loops that are left out, along the loop-invariant axes."""
        launch, body = launch_and_rest(kernel.body)
        body = rewrite_block(body, self.left_out)
        for op in walk(body):
            if isinstance(op, Access) and op.memory in self.arrays:
                self.see(self.axes(op))
        known = {*numbers_of(kernel), *(v for op in launch for v in op.results)}
        self.needed = {v.name for v in known & needed_values(body, _is_followed, frozenset(self.watched))}

    def see(self, axes: list[_Axis]) -> None:
        for axis in axes:
            if isinstance(axis.extent, str):
                aligned = axis.at is not None and self.scalars.divisor(axis.at) % axis.window == 0
                self.lengths.add((axis.extent, axis.window if aligned else 1))

    def axes(self, op: Access) -> list[_Axis]:
        extents = _type(op.memory).extents
        if isinstance(op, (Gather, Scatter)):
            return [_Axis(extent, None, 1) for extent in extents]
        tile = op.result if isinstance(op, Read) else op.tile
        along = dict(zip(op.axes, tile.type.shape, strict=True))
        return [_Axis(e, v, along.get(axis, 1)) for axis, (e, v) in enumerate(zip(extents, op.at, strict=True))]

    # loops along an axis --------------------------------------------------------------------------------------------

    def left_out(self, op: Op) -> list[Op] | None:
        """Remove a loop whose reads are in bounds for any extent of the axis that it runs along."""
        if not isinstance(op, Loop) or not self.is_walk(op):
            return None
        for read in walk(op.body):
            if isinstance(read, Read) and read.memory in self.arrays:
                axes = self.axes(read)
                still = [axis for axis in axes if not self.goes_along(op, axis)]
                self.see(still)
                # The extent still matters where it is 0, because a loop without iterations reads nothing.
                self.lengths |= {(str(axis.extent), MOST_OPEN) for axis in axes if axis not in still}
                self.watched |= {axis.at for axis in still if axis.at is not None}
        return []

    def is_walk(self, op: Loop) -> bool:
        """Return whether a loop only reads, at positions that depend on its index along axes it runs along, alone."""
        inside = {v for o in walk(op.body) for v in o.results} | {*op.body.args}
        if any(isinstance(v.type, Scalar) for v in op.results):
            return False
        for o in walk(op.body):
            if o.blocks or isinstance(o, (Write, Gather, Scatter)):
                return False
            if isinstance(o, Read) and o.memory in self.arrays:
                still = [axis.at for axis in self.axes(o) if not self.goes_along(op, axis)]
                if o.memory in self.written or not inside.isdisjoint(still):
                    return False
        return True

    def goes_along(self, op: Loop, axis: _Axis) -> bool:
        """Return whether a loop's windows begin at 0, t, 2 · t, … up to the end of the axis."""
        step = None if axis.at is None else self.scalars.multiple(axis.at, op.body.args[0])
        length, by = self.scalars.rounded_up(op.trips)
        return step is not None and step == by and length.name == axis.extent


def _is_followed(op: Op) -> bool:
    return stores(op) or isinstance(op, (Read, Gather))


def _type(memory: Value) -> Memory:
    assert isinstance(memory.type, Memory)
    return memory.type
