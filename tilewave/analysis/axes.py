"""Labels for the axes of a program's tiles: when one axis is split, all axes with its label are split the same way.

acc = mma(a, b, acc)     a[m, k]  b[n, k]  acc[m, n]     k is contracted: its elements are added up
y = broadcast(x, [1])    x[n]     y[p, n]                p is new
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilewave.ir.build import Builder
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import (
    Broadcast,
    Const,
    Div,
    Division,
    Elementwise,
    Function,
    Iota,
    Loop,
    Reduce,
    Shift,
    While,
)
from tilewave.ir.rewrite import names, rename, rewrite, substitute, walk
from tilewave.ir.types import Scalar, Tile

Label = tuple[str, int]
"""One axis of one value, by name and number; represents all axes that are split together with it."""
DEAR: tuple[type[Op], ...] = (Function, Division, Div, Reduce, Shift)
"""Ops that are expensive to rematerialize: reading their result back is faster."""


class Axes:
    """The label of every axis of every tile in some ops and their regions."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self._above: dict[Label, Label] = {}
        self._contracted: list[Label] = []
        for op in ops:
            self._learn(op)
            for block in op.blocks:
                for inner in walk(block):
                    self._learn(inner)

    def of(self, v: Value) -> tuple[Label, ...]:
        """The label of each axis of v."""
        return tuple(self._top((v.name, i)) for i in range(len(v.type.shape)))

    def contracted(self) -> set[Label]:
        """The labels along which some op combines elements."""
        return {self._top(label) for label in self._contracted}

    def _top(self, label: Label) -> Label:
        while label in self._above:
            label = self._above[label]
        return label

    def _join(self, a: Value, i: int, b: Value, j: int) -> None:
        x, y = self._top((a.name, i)), self._top((b.name, j))
        if x != y:
            self._above[x] = y

    def _join_all(self, first: Value, *others: Value) -> None:
        for other in others:
            for i in range(len(other.type.shape)):
                self._join(first, i, other, i)

    def _learn(self, op: Op) -> None:
        match op:
            case Loop(_, init, body):
                self._learn_carried(init, body.args[1:], body.yielded, op.results)
            case While(init, condition, body):
                self._learn_carried(init, condition.args, body.args, body.yielded, op.results)
            case _:
                for one, other in op.corresponding() or ():
                    self._join(*one, *other)
        self._contracted += [(v.name, axis) for v, axis in op.contracted]

    def _learn_carried(self, *stages: Sequence[Value]) -> None:
        for values in zip(*stages, strict=True):
            self._join_all(*values)


def own_leaves(kernel: Kernel) -> Kernel:
    """Return the kernel with leaf tiles (constants, iotas, splats) rematerialized for each use.

    After CSE two unrelated axes of one length may share such a tile, which would merge their labels. Where a tile still
    has one label on two axes, everything computed from leaves alone is rematerialized too: above all positions, the
    sum of an iota and the start of a tile.
    """
    loose = _made_anew(kernel, {op.result: op for op in walk(kernel.body) if _is_leaf(op)})
    return _made_anew(kernel, _computed_from_leaves(kernel)) if runs_along_itself(loose) else loose


def runs_along_itself(kernel: Kernel) -> bool:
    """Return whether two axes of one tile have the same label."""
    axes = Axes(kernel.body.ops)
    labels = (axes.of(v) for op in walk(kernel.body) for v in op.results if isinstance(v.type, Tile))
    return any(len(set(mine)) < len(mine) for mine in labels)


def _made_anew(kernel: Kernel, made: Mapping[Value, Op]) -> Kernel:
    """Return the kernel with the ops that make these tiles duplicated for each use."""
    builder, first_use = Builder(names(kernel)), set(made)

    def copy(v: Value, copies: dict[Value, Op]) -> None:
        """Add the op that makes `v` to `copies`, after the ops that make its operands."""
        if v in copies:
            return
        for operand in made[v].operands:
            if operand in made:
                copy(operand, copies)
        mine = v if v in first_use else builder.fresh(v.name, v.type)
        first_use.discard(v)
        operands = {old: op.result for old, op in copies.items()}
        copies[v] = rename(made[v], {**operands, v: mine})

    def own(op: Op) -> Sequence[Op] | None:
        if any(v in made for v in op.results):
            return []
        new: dict[Value, Value] = {}
        ops: list[Op] = []
        for v in dict.fromkeys(op.operands):
            if v in made:
                copies: dict[Value, Op] = {}
                copy(v, copies)
                ops += copies.values()
                new[v] = copies[v].result
        return [*ops, substitute(op, new)] if new else None

    return rewrite(kernel, own)


def _is_leaf(op: Op) -> bool:
    if len(op.results) != 1 or not isinstance(op.result.type, Tile):
        return False
    return isinstance(op, (Const, Iota)) or (isinstance(op, Broadcast) and isinstance(op.x.type, Scalar))


def _computed_from_leaves(kernel: Kernel) -> dict[Value, Op]:
    """Return leaves, and tiles that are cheap to compute from them elementwise, with their ops."""
    found: dict[Value, Op] = {}
    for op in walk(kernel.body):
        tiles = [v for v in op.operands if isinstance(v.type, Tile)]
        is_chain = isinstance(op, Elementwise) and not isinstance(op, DEAR) and tiles and all(v in found for v in tiles)
        if _is_leaf(op) or is_chain:
            found[op.result] = op
    return found
