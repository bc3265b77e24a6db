"""Operands that L2 cannot keep, so that every launch brings all of them from memory, and neighbours better bring them
together.

On an H200, 128x128x128: 1.3 % of 256x8192x8192, 2.4 % of 256x4096x14336 in two parts, 3.8 % of 512x512x65536 in eight;
64x128x128: 16 % of 128x8192x8192. Short steps pay where eight of them are under way, 64x128x64: 17 % of 128x8192x8192,
13 % of 128x8192x4096, 4 to 8 % of 256x4096x4096. It costs a little waiting for each other, and pays where nothing else
takes longer:

- What L2 keeps is better brought twice: 6 % slower at 128x8192x8192, whose neighbours have the activations in common,
  and 25 % at 1024³, where two begin and end together in 1.1 µs.
- Where products take most of the time, only waiting is left: 1 % slower at 512x8192x8192 in tiles of 128x256.
- Where half of the processors have nothing to do, memory is not what they wait for: 4 % slower at 128x4096x14336 in 64
  tiles of 64x128 that nobody cuts into parts.
- Short steps of which fewer are under way: 64x128x64, four ahead, 5 % slower at 128x8192x8192, six ahead 2 % at
  256x4096x4096; or shorter ones: 32x64x64, twelve ahead, 10 % at 64x4096x14336.
- Short steps of an operand that lies across its depth, whose halves are short rows: 15 % slower at 256x4096x4096.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, prod

from tilewave.analysis.repacking import TileLoads, operand_reads
from tilewave.ir.core import ONE_ORDER, Kernel
from tilewave.ir.launch import is_open
from tilewave.ir.ops import Mma, Read
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory
from tilewave.machine.cards import STANDING_FOR
from tilewave.machine.chips import Chip
from tilewave.machine.description import Machine

LONG_STEP_BYTES, SHORT_STEP_BYTES = 32 << 10, 18 << 10
"""That a workgroup brings in a step; those between these pay where `MANY_STEPS` are under way at once."""
MANY_STEPS = 8
MOST_PRODUCTS = 1.5
"""Times as long as memory takes for all arrays, that products may take: 1.2 of 256x8192x8192 and 512x512x65536, 2.2 of
512x8192x8192."""
FEW_PRODUCTS, MANY_PRODUCTS = 0.8, 1.0
"""With short steps, fewer than the one or more than the other: 0.6 of 128x8192x8192, 1.1 of 256x4096x4096; between,
at 192x4096x11008, it is 6 % slower."""
MOST_OF_L2, HALF_OF_L2 = 0.75, 0.5
"""That short steps must go through, with few products and with many: 50 MB of weights, and 34 MB; 17 MB are kept."""


@dataclass(frozen=True)
class Streamed:
    """Arrays that neighbours should bring together, and the open sizes that this is said for."""

    arrays: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)


NOTHING_STREAMED = Streamed()


@dataclass(frozen=True)
class BroughtWork:
    """What a launch brings and computes, as far as it decides whether neighbours share copies."""

    tiles: int
    in_parts: bool
    """Whether tiles are cut such that all processors have a part."""
    step_bytes: int
    """That a workgroup brings in a step."""
    ahead: int
    """Steps that somebody asked to be under way at once; 0: as the compiler likes."""
    arrays_bytes: float
    flops: float
    dtype: str
    """That is multiplied."""

    def is_worth_sharing(self, array_bytes: float, is_across: bool, card: Machine) -> bool:
        """Whether this operand is what workgroups wait for, each of which has one tile or a part of one."""
        most, rate = card.units, card.flops(self.dtype) or 0.0
        if self.tiles > most or (self.tiles <= most // 2 and not self.in_parts):
            return False
        products = self.flops * card.hbm.bytes_per_second / (self.arrays_bytes * rate) if rate else inf
        if self.step_bytes >= LONG_STEP_BYTES:
            return array_bytes > card.l2.bytes and products <= MOST_PRODUCTS
        if self.step_bytes < SHORT_STEP_BYTES or self.ahead < MANY_STEPS:
            return False
        if products <= FEW_PRODUCTS:
            return array_bytes > MOST_OF_L2 * card.l2.bytes
        many = MANY_PRODUCTS <= products <= MOST_PRODUCTS
        return many and not is_across and array_bytes > HALF_OF_L2 * card.l2.bytes


def streamed(kernel: Kernel, chip: Chip, sizes: Mapping[str, int], ahead: int = 0) -> Streamed:
    """Of a kernel on whole tiles, for launches whose open sizes are such as these."""
    card = STANDING_FOR.get(chip.name)  # of a chip of somebody's own nobody knows what L2 keeps
    shapes = _shapes(kernel, sizes)
    reads = [op for op in operand_reads(kernel) if op.memory.name in shapes and op.result.type.rank > 1]
    if card is None or not reads:
        return NOTHING_STREAMED
    work = _work(kernel, shapes, reads, ahead)
    sizes_of = {v.name: _bytes(v.type, shapes[v.name]) for v in kernel.body.args if isinstance(v.type, Memory)}
    large = frozenset(
        op.memory.name
        for op in reads
        if work.is_worth_sharing(sizes_of.get(op.memory.name, 0), op.axes[-1] != op.memory.type.rank - 1, card)
    )
    return Streamed(large, dict(sizes)) if large else NOTHING_STREAMED


def _work(kernel: Kernel, shapes: Mapping[str, tuple[int, ...]], reads: Sequence[Read], ahead: int) -> BroughtWork:
    loads = TileLoads.of(kernel)
    depth = max(shapes[op.memory.name][op.axes[-1]] for op in reads)
    results = max((prod(shapes[name]) for name, _ in loads.writes if name in shapes), default=0)
    return BroughtWork(
        tiles=loads.tiles(shapes),
        in_parts=kernel.sums != ONE_ORDER and not is_open(kernel),
        step_bytes=sum(prod(op.result.type.shape) * op.result.type.dtype.bytes for op in reads),
        ahead=ahead,
        arrays_bytes=sum(_bytes(v.type, shapes[v.name]) for v in kernel.body.args if isinstance(v.type, Memory)),
        flops=2.0 * results * depth,
        dtype=next(op.a.type.dtype.name for op in walk(kernel.body) if isinstance(op, Mma)),
    )


def _shapes(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Of all arrays, and of no memory of a workgroup's own; nothing where nobody knows how large an open size comes."""
    found: dict[str, tuple[int, ...]] = {}
    for v in kernel.body.args:
        if isinstance(v.type, Memory):
            if any(isinstance(n, str) and n not in sizes for n in v.type.extents):
                return {}
            found[v.name] = tuple(sizes[n] if isinstance(n, str) else n for n in v.type.extents)
    return found


def _bytes(kind: Memory, shape: tuple[int, ...]) -> int:
    return prod(shape) * int(kind.dtype.bytes)
