"""Assembly annotated with the author's lines, from the debug locations in it."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from pathlib import PurePath

from tilewave.records import dataclass

FILE = re.compile(r'\s*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"(?:\s+"((?:[^"\\]|\\.)*)")?')
PLACE = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
SECTION = re.compile(r"\s*\.section\s+\.?debug|\s*\.section\s+\.AMDGPU|\s*\.amdgpu_metadata")
"""From here on no instruction follows: tables for a debugger, and the notes of the driver."""


@dataclass(frozen=True)
class ListedLine:
    """A line of assembly; `line` is the author's, 0 where there is none."""

    text: str
    file: str
    line: int


@dataclass(frozen=True)
class Listing:
    """A kernel's assembly, and the lines of the author's file that any of it was written for."""

    lines: tuple[ListedLine, ...]
    file: str

    @staticmethod
    def of(assembly: str) -> Listing:
        lines = tuple(_listed(assembly))
        counts: dict[str, int] = {}
        for line in lines:
            if line.line:
                counts[line.file] = counts.get(line.file, 0) + 1
        return Listing(lines, max(counts, key=lambda file: counts[file]) if counts else "")

    def source(self, around: int = 3) -> dict[int, str]:
        """The author's lines that have instructions, and some around them."""
        used = {line.line for line in self.lines if line.file == self.file and line.line}
        if not used:
            return {}
        wanted = range(max(1, min(used) - around), max(used) + around + 1)
        found = {number: linecache.getline(self.file, number).rstrip("\n") for number in wanted}
        return {number: text for number, text in found.items() if text or number in used}


def _listed(assembly: str) -> Iterator[ListedLine]:
    found = (FILE.match(text) for text in assembly.splitlines())
    # .file directives may be at the end
    files = {f[1]: str(PurePath(f[2], f[3])) if f[3] else f[2] for f in found if f}
    file, line = "", 0
    for text in assembly.splitlines():
        if SECTION.match(text):
            return
        if place := PLACE.match(text):
            file, line = files.get(place[1], ""), int(place[2])
        elif text.strip() and not FILE.match(text):
            is_code = text[:1].isspace() and not text.lstrip().startswith((".", "//", ";", "#"))
            yield ListedLine(text.rstrip(), file if is_code else "", line if is_code else 0)
