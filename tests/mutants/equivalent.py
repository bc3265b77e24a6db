"""Mutants that no test can kill, because they compute the same: each listed with its reason, none of them counted.

An entry of `equivalent.txt` is what the report of a survivor prints, without its line number, and the reason below:

    tilewave/ops/rows.py
    - if count <= room:
    + if count < room:
    Both branches return the same array where they are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("equivalent.txt")


class BadEntry(ValueError):
    """An entry of the list lacks its file, its difference or its reason."""


@dataclass(frozen=True)
class Equivalent:
    """A mutant by its file and its difference, which stays when lines above it come and go."""

    path: str
    difference: tuple[str, ...]
    reason: str


def read_equivalents(text: str) -> list[Equivalent]:
    """Return the entries of a list; blank lines part them, and lines with `#` are comments."""
    entries = []
    for block in text.split("\n\n"):
        lines = [line.strip() for line in block.splitlines() if line.strip() and not line.startswith("#")]
        if lines:
            entries.append(_entry(lines))
    return entries


def _entry(lines: list[str]) -> Equivalent:
    path, rest = lines[0], lines[1:]
    difference = tuple(line for line in rest if line.startswith(("- ", "+ ")))
    reason = " ".join(rest[len(difference) :])
    if not path.endswith(".py") or rest[: len(difference)] != list(difference) or not difference or not reason:
        raise BadEntry(f"{path}: an entry is a file, its lines with - and +, and a reason below them")
    return Equivalent(path, difference, reason)
