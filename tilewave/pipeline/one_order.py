"""`batch_invariant`: that a kernel's passes leave every sum in one order, for every tile; proved from its IR."""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.analysis.sum_orders import SumOrder, sum_orders
from tilewave.errors import NOWHERE, ConstraintError
from tilewave.ir.core import Kernel
from tilewave.ir.ops import Loop, MakeExchange
from tilewave.ir.reasons import Declined
from tilewave.ir.rewrite import walk
from tilewave.pipeline.runner import Step, last_on_tiles

STAGING = ("stage_shared", "prepack_operands")
"""Passes from here on move tiles to where they are multiplied, step by step, and leave the steps as they are."""


def want_one_order(name: str, start: Kernel, steps: Sequence[Step]) -> tuple[Declined, ...]:
    """What is proved of each sum, for `why()`; an error where the bits of one may change with the batch."""
    found, broken = sum_orders(judged(start, steps))
    for why in broken:
        raise ConstraintError(f"{name} is not batch invariant: {why.what}", loc=why.loc, remedy=why.remedy)
    return tuple(_told(one) for one in found) or (Declined("it adds nothing up over several steps", NOWHERE),)


def _told(one: SumOrder) -> Declined:
    return Declined(
        f"proved: every element of every tile is summed in {one}, one after the other, whatever the other sizes",
        one.loc,
    )


def judged(start: Kernel, steps: Sequence[Step]) -> Kernel:
    """The kernel behind the passes that decide in which order steps are taken.

    Parts into which the author cuts a sum are added up in one order by whoever shares them, so the kernel is looked at
    as it was before.
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
    """Whether its author cuts a sum into parts."""
    return any(getattr(op, "split", 1) > 1 for op in walk(kernel.body) if isinstance(op, Loop))
