"""Tokenizer of a kernel's text; it reads each character once, so time is linear in the text."""

from __future__ import annotations

import json
import re
from typing import NamedTuple, NoReturn

from tilewave.errors import Loc, TilewaveError

LONGEST_TEXT = 1 << 23
"""The longest text in characters: 100,000 ops and more; the lanes of a large GEMM take some 100,000 characters."""
LONGEST_WORD = 400
"""The longest name, type or quoted word in characters."""
LONGEST_NUMBER = 40
"""The longest number in characters; the longest that a dtype can hold has 24."""
DEEPEST = 48
"""The deepest nesting of blocks or lists."""
LONGEST_LIST = 1 << 12
"""The longest list of operands, results, attributes or numbers."""
SHOWN = 60
"""Characters that a message shows on either side of an error."""

# No two alternatives have a common prefix and no repetition is nested, so the regex never backtracks.
TOKEN = re.compile(
    r"""(?P<value>[%@]\w+)
    |(?P<number>-?(?:[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|inf\b|nan\b))
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*(?:<[^<>"\n]*>)?)
    |(?P<sign>[(){}\[\],:=])""",
    re.VERBOSE,
)
BLANK = re.compile(r"(?:[ \t\r\n]|//[^\n]*)*")
"""Whitespace and comments; it always matches, so it never backtracks either."""
STRINGS = json.JSONDecoder()


class ParseError(TilewaveError):
    """The text is not a kernel."""


class Token(NamedTuple):
    """A token: its kind, as `TOKEN` names it, "quoted" or "end"; its text; and its offset."""

    kind: str
    text: str
    at: int

    def __str__(self) -> str:
        return repr(self.text) if self.kind != "end" else "the end"


class Tokens:
    """A text, read token by token; what no kernel may contain is refused at its location."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        if len(text) > LONGEST_TEXT:
            what = f"{file} has {len(text):,} characters; a kernel's text has at most {LONGEST_TEXT:,}"
            raise ParseError(what)
        self.stop = 0
        self.line, self.line_start, self.counted = 1, 0, 0
        self.now = self._scan()
        self.before = self.now

    def take(self) -> Token:
        """Return the current token and advance."""
        self.before = self.now
        if self.before.kind != "end":
            self.now = self._scan()
        return self.before

    def _scan(self) -> Token:
        text = self.text
        at = BLANK.match(text, self.stop).end()  # type: ignore[union-attr]
        found = TOKEN.match(text, at)
        if found is None:
            return self._quoted(at) if text.startswith('"', at) else self._end(at)
        kind = found.lastgroup or ""
        self.stop = found.end()
        longest = LONGEST_NUMBER if kind == "number" else LONGEST_WORD
        if self.stop - at > longest:
            self.fail(f"a {kind} of {self.stop - at:,} characters; it may have {longest}", at)
        return Token(kind, found[0], at)

    def _end(self, at: int) -> Token:
        if at < len(self.text):
            self.fail(f"{self.text[at]!r} begins nothing that a kernel may hold", at)
        self.stop = at
        return Token("end", "", at)

    def _quoted(self, at: int) -> Token:
        try:
            word, self.stop = STRINGS.raw_decode(self.text, at)
        except ValueError:
            self.fail("this quoted word does not end on its line, or holds what none may hold", at)
        if self.stop - at > LONGEST_WORD:
            self.fail(f"a quoted word of {self.stop - at:,} characters; it may have {LONGEST_WORD}", at)
        return Token("quoted", word, at)

    # -- locations

    def loc(self, at: int) -> Loc:
        """Return the line and column of an offset; offsets must not decrease, because lines are counted once."""
        if lines := self.text.count("\n", self.counted, at):
            self.line += lines
            self.line_start = self.text.rfind("\n", self.counted, at) + 1
        self.counted = at
        column = at - self.line_start
        return Loc(self.file, self.line, column, column + 1)

    def fail(self, why: str, at: int) -> NoReturn:
        line = self.text.count("\n", 0, at) + 1
        begin, end = self.text.rfind("\n", 0, at) + 1, self.text.find("\n", at)
        end = end if end >= 0 else len(self.text)
        if end - begin > 4 * SHOWN:  # an excerpt, because a line of megabytes is unreadable
            begin, end = max(begin, at - SHOWN), min(end, at + SHOWN)
        shown = "".join(c if c.isprintable() else " " for c in self.text[begin:end])
        raise ParseError(f"{why}\n  {self.file}:{line}\n      {shown}\n      {' ' * (at - begin)}^")
