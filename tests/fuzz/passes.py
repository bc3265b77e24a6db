"""The net of passes: random kernels, run after every pass with exact numbers, and held to the trace bit for bit.

It needs no reference and no bound: what a pass may do to a sum changes no element.
"""

from __future__ import annotations

import numpy as np

from tilewave.errors import AccessError, CallError, CoverageError, TilewaveError

from .data import given
from .judge import TARGETS, arguments, compile_program
from .kernels import KERNELS

COMPILED = TARGETS[1:]
MAKERS = tuple(KERNELS.values())


def case(seed: int) -> str | None:
    """One kernel on one target: all targets in turn, with sizes that are fixed, open, and reduced in turn."""
    seed, target = divmod(seed, len(COMPILED))
    seed, maker = divmod(seed, len(MAKERS))
    return case_on(maker, seed, COMPILED[target])


def case_on(maker: int, seed: int, target: str) -> str | None:
    """What the first wrong pass of a kernel on a target did."""
    program = MAKERS[maker].make(seed, target)
    try:
        compiled = compile_program(program, target)
    except TilewaveError:
        return None  # refused, which the nets of kernels look at
    for call in program.calls():
        arrays, named = arguments(call, [g.view for g in given(call).values()])
        try:
            with np.errstate(all="ignore"):
                found = compiled.check_passes(*arrays, **named)
        except (AccessError, CallError, CoverageError):
            continue
        if not found:
            return f"{target}: {found.wrong}"
    return None
