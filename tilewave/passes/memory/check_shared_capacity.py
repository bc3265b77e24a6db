"""Check that the shared memory of a workgroup fits the machine; the error lists the size of each allocation."""

from __future__ import annotations

from dataclasses import dataclass

from tilewave.errors import ConstraintError
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import Kernel, Op
from tilewave.ir.ops import Allocate
from tilewave.ir.placements import elements, is_in
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory, dims
from tilewave.machine.chips import Chip

REMEDY = "use smaller tiles, smaller steps, or fewer stages"


@dataclass(frozen=True)
class CheckSharedCapacity:
    machine: Chip
    places: Places

    def __repr__(self) -> str:
        return f"CheckSharedCapacity({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        taken = [op for op in walk(kernel.body) if isinstance(op, Allocate) and is_in(op.result, "shared")]
        needed, there = sum(map(_bytes, taken)), self.machine.shared.bytes
        if needed > there:
            raise ConstraintError(
                f"a workgroup needs {needed:,} bytes of shared memory, but {self.machine.name} has {there:,}",
                loc=self.places.tiles,
                remedy="\n".join([*map(_described, taken), REMEDY]),
            )
        return kernel


def _kind(op: Op) -> Memory:
    assert isinstance(op.result.type, Memory)
    return op.result.type


def _bytes(op: Op) -> int:
    return elements(_kind(op)) * _kind(op).dtype.bytes


def _described(op: Op) -> str:
    kind = _kind(op)
    return f"{_bytes(op):,} bytes: {dims(kind.shape)}x{kind.dtype}, from {op.loc}"
