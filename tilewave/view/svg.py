"""SVG by hand: elements, escaped text, and a figure that is standalone or part of a larger sheet."""

from __future__ import annotations

import re
from html import escape

from tilewave.records import dataclass
from tilewave.view import palette

FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
WIDTH_OF_A_LETTER = 0.6
"""Relative to the font's size; wide letters of a wide font, so that text that fits by it also fits elsewhere."""

NARROW, WIDE, USUAL = 0.35, 0.8, 0.62
"""Relative to the font's size: blanks and commas, capitals and `=`, and all else, in a wide font."""
NARROW_LETTERS = frozenset(" ,.:;()[]|'ijlft")

MARGIN = 16
LINE = 16
CAPTION = 12
"""Size of a caption's font."""
TITLE = 40
"""Height of a title with the space below it."""

NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Figure:
    """A title, a drawing and a caption; `body` is drawn below the title, in its own coordinates."""

    kind: str
    title: str
    caption: str
    width: float
    body_height: float
    body: str

    @property
    def lines(self) -> list[str]:
        """The caption, wrapped to the figure's width."""
        room = (self.width - 2 * MARGIN) / CAPTION
        letters = int(room / (WIDTH_OF_A_LETTER * 0.92))
        lines = [""]
        for word in self.caption.split(" "):
            longer = f"{lines[-1]} {word}".lstrip()
            fits = not lines[-1] or (len(longer) <= letters and _ems(longer) <= room)
            lines[-1:] = [longer] if fits else [lines[-1], word]
        return lines

    @property
    def height(self) -> float:
        """Return the height of the whole figure."""
        return TITLE + self.body_height + len(self.lines) * LINE + MARGIN

    def inner(self) -> str:
        """Everything but the outermost element."""
        caption_top = TITLE + self.body_height + 6
        lines = [
            text(MARGIN, caption_top + at * LINE + 6, line, CAPTION, fill=palette.SOFT_INK, class_="soft")
            for at, line in enumerate(self.lines)
        ]
        title = text(MARGIN, 27, self.title, 17, font_weight="600")
        body = element("g", self.body, transform=f"translate(0 {TITLE})")
        return "\n".join([title, body, *lines])

    def svg(self) -> str:
        """Return a standalone element, for a file or a page."""
        return sheet([[self]])


def sheet(rows: list[list[Figure]]) -> str:
    """Figures in rows, as one SVG."""
    parts, y = [], 0.0
    for row in rows:
        x = 0.0
        for figure in row:
            parts.append(element("g", figure.inner(), class_=f"figure {figure.kind}", transform=f"translate({x} {y})"))
            x += figure.width
        y += max(figure.height for figure in row)
    width = max(sum(figure.width for figure in row) for row in rows)
    return _outermost(width, y, _said(rows), "\n".join(parts))


def _said(rows: list[list[Figure]]) -> str:
    figures = [figure for row in rows for figure in row]
    title = element("title", escaped("; ".join(dict.fromkeys(figure.title for figure in figures))))
    return title + element("desc", escaped(" ".join(dict.fromkeys(figure.caption for figure in figures))))


def _outermost(width: float, height: float, said: str, body: str) -> str:
    paper = rect(0, 0, width, height, palette.PAPER, class_="paper")
    return element(
        "svg",
        f"{said}\n{paper}\n{body}\n",
        xmlns="http://www.w3.org/2000/svg",
        class_="tilewave",
        role="img",
        width=width,
        height=height,
        viewBox=f"0 0 {number(width)} {number(height)}",
        font_family=FONT,
    )


def element(name: str, content: str = "", /, **attributes: object) -> str:
    """One element; `content` is markup, attributes are escaped and spelled as Python must: class_, stroke_width."""
    spelled = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(number(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{spelled}>{content}</{name}>" if content else f"<{name}{spelled}/>"


def text(x: float, y: float, words: str, size: float, **attributes: object) -> str:
    """Return a line of text; black unless `attributes` set another fill."""
    style: dict[str, object] = {"x": x, "y": y, "font_size": size, "fill": palette.INK, "class_": "ink", **attributes}
    return element("text", escaped(words), **style)


def rect(x: float, y: float, width: float, height: float, fill: str, **attributes: object) -> str:
    """A rectangle."""
    return element("rect", x=x, y=y, width=width, height=height, fill=fill, **attributes)


def number(value: object) -> str:
    """Return a float with at most two decimals, and anything else as its text."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def escaped(words: str) -> str:
    """Text that no markup can hide in, without the characters that XML forbids."""
    return escape(NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", words))


def _ems(words: str) -> float:
    """How wide a line comes out, of the font's size: symbols and their values are wider than prose."""
    wide = sum(letter.isupper() or letter == "=" for letter in words)
    narrow = sum(letter in NARROW_LETTERS for letter in words)
    return WIDE * wide + NARROW * narrow + USUAL * (len(words) - wide - narrow)


def width_of(words: str, size: float) -> float:
    """An upper estimate of how wide a line of text comes out."""
    return len(words) * size * WIDTH_OF_A_LETTER
