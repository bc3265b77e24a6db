"""Walk and rebuild kernels. Passes call these; they never take a block's tuple apart themselves."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tilewave.ir.core import Block, Kernel, Op, Value, block_names, operand_names
from tilewave.ir.once import once
from tilewave.ir.types import INDEX_SCALAR, Memory

Rule = Callable[[Op], Sequence[Op] | None]
_NAME = re.compile(r"%\w+")


def walk(block: Block) -> Iterator[Op]:
    """Yield every op, outermost first, in program order."""
    return iter(block.all_ops)


def blocks_in(block: Block) -> Iterator[Block]:
    """Yield the block and every block inside it, outermost first, in program order."""
    yield block
    for op in block.ops:
        for inner in op.blocks:
            yield from blocks_in(inner)


def rewrite(kernel: Kernel, rule: Rule) -> Kernel:
    """Replace each op by `rule(op)`, innermost first; None keeps the op, and unchanged blocks are kept."""
    body = rewrite_block(kernel.body, rule)
    return kernel if body is kernel.body else replace(kernel, body=body)


def rewrite_block(block: Block, rule: Rule) -> Block:
    ops: list[Op] = []
    for old in block.ops:
        op = map_blocks(old, lambda inner: rewrite_block(inner, rule)) if old.blocks else old
        new = rule(op)
        ops.extend([op] if new is None else new)
    return with_ops(block, ops)


def with_ops(block: Block, ops: Sequence[Op]) -> Block:
    """Return the block with other ops, or the block itself where they are the same."""
    is_same = len(ops) == len(block.ops) and all(map(operator.is_, ops, block.ops))
    return block if is_same else replace(block, ops=tuple(ops))


def map_blocks(op: Op, change: Callable[[Block], Block]) -> Op:
    if not op.blocks:
        return op
    inner = ((name, getattr(op, name)) for name in block_names(type(op)))
    changed: dict[str, Any] = {name: new for name, old in inner if (new := change(old)) is not old}
    return replace(op, **changed) if changed else op


def rewrite_blocks(block: Block, change: Callable[[Block], Block]) -> Block:
    """Replace each block by `change(block)`, innermost first."""
    return change(with_ops(block, [map_blocks(op, lambda inner: rewrite_blocks(inner, change)) for op in block.ops]))


def rewrite_outermost(block: Block, rule: Rule) -> Block:
    """Replace each op by `rule(op)`, outermost first: None keeps the op, and only regions of kept ops are entered."""
    ops: list[Op] = []
    for op in block.ops:
        new = rule(op)
        ops.extend([map_blocks(op, lambda inner: rewrite_outermost(inner, rule))] if new is None else new)
    return with_ops(block, ops)


class Rewriter:
    """Rebuilds blocks op by op, with `new` in place of the values that they use and define.

    Subclasses decide by `value` what takes the place of a value that is defined, and by `op` what becomes of an op.
    Regions are rebuilt before the op around them.
    """

    def __init__(self, new: Mapping[Value, Value] = MappingProxyType({})) -> None:
        self.new = dict(new)

    def value(self, v: Value) -> Value:
        """Return the value that is defined in place of `v`."""
        return self.new.get(v, v)

    def op(self, old: Op) -> Sequence[Op]:
        """Return the ops that take the place of `old`."""
        return [self.renamed(old)]

    def renamed(self, old: Op) -> Op:
        """Return `old` with its regions rebuilt, and new values in place of its operands and results."""
        op = _with_parts(old, self.new, self.block)
        results = tuple(map(self.value, old.results))
        return op if results == old.results else replace(op, results=results)

    def block(self, block: Block) -> Block:
        args = tuple(map(self.value, block.args))
        ops = [new for old in block.ops for new in self.op(old)]
        return with_ops(block, ops) if args == block.args else Block(args, tuple(ops))


def rename_block(block: Block, new: Mapping[Value, Value]) -> Block:
    """Return the block with values replaced where they are defined and used."""
    return Rewriter(new).block(block)


def rename(op: Op, new: Mapping[Value, Value]) -> Op:
    """Return `op` with values replaced that it, or an op of its regions, defines or uses."""
    return Rewriter(new).renamed(op)


def made_in(block: Block) -> list[Value]:
    """Return all values that a block defines."""
    return [*block.args, *(v for op in walk(block) for v in (*op.results, *(a for b in op.blocks for a in b.args)))]


def renamed(block: Block, name: Callable[[Value], Value]) -> Block:
    """Return the block with new names for all values that it defines."""
    return rename_block(block, {v: name(v) for v in made_in(block)})


def substitute(op: Op, new: Mapping[Value, Value]) -> Op:
    """Return `op` with its operands, and those inside its regions, replaced."""
    if not op.blocks and new.keys().isdisjoint(op.operands):
        return op
    return _with_parts(op, new, lambda inner: substitute_block(inner, new))


def _with_parts(op: Op, new: Mapping[Value, Value], region: Callable[[Block], Block]) -> Op:
    """Return `op` with its operands replaced, and its regions changed."""

    changed: dict[str, Any] = {}
    for name in operand_names(type(op)):
        part = getattr(op, name)
        if isinstance(part, tuple):
            if not new.keys().isdisjoint(part):
                changed[name] = tuple([new.get(v, v) for v in part])
        elif (other := new.get(part, part)) is not part:
            changed[name] = other
    for name in block_names(type(op)):
        inner = getattr(op, name)
        if (rebuilt := region(inner)) is not inner:
            changed[name] = rebuilt
    return replace(op, **changed) if changed else op


def substitute_block(block: Block, new: Mapping[Value, Value]) -> Block:
    return with_ops(block, [substitute(inner, new) for inner in block.ops])


def replace_values(kernel: Kernel, new: Mapping[Value, Value]) -> Kernel:
    """Return the kernel with uses of some values replaced; their definitions stay."""
    return replace(kernel, body=substitute_block(kernel.body, new)) if new else kernel


def uses(kernel: Kernel) -> Counter[Value]:
    """Return how often each value is an operand, or named by the kernel's attributes."""
    found = Counter(v for op in walk(kernel.body) for v in op.operands)
    found.update(Value(name, INDEX_SCALAR) for name in named_values(kernel))
    return found


