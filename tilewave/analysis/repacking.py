"""When arrays whose rows a copy engine cannot take are worth copying to where it can.

Lanes that load such tiles themselves do it element by element, and every workgroup anew: what that costs grows with the
bytes that all workgroups load together. Copying each array once costs little more than the launches of the copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewave.ir.core import Kernel
from tilewave.ir.ops import Read, Write
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory

LEAST_BYTES = 8 << 20
"""That all workgroups load: at about 0.7 TB/s, which is what lanes load of odd rows on an H200, they take 12 µs; the
launches of two copies take 6 µs more than none (`benchmarks/unaligned_h200.py`)."""


def is_worth_it(kernel: Kernel, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether workgroups load enough of arrays of these shapes: for each tile that one of them writes, it goes along
    whole rows of its operands."""
    tiles = loaded = 0
    for op in walk(kernel.body):
        match op:
            case Write(tile, memory) if memory.name in shapes:
                tiles = max(tiles, _tiles(shapes[memory.name], op.axes, tile.type.shape))
            case Read(memory) if memory.name in shapes and op.result.type.rank > 1:
                *rows, _ = op.result.type.shape
                loaded += prod(rows) * shapes[memory.name][op.axes[-1]] * memory.type.dtype.bytes
            case _:
                pass  # it moves no tile of an array
    return loaded * tiles >= LEAST_BYTES


def odd_rows(kernel: Kernel, grain_bytes: int) -> tuple[str, ...]:
    """The arrays of known sizes that are worth repacking: they are read in tiles, and their rows lie on no grain."""
    memories = {v.name: v.type for v in kernel.body.args if isinstance(v.type, Memory)}
    if any(kind.is_open for kind in memories.values()):
        return ()
    read = {op.memory.name for op in walk(kernel.body) if isinstance(op, Read) and op.result.type.rank > 1}
    odd = [name for name, m in memories.items() if name in read and m.shape[-1] * m.dtype.bytes % grain_bytes]
    return tuple(odd) if odd and is_worth_it(kernel, {name: m.shape for name, m in memories.items()}) else ()


def _tiles(shape: Sequence[int], axes: Sequence[int], tile: Sequence[int]) -> int:
    """How many of them an array has."""
    across = dict(zip(axes, tile, strict=True))
    return prod(-(-n // across.get(axis, 1)) for axis, n in enumerate(shape))
