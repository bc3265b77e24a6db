"""The colours of every picture: one colour per XCD, the same in the terminal, the figures and the page.

The nine fills are Paul Tol's "light" scheme (https://personal.sron.nl/~pault/), made for cells with black labels and
distinct for the colour-blind. Neighbours alternate between dark and light, so that bands of XCDs stay apart in grey.
From the tenth XCD on, the colours come again under a pattern; a picture always writes the number of the XCD too.
"""

from __future__ import annotations

FILLS = ("#77aadd", "#eedd88", "#ee8866", "#99ddff", "#44bb99", "#ffaabb", "#aaaa00", "#dddddd", "#bbcc33")

PATTERNS = ("", "M0 8L8 0", "M0 4H8", "M0 0L8 8M0 8L8 0")
"""What is drawn over the fill, as an SVG path in a square of 8: nothing, diagonals, lines, a lattice."""

LABEL = "#111418"
"""Text and lines on a coloured tile."""

INK = "#1f2328"
SOFT_INK = "#57606a"
PAPER = "#ffffff"
EMPTY = "#e7ebef"
"""A tile or block that is not meant."""

PATH = "#8a3b12"
"""The line from tile to tile."""

FIRST, LAST = "#dcebf8", "#6aa5d6"
"""A tile launched first, and one launched last."""


def fill(xcd: int) -> str:
    """The colour of an XCD."""
    return FILLS[xcd % len(FILLS)]


def pattern(xcd: int) -> str:
    """The path drawn over its colour; empty for the first nine."""
    return PATTERNS[xcd // len(FILLS) % len(PATTERNS)]


def between(part: float) -> str:
    """A colour from FIRST (0.0) to LAST (1.0)."""
    return _mixed(FIRST, LAST, part)


HEAT = ("#fff7d6", "#f6b04c", "#c4453c", "#4a1a5c")
"""From little to much; always darker, so that the order is visible in grey too."""


def heat(part: float) -> str:
    """A colour of the scale from 0.0 to 1.0."""
    at = min(max(part, 0.0), 1.0) * (len(HEAT) - 1)
    low = min(int(at), len(HEAT) - 2)
    return _mixed(HEAT[low], HEAT[low + 1], at - low)


def _mixed(first: str, last: str, part: float) -> str:
    values = (round(a + (b - a) * part) for a, b in zip(_rgb(first), _rgb(last), strict=True))
    return "#" + "".join(f"{value:02x}" for value in values)


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))
