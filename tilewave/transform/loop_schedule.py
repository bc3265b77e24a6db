"""Loops expanded to several: prologue, steady loop and epilogue of a software pipeline, unrolled and peeled steps.

    loop(%trips, [%a])       →    loop(%few, [])              {load}            Steps(prologue, %few)
      load                        %b = loop(%main, [%a])      {load, multiply}  Steps(steady, %main)
      multiply                    loop(%few, [%b])            {multiply}        Steps(epilogue, %few, first=%main)

A schedule is a list of parts in program order. Each has a body of its own, which sees the number of the step in the
whole loop, and begins with the values that the part before it yields.
"""

from __future__ import annotations

from dataclasses import replace

from tilewave.ir.build import Builder, Number
from tilewave.ir.copies import Copier
from tilewave.ir.core import Block, Op, Value
from tilewave.ir.ops import Loop
from tilewave.ir.rewrite import Rewriter, walk
from tilewave.ir.types import Scalar
from tilewave.records import dataclass


@dataclass(frozen=True)
class Steps:
    """Some successive steps of a loop; with `trips` None, one step without a loop around it."""

    body: Block
    """The ops of a step; its arguments are the number of the step, and the values that are carried to it."""
    trips: Value | None = None
    first: Number | None = None
    """The number of the first step; None for 0."""
    suffix: str | None = None
    """The suffix of the names of a copy; None: the ops keep the names of their results."""
    yields: str = "so_far"
    """The suffix of the names of the values that are carried to the next part."""

    def block(self, builder: Builder) -> Block:
        """Return the body of a loop that counts these steps from 0."""
        rewriter, index = self._rewriter(builder), self.body.args[0]
        counter, *carried = map(rewriter.value, self.body.args)
        with builder.region():
            if self.first is not None and self._is_numbered:
                rewriter.new[index] = (Number(builder, counter) + self.first).value
            ops = (*builder.ops, *_rewritten(self.body.ops, rewriter))
        return Block((counter, *carried), ops)

    def in_place(self, values: tuple[Value, ...], builder: Builder) -> tuple[Value, ...]:
        """Emit a single step without a loop, and return the values that it yields."""
        rewriter, (index, *carried) = self._rewriter(builder), self.body.args
        rewriter.new = dict(zip(carried, values, strict=True))
        if self._is_numbered:
            rewriter.new[index] = builder.const(0) if self.first is None else self.first.value
        *ops, end = self.body.ops
        builder.ops += _rewritten(ops, rewriter)
        return tuple(rewriter.new.get(v, v) for v in end.operands)

    @property
    def _is_numbered(self) -> bool:
        """Whether a step uses its number."""
        return any(self.body.args[0] in op.operands for op in walk(self.body))

    def _rewriter(self, builder: Builder) -> Rewriter:
        return Rewriter() if self.suffix is None else Copier(builder, self.suffix)


def without_invariants(loop: Loop) -> tuple[list[Op], Loop]:
    """Return the arithmetic on numbers that is the same in all steps of a loop, to precede it, and the loop without.

    Parts of a step that move to other steps then need no numbers of their own step.
    """
    inside = {*loop.body.args, *(v for op in walk(loop.body) for v in op.results)}
    taken: list[Op] = []
    for op in loop.body.ops:
        is_number = op.is_pure and not op.blocks and all(isinstance(v.type, Scalar) for v in op.results)
        if is_number and op.results and inside.isdisjoint(op.operands):
            taken.append(op)
            inside.difference_update(op.results)
    rest = tuple(op for op in loop.body.ops if op not in taken)
    return taken, replace(loop, body=replace(loop.body, ops=rest))


def _rewritten(ops: tuple[Op, ...] | list[Op], rewriter: Rewriter) -> list[Op]:
    return [new for op in ops for new in rewriter.op(op)]


@dataclass(frozen=True)
class LoopSchedule:
    """The parts that a loop is expanded to, in program order; a part that carries nothing leaves all values."""

    loop: Loop
    parts: tuple[Steps, ...]

    def expand(self, builder: Builder) -> tuple[Value, ...]:
        """Emit the parts, and return the last values; they are the loop's results where the last part is a loop."""
        values = self.loop.init
        for part in self.parts:
            if part.trips is None:
                values = part.in_place(values, builder)
                continue
            body = part.block(builder)
            init = values if len(body.args) > 1 else ()
            results = self._results(part, builder) if init else ()
            builder.ops.append(replace(self.loop, trips=part.trips, init=init, body=body, results=results))
            values = results or values
        return values

    def _results(self, part: Steps, builder: Builder) -> tuple[Value, ...]:
        if part is self.parts[-1]:
            return self.loop.results
        named = (*self.loop.results, *part.body.args[1 + len(self.loop.results) :])
        return tuple(builder.fresh(f"{v.name}_{part.yields}", v.type) for v in named)
