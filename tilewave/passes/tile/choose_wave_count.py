"""Choose the number of waves per workgroup for row kernels: enough to keep memory busy, with few registers each.

Used where the author gives no number. Each lane loads some chunks of 16 bytes. Up to four waves have a row each if
every lane still has a chunk, and a single row of more than two chunks per lane is split between two waves, since a wave
finishes sooner with less. With many lanes each loads twice as much, and only beyond that the number of lanes grows;
with more than one reduction this begins earlier, since other workgroups run while one waits at a barrier. The
numbers are those of `RowTuning`. Where a lane needs more tiles after a reduction than the largest, such as the two
arrays of a gradient or sums that a loop carries, a row has as many lanes more, so that each has registers for them; of
workgroups with a row for each wave, or with sums over rows, fewer are resident: half of the lanes then have twice the
registers each, of which addresses take a smaller share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from tilewave.analysis.loads import memory_order
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Broadcast, Const, Elementwise, Iota, Mma, Read, Reduce, Shift
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Tile
from tilewave.machine.chips import Chip
from tilewave.machine.tuning import RowTuning
from tilewave.records import dataclass


@dataclass(frozen=True)
class ChooseWaveCount:
    machine: Chip
    tuning: RowTuning

    def __repr__(self) -> str:
        return f"ChooseWaveCount({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        ops = list(walk(kernel.body))
        if (
            kernel.waves
            or any(isinstance(op, Mma) for op in ops)
            or not any(isinstance(op, (Reduce, Shift)) for op in ops)
        ):
            return kernel
        reads = (op for op in ops if isinstance(op, Read) and is_in(op.memory, "global"))
        largest = max(reads, key=_bytes, default=None)
        lanes = _bytes(largest) // self.tuning.lane_bytes if largest else 0
        meetings = sum(isinstance(op, Reduce) for op in ops)
        many = self.tuning.many_lanes_that_meet if meetings > 1 else self.tuning.many_lanes
        if lanes > many:
            lanes = max(many, lanes // 2)
        held = 0
        if largest:
            held = lanes * max(_bytes(largest), *held_at_once(kernel, largest)) // _bytes(largest)
            if self.rows(largest) == 1:
                lanes, held = (
                    (held // 2, 1 << max(held, 1).bit_length() - 1) if _sums_rows(kernel, largest) else (held, 0)
                )
        wanted = min(lanes // self.machine.lanes, self.machine.most_waves)
        fewest = self.fewest(largest) if largest and all(map(_is_of_rows, _beside(largest, kernel))) else 1
        waves = self.sharing(largest, max(1, wanted, fewest)) if largest else 1
        resident = self.tuning.resident_lanes // max(held, waves * self.machine.lanes)
        return replace(kernel, waves=(waves, 1), resident=max(1, resident))

    @property
    def chunk_bytes(self) -> int:
        """What all lanes of a wave load at once."""
        return self.machine.widest_load_bytes * self.machine.lanes

    def fewest(self, op: Read) -> int:
        """Return one wave per row, up to four and with a chunk per lane; for a single row two waves, where one wave
        would load more than two chunks per lane."""
        rows, chunks = self.rows(op), _bytes(op) // self.chunk_bytes
        return min(rows, self.tuning.waves_with_rows, chunks) if rows > 1 else min(2, -(-chunks // 2))

    def rows(self, op: Read) -> int:
        shape = op.result.type.shape
        return prod(shape) // shape[memory_order(op)[-1]]

    def sharing(self, op: Read, wanted: int) -> int:
        """Return about `wanted` waves that split a row's chunks evenly, also where their number is no power of two."""
        power = 1 << wanted.bit_length() - 1
        shape = op.result.type.shape
        row = shape[memory_order(op)[-1]]
        rounds, left = divmod(row * op.result.type.dtype.bytes, self.chunk_bytes)
        odd = rounds // (rounds & -rounds) if rounds and not left else 1
        if odd == 1 or odd > self.machine.most_waves or prod(shape) // row % power == 0:
            return power
        while odd * 2 <= wanted and rounds % (odd * 2) == 0:
            odd *= 2
        return odd


def held_at_once(kernel: Kernel, largest: Read) -> Iterator[int]:
    """Yield, for each block, the bytes of the tiles that a lane has registers for: what is read or carried, of at least
    a row, and needed after the block's last reduction, or, where it carries tiles and reduces nothing, anywhere in it.
    """
    row = largest.result.type.shape[memory_order(largest)[-1]]
    for block in (kernel.body, *(block for op in walk(kernel.body) for block in op.blocks)):
        ends = [i for i, op in enumerate(block.ops) if isinstance(op, Reduce)]
        if ends or any(_is_long(v, row) for v in block.args):
            late = [inner for op in block.ops[ends[-1] + 1 if ends else 0 :] for inner in _with_inner(op)]
            own = {v for op in late for v in op.results} if ends else set[Value]()
            yield sum(prod(v.type.shape) * v.type.dtype.bytes for v in _sources(kernel, late, row, own))
        else:
            yield 0


def _sums_rows(kernel: Kernel, largest: Read) -> bool:
    """Whether a loop carries tiles of a row's length: sums over rows."""
    row = largest.result.type.shape[memory_order(largest)[-1]]
    blocks = (block for op in walk(kernel.body) for block in op.blocks)
    return any(_is_long(v, row) for block in blocks for v in block.args)


def _sources(kernel: Kernel, late: Sequence[Op], row: int, own: set[Value]) -> set[Value]:
    """Return the long tiles, read or carried, that elementwise ops make the operands of some ops from, but `own`."""
    found, seen, left = set[Value](), set(own), [v for op in late for v in op.operands]
    while left:
        v = left.pop()
        if v in seen or not _is_long(v, row):
            continue
        seen.add(v)
        op = kernel.defs.get(v)
        if isinstance(op, (Elementwise, Broadcast)):
            left += op.operands
        elif not isinstance(op, (Const, Iota)):
            found.add(v)
    return found


def _is_long(v: Value, row: int) -> bool:
    return isinstance(v.type, Tile) and prod(v.type.shape) >= row


def _beside(op: Op, kernel: Kernel) -> Iterator[Op]:
    """Return the ops of the block of `op`: what a loop leaves is reduced once, however many rows it has."""
    blocks = (kernel.body, *(block for outer in walk(kernel.body) for block in outer.blocks))
    return walk(next(block for block in blocks if any(inner is op for inner in block.ops)))


def _with_inner(op: Op) -> Iterator[Op]:
    yield op
    for block in op.blocks:
        yield from walk(block)


def _is_of_rows(op: Op) -> bool:
    """Whether `op`, if it is a reduction, reduces rows."""
    return not isinstance(op, Reduce) or op.axes == (len(op.x.type.shape) - 1,)


def _bytes(op: Read) -> int:
    return prod(op.result.type.shape) * op.result.type.dtype.bytes
