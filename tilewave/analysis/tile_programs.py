"""The overall form of a kernel: whether a workgroup computes one tile, and which loops only accumulate MMAs."""

from __future__ import annotations

from tilewave.analysis.thin_products import is_thin
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Allocate, Const, Elementwise, Loop, Mma, While, Workgroup, Yield
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Scalar


def computes_one_tile(kernel: Kernel) -> bool:
    """Return whether every workgroup computes one tile with MMAs, and no loop encloses the K loop.

    Loops that only find numbers, as the search for a tile's group does, may be nested.
    """
    tops = kernel.body.ops
    loops = [op for op in tops if isinstance(op, (Loop, While)) and not finds_numbers(op)]
    nested = any(isinstance(inner, (Loop, While)) for op in loops for block in op.blocks for inner in walk(block))
    numbers = [op for op in walk(kernel.body) if isinstance(op, Workgroup)]
    products = any(isinstance(op, Mma) for op in walk(kernel.body))
    known = all(op in tops for op in numbers) and not any(isinstance(op, Allocate) for op in tops)
    counted = bool(numbers) or kernel.workgroups == 1
    return products and counted and known and not nested


def finds_numbers(op: Op) -> bool:
    """Return whether a loop has no effect, and only scalars as results."""
    inside = (inner for block in op.blocks for inner in walk(block) if not inner.blocks and not inner.ends_blocks)
    return all(isinstance(v.type, Scalar) for v in op.results) and not any(inner.has_effect for inner in inside)


def only_adds_up(op: Op) -> bool:
    """Return whether a loop only adds MMAs to what it carries, so that its iterations can be reordered."""
    if not isinstance(op, Loop) or not op.init:
        return False
    products = {inner.result: inner for inner in op.body.ops if isinstance(inner, Mma)}
    inside = list(walk(op.body))
    end = inside[-1]
    if any(inner.has_effect for inner in inside[:-1]) or not isinstance(end, Yield):
        return False
    carried = dict(zip(op.body.args[1:], end.values, strict=True))
    return all(_is_sum(v, arg, products) for arg, v in carried.items()) and _only_sums_use(op, set(carried), products)


def adds_thin_product(op: Op) -> bool:
    """Return whether a loop adds up one product with few rows or columns, whose instruction is left open."""
    if not isinstance(op, Loop) or len(op.init) != 1 or not adds_one_product(op):
        return False
    (product,) = (inner for inner in op.body.ops if isinstance(inner, Mma))
    return not product.wish and is_thin(*product.acc.type.shape[-2:])


def needs_matrix_unit(kernel: Kernel) -> bool:
    """Return whether a kernel has products that lanes alone do not compute."""
    ops = list(walk(kernel.body))
    thin = 0 if kernel.matrix else sum(map(adds_thin_product, ops))
    return sum(isinstance(op, Mma) for op in ops) > thin


def adds_one_product(op: Op) -> bool:
    """Return whether each iteration of a loop only adds one MMA of what it reads to each accumulator.

    Operands may be computed elementwise. Tiles of any K then add the same products in the same order.
    """
    if not isinstance(op, Loop) or not only_adds_up(op):
        return False
    end, inside = op.body.ops[-1], list(walk(op.body))
    accs = [inner.acc for inner in inside if isinstance(inner, Mma)]
    known = (Mma, Const, Elementwise, Yield)
    reads = all(isinstance(inner, known) or (inner.read and not inner.blocks) for inner in inside)
    return reads and len(accs) == len(end.operands) and {*accs} == {*op.body.args[1:]}


def _is_sum(v: Value, arg: Value, products: dict[Value, Mma]) -> bool:
    while v in products:
        v = products[v].acc
    return v == arg


def _only_sums_use(op: Loop, carried: set[Value], products: dict[Value, Mma]) -> bool:
    """Return whether nothing else in the loop uses the accumulators."""
    sums = carried | set(products)
    users = [(inner, v) for inner in walk(op.body) for v in inner.operands if v in sums]
    return all(isinstance(u, Yield) or (isinstance(u, Mma) and v == u.acc and v not in (u.a, u.b)) for u, v in users)
