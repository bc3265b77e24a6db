"""Kinds of ops, by what passes may do with them; an op that declares nothing is a plain `Op` and is never moved."""

from __future__ import annotations

from typing import ClassVar

from tilewave.ir.core import Op

__all__ = [
    "Computed",
    "Pure",
]


class Computed(Op):
    """An op without an effect: DCE removes it when its result is unused."""

    gives: ClassVar[int | None] = 1
    has_effect = False


class Pure(Computed):
    """An op that gives equal results for equal operands anywhere, at almost no cost."""

    is_pure = True
