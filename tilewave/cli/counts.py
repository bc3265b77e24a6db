"""`--counts`: an example of how many rows the groups of a ragged grid have."""

from __future__ import annotations

import re

from tilewave.errors import TilewaveError, text_error
from tilewave.mapping.ragged import MOST_ROWS

EXAMPLE = "write the rows of each group, such as 300,0,6x512: six groups of 512"
MOST_GROUPS = 1 << 16


def parse_counts(text: str) -> tuple[int, ...]:
    """Return where each group ends: `300,0,2x512` are four groups, which end at 300, 300, 812 and 1324."""
    ends: list[int] = []
    last, at = 0, 0
    for part in text.split(","):
        match = re.fullmatch(r"\s*(?:(\d{1,9})\s*[x×]\s*)?(\d{1,12})\s*", part, re.ASCII)
        if match is None:
            raise TilewaveError(text_error("these are no counts of rows", text, at, at + len(part), EXAMPLE))
        times, count = int(match[1] or 1), int(match[2])
        if len(ends) + times > MOST_GROUPS:
            raise TilewaveError(f"there are more than {MOST_GROUPS:,} groups", remedy=EXAMPLE)
        if last + times * count > MOST_ROWS:
            what = f"the counts add up to more than {MOST_ROWS:,} rows, which kernels number in 32 bits"
            raise TilewaveError(what, remedy="give smaller ones")
        ends.extend(last + count * (i + 1) for i in range(times))
        last, at = last + times * count, at + len(part) + 1
    return tuple(ends)
