"""`tag="scores"` and `tag(x, "scores")`: names by which Wave's schedules refer to ops.

A kernel with tags needs no change. They have no effect: schedules follow from the ops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from tilewave.errors import TraceError, here

Word = TypeVar("Word", bound=Callable[..., Any])


def taggable(word: Word) -> Word:
    """Return the function with an additional keyword, `tag`."""

    @wraps(word)
    def tagged(*given: Any, tag: object = "", **named: Any) -> Any:
        _want_name(tag)
        return word(*given, **named)

    return cast(Word, tagged)


def tag(x: Any, tag_name: str) -> Any:
    """Return x itself."""
    _want_name(tag_name)
    return x


def _want_name(name: object) -> None:
    if name is not None and not isinstance(name, str):
        raise TraceError(f"a tag is a name, not {name!r}", loc=here(), remedy='write tag="scores", or leave it out')
