"""Dead code elimination (DCE)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress

from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Loop, While, Yield
from tilewave.ir.rewrite import rewrite, uses, walk


def eliminate_dead_code(kernel: Kernel) -> Kernel:
    """Return the kernel without ops that have no effect and unused results, and without unused values of loops."""
    ops, used = list(walk(kernel.body)), uses(kernel)
    idle = any(not used[v] for op in ops if isinstance(op, (Loop, While)) for v in op.results)
    needed, dead = _needed(ops) if idle else None, set()
    for op in reversed(ops):  # backwards, so that ops used only by dropped ones are dropped in the same pass
        if not _stays(op, used):
            used.subtract(op.operands)
            dead.add(id(op))
    if not dead and needed is None:
        return kernel

    def drop(op: Op) -> list[Op] | None:
        if not (_stays(op, used) if op.blocks else id(op) not in dead):
            return []
        return [_carrying_only(op, needed)] if needed is not None and isinstance(op, (Loop, While)) else None

    smaller = rewrite(kernel, drop)
    is_all = needed is None and not any(_frees_more(op, used) for op in ops)
    return smaller if smaller is kernel or is_all else eliminate_dead_code(smaller)


def _stays(op: Op, used: Counter[Value]) -> bool:
    return op.has_effect or any(used[v] for v in op.results) or _has_effect(op)


def _frees_more(op: Op, used: Counter[Value]) -> bool:
    """Return whether `op` has regions and goes, or some of its results do: what those use still counts as used."""
    return bool(op.blocks) and any(not used[v] for v in op.results)


def _needed(ops: Sequence[Op]) -> set[Value]:
    """Return the values that effects depend on; a carried value that only computes its own next value is not needed."""
    loops = [op for op in ops if isinstance(op, (Loop, While))]
    others = [op for op in ops if not isinstance(op, (Loop, While))]
    ends = {id(op.body.ops[-1]) for op in loops}
    leads_to: dict[Value, Sequence[Value]] = {v: op.operands for op in others for v in op.results}
    leads_to |= {v: same for op in loops for same in op.carried for v in same[:-2]}
    waiting = [v for op in others if op.has_effect and id(op) not in ends for v in op.operands]
    waiting += [op.trips for op in loops if isinstance(op, Loop)]
    needed: set[Value] = set()
    while waiting:
        v = waiting.pop()
        if v not in needed:
            needed.add(v)
            waiting += leads_to.get(v, ())
    return needed


def _carrying_only(op: Loop | While, needed: set[Value]) -> Op:
    kept = [result in needed for result in op.results]

    def some(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(compress(values, kept))

    if all(kept):
        return op
    *ops, end = op.body.ops
    ends = Yield(some(end.operands), loc=end.loc)
    own = () if isinstance(op, While) else op.body.args[:1]
    body = Block((*own, *some(op.body.args[len(own) :])), (*ops, ends))
    smaller = replace(op, init=some(op.init), body=body, results=some(op.results))
    if isinstance(smaller, While):
        return replace(smaller, condition=replace(smaller.condition, args=some(smaller.condition.args)))
    return smaller


def _has_effect(op: Op) -> bool:
    return isinstance(op, (Loop, While)) and any(_effect_inside(b) for b in op.blocks)


def _effect_inside(block: Block) -> bool:
    from_here = (o for o in block.ops[:-1])
    return any(o.has_effect or _has_effect(o) for o in from_here)
