"""Raise occupancy to two workgroups per SM where lanes compute between products, and both fit.

    kernel @attention {waves = [8, 1]}   →   kernel @attention {waves = [8, 1], resident = 2}

A single consumer warpgroup that multiplies what it has just computed leaves the matrix unit idle while it computes, and
memory while its pipeline is full. Another workgroup makes use of both, if its lanes have registers too: the kernel
requests so many that two workgroups fit, and those of the producer warp go to the consumer warpgroup.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewave.ir.core import Kernel
from tilewave.ir.ops import Allocate, Role, WgmmaRegisters
from tilewave.ir.placements import elements, is_in
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory
from tilewave.machine.chips import Chip

TWO = 2


@dataclass(frozen=True)
class RaiseOccupancy:
    machine: Chip

    def __repr__(self) -> str:
        return f"RaiseOccupancy({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        ops = list(walk(kernel.body))
        computes = any(isinstance(op, WgmmaRegisters) for op in ops) and any(isinstance(op, Role) for op in ops)
        with_producer = 2 * WgmmaRegisters.group.waves
        one_group = prod(kernel.waves) == with_producer  # with more, each lane would have too few registers
        taken = sum(_bytes(op) for op in ops if isinstance(op, Allocate) and is_in(op.result, "shared"))
        fits = taken + MBARRIERS_BYTES <= self.machine.shared.for_each_of(TWO)
        return replace(kernel, resident=TWO) if computes and one_group and fits else kernel


MBARRIERS_BYTES = 512
"""Bytes for mbarriers, which are allocated when a kernel is lowered: eight bytes each."""


def _bytes(op: Allocate) -> int:
    kind = op.result.type
    assert isinstance(kind, Memory)
    return elements(kind) * kind.dtype.bytes
