"""Tables that never break a name or a number: where they are wider than the terminal, each row becomes a few lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD, Box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewave.records import dataclass

NARROWEST_WORDS = 24
"""The minimum width of a column of sentences: with less, sentences are easier to read on separate lines."""
AROUND = 3
"""Blanks and lines that a column takes in addition to its text."""

UNIT = re.compile(r"(\d) (%|[kMGT]?i?B\b|[µm]?s\b|GHz|TFLOP)")
TOGETHER = "\N{NO-BREAK SPACE}"
"""Where a line is not broken."""


@dataclass(frozen=True)
class Column:
    """A column's title and kind: names and sentences are left-aligned, numbers right-aligned; only sentences wrap."""

    title: str
    kind: str = "number"

    def least(self, cells: Sequence[str]) -> int:
        """The room that it needs."""
        if self.kind != "words":
            return max(cell_len(text) for text in (self.title, *cells))
        longest = max((cell_len(word) for text in (self.title, *cells) for word in text.split()), default=0)
        return max(longest, min(NARROWEST_WORDS, max(cell_len(text) for text in (self.title, *cells))))


def names(*titles: str) -> tuple[Column, ...]:
    """Columns of names."""
    return tuple(Column(title, "name") for title in titles)


def numbers(*titles: str) -> tuple[Column, ...]:
    """Columns of numbers."""
    return tuple(Column(title) for title in titles)


def words(*titles: str) -> tuple[Column, ...]:
    """Columns of sentences."""
    return tuple(Column(title, "words") for title in titles)


def print_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str = "", box: Box = SIMPLE_HEAD
) -> None:
    """As a table where it fits, else row by row."""
    needed = sum(c.least([row[at] for row in rows]) + AROUND for at, c in enumerate(columns)) + 1
    if needed <= console.width:
        console.print(_table(columns, rows, title, box))
        return
    if title:
        console.print(Text(title, style="bold"))
    for row in rows:
        _print_row(console, columns, row)


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str, box: Box) -> Table:
    table = Table(box=box, title=Text(title) if title else None, title_justify="left")
    for column in columns:
        right, wraps = column.kind == "number", column.kind == "words"
        table.add_column(Text(column.title), justify="right" if right else "left", no_wrap=not wraps)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _print_row(console: Console, columns: Sequence[Column], row: Sequence[str]) -> None:
    """The first cell, then the others with their titles, as many in a line as fit."""
    said = [f"{c.title} {cell}".strip() for c, cell in zip(columns[1:], row[1:], strict=True) if cell]
    console.print(Text(row[0], style="bold"), soft_wrap=True)
    line = ""
    for part in said:
        longer = f"{line} · {part}" if line else part
        if line and cell_len(longer) > console.width - 4:
            _print_line(console, line)
            longer = part
        line = longer
    _print_line(console, line)


def _print_line(console: Console, line: str) -> None:
    """Wrapped at blanks alone, and not before a unit: what is longer than the terminal goes over its edge, whole."""
    together = UNIT.sub(f"\\1{TOGETHER}\\2", line)
    for part in textwrap.wrap(together, max(20, console.width - 4), break_long_words=False, break_on_hyphens=False):
        console.print(Text(f"    {part.replace(TOGETHER, ' ')}"), soft_wrap=True)
