"""Kinds of ops, by what may be done with them: what says nothing is an `Op`, which stays where it stands."""

from __future__ import annotations

from typing import ClassVar

from tilewave.ir.core import Op


class Computed(Op):
    """One that stands for its result alone: where nobody uses that, it goes."""

    gives: ClassVar[int | None] = 1
    has_effect = False


class Pure(Computed):
    """One that gives the same for the same operands wherever it stands, and costs next to nothing."""

    is_pure = True
