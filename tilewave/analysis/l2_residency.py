"""Operands that do not stay in L2: neighbouring SMs should request them at the same time.

Requests of neighbouring SMs for one line are merged on their way to L2 (`Merging` in `machine/description.py`).
Consecutive workgroups of a launch run on neighbouring SMs: one GPC is filled before the next. But with programmatic
dependent launch each workgroup takes whichever SM becomes free while the previous kernel still runs, so neighbours are
scattered over the chip. Lines that L2 keeps are then requested more often, which costs little; lines that it does not
keep are loaded from memory more often. So such kernels start when the previous one has ended; decision 0025 has the
measurements, and those of multicast, which is slower than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import prod

from tilewave.analysis.packing import TileLoads, operand_reads
from tilewave.ir.core import Kernel
from tilewave.ir.host_program import Number
from tilewave.ir.types import Memory
from tilewave.machine.cards import STANDING_FOR
from tilewave.machine.chips import Chip
from tilewave.machine.description import Machine
from tilewave.records import dataclass


@dataclass(frozen=True)
class Streamed:
    """Arrays that L2 cannot keep, and the dynamic sizes for which this holds."""

    arrays: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)


NOTHING_STREAMED = Streamed()


def streamed(kernel: Kernel, chip: Chip, sizes: Mapping[str, int]) -> Streamed:
    """Return the operands that L2 cannot keep, for a kernel whose tiles all run at once, at sizes such as these."""
    card = STANDING_FOR.get(chip.name)  # None for a user's chip, whose L2 is unknown
    shapes = _shapes(kernel, sizes)
    if card is None or TileLoads.of(kernel).tiles(shapes) > card.units:
        return NOTHING_STREAMED
    arrays = {op.memory.name: op.memory.type for op in operand_reads(kernel) if op.memory.name in shapes}
    large = frozenset(name for name, kind in arrays.items() if streams(prod(shapes[name]) * kind.dtype.bytes, card))
    return Streamed(large, dict(sizes)) if large else NOTHING_STREAMED


def streams(array_bytes: Number, card: Machine) -> Number:
    """Return whether an array exceeds an L2 partition, which caches what its SMs read, and requests can merge."""
    return (array_bytes > card.l2.bytes // card.l2.partitions) & (card.merging is not None)


@dataclass(frozen=True)
class SharedOperand:
    """An operand of dynamic shape that workgroups with tiles below each other share, as neighbours do."""

    extents: tuple[int | str, ...]
    element_bytes: int
    rows: int | str
    """The rows of the result, which its tiles do not depend on."""
    tile_rows: int

    def is_streamed(self, sizes: Mapping[str, Number], card: Machine) -> Number:
        """Return whether several tiles of rows share it and L2 cannot keep it, for sizes that may be recorded."""
        array_bytes = prod(sizes.get(n, n) if isinstance(n, str) else n for n in self.extents) * self.element_bytes
        rows = sizes[self.rows] if isinstance(self.rows, str) else self.rows
        return streams(array_bytes, card) & (rows > self.tile_rows)


def shared_operands(kernel: Kernel) -> tuple[SharedOperand, ...]:
    """Return the MMA operands whose tiles do not depend on the rows of the result."""
    arrays = {v.name: v.type for v in kernel.body.args if isinstance(v.type, Memory)}
    loads, found = TileLoads.of(kernel), {}
    written = [(arrays[name], dict(tile)) for name, tile in loads.writes if name in arrays]
    for result, tile in written[:1]:
        axis = result.rank - 2
        if axis in tile:
            rows = result.extents[axis]
            operands = {op.memory.name for op in operand_reads(kernel)} & {*arrays}
            others = [arrays[name] for name in sorted(operands) if rows not in arrays[name].extents]
            found = {m: SharedOperand(tuple(m.extents), m.dtype.bytes, rows, tile[axis]) for m in others}
    return tuple(found.values())


def _shapes(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all arrays, without workgroup memories; nothing where a dynamic size has no value."""
    found: dict[str, tuple[int, ...]] = {}
    for v in kernel.body.args:
        if isinstance(v.type, Memory):
            if any(isinstance(n, str) and n not in sizes for n in v.type.extents):
                return {}
            found[v.name] = tuple(sizes[n] if isinstance(n, str) else n for n in v.type.extents)
    return found
