"""Uses of each tile of a kernel whose tiles are in memory: which tiles need no memory, and which reuse another's.

fused        used by one op alone, element by element, in the block that makes it: computed where it is used
finished     sums of a product that one elementwise op or write alone uses: taken from registers
accumulated  sums that a loop carries and that only the next sums use: added in place
operands     read from a memory that the kernel does not write, for products alone, or in one block for elementwise
             use: read in place, without a copy
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from tilewave.ir.core import Block, Op, Value
from tilewave.ir.ops import Elementwise, Loop, Mma, Read, Scatter, Write, Yield
from tilewave.ir.rewrite import blocks_in, walk
from tilewave.ir.types import Tile
from tilewave.records import dataclass


@dataclass(frozen=True)
class TileUses:
    fused: frozenset[Value] = frozenset()
    finished: frozenset[Value] = frozenset()
    accumulated: Mapping[Value, Value] = field(default_factory=dict)
    """By the sums of a product, the loop-carried tile that they replace in place."""
    operands: frozenset[Value] = frozenset()


def tile_uses(body: Block) -> TileUses:
    uses = Counter(v for op in walk(body) for v in op.operands)
    blocks = list(blocks_in(body))
    fused = frozenset(v for block in blocks for v in _used_in_place(block) if uses[v] == 1)
    finished = frozenset(v for block in blocks for v in _taken_from_registers(block) if uses[v] == 1)
    loops = [op for op in walk(body) if isinstance(op, Loop)]
    accumulated = {sums: v for loop in loops for sums, v in _accumulated(loop, body.defs, uses, fused)}
    return TileUses(fused, finished, accumulated, _operands(body, blocks, uses))


def _used_in_place(block: Block) -> Iterator[Value]:
    made = {v for op in block.ops if isinstance(op, Elementwise) for v in op.results if isinstance(v.type, Tile)}
    for op in block.ops:
        if isinstance(op, (Elementwise, Write, Scatter)):
            yield from (v for v in op.operands if v in made)
        elif isinstance(op, Mma) and op.acc in made:
            yield op.acc


def _taken_from_registers(block: Block) -> Iterator[Value]:
    """Yield sums of products, and values computed from them, that an elementwise op or write uses."""
    made: set[Value] = set()
    for op in block.ops:
        if isinstance(op, Mma) or (isinstance(op, Elementwise) and made.intersection(op.operands)):
            made.update(op.results)
        if isinstance(op, (Elementwise, Write)):
            yield from (v for v in op.operands if v in made)


def _accumulated(
    loop: Loop, defs: Mapping[Value, Op], uses: Mapping[Value, int], fused: frozenset[Value]
) -> Iterator[tuple[Value, Value]]:
    for carried, following in zip(loop.body.args[1:], loop.body.yielded, strict=True):
        op = defs.get(following)
        is_sum = isinstance(op, Mma) and op in loop.body.ops and carried in _origins(op.acc, defs, fused)
        if is_sum and uses[carried] == 1:
            yield following, carried


def _origins(v: Value, defs: Mapping[Value, Op], fused: frozenset[Value]) -> Iterator[Value]:
    """Yield a tile, and the fused tiles' operands that it is computed from element by element."""
    yield v
    if v in fused:
        for operand in defs[v].operands:
            yield from _origins(operand, defs, fused)


def _operands(body: Block, blocks: Sequence[Block], uses: Mapping[Value, int]) -> frozenset[Value]:
    written = {v for op in walk(body) if op.has_effect and not isinstance(op, Yield) for v in op.operands}
    multiplied = Counter(v for op in walk(body) if isinstance(op, Mma) for v in (op.a, op.b))
    found: set[Value] = set()
    for block in blocks:
        reads = {op.result for op in block.ops if isinstance(op, Read) and op.memory not in written}
        by_element = Counter(v for op in block.ops if isinstance(op, (Elementwise, Write)) for v in op.operands)
        found |= {v for v in reads if uses[v] in (multiplied[v], by_element[v])}
    return frozenset(found)
