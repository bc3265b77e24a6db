"""Fold constants, merge equal ops (CSE) and remove unused ones (DCE), with the ranges of integers.

number = w + 0                       →  w
row = w % 16; again = w % 16         →  one of them
w // 16 * 16 + w % 16                →  w
w % 48, where there are 48 of them   →  w
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

from tilewave.analysis.ranges import ANY, Range, at_launch, range_of, workgroup_range
from tilewave.interp.arithmetic import elementwise
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.dead_code import eliminate_dead_code
from tilewave.ir.ops import (
    Add,
    And,
    Binary,
    Cast,
    Const,
    FloorDiv,
    Less,
    LessEqual,
    Loop,
    Max,
    Min,
    Mod,
    Mul,
    Or,
    Select,
    Sub,
    Workgroup,
)
from tilewave.ir.rewrite import map_blocks, substitute, with_ops
from tilewave.ir.types import BOOL, Scalar
from tilewave.records import dataclass


def simplify(kernel: Kernel) -> Kernel:
    known, simplifier = _Known(ranges=at_launch(kernel)), _Simplifier(workgroup_range(kernel), kernel.workgroups)
    return eliminate_dead_code(replace(kernel, body=simplifier.block(kernel.body, known)))


@dataclass
class _Known:
    """Facts at a point of the program; a block inside may add to a copy of them."""

    values: dict[Value, Value] = field(default_factory=dict)
    """Replacements of values."""
    makers: dict[Value, Op] = field(default_factory=dict)
    ranges: dict[Value, Range] = field(default_factory=dict)
    seen: dict[Any, tuple[Value, ...]] = field(default_factory=dict)

    def inside(self) -> _Known:
        return _Known(dict(self.values), dict(self.makers), dict(self.ranges), dict(self.seen))

    def constant(self, v: Value) -> Any:
        maker = self.makers.get(v)
        return maker.value if isinstance(maker, Const) and isinstance(v.type, Scalar) else None

    def range(self, v: Value) -> Range:
        return self.ranges.get(v, ANY)


class _Simplifier:
    def __init__(self, workgroup: Range, workgroups: int | str) -> None:
        self.workgroup, self.workgroups = workgroup, workgroups

    def block(self, block: Block, known: _Known) -> Block:
        ops: list[Op] = []
        for old in block.ops:
            op = substitute(old, known.values)
            if isinstance(op, Loop):
                self.learn_loop(op, known)
            op = map_blocks(op, lambda inner: self.block(inner, known.inside()))
            found = self.simpler(op, known)
            if isinstance(found, Value):
                known.values[op.result] = found
                continue
            found = self.fixed(found, known)
            key = _identity(found)
            if key is not None and key in known.seen:
                known.values.update(zip(found.results, known.seen[key], strict=True))
                continue
            if key is not None:
                known.seen[key] = found.results
            known.makers.update(dict.fromkeys(found.results, found))
            ops.append(found)
        return with_ops(block, ops)

    def fixed(self, op: Op, known: _Known) -> Op:
        """Return a constant, where an integer can have one value only; its range is known from here on."""
        if not _is_integer(op):
            return op
        low, high = known.ranges[op.result] = self.range(op, known)
        return _const(op, low) if low == high and not isinstance(op, Const) else op

    def range(self, op: Op, known: _Known) -> Range:
        return self.workgroup if isinstance(op, Workgroup) else range_of(op, known.range)

    def learn_loop(self, op: Loop, known: _Known) -> None:
        known.ranges[op.body.args[0]] = (0, max(0, known.range(op.trips)[1] - 1))

    def simpler(self, op: Op, known: _Known) -> Op | Value:
        """Return an op, or an existing value, that replaces `op`."""
        if not isinstance(op, (Binary, Cast, Select)) or not isinstance(op.result.type, Scalar):
            return op
        constants = [known.constant(v) for v in op.operands]
        if all(isinstance(c, (int, bool)) for c in constants) and not op.result.type.dtype.is_float:
            return _const(op, elementwise(op, constants))
        match op:
            case FloorDiv() | Mod() if self.is_by_their_count(op, known):
                return op.a if isinstance(op, Mod) else _const(op, 0)
            case Select(_, a, b) if constants[0] is not None:
                return a if constants[0] else b
            case Cast(x) if x.type == op.result.type:
                return x
            case And() | Or() if op.result.type.dtype == BOOL:
                return _logic(op, constants)
            case Binary() if op.a.type.dtype.is_int:
                return _arithmetic(op, constants, known)
            case _:
                return op

    def is_by_their_count(self, op: FloorDiv | Mod, known: _Known) -> bool:
        """Whether a workgroup's number is divided by the number of workgroups, which is dynamic."""
        return isinstance(known.makers.get(op.a), Workgroup) and op.b.name == self.workgroups


