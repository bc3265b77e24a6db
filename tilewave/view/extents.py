"""Sizes as people write them: 8x8, 2048x2048x512."""

from __future__ import annotations

import re

from tilewave.errors import TilewaveError, text_error
from tilewave.records import dataclass

LONGEST_TEXT = 60
"""Python itself reads numbers of that length at once."""

NUMBER, BY = r"\d+\s*", r"[x×X*]\s*"
COUNTS = {2: "two", 3: "three"}


@dataclass(frozen=True)
class Extent:
    """One number of an extents text, and its position there."""

    value: int
    start: int
    stop: int


def parse_extents(text: str, what: str, names: tuple[str, ...], example: str) -> tuple[Extent, ...]:
    """The numbers of `what`, one for each name; they may be 0."""
    numbers = f"{what} is {COUNTS[len(names)]} numbers"
    if len(text) > LONGEST_TEXT:
        raise TilewaveError(f"{numbers} such as {example}, not {len(text)} characters")
    if re.fullmatch(r"\s*" + BY.join([NUMBER] * len(names)), text, re.ASCII) is None:
        start = _understood(text, len(names))
        raise TilewaveError(text_error(f"{numbers}, {' x '.join(names)}", text, start, len(text), f"write {example}"))
    return tuple(Extent(int(m[0]), *m.span()) for m in re.finditer(r"\d+", text, re.ASCII))


def _understood(text: str, count: int) -> int:
    """How far a text reads as the beginning of `count` numbers."""
    pattern = f"({NUMBER})?"
    for _ in range(count - 1):
        pattern = f"({NUMBER}({BY}{pattern})?)?"
    match = re.match(rf"\s*{pattern}", text, re.ASCII)
    assert match is not None
    return match.end()
