"""When unaligned arrays, whose rows TMA cannot load, are worth a packed copy.

Lanes that load such tiles themselves use narrow loads, and every workgroup loads them again: the cost grows with the
bytes that all workgroups load together. Packing each array once costs the launches of the copies and one more read and
write of the array: much, where workgroups read it only once anyway.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import prod

from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Elementwise, Loop, Mma, Read, Write
from tilewave.ir.placements import is_one_row
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory
from tilewave.ir.uses import uses_through
from tilewave.machine.tuning import PackingTuning
from tilewave.records import dataclass


@dataclass(frozen=True)
class TileRead:
    """A tile of an array: the workgroup's loop runs along axis `walked`, the axes of `cut` are tiled."""

    array: str
    cut: tuple[tuple[int, int], ...]
    """Axes, and the tile's extent along each."""
    walked: int
    element_bytes: int

    def bytes(self, shape: Sequence[int], tiles: int) -> int:
        """Return how many bytes so many workgroups load of an array of this shape; tiles end with the array."""
        own = prod(-(-shape[axis] // n) for axis, n in self.cut)
        whole = prod(shape[axis] for axis, _ in self.cut) * shape[self.walked] * self.element_bytes
        return tiles // max(1, own) * whole


@dataclass(frozen=True)
class TileLoads:
    """What workgroups load of a kernel's arrays: for each tile written, whole rows of its operands."""

    reads: tuple[TileRead, ...]
    writes: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
    """For each array that is written, the axes of a tile and its extent along each."""
    element_bytes: tuple[tuple[str, int], ...] = ()
    parts: int = 1
    """Workgroups that share the depth (split-K)."""
    products: int = 1
    """The products of tiles that the kernel computes: the results of one may be operands of another."""

    @staticmethod
    def of(kernel: Kernel) -> TileLoads:
        reads, writes, sizes, products, parts = [], [], {}, 0, 1
        for op in walk(kernel.body):
            match op:
                case Write(tile, memory):
                    sizes[memory.name] = memory.type.dtype.bytes
                    writes.append((memory.name, tuple(zip(op.axes, tile.type.shape, strict=True))))
                case Read(memory) if op.result.type.rank > 1:
                    *cut, (walked, _) = zip(op.axes, op.result.type.shape, strict=True)
                    sizes[memory.name] = memory.type.dtype.bytes
                    reads.append(TileRead(memory.name, tuple(cut), walked, memory.type.dtype.bytes))
                case Mma():
                    products += 1
                case Loop():
                    parts = max(parts, op.split)
                case _:
                    pass  # it moves no tile of an array
        return TileLoads(tuple(reads), tuple(writes), tuple(sizes.items()), parts, products)

    def are_worth_it(
        self, shapes: Mapping[str, Sequence[int]], tuning: PackingTuning, in_place: Container[str] = ()
    ) -> bool:
        """Return whether packing pays for arrays of these shapes; lanes can load those named in `in_place` unpacked.

        Several products, as those of attention, use each element often: then the bytes decide alone.
        """
        sizes = [(name, size) for name, size in self.element_bytes if name in in_place and name in shapes]
        packed = sum(prod(shapes[name]) * size for name, size in sizes) if self.products < 2 else 0
        return bool(tuning.pays(self._bytes(shapes), self._depth(shapes) // self.parts, packed))

    def _depth(self, shapes: Mapping[str, Sequence[int]]) -> int:
        return max((shapes[read.array][read.walked] for read in self._of(shapes)), default=0)

    def _bytes(self, shapes: Mapping[str, Sequence[int]]) -> int:
        """Return the bytes that all workgroups load."""
        tiles = self.tiles(shapes)
        return sum(read.bytes(shapes[read.array], tiles) for read in self._of(shapes))

    def _of(self, shapes: Mapping[str, Sequence[int]]) -> list[TileRead]:
        """Return the reads of arrays; reads of workgroup memory are left out."""
        return [read for read in self.reads if read.array in shapes]

    def tiles(self, shapes: Mapping[str, Sequence[int]]) -> int:
        """Return how many tiles are written to arrays of these shapes."""
        return max((_tiles(shapes[name], dict(tile)) for name, tile in self.writes if name in shapes), default=0)


def unaligned_rows(kernel: Kernel, grain_bytes: int, tuning: PackingTuning) -> tuple[str, ...]:
    """Return the operands of static size that are worth packing, because their row stride is unaligned."""
    memories = _arrays(kernel)
    if any(kind.is_open for kind in memories.values()):
        return ()
    taken = {op.memory.name for op in operand_reads(kernel)}
    apart = {name: m for name, m in memories.items() if name in taken and not is_one_row(m)}
    odd = [name for name, m in apart.items() if m.shape[-1] * m.dtype.bytes % grain_bytes]
    return tuple(odd) if odd and _known_to_be_worth_it(kernel, tuning) else ()


def left_in_place(kernel: Kernel, odd: Sequence[str], tuning: PackingTuning) -> bool:
    """Return whether calls use these operands of static size unpacked, unless packed copies already exist."""
    return bool(odd) and not _known_to_be_worth_it(kernel, tuning, odd)


def across_depth(kernel: Kernel, along_depth: Container[str], tuning: PackingTuning) -> tuple[str, ...]:
    """Return the MMA operands worth transposing: the instruction wants their dtype along K, and their rows are not.

    Operands of dynamic size are included: each call decides between a transposed copy and loads by lanes.
    """
    memories = _arrays(kernel)
    found = tuple(name for name in _read_across(kernel) if memories[name].dtype.name in along_depth)
    is_open = any(kind.is_open for kind in memories.values())
    return found if found and (is_open or _known_to_be_worth_it(kernel, tuning)) else ()


def single_columns(kernel: Kernel) -> tuple[str, ...]:
    """Return the MMA operands that are one column each: in memory a column is a contiguous row along K."""
    memories = _arrays(kernel)
    columns = (name for name in _read_across(kernel) if memories[name].extents[-1] == 1)
    return tuple(name for name in columns if memories[name].rank == 2 and not memories[name].is_open)


def _read_across(kernel: Kernel) -> tuple[str, ...]:
    """Return the arrays that only MMAs use, and that are always read across their rows."""
    memories = _arrays(kernel)
    reads: dict[str, list[bool]] = {}
    for op in walk(kernel.body):
        if isinstance(op, Read) and op.memory.name in memories:
            last = memories[op.memory.name].rank
            transposed = len(op.axes) > 1 and op.axes[-2:] == (last - 1, last - 2)
            alone = all(isinstance(user, Mma) for user in kernel.users[op.result])
            reads.setdefault(op.memory.name, []).append(transposed and alone)
    return tuple(name for name in memories if all(reads.get(name, [False])))


def operand_reads(kernel: Kernel) -> list[Read]:
    """Return the reads of tiles that are MMA operands, or from which operands are computed elementwise."""
    return [op for op in walk(kernel.body) if isinstance(op, Read) and _feeds_product(op.result, kernel.users)]


def _arrays(kernel: Kernel) -> dict[str, Memory]:
    return {v.name: v.type for v in kernel.body.args if isinstance(v.type, Memory)}


def _feeds_product(v: Value, users: Mapping[Value, Sequence[Op]]) -> bool:
    """Return whether a value, or what is computed from it elementwise, is an MMA operand."""
    uses = uses_through(Elementwise, v, users)
    return any(isinstance(user, Mma) and used in (user.a, user.b) for used, user in uses)


def _known_to_be_worth_it(kernel: Kernel, tuning: PackingTuning, in_place: Container[str] = ()) -> bool:
    return TileLoads.of(kernel).are_worth_it({name: m.shape for name, m in _arrays(kernel).items()}, tuning, in_place)


def _tiles(shape: Sequence[int], tile: Mapping[int, int]) -> int:
    """Return how many tiles cover an array."""
    return prod(-(-n // tile.get(axis, 1)) for axis, n in enumerate(shape))
