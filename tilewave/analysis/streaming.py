"""Operands that L2 cannot keep: neighbours better ask for them at the same time, from processors that lie together.

Requests of neighbouring processors for one line become one on their way to L2 (`Merging` in `machine/description.py`).
Workgroups that follow each other in a launch lie together: an H200 fills one GPC before the next. But where they start
while the kernel before still runs, each takes the processor that happens to become free, and neighbours are strewn over
the card. What L2 keeps is then asked for more often, which costs little; what it does not keep is brought more often.

So such kernels start when the one before has ended. On an H200, that in place of starting early, launch after launch:

| | quicker by |
|---|---|
| 96x4096x14336 (48x64), 192x8192x8192 (96x128), 128x8192x8192 (64x128) | 23, 12, 21 % |
| 256x4096x4096 (64x128), 256x4096x14336 (64x128) | 26, 8 % |
| 512x4096x4096 (128x128), 512x8192x8192 (128x256), 512x512x65536 in eight parts | 3, 2, 18 % |
| 2048³ (128x256), 1024³ (128x64), whose operands L2 keeps | -2, -7 % |
| 128x14336x4096 (128x112), no tile of which is wanted twice | -2 % |

Neighbours could also bring such tiles together, as where rows begin off lines (`passes/share_copies.py`). Beside
starting early that is 4 to 17 % quicker; but clusters are dealt to one GPC after the other, so fewer requests of theirs
become one, and none of these was quicker than without clusters in its order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from tilewave.analysis.repacking import TileLoads, operand_reads
from tilewave.ir.core import Kernel
from tilewave.ir.types import Memory
from tilewave.machine.cards import STANDING_FOR
from tilewave.machine.chips import Chip
from tilewave.machine.description import Machine


@dataclass(frozen=True)
class Streamed:
    """Arrays that L2 cannot keep, and the open sizes that this is said for."""

    arrays: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)


NOTHING_STREAMED = Streamed()


def streamed(kernel: Kernel, chip: Chip, sizes: Mapping[str, int]) -> Streamed:
    """Of a kernel on whole tiles that all run at once, for launches whose open sizes are such as these."""
    card = STANDING_FOR.get(chip.name)  # of a chip of somebody's own nobody knows what L2 keeps
    shapes = _shapes(kernel, sizes)
    if card is None or TileLoads.of(kernel).tiles(shapes) > card.units:
        return NOTHING_STREAMED
    arrays = {op.memory.name: op.memory.type for op in operand_reads(kernel) if op.memory.name in shapes}
    large = frozenset(name for name, kind in arrays.items() if streams(prod(shapes[name]) * kind.dtype.bytes, card))
    return Streamed(large, dict(sizes)) if large else NOTHING_STREAMED


def streams(array_bytes: float, card: Machine) -> bool:
    """Whether L2 cannot keep an array, each part of which keeps what its own processors read, and requests can meet."""
    return card.merging is not None and array_bytes > card.l2.bytes // card.l2.partitions


def _shapes(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Of all arrays, and of no memory of a workgroup's own; nothing where nobody knows how large an open size comes."""
    found: dict[str, tuple[int, ...]] = {}
    for v in kernel.body.args:
        if isinstance(v.type, Memory):
            if any(isinstance(n, str) and n not in sizes for n in v.type.extents):
                return {}
            found[v.name] = tuple(sizes[n] if isinstance(n, str) else n for n in v.type.extents)
    return found
