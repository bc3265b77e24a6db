"""Check that the shared memory of a workgroup fits the machine, and let several share an SM where that pays.

    kernel @attention {waves = [8, 1]}   →   kernel @attention {waves = [8, 1], resident = 2}

Where nothing fits, the error lists the size of each allocation. Two pay where lanes compute between products: a single
consumer warpgroup that multiplies what it has just computed leaves the matrix unit idle while it computes, and memory
while its pipeline is full. Another workgroup makes use of both, if its lanes have registers too: the kernel requests so
many that two workgroups fit, and those of the producer warp go to the consumer warpgroup.

Where lanes load what they multiply, without a producer, one workgroup waits for memory while others multiply or store:
as many share an SM, up to four, as have registers for their sums, for what they load, and for addresses.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewave.analysis.register_pressure import workgroups_in_turns
from tilewave.errors import ConstraintError
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import Block, Kernel, Op
from tilewave.ir.ops import Allocate, Mma, Read, Role, WgmmaRegisters
from tilewave.ir.placements import elements, is_in
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory, dims
from tilewave.machine.chips import Chip
from tilewave.records import dataclass

REMEDY = "use smaller tiles, smaller steps, or fewer stages"
TWO = 2
MBARRIERS_BYTES = 512
"""Bytes for mbarriers, which are allocated when a kernel is lowered: eight bytes each."""


@dataclass(frozen=True)
class SetOccupancy:
    machine: Chip
    places: Places

    def __repr__(self) -> str:
        return f"SetOccupancy({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        taken = [op for op in walk(kernel.body) if isinstance(op, Allocate) and is_in(op.result, "shared")]
        needed, there = sum(map(_bytes, taken)), self.machine.shared.bytes
        if needed > there:
            raise ConstraintError(
                f"a workgroup needs {needed:,} bytes of shared memory, but {self.machine.name} has {there:,}",
                loc=self.places.tiles,
                remedy="\n".join([*map(_described, taken), REMEDY]),
            )
        if several := self.in_turns(kernel, needed):
            return replace(kernel, resident=several)
        fits_twice = needed + MBARRIERS_BYTES <= self.machine.shared.for_each_of(TWO)
        return replace(kernel, resident=TWO) if fits_twice and _computes_in_one_group(kernel) else kernel

    def in_turns(self, kernel: Kernel, needed: int) -> int:
        """Return how many workgroups have registers whose lanes load a single product's operands; 0: it is none.

        One waits for memory while others multiply or store.
        """
        blocks = [kernel.body, *(block for op in walk(kernel.body) for block in op.blocks)]
        products = [[op for op in block.ops if isinstance(op, Mma)] for block in blocks]
        if max(map(len, products)) != 1 or self.machine.tma is None:
            return 0
        sums = max(prod(op.acc.type.shape) for some in products for op in some)
        lanes = kernel.lanes * prod(kernel.waves)
        return workgroups_in_turns(self.machine, lanes, sums, max(map(_loaded_bytes, blocks)), needed)


def _loaded_bytes(block: Block) -> int:
    """Return the bytes of the tiles that a block loads."""
    loads = [op.result.type for op in block.ops if isinstance(op, Read) and is_in(op.memory, "global")]
    return sum(prod(tile.shape) * tile.dtype.bytes for tile in loads)


def _computes_in_one_group(kernel: Kernel) -> bool:
    """Whether a producer warp loads for one warpgroup that computes operands; with more, lanes have no registers."""
    ops = list(walk(kernel.body))
    computes = any(isinstance(op, WgmmaRegisters) for op in ops) and any(isinstance(op, Role) for op in ops)
    return computes and prod(kernel.waves) == 2 * WgmmaRegisters.group.waves


def _kind(op: Op) -> Memory:
    assert isinstance(op.result.type, Memory)
    return op.result.type


def _bytes(op: Op) -> int:
    return elements(_kind(op)) * _kind(op).dtype.bytes


def _described(op: Op) -> str:
    kind = _kind(op)
    return f"{_bytes(op):,} bytes: {dims(kind.shape)}x{kind.dtype}, from {op.loc}"