def named_values(kernel: Kernel) -> set[str]:
    """Return the indices that the kernel's attributes and the types of its memories name."""
    return {*_extents_named(kernel.body), *((kernel.workgroups,) if isinstance(kernel.workgroups, str) else ())}


@once
def _extents_named(block: Block) -> frozenset[str]:
    memories = (v.type for v in _defined(block) if isinstance(v.type, Memory) and v.type.is_open)
    own = {extent for memory in memories for extent in memory.extents if isinstance(extent, str)}
    return frozenset(own.union(*(_extents_named(inner) for op in block.ops for inner in op.blocks)))


@once
def _defined(block: Block) -> tuple[Value, ...]:
    """Return the values that a block defines, without those of blocks inside."""
    return (*block.args, *[v for op in block.ops for v in op.results])


def names(kernel: Kernel) -> set[str]:
    """Return every name that is taken."""
    return {v.name for block in blocks_in(kernel.body) for v in _defined(block)}


def unnamed(kernel: Kernel) -> str:
    """Return the kernel's text with all values but the parameters numbered, so that it does not depend on names."""
    found = {f"%{v.name}": f"%{v.name}" for v in kernel.body.args}
    text = _NAME.sub(lambda name: found.setdefault(name[0], f"%.{len(found)}"), str(kernel))
    return f"{text}workgroups: {found[f'%{kernel.workgroups}']}" if isinstance(kernel.workgroups, str) else text


def anonymous(kernel: Kernel) -> str:
    """Return the kernel's text as `unnamed` does, without the names of the kernel and its arrays either."""
    arrays = [v for v in kernel.body.args if isinstance(v.type, Memory)]
    numbered = {v: Value(f"array{number}", v.type) for number, v in enumerate(arrays)}
    return unnamed(replace(kernel, name="", body=rename_block(kernel.body, numbered)))
