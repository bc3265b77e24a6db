"""Remarks: why a pass did nothing, as a sentence for the author, the line it is about, and what to write instead.

    ACROSS_ROWS = RemarkKind("{memory} is read across its rows, and TMA loads along them", "declare it …")
    …
    return kernel.declining(ACROSS_ROWS.at(read.loc, memory=read.memory.name))

The sentences are at the top of each pass, so that a reader sees what it may decline, and a test that each is shown.
"""

from __future__ import annotations

from tilewave.errors import NOWHERE, Loc
from tilewave.records import dataclass

TILES = "tiles"


@dataclass(frozen=True)
class Remark:
    """A remark: something that a pass could have optimized and did not."""

    what: str
    loc: Loc = NOWHERE
    remedy: str = ""
    about: str = ""
    """`TILES`: the remedy is another tile, which is no advice where autotuning compared them."""

    def __str__(self) -> str:
        where = f"{self.loc}: " if self.loc.line else ""
        return f"{where}{self.what}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class RemarkKind:
    """The text of a remark; names in braces are filled in."""

    what: str
    remedy: str = ""
    about: str = ""

    def at(self, loc: Loc, **facts: object) -> Remark:
        return Remark(self.what.format(**facts), loc, self.remedy.format(**facts), self.about)


class Left(Exception):
    """Raised and caught within a pass that must leave something unchanged."""

    def __init__(self, remarks: Remark) -> None:
        super().__init__(str(remarks))
        self.remarks = remarks


def want(holds: object, otherwise: RemarkKind, loc: Loc, **facts: object) -> None:
    """Raise `Left` with a remark unless `holds`."""
    if not holds:
        raise Left(otherwise.at(loc, **facts))
