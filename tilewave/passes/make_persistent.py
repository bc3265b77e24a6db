"""A kernel with more tiles than the machine runs at once keeps its workgroups, and each computes tile after tile.

    kernel {workgroups = 512}              kernel {workgroups = 132}
      %w = workgroup()                →      %w = workgroup()
      …                                      loop(‹as many as %w, %w + 132, … are below 512›) {
                                               %number = add(%w, mul(%i, %c132))
                                               …

Where sizes are open, the loop always stands there, and the launch counts tiles and workgroups.
The loads of one tile then overlap with the results of the one before; tiles are taken in launch order. Tiles that take
differently many steps, as under a causal mask, are left to the machine, which balances them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewave.analysis.rounds import hands_over
from tilewave.analysis.splits import tiles_of
from tilewave.analysis.tile_programs import computes_one_tile
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Value
from tilewave.ir.launch import at_launch, launch_and_rest
from tilewave.ir.ops import Loop, Mma, Workgroup, Yield
from tilewave.ir.reasons import Reason
from tilewave.ir.rewrite import names, substitute_block, walk
from tilewave.ir.types import INDEX_SCALAR, Scalar

OWN_LOOP = Reason(
    "a loop stands around the one over the depth, so each of {tiles} workgroups computes what it is given and ends, "
    "where {at_once} run at once"
)
UNEVEN = Reason(
    "tiles take differently many steps here, so each workgroup computes one, and the machine deals the next to whoever "
    "is free",
    "begin with the longest: WorkgroupMapping(last_first()) where a mask hides what comes later",
)


@dataclass(frozen=True)
class MakePersistent:
    """`workgroups`: as many as run at once; 0 where several fit on a processor, and each computes one tile."""

    workgroups: int

    def __call__(self, kernel: Kernel) -> Kernel:
        products = [op for op in walk(kernel.body) if isinstance(op, Mma)]
        fits = isinstance(kernel.workgroups, int) and kernel.workgroups <= self.workgroups
        if not self.workgroups or fits or not products or hands_over(kernel):
            return kernel
        if not computes_one_tile(kernel):
            many = kernel.workgroups if isinstance(kernel.workgroups, int) else "all"
            return kernel.declining(OWN_LOOP.at(products[0].loc, tiles=many, at_once=self.workgroups))
        uneven = next((op for op in kernel.body.ops if isinstance(op, Loop) and op.trips in depending(kernel)), None)
        if uneven is not None:
            return kernel.declining(UNEVEN.at(uneven.loc))
        first = next(op for op in kernel.body.ops if isinstance(op, Workgroup))
        builder = Builder(names(kernel), locate=lambda: first.loc)
        own = builder.emit(Workgroup, type=INDEX_SCALAR, name="own")
        tiles = tiles_of(kernel, builder)
        left = tiles + (self.workgroups - 1) - Number(builder, own)
        trips = (left // self.workgroups).value
        loop = Loop(trips, (), self.body(kernel, own, builder), loc=first.loc)
        launch, _ = launch_and_rest(kernel.body)
        grid = self.workgroups if isinstance(tiles, int) else tiles.smaller(self.workgroups).value.name
        body = replace(kernel.body, ops=(*launch, *builder.ops, loop))
        return at_launch(replace(kernel, body=body, workgroups=grid))

    def body(self, kernel: Kernel, own: Value, builder: Builder) -> Block:
        """What the kernel did, for the round's own number in place of the workgroup's."""
        turn = builder.fresh("turn", INDEX_SCALAR)
        with builder.region():
            number = (Number(builder, own) + Number(builder, turn) * self.workgroups).value
            start = list(builder.ops)
        numbers = {op.result: number for op in kernel.body.ops if isinstance(op, Workgroup)}
        _, rest = launch_and_rest(kernel.body)
        inner = substitute_block(rest, numbers)
        ops = [op for op in inner.ops if not isinstance(op, Workgroup)]
        return Block((turn,), (*start, *ops, Yield((), loc=ops[-1].loc)))


def depending(kernel: Kernel) -> set[Value]:
    """The numbers that differ from workgroup to workgroup."""
    found: set[Value] = set()
    for op in kernel.body.ops:
        numbers = all(isinstance(v.type, Scalar) for v in op.results)
        if isinstance(op, Workgroup) or (numbers and found.intersection(op.operands)):
            found.update(op.results)
    return found
