"""Write the first tutorials as Jupyter notebooks: `python docs/site/notebooks.py` writes docs/notebooks/*.ipynb.

Each fenced `python` block becomes a code cell, whose output is the `text` block after it; a block that must raise gets
the tag `raises-exception`, so that running all cells goes on. A `sh` block becomes a cell of `!` commands. Everything
else is Markdown. Tests run the notebooks and compare the committed files with their tutorials.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
TUTORIALS = ("01-first-kernel", "02-your-own-order", "03-epilogue")
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```\n?", re.MULTILINE | re.DOTALL)
CODE = ("python", "sh")


@dataclass(frozen=True)
class ExtractSlice:
    """A part of a tutorial: prose (`info` is empty), or a fenced block with its info string."""

    info: tuple[str, ...]
    text: str


def notebook(name: str) -> dict[str, Any]:
    """Return the notebook of a tutorial as JSON data of nbformat 4.5."""
    return {
        "cells": [{"id": f"cell-{n}", **cell} for n, cell in enumerate(cells(name))],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def cells(name: str) -> Iterator[dict[str, Any]]:
    """Yield the cells of a tutorial in order."""
    found = list(parts((DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8")))
    following = [*found[1:], ExtractSlice((), "")]
    before = [ExtractSlice((), ""), *found]
    for previous, part, after in zip(before, found, following, strict=False):
        if not part.info:
            prose = relinked(part.text, name)
            if prose.strip():
                yield {"cell_type": "markdown", "metadata": {}, "source": lines(prose.strip())}
        elif part.info[0] in CODE:
            shown = after.text if after.info[:1] == ("text",) else ""
            yield code_cell(part, shown)
        else:
            assert part.info[0] == "text" and previous.info[:1] and previous.info[0] in CODE, part.info


def parts(text: str) -> Iterator[ExtractSlice]:
    """Yield prose and blocks; blocks that only a blank line separates follow each other directly."""
    end = 0
    for found in FENCE.finditer(text):
        if text[end : found.start()].strip():
            yield ExtractSlice((), text[end : found.start()])
        yield ExtractSlice(tuple(found["info"].split()), found["text"])
        end = found.end()
    if text[end:].strip():
        yield ExtractSlice((), text[end:])


def code_cell(part: ExtractSlice, shown: str) -> dict[str, Any]:
    """Return a code cell with its output as the tutorial shows it."""
    source = part.text.rstrip("\n")
    if part.info[0] == "sh":
        source = "\n".join(f"!{line}" for line in source.splitlines())
        shown = ""  # what the tutorial shows of a command is an excerpt
    raises = "error" in part.info
    outputs = [error_output(shown)] if raises else [stream(shown)] if shown else []
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {"tags": ["raises-exception"]} if raises else {},
        "outputs": outputs,
        "source": lines(source),
    }


def stream(shown: str) -> dict[str, Any]:
    return {"name": "stdout", "output_type": "stream", "text": lines(shown)}


def error_output(shown: str) -> dict[str, Any]:
    message = shown.strip().removeprefix("error: ")
    return {"ename": "TilewaveError", "evalue": message, "output_type": "error", "traceback": [f"error: {message}"]}


def relinked(prose: str, name: str) -> str:
    """Return prose whose links to other tutorials start from docs/notebooks, and that names its source."""
    own = f"[notebook](../notebooks/{name}.ipynb)"
    assert own in prose or not prose.startswith("# "), f"{name}: its first paragraph must link to its notebook"
    source = f"This notebook is generated from [a tutorial](../tutorials/{name}.md) by `python docs/site/notebooks.py`."
    prose = prose.replace(f"This page is also a {own}.", source)
    return re.sub(r"\]\((\d\d-[\w-]+\.md)\)", r"](../tutorials/\1)", prose)


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def written(name: str) -> str:
    """Return the text of the notebook file of a tutorial."""
    return json.dumps(notebook(name), indent=1, ensure_ascii=False) + "\n"


def path_of(name: str) -> Path:
    return DOCS / "notebooks" / f"{name}.ipynb"


if __name__ == "__main__":
    for each in TUTORIALS:
        path_of(each).write_text(written(each), encoding="utf-8")
