"""Between which bounds an integer lies, from the bounds of what it is computed from."""

from __future__ import annotations

from collections.abc import Callable

from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    COMPARISONS,
    Add,
    Binary,
    Cast,
    Const,
    FloorDiv,
    Loop,
    Max,
    Min,
    Mod,
    Mul,
    Select,
    Sub,
    Workgroup,
    Xor,
)
from tilewave.ir.types import Scalar

Range = tuple[int, int]
ANY: Range = (-(1 << 63), (1 << 63) - 1)


def range_of(op: Op, known: Callable[[Value], Range]) -> Range:
    """The bounds of an op's one result, which is an integer."""
    if isinstance(op, Const):
        return int(op.value), int(op.value)
    if isinstance(op, Select):
        (a, b), (c, d) = known(op.a), known(op.b)
        return min(a, c), max(b, d)
    if not isinstance(op, Binary) or isinstance(op, COMPARISONS):
        return clamped(known(op.x)) if isinstance(op, Cast) and op.x.type.dtype.is_int else ANY
    (a, b), (c, d) = known(op.a), known(op.b)
    match op:
        case Add():
            return clamped((a + c, b + d))
        case Sub():
            return clamped((a - d, b - c))
        case Mul():
            corners = (a * c, a * d, b * c, b * d)
            return clamped((min(corners), max(corners)))
        case FloorDiv() if c > 0:
            return min(a // c, a // d), max(b // c, b // d)
        case Mod() if c > 0:
            return 0, min(d - 1, b) if a >= 0 else d - 1
        case Xor() if a >= 0 and c >= 0:
            return 0, (1 << max(b, d).bit_length()) - 1
        case Min():
            return min(a, c), min(b, d)
        case Max():
            return max(a, c), max(b, d)
    return ANY


def clamped(r: Range) -> Range:
    """`r`, or nothing known where it may not fit."""
    return r if ANY[0] <= r[0] and r[1] <= ANY[1] else ANY


class Ranges:
    """The bounds of every integer of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._known: dict[Value, Range] = {}
        self._workgroups = kernel.workgroups
        self._learn(kernel.body)

    def of(self, v: Value) -> Range:
        return self._known.get(v, ANY)

    def _learn(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, Loop):
                self._known[op.body.args[0]] = (0, max(0, self.of(op.trips)[1] - 1))
            for inner in op.blocks:
                self._learn(inner)
            if len(op.results) == 1 and isinstance(op.result.type, Scalar) and op.result.type.dtype.is_int:
                whole = (0, self._workgroups - 1)
                self._known[op.result] = whole if isinstance(op, Workgroup) else range_of(op, self.of)