def _is_integer(op: Op) -> bool:
    return len(op.results) == 1 and isinstance(op.result.type, Scalar) and op.result.type.dtype.is_int


def _logic(op: And | Or, constants: list[Any]) -> Op | Value:
    """Return one operand, or the constant that one operand decides alone."""
    decisive = isinstance(op, Or)
    for constant, other in zip(constants, (op.b, op.a), strict=True):
        if constant is not None:
            return _const(op, decisive) if constant == decisive else other
    return op


def _arithmetic(op: Binary, constants: list[Any], known: _Known) -> Op | Value:
    a, b = op.a, op.b
    low, high = known.range(a)
    match op, constants:
        case (Add(), [0, _]) | (Mul(), [1, _]):
            return b
        case (Add() | Sub(), [_, 0]) | (Mul() | FloorDiv(), [_, 1]):
            return a
        case (Mul(), [0, _]) | (Mul(), [_, 0]) | (Mod(), [_, 1]):
            return _const(op, 0)
        case Add(), _:
            return _rejoined(a, b, known) or _rejoined(b, a, known) or op
        case Mod(), [_, int(c)] if low >= 0 and high < c:
            return a
        case FloorDiv(), [_, int(c)] if low >= 0 and high < c:
            return _const(op, 0)
        case ((Min() | Max() | Less() | LessEqual()), _):
            return _decided(op, (low, high), known.range(b))
        case _:
            return op


def _decided(op: Binary, a: Range, b: Range) -> Op | Value:
    """Fold min, max and comparisons whose ranges do not overlap."""
    match op:
        case Min():
            return op.a if a[1] <= b[0] else op.b if b[1] <= a[0] else op
        case Max():
            return op.a if a[0] >= b[1] else op.b if b[0] >= a[1] else op
        case Less():
            return _const(op, True) if a[1] < b[0] else _const(op, False) if a[0] >= b[1] else op
        case LessEqual():
            return _const(op, True) if a[1] <= b[0] else _const(op, False) if a[0] > b[1] else op
        case _:
            return op


def _rejoined(multiple: Value, rest: Value, known: _Known) -> Value | None:
    """Return x, where the two are x // c * c and x % c, and c is not 0."""
    match known.makers.get(multiple), known.makers.get(rest):
        case Mul(q, c), Mod(x, d):
            quotient = known.makers.get(q)
            low, high = known.range(d)
            divides = isinstance(quotient, FloorDiv) and quotient.a == x and quotient.b == d and not low <= 0 <= high
            return x if divides and (c == d or known.constant(c) == known.constant(d) is not None) else None
        case _:
            return None


def _const(op: Op, value: Any) -> Const:
    return Const(value, results=op.results, loc=op.loc)


def _identity(op: Op) -> Any:
    """Return a key that is equal for ops which CSE may merge; None for those that may not be merged."""
    if not op.is_pure or op.blocks:
        return None
    return type(op), op.operand_parts(), op.attributes(), tuple([v.type for v in op.results])
