"""Choose the number of waves per workgroup for row kernels: enough to keep memory busy, with few registers each.

Used where the author gives no number. Each lane loads four chunks of 16 bytes. Up to four waves have a row each if
every lane still has a chunk, and a single row of more than two chunks per lane is split between two waves, since a wave
finishes sooner with less. Above 512 lanes each lane loads twice as much, and only beyond that the number of lanes
grows; with more than one reduction the limit is 256, since other workgroups run while one waits at a barrier. Measured
on an H200 for rows of 256 to 65,536 columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewave.analysis.loads import memory_order
from tilewave.ir.core import Kernel, Op
from tilewave.ir.ops import Mma, Read, Reduce, Shift
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import walk
from tilewave.machine.chips import Chip

CHUNK_BYTES, CHUNKS_BYTES = 16, 64
"""Bytes that a lane loads at once, and in all."""
ROWS_APART = 4
"""The largest number of waves that get whole rows, however short the rows are."""
LANES_AT_ONCE = 1024
"""Lanes that should be resident per SM, so that enough loads are in flight; they have 64 registers each on an H200."""
MANY_LANES, MANY_THAT_MEET_OFTEN = 512, 256
"""Above this many lanes each lane loads twice as much; the second limit is for kernels with several reductions."""


@dataclass(frozen=True)
class ChooseWaveCount:
    machine: Chip

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
        lanes = _bytes(largest) // CHUNKS_BYTES if largest else 0
        meetings = sum(isinstance(op, Reduce) for op in ops)
        many = MANY_THAT_MEET_OFTEN if meetings > 1 else MANY_LANES
        if lanes > many:
            lanes = max(many, lanes // 2)
        wanted = min(lanes // self.machine.lanes, self.machine.most_waves)
        fewest = self.fewest(largest) if largest and all(map(_is_of_rows, ops)) else 1
        waves = self.sharing(largest, max(1, wanted, fewest)) if largest else 1
        return replace(kernel, waves=(waves, 1), resident=max(1, LANES_AT_ONCE // (waves * self.machine.lanes)))

    def fewest(self, op: Read) -> int:
        """Return one wave per row, up to four and with a chunk per lane; for a single row two waves, where one wave
        would load more than two chunks per lane."""
        shape, chunks = op.result.type.shape, _bytes(op) // (CHUNK_BYTES * self.machine.lanes)
        rows = prod(shape) // shape[memory_order(op)[-1]]
        return min(rows, ROWS_APART, chunks) if rows > 1 else min(2, -(-chunks // 2))

    def sharing(self, op: Read, wanted: int) -> int:
        """Return about `wanted` waves that split a row's chunks evenly, also where their number is no power of two."""
        power = 1 << wanted.bit_length() - 1
        shape = op.result.type.shape
        row = shape[memory_order(op)[-1]]
        rounds, left = divmod(row * op.result.type.dtype.bytes, CHUNK_BYTES * self.machine.lanes)
        odd = rounds // (rounds & -rounds) if rounds and not left else 1
        if odd == 1 or odd > self.machine.most_waves or prod(shape) // row % power == 0:
            return power
        while odd * 2 <= wanted and rounds % (odd * 2) == 0:
            odd *= 2
        return odd


def _is_of_rows(op: Op) -> bool:
    """Whether `op`, if it is a reduction, reduces rows."""
    return not isinstance(op, Reduce) or op.axes == (len(op.x.type.shape) - 1,)


def _bytes(op: Read) -> int:
    return prod(op.result.type.shape) * op.result.type.dtype.bytes
