"""The choice that is compiled: the first tuning record that compiles, else the cost model's best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tilewave.errors import ConstraintError, TilewaveError
from tilewave.tune.choose import TileChoice

MOST_TRIED = 8
"""Tiles that are compiled, the best first, until one is not refused: the model does not know all that passes do."""
T = TypeVar("T")


def take(
    choices: Sequence[TileChoice], make: Callable[[TileChoice], T], nothing_fits: Callable[[], TilewaveError]
) -> T:
    """What `make` gives of the first choice that it can make; the error of the best where it can make none.

    A record is data of somebody else: whatever it leads to, it is passed over, and the choice that is taken says so.
    A choice of the model may be refused with a `ConstraintError`; any other error is the kernel's own.
    """
    notes: list[str] = []
    for choice in (one for one in choices if one.record):
        try:
            return make(choice.noting(notes))
        except Exception as error:  # an internal fault of ours would keep a right kernel from compiling, too
            notes.append(passed_over(choice.record, f"{choice.text} does not compile: {first_line(error)}"))
    refused: TilewaveError | None = None
    for choice in [one for one in choices if not one.record][:MOST_TRIED]:
        try:
            return make(choice.noting(notes))
        except ConstraintError as error:
            refused = refused or error
    raise refused or nothing_fits()


def passed_over(file: object, why: str) -> str:
    """The remark that a record was not used."""
    return f"a record in {file} was skipped: {why}"


def first_line(error: BaseException) -> str:
    """What an error says, without where and what to write instead; with its kind, where it is none of ours."""
    text = error.what.splitlines()[0] if isinstance(error, TilewaveError) else f"{type(error).__name__}: {error}"
    return text[:200]
