"""Errors for valid kernels that a pass or the lowering cannot take: what failed, at which op, on which line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from tilewave.errors import NOWHERE, Loc, TilewaveError
from tilewave.ir.core import Kernel, Op

UNFORESEEN = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, RuntimeError)
"""With TypeError and ValueError, the exceptions of unforeseen cases; NotImplementedError is a RuntimeError."""


class CannotCompile(TilewaveError):
    """A valid kernel that this stage of the compiler does not support."""


def lacking(needed: str, what: str, loc: Loc = NOWHERE) -> CannotCompile:
    """Return the error of a stage that needs a pass which the pipeline lacks."""
    return CannotCompile(f"{what}: the list of passes lacks {needed}", loc=loc, remedy=f"add {needed} before it")


@contextmanager
def telling(stage: str, kernel: Kernel) -> Iterator[None]:
    """Raise CannotCompile with the op and its line where a stage fails; the original error is the cause."""
    try:
        yield
    except TilewaveError:
        raise
    except (*UNFORESEEN, TypeError, ValueError) as error:
        op = _op_at_hand(error)
        what = f"{kernel.name}: {stage} cannot take {op.name if op else 'it'}: {error or type(error).__name__}"
        remedy = "if the kernel is right, this is a fault of tilewave's; its text, kernel.ir(), makes a good report"
        raise CannotCompile(what, loc=op.loc if op else NOWHERE, remedy=remedy) from error


def _op_at_hand(error: Exception) -> Op | None:
    """Return the op that the innermost frame with one was working on."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    found = (frame.f_locals.get("op") for frame in reversed(frames))
    return next((op for op in found if isinstance(op, Op)), None)
