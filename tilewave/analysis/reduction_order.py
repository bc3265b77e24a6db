"""Deterministic reduction order: whether sums are added in an order that only K, the tile and the dtype decide.

A value is *placed* where it depends on which tile a workgroup computes: on the workgroup id, the iteration of a loop
over tiles, the number of workgroups, or a size that is tiled. A loop that carries tiles has one order for every tile if

    its trip count is not placed, and
    the position of each read along the axis it runs along follows from its index and nothing placed: the rows and
    columns that a step reads may be placed, the order of the steps may not.

A sum that continues another workgroup's partial sums (stream-K) is a loop whose trip count is placed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tilewave.analysis.tile_programs import adds_one_product
from tilewave.errors import Loc
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.launch import open_sizes
from tilewave.ir.match import constant
from tilewave.ir.ops import Launch, Loop, Mma, Reduce, TileOf, While, Workgroup
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory, Scalar, Tile
from tilewave.records import dataclass

ROUNDS = RemarkKind(
    "the number of steps of this sum depends on the tile, so its bits may change with the batch",
    "let every tile iterate over all of K: leave out iters, start and stop, and passes that split tiles among "
    "workgroups",
)
WALK = RemarkKind(
    "the order in which this sum reads {memory} depends on the tile, so its bits may change with the batch",
    "leave out passes that change the direction or the first step of K for some tiles",
)
CONDITION = RemarkKind(
    "this is a while loop, so the order of its sums is not known",
    "iterate over a dimension whose TilingConstraint has a tile",
)

Source = Callable[[Op], Iterable[Value]]
"""The results of an op that are marked from the beginning."""


@dataclass(frozen=True)
class SumOrder:
    """A sum with one order for every tile."""

    loc: Loc
    steps: int
    """The trip count; 0 where it is known at the launch only."""
    depth: int
    """K of one step; 0 where the loop has no MMA."""
    parts: int = 1
    """The parts into which its author splits it."""

    def __str__(self) -> str:
        each = f" of {self.depth}" if self.depth else ""
        given = f"{self.steps or 'as many'} steps{each}" + ("" if self.steps else " as cover its depth")
        return given if self.parts == 1 else f"{given}, in {self.parts} parts"


def sum_orders(kernel: Kernel) -> tuple[tuple[SumOrder, ...], tuple[Remark, ...]]:
    """Return a kernel's sums of deterministic order, and remarks on what prevents it for the others."""
    placed = _Placed(kernel)
    found: list[SumOrder] = []
    broken: list[Remark] = []
    for loop in _sums(kernel.body):
        wrong = [CONDITION.at(loop.loc)] if isinstance(loop, While) else list(placed.faults(loop))
        broken += wrong
        if isinstance(loop, Loop) and not wrong:
            found.append(_sum_order(loop, kernel))
    return tuple(found), tuple(dict.fromkeys(broken))


def adds_products_alone(kernel: Kernel) -> bool:
    """Return whether each sum adds one MMA at a time, so that it does not depend on the tile's K.

    It may depend on the K of the instruction, whose inner order is the hardware's.
    """
    reduces = any(isinstance(op, Reduce) for op in walk(kernel.body))
    return not reduces and all(map(adds_one_product, _sums(kernel.body)))


def _sums(block: Block) -> Iterator[Loop | While]:
    for op in walk(block):
        if isinstance(op, (Loop, While)) and any(isinstance(v.type, Tile) for v in op.init):
            yield op


def _sum_order(loop: Loop, kernel: Kernel) -> SumOrder:
    steps = int(constant(loop.trips, kernel.defs) or 0)
    depth = next((op.a.type.shape[-1] for op in loop.body.ops if isinstance(op, Mma)), 0)
    return SumOrder(loop.loc, steps, depth, loop.split)


class _Placed:
    """The scalars of a kernel that depend on which tile is computed."""

    def __init__(self, kernel: Kernel) -> None:
        depths = {name for loop in _sums(kernel.body) for name in _depth_sizes(loop)}
        sizes = {v for v in kernel.body.args if v.name in open_sizes(kernel) and v.name not in depths}
        self.values = _reached(kernel.body, sizes, _is_place)

    def faults(self, loop: Loop) -> Iterator[Remark]:
        if loop.trips in self.values:
            yield ROUNDS.at(loop.loc)
            return
        counted = _counted(loop)
        for op in walk(loop.body):
            if any(v in counted and v in self.values for v in _places(op)):
                yield WALK.at(loop.loc, memory=op.read[0].name)


def _is_place(op: Op) -> Iterable[Value]:
    """Return the results of an op that are placed, whatever its operands are."""
    if isinstance(op, (Workgroup, TileOf)):
        return op.results
    turns = isinstance(op, Loop) and not any(isinstance(v.type, Tile) for v in op.init)
    return op.body.args[:1] if isinstance(op, Loop) and turns else ()


def _places(op: Op) -> list[Value]:
    """Return the scalars that decide where an op reads memory."""
    if not op.read:
        return []
    inner = [v for block in op.blocks for v in block.yielded]
    return [v for v in (*op.operands, *inner) if isinstance(v.type, Scalar)]


def _counted(loop: Loop | While) -> set[Value]:
    """Return the scalars that depend on a loop's index."""
    return _reached(loop.body, {*loop.body.args[:1]}, lambda op: ())


def _depth_sizes(loop: Loop | While) -> Iterator[str]:
    """Yield the dynamic sizes of the axes along which a loop runs."""
    counted = _counted(loop)
    for op in walk(loop.body):
        for memory in op.read:
            if isinstance(memory.type, Memory):
                extents = zip(_places(op), memory.type.extents, strict=False)
                yield from (extent for v, extent in extents if v in counted and isinstance(extent, str))


def _reached(block: Block, known: set[Value], is_source: Source) -> set[Value]:
    """Return the values that depend on `known` through scalars; the contents of tiles decide no order."""
    found = set(known)
    while True:
        before = len(found)
        for op in walk(block):
            found.update(is_source(op))
            _pass_on(op, found)
        if len(found) == before:
            return found


def _pass_on(op: Op, found: set[Value]) -> None:
    if isinstance(op, Loop):
        ends = op.body.yielded
        for at, arg in enumerate(op.body.args[1:]):
            pair = (op.init[at], ends[at])
            _mark(found, pair, (arg, op.results[at]))
        _mark(found, (op.trips,), op.body.args[:1])
    elif isinstance(op, Launch):
        for result, v in zip(op.results, op.body.yielded, strict=True):
            _mark(found, (v,), (result,))
    elif op.blocks:
        _mark(found, [*op.operands, *(v for block in op.blocks for v in block.yielded)], op.results)
    else:
        _mark(found, op.operands, op.results)


def _mark(found: set[Value], by: Iterable[Value], to: Iterable[Value]) -> None:
    if any(v in found for v in by):
        found.update(v for v in to if isinstance(v.type, Scalar))
