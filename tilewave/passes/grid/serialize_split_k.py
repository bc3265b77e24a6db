"""Serialize split-K: a split loop becomes a loop over its splits, around a loop over the steps of one split.

    %sum = loop(%steps, [%zero]) {split = 4} {      %sum = loop(%c4, [%zero]) do (%part, %so_far) {
      … %i …                                          %own = loop(‹steps of this part›, [%zeros]) {
    }                                            →      … %i + ‹its first step› …
                                                      }
                                                      yield([add(%so_far, %own)])
                                                    }

Used where workgroups cannot exchange partial sums: each workgroup computes all splits of its tile in sequence. The
partial sums are those that `split_k` distributes among workgroups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.launch import at_launch
from tilewave.ir.ops import Add, Loop
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import names, rewrite
from tilewave.ir.split_steps import steps_of_a_split
from tilewave.ir.types import INDEX_SCALAR
from tilewave.transform.loop_schedule import Steps

BY_ITSELF = RemarkKind(
    "split-K has {parts} splits, and workgroups cannot exchange partial sums here, so each workgroup computes all "
    "splits of its tile in sequence",
    "use smaller tiles, which keep more workgroups busy",
)


def serialize_split_k(kernel: Kernel) -> Kernel:
    builder, remarks = Builder(names(kernel)), list[Remark]()

    def expand(op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Loop) or op.split == 1:
            return None
        remarks.append(BY_ITSELF.at(op.loc, parts=op.split))
        with builder.region():
            builder.locate = lambda: op.loc
            _over_parts(op, builder)
            return list(builder.ops)

    expanded = rewrite(kernel, expand)
    return at_launch(expanded).with_remarks(*remarks) if remarks else kernel


def _over_parts(op: Loop, b: Builder) -> None:
    """Emit the loop over splits."""
    zeros = [b.const(0.0 if v.type.dtype.is_float else 0, v.type, name="zeros") for v in op.init]
    count = Number(b, b.const(op.split))
    steps = Number(b, op.trips)
    each = steps_of_a_split(steps, op.split)
    part = b.fresh("part", INDEX_SCALAR)
    so_far = [b.fresh(f"{v.name}_so_far", v.type) for v in op.results]
    with b.region():
        first = Number(b, part) * each
        trips = (steps - first).larger(0).smaller(each)
        sums = _one_part(op, trips.value, first, zeros, b)
        added = [b.binary(Add, before, own) for before, own in zip(so_far, sums, strict=True)]
        body = b.block((part, *so_far), added)
    b.ops.append(Loop(count.value, op.init, body, results=op.results, loc=op.loc))


def _one_part(op: Loop, trips: Value, first: Number, zeros: list[Value], b: Builder) -> list[Value]:
    """Emit the loop over the steps of one split, which starts from zeros, and return its partial sums."""
    results = [b.fresh(f"{v.name}_part", v.type) for v in op.results]
    body = Steps(op.body, first=first).block(b)
    b.ops.append(replace(op, trips=trips, init=tuple(zeros), body=body, split=1, results=tuple(results)))
    return results
