"""Copies of ops under new names."""

from __future__ import annotations

from dataclasses import replace

from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Op, Value
from tilewave.ir.rewrite import map_blocks, substitute


class Copier:
    """Copies ops under new names; later copies use the values of earlier ones."""

    def __init__(self, builder: Builder, suffix: str) -> None:
        self.builder, self.suffix = builder, suffix
        self.new: dict[Value, Value] = {}

    def fresh(self, v: Value) -> Value:
        self.new[v] = self.builder.fresh(f"{v.name}_{self.suffix}", v.type)
        return self.new[v]

    def op(self, op: Op) -> Op:
        copy = substitute(map_blocks(op, self.block), self.new)
        return replace(copy, results=tuple(map(self.fresh, op.results)))

    def block(self, block: Block) -> Block:
        return Block(tuple(map(self.fresh, block.args)), tuple(map(self.op, block.ops)))
