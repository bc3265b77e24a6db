"""`batch_invariant`: prove from the IR that passes leave each sum of a kernel in one order, the same for every tile."""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.analysis.reduction_order import sum_orders
from tilewave.analysis.turns import added_in_turns
from tilewave.errors import NOWHERE, ConstraintError
from tilewave.ir.core import Kernel
from tilewave.ir.ops import Loop, MakeExchange, WriteIndexed
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import walk
from tilewave.pipeline.runner import Step, last_on_tiles

PROVED = RemarkKind(
    "proved: every element of every tile is summed in {order}, one after the other, whatever the other sizes"
)
NO_SUM = RemarkKind("it has no sum over several steps")
STAGING = ("stage_shared", "prepack_operands")
"""From these passes on, tiles are moved to where they are multiplied, and the order of steps does not change."""


def want_batch_invariant(name: str, start: Kernel, steps: Sequence[Step]) -> tuple[Remark, ...]:
    """Return what is proved of each sum, for `why()`; raise where the result of one may change with the batch."""
    _want_no_float_atomics(name, start)
    found, broken = sum_orders(judged(start, steps))
    for why in broken:
        raise ConstraintError(f"{name} is not batch-invariant: {why.what}", loc=why.loc, remedy=why.remedy)
    proved = dict.fromkeys(PROVED.at(one.loc, order=one) for one in found)  # blocks of columns have a loop each
    return tuple(proved) or (NO_SUM.at(NOWHERE),)


def _want_no_float_atomics(name: str, kernel: Kernel) -> None:
    in_turns = added_in_turns(kernel)
    for op in walk(kernel.body):
        if not isinstance(op, WriteIndexed) or op.memory in in_turns:
            continue
        if op.combine == "add" and op.tile.type.dtype.is_float:
            what = f"{name} is not batch-invariant: atomic_add adds floats to {op.memory.name} in any order"
            raise ConstraintError(what, loc=op.loc, remedy=IN_ORDER)


IN_ORDER = (
    "write a sum in order: read(x, at={T: indices}).sum(dim=K) of the rows of each place, or SplitConstraint(K, n) for "
    "a sum among workgroups; or add integers, whose sum is the same in any order"
)


def judged(start: Kernel, steps: Sequence[Step]) -> Kernel:
    """Return the kernel after the passes that decide the order of steps.

    Where the author splits a sum, `split_k` adds the partial sums in a fixed order, so the kernel before it is
    returned.
    """
    kernel = start
    for step in steps:
        if step.name in STAGING or step.after.level != "tile":
            return kernel
        if _shares(step.after) and not _shares(kernel) and _is_cut(kernel):
            return kernel
        kernel = step.after
    return last_on_tiles(steps, start)


def _shares(kernel: Kernel) -> bool:
    return any(isinstance(op, MakeExchange) for op in walk(kernel.body))


def _is_cut(kernel: Kernel) -> bool:
    """Whether the author splits a sum (split-K)."""
    return any(isinstance(op, Loop) and op.split > 1 for op in walk(kernel.body))
