"""The explorer's page: style, script and what it needs to begin with, in one text.

Served, it asks for the rest as it is chosen; written to a file, it holds what was chosen, and says so.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

from tilewave.errors import TilewaveError
from tilewave.explore.explorer import QUESTIONS, Explorer
from tilewave.records import dataclass
from tilewave.view import palette
from tilewave.view.page import embedded

SCRIPTS = ("grid.js", "explore.js")


@dataclass(frozen=True)
class Page:
    """The text of a page, and what its browser allows it."""

    html: str
    policy: str

    @staticmethod
    def served(explorer: Explorer) -> Page:
        """Return a page that may request its own address only."""
        return _page(explorer, {}, "connect-src 'self'")

    @staticmethod
    def alone(explorer: Explorer) -> Page:
        """Return a page without requests: it contains the answers for the initial choice."""
        return _page(explorer, {name: _answer(explorer, name) for name in QUESTIONS}, "connect-src 'none'")


def _answer(explorer: Explorer, question: str) -> dict[str, Any]:
    """A kernel that a chip refuses still has its launch."""
    if question == "launch":
        return explorer.answer(question, explorer.start)
    try:
        return explorer.answer(question, explorer.start)
    except TilewaveError as error:
        return {"error": str(error)}


def _page(explorer: Explorer, answers: dict[str, Any], connect: str) -> Page:
    script = "\n".join(_asset(name) for name in SCRIPTS)
    digest = b64encode(sha256(f"\n{script}\n".encode()).digest()).decode()
    policy = (
        f"default-src 'none'; {connect}; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    data = {**explorer.offers(), "answers": answers, "colours": _colours()}
    html = Template(_asset("explore.html")).substitute(
        policy=policy, css=_asset("explore.css"), script=script, data=embedded(data)
    )
    return Page(html, policy)


def _colours() -> dict[str, Any]:
    """Return the colours of all pictures."""
    return {"xcds": palette.FILLS, "first": palette.FIRST, "last": palette.LAST, "heat": palette.HEAT}


def _asset(name: str) -> str:
    return files("tilewave.explore").joinpath("assets").joinpath(name).read_text(encoding="utf-8")
