"""Raise a wave's priority while it multiplies, in loops that compute between products that depend on each other.

    loop {                                loop {
      %k = load(‹shared›)                   priority(1)
      %x = matrix(%q, %k, …)                %k = load(‹shared›)
      ‹softmax of %x: %p›              →    %x = matrix(%q, %k, …)
      %v = load(‹shared›)                   priority(0)
      %z = matrix(%p, %v, %sums)            ‹softmax of %x: %p›
    }                                       priority(1)
                                            %v = load(‹shared›)
                                            %z = matrix(%p, %v, %sums)
                                            priority(0)
                                          }

Waves of one SIMD share its issue port, and a matrix instruction occupies the matrix unit for several issue slots. So a
wave that multiplies needs the port rarely, but at once, while one that computes softmax could use every slot. With
priority by age alone, the latter may leave the matrix unit idle for its whole softmax. Shared loads of a product's
operands are issued at the raised priority too, because the product waits for them. A loop with one product is left
unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.analysis.program_slices import following
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Load, LoadTransposed, Loop, Matrix, Priority
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import rewrite
from tilewave.ir.types import Scalar

USUAL, RAISED = 0, 1


def prioritize_mma(kernel: Kernel) -> Kernel:
    """Return the kernel with a raised priority around the dependent products of its loops."""
    return rewrite(kernel, _prioritized)


def _prioritized(op: Op) -> Sequence[Op] | None:
    if not isinstance(op, Loop) or not _computes_between(op) or any(isinstance(o, Priority) for o in op.body.ops):
        return None
    ops: list[Op] = []
    for part in _parts(op.body.ops):
        products = [o for o in part if isinstance(o, Matrix)]
        if products:
            raised, usual = (Priority(level, loc=products[0].loc) for level in (RAISED, USUAL))
            ops += [raised, *part, usual]
        else:
            ops += part
    return [replace(op, body=replace(op.body, ops=tuple(ops)))]


def _computes_between(loop: Loop) -> bool:
    """Whether an operand of a product is computed from a product, of the same step or of the one before."""
    products = [op for op in loop.body.ops if isinstance(op, Matrix)]
    *_, end = loop.body.ops
    made: set[Value] = {op.result for op in products}
    size = 0
    while size != len(made):
        size = len(made)
        made.update(v for op in following(loop.body.ops, made) for v in op.results)
        made.update(arg for arg, v in zip(loop.body.args[1:], end.operands, strict=True) if v in made)
    return any(v in made for op in products for v in (op.a, op.b))


def _parts(ops: Sequence[Op]) -> list[list[Op]]:
    """Return the ops in runs that only multiply, load operands from shared memory and compute positions, and others."""
    parts: list[list[Op]] = []
    multiplies = None
    for op in ops:
        if multiplies is None or _multiplies(op) != multiplies:
            multiplies = _multiplies(op)
            parts.append([])
        parts[-1].append(op)
    return parts


def _multiplies(op: Op) -> bool:
    loads = isinstance(op, (Load, LoadTransposed)) and is_in(op.memory, "shared")
    return isinstance(op, Matrix) or loads or (op.is_pure and all(isinstance(v.type, Scalar) for v in op.results))
