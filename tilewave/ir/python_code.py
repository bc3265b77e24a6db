"""Functions of Python that are written when a kernel is known: what every call runs goes through no list of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def code_of(arguments: str, lines: Sequence[str], called: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """A function of these lines, the last of which returns; `called` are the functions that it may call.

    No name and no text of an author's or of a file's may stand in it: numbers do, and names that are made up.
    """
    made: dict[str, Any] = {}
    text = f"def code({arguments}):\n" + "\n".join(f"    {line}" for line in lines)
    exec(compile(text, f"<code of {arguments}>", "exec"), {"__builtins__": {}, **(called or {})}, made)
    found: Callable[..., Any] = made["code"]
    return found


def pattern(names: Sequence[str]) -> str:
    """A tuple, to take apart or to return."""
    return f"({''.join(f'{name}, ' for name in names)})"
