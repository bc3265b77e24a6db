"""Load the tiles of a loop's next step into registers while this step computes, where little is in flight otherwise.

    loop(%trips, [%c]) do (%i, %acc) {         %x_first = read(%a, [%c0])
      %x = read(%a, [%i])                →     loop(%trips, [%c, %x_first]) do (%i, %acc, %x) {
      %sum = add(%acc, f(%x))                    %x_next = read(%a, [min(%i + 1, %trips - 1)])
      yield([%sum])                              %sum = add(%acc, f(%x))
    }                                            yield([%sum, %x_next])
                                               }

Lanes that reduce a row wait for each other after each load; meanwhile memory would have nothing to do. The last step
loads its own tile again, which a cache has. Loops with products load ahead by `software_pipeline`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from tilewave.ir.build import Builder, Number
from tilewave.ir.copies import Copier
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.effects import touched
from tilewave.ir.ops import Loop, Mma, Read, While, Yield
from tilewave.ir.placements import is_in
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import names, rewrite, walk
from tilewave.records import dataclass

ENOUGH = RemarkKind("the {bytes:,} bytes that a step loads keep memory busy, so no tiles are prefetched")


@dataclass(frozen=True)
class PrefetchTiles:
    """Prefetches where the workgroups of a processor load fewer than `in_flight_bytes` in a step.

    Kernels without a number of waves reduce nothing: their waves do not wait for each other.
    """

    in_flight_bytes: int

    def __call__(self, kernel: Kernel) -> Kernel:
        if not kernel.waves or any(isinstance(op, Mma) for op in walk(kernel.body)):
            return kernel
        written, _ = touched(kernel)
        builder, remarks = Builder(names(kernel)), list[Remark]()

        def prefetch(op: Op) -> Sequence[Op] | None:
            if not isinstance(op, Loop) or any(isinstance(inner, (Loop, While)) for inner in walk(op.body)):
                return None
            reads = [read for read in _moving(op) if read.memory not in written]
            if not reads:
                return None
            loaded = sum(prod(read.result.type.shape) * read.result.type.dtype.bytes for read in reads)
            if loaded * kernel.resident >= self.in_flight_bytes:
                remarks.append(ENOUGH.at(op.loc, bytes=loaded))
                return None
            return _Prefetched(op, reads, builder).ops()

        return rewrite(kernel, prefetch).with_remarks(*remarks)


def _moving(loop: Loop) -> Iterator[Read]:
    """Yield the reads of global memory whose positions are computed from the number of the step, and not from data."""
    index, *carried = loop.body.args
    numbered, of_data = {index}, set(carried)
    for op in loop.body.ops:
        if of_data.intersection(op.operands) or not (op.is_pure or isinstance(op, Read)):
            of_data.update(op.results)
        elif not isinstance(op, Read):
            numbered.update(op.results if numbered.intersection(op.operands) else ())
        else:
            of_data.update(op.results)
            if is_in(op.memory, "global") and numbered.intersection(op.at):
                yield op


class _Prefetched:
    """Writes the loop, which carries the tiles of the next step."""

    def __init__(self, loop: Loop, reads: Sequence[Read], builder: Builder) -> None:
        self.loop, self.reads, self.builder = loop, reads, builder
        builder.locate = lambda: loop.loc
        self.tiles = tuple(read.result for read in reads)
        self.needed = (*self._positions(), *reads)

    def _positions(self) -> list[Op]:
        """Return the ops that compute the positions of the reads, in order."""
        wanted = {v for read in self.reads for v in read.operands}
        found: list[Op] = []
        for op in reversed(self.loop.body.ops):
            if wanted.intersection(op.results):
                found.append(op)
                wanted.update(op.operands)
        return found[::-1]

    def ops(self) -> list[Op]:
        loop, (index, *carried) = self.loop, self.loop.body.args
        with self.builder.region():
            first = self._loaded("first", self.builder.const(0))
            before = self.builder.ops
        with self.builder.region():
            following = (Number(self.builder, index) + 1).smaller(Number(self.builder, loop.trips) - 1)
            then = self._loaded("next", following.value)
            ahead = self.builder.ops
        *rest, end = (op for op in loop.body.ops if op not in self.reads)
        assert isinstance(end, Yield), "a loop's body ends with what it carries"
        left = tuple(self.builder.fresh(f"{v.name}_left", v.type) for v in self.tiles)
        body = replace(
            loop.body,
            args=(index, *carried, *self.tiles),
            ops=(*ahead, *rest, replace(end, values=(*end.operands, *then))),
        )
        return [*before, replace(loop, init=(*loop.init, *first), body=body, results=(*loop.results, *left))]

    def _loaded(self, suffix: str, step: Value) -> tuple[Value, ...]:
        """Emit the reads of a step, and return their tiles."""
        copier = Copier(self.builder, suffix)
        copier.new[self.loop.body.args[0]] = step
        self.builder.ops += [copier.renamed(op) for op in self.needed]
        return tuple(copier.new[tile] for tile in self.tiles)
