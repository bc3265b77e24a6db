"""Halve the steps of a K loop where shared memory holds too few whole ones to hide the latency of loads.

    loop(%trips) {                                  loop(2 · %trips) {
      %k = mul(%i, 64)                                %k = mul(%i, 32)
      %x = read(%a, [%m, %k]) : tile<256x64>    →     %x = read(%a, [%m, %k]) : tile<256x32>
      %y = read(%b, [%n, %k]) : tile<256x64>          %y = read(%b, [%n, %k]) : tile<256x32>
      %z = mma(%x, %y, %acc)                          %z = mma(%x, %y, %acc)
    }                                               }

Tiles that are copied past the registers need two stages at least, of which one is computed with. Of steps of 64 KiB
160 KiB hold two, so 64 KiB are in flight; of steps of 32 KiB they hold four, and 96 KiB are. Sums keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewave.analysis.instructions import instruction_of
from tilewave.analysis.stages_in_flight import StageRoom
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.match import constant
from tilewave.ir.ops import Loop, Mma, Mul, Read
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import names, rewrite, walk
from tilewave.ir.types import Tile
from tilewave.machine.chips import Chip
from tilewave.records import dataclass

LEAST_STAGES = 2


@dataclass(frozen=True)
class HalveSteps:
    machine: Chip

    def __repr__(self) -> str:
        return "HalveSteps()"

    def __call__(self, kernel: Kernel) -> Kernel:
        if self.machine.widest_load_bytes not in self.machine.direct_load_bytes:
            return kernel
        taken = names(kernel)

        def halve(op: Op) -> Sequence[Op] | None:
            step = _KStep.of(op, kernel) if isinstance(op, Loop) else None
            return step.halved(taken) if step and self.gains(step) else None

        return rewrite(kernel, halve)

    def gains(self, step: _KStep) -> bool:
        """Whether more bytes are in flight with half the step."""
        room = StageRoom(self.machine.shared.bytes, self.machine.tuning.pipeline.in_flight_bytes)
        whole, half = (room.in_flight(size, room.stages(size, LEAST_STAGES)) for size in (step.bytes, step.bytes // 2))
        return 0 < whole < half


@dataclass(frozen=True)
class _KStep:
    """A loop whose steps read a tile of each operand, at a multiple of the step's number, and multiply them."""

    loop: Loop
    position: Mul
    reads: tuple[Read, Read]
    product: Mma

    @staticmethod
    def of(loop: Loop, kernel: Kernel) -> _KStep | None:
        """Return the parts of a loop; None where it does anything else with its number or its tiles."""
        products = [op for op in walk(loop.body) if isinstance(op, Mma)]
        if len(products) != 1 or products[0] not in loop.body.ops:
            return None
        (product,) = products
        instruction_of(product)  # raises where none is selected, because its depth is that of a step
        a, b = (kernel.defs.get(v) for v in (product.a, product.b))
        numbered = kernel.users[loop.body.args[0]]
        if not (isinstance(a, Read) and isinstance(b, Read) and len(numbered) == 1 and isinstance(numbered[0], Mul)):
            return None
        step = _KStep(loop, numbered[0], (a, b), product)
        return step if step.is_simple(kernel) else None

    def is_simple(self, kernel: Kernel) -> bool:
        """Whether both tiles are rows of global memory along K, and the step is two instructions deep or more."""
        depth, users = self.product.a.type.shape[-1], kernel.users
        return (
            constant(self.position.b, kernel.defs) == depth
            and depth % (2 * self.product.depth) == 0
            and all(op in self.reads for op in users[self.position.result])
            and all(self.is_row(read, depth) and users[read.result] == (self.product,) for read in self.reads)
        )

    def is_row(self, read: Read, depth: int) -> bool:
        last = read.memory.type.rank - 1
        return (
            is_in(read.memory, "global")
            and read in self.loop.body.ops
            and not read.within
            and read.axes[-1] == last
            and read.at[last] == self.position.result
            and self.position.result not in read.at[:last]
            and read.result.type.shape[-1] == depth
        )

    @property
    def bytes(self) -> int:
        """Bytes of both tiles of a step."""
        return sum(prod(v.type.shape) * v.type.dtype.bits // 8 for v in (self.product.a, self.product.b))

    def halved(self, taken: set[str]) -> list[Op]:
        """Return the loop with twice as many steps, of half the depth."""
        out = Builder(taken, locate=lambda: self.loop.loc)
        trips = (Number(out, self.loop.trips) * 2).value
        depth = out.const(self.product.a.type.shape[-1] // 2)
        tiles = {read.result: _half(read.result) for read in self.reads}

        def halved(op: Op) -> Op:
            if op is self.position:
                return replace(self.position, b=depth)
            if isinstance(op, Read) and op in self.reads:
                return replace(op, results=(tiles[op.result],))
            return replace(op, a=tiles[op.a], b=tiles[op.b]) if op is self.product else op

        body = replace(self.loop.body, ops=tuple(map(halved, self.loop.body.ops)))
        return [*out.ops, replace(self.loop, trips=trips, body=body)]


def _half(tile: Value) -> Value:
    assert isinstance(tile.type, Tile)
    *rows, depth = tile.type.shape
    return Value(tile.name, replace(tile.type, shape=(*rows, depth // 2)))
