"""Assertions of authors as code: a kernel that computes nothing else, and records which workgroups break them.

    assert(%holds, [%m], [%count])     →     %at = select(holds or out of bounds, -1, k)
                                             write_indexed(%workgroup, %failed, [%at]) {combine = min}

`failed[k]` is the least workgroup in which assertion k is false for an element in bounds, and stays as it was where
there is none: an index of -1 is no place. Results that the kernel does not read are not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.dead_code import eliminate_dead_code
from tilewave.ir.ops import (
    Assert,
    Broadcast,
    Iota,
    Launch,
    Not,
    Observation,
    Select,
    Workgroup,
    Write,
    WriteIndexed,
)
from tilewave.ir.rewrite import names, rewrite, walk
from tilewave.ir.types import BOOL, I32, INDEX, INDEX_SCALAR, Memory, Tile
from tilewave.records import dataclass

NOWHERE = -1
NONE = 2**31 - 1
"""What `failed` has before the launch, and where an assertion holds."""


@dataclass(frozen=True)
class RecordedAssertions:
    """A kernel that evaluates assertions, its memories those of the original and then `failed`."""

    kernel: Kernel
    assertions: tuple[Assert, ...]
    changed: frozenset[str]
    """The memories that it writes all the same, because it reads them too."""


def record_assertions(kernel: Kernel) -> RecordedAssertions | None:
    """Return the kernel that evaluates the assertions of `kernel`; None where it has none."""
    assertions = tuple(op for op in walk(kernel.body) if isinstance(op, Assert))
    if not assertions:
        return None
    builder = Builder(taken=names(kernel))
    failed = builder.fresh("failed", Memory((len(assertions),), I32, "global"))
    workgroup = builder.emit(Workgroup, type=INDEX_SCALAR)
    number = builder.cast(workgroup, I32)
    start, results = tuple(builder.ops), _results(kernel)
    numbered = {id(op): k for k, op in enumerate(assertions)}

    def rule(op: Op) -> Sequence[Op] | None:
        if isinstance(op, Assert):
            return _recorded(builder, op, numbered[id(op)], number, failed)
        return [] if isinstance(op, Observation) or not results.isdisjoint(op.written) else None

    body = rewrite(kernel, rule).body
    count = 1 + max(i for i, v in enumerate(body.args) if isinstance(v.type, Memory))
    args = (*body.args[:count], failed, *body.args[count:])
    at_launch = sum(isinstance(op, Launch) for op in body.ops)  # one at most, and it comes first
    ops = (*body.ops[:at_launch], *start, *body.ops[at_launch:])
    made = eliminate_dead_code(replace(kernel, body=Block(args, ops)))
    changed = {v.name for op in walk(made.body) for v in op.written if v in kernel.body.args}
    return RecordedAssertions(made, assertions, frozenset(changed))


def _results(kernel: Kernel) -> set[Value]:
    """Return the arrays that the kernel only stores to."""
    accesses = [op for op in walk(kernel.body) if op.read or op.written]
    stored = {v for op in accesses if isinstance(op, (Write, WriteIndexed)) for v in op.written}
    needed = {v for op in accesses if not isinstance(op, (Write, WriteIndexed)) for v in (*op.read, *op.written)}
    return stored.intersection(kernel.body.args) - needed


def _recorded(builder: Builder, op: Assert, k: int, workgroup: Value, failed: Value) -> list[Op]:
    """Return the ops that store the workgroup's number in `failed[k]` for each element that is false."""
    builder.ops, builder.locate = [], lambda: op.loc
    shape = op.x.type.shape if isinstance(op.x.type, Tile) else (1,)
    fails = builder.emit(Not, op.x, type=op.x.type)
    if not isinstance(op.x.type, Tile):
        fails = builder.emit(Broadcast, fails, (), type=Tile(shape, BOOL))
    for axis, (extent, count) in enumerate(zip(shape, op.count, strict=False)):
        places = Tile((extent,), INDEX)
        end = builder.emit(Broadcast, count, (), type=places)
        inside = (Number(builder, builder.emit(Iota, type=places)) < Number(builder, end)).value
        inside = builder.emit(Broadcast, inside, (axis,), type=Tile(shape, BOOL))
        fails = (Number(builder, fails) & Number(builder, inside)).value
    kind = Tile(shape, INDEX)
    where, nowhere = builder.const(k, kind), builder.const(NOWHERE, kind)
    at = builder.emit(Select, fails, where, nowhere, type=kind)
    stored = builder.emit(Broadcast, workgroup, (), type=Tile(shape, I32))
    builder.effect(WriteIndexed, stored, failed, (at,), False, "min")
    return builder.ops
