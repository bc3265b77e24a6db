"""How many waves share a workgroup's rows, where nobody says so: as many as keep memory busy with few registers each.

Each lane takes four chunks of 16 bytes, but up to four waves have a row each, if a chunk is left for every lane. Where
that makes more than 512 lanes, each takes twice as much, and only beyond that there are more lanes; where waves meet
more than once, 256 are many, since it is other workgroups that work while one waits. Measured on an H200 for rows of
256 to 65,536 columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewave.analysis.loads import memory_order
from tilewave.ir.core import Kernel, Op
from tilewave.ir.ops import Mma, Read, Reduce, Shift
from tilewave.ir.placements import lies_in
from tilewave.ir.rewrite import walk
from tilewave.machine.chips import Chip

CHUNK_BYTES, CHUNKS_BYTES = 16, 64
"""What a lane takes at once, and in all."""
ROWS_APART = 4
"""That waves of one workgroup take by themselves, however short they are."""
LANES_AT_ONCE = 1024
"""That a processor is to hold, so that enough is under way from memory; they have 64 registers each on an H200."""
MANY_LANES, MANY_THAT_MEET_OFTEN = 512, 256
"""With more, each lane takes twice as much."""


@dataclass(frozen=True)
class ChooseWaves:
    machine: Chip

    def __repr__(self) -> str:
        return f"ChooseWaves({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        ops = list(walk(kernel.body))
        if (
            kernel.waves
            or any(isinstance(op, Mma) for op in ops)
            or not any(isinstance(op, (Reduce, Shift)) for op in ops)
        ):
            return kernel
        reads = (op for op in ops if isinstance(op, Read) and lies_in(op.memory, "global"))
        largest = max(reads, key=_bytes, default=None)
        lanes = _bytes(largest) // CHUNKS_BYTES if largest else 0
        meetings = sum(isinstance(op, Reduce) for op in ops)
        many = MANY_THAT_MEET_OFTEN if meetings > 1 else MANY_LANES
        if lanes > many:
            lanes = max(many, lanes // 2)
        wanted = min(lanes // self.machine.lanes, self.machine.most_waves)
        apart = self.apart(largest) if largest and all(map(_is_of_rows, ops)) else 1
        waves = self.sharing(largest, max(1, wanted, apart)) if largest else 1
        return replace(kernel, waves=(waves, 1), resident=max(1, LANES_AT_ONCE // (waves * self.machine.lanes)))

    def apart(self, op: Read) -> int:
        """As many waves as have rows to themselves, up to four, and a chunk for each of their lanes."""
        shape = op.result.type.shape
        rows = prod(shape) // shape[memory_order(op)[-1]]
        return min(rows, ROWS_APART, _bytes(op) // (CHUNK_BYTES * self.machine.lanes))

    def sharing(self, op: Read, wanted: int) -> int:
        """About so many waves, which share a row's chunks evenly: it may be an odd number of powers of two long."""
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
    """Whether it reduces rows, if it reduces anything."""
    return not isinstance(op, Reduce) or op.axes == (len(op.x.type.shape) - 1,)


def _bytes(op: Read) -> int:
    return prod(op.result.type.shape) * op.result.type.dtype.bytes
