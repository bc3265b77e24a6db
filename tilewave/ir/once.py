"""Answers that are computed once for a kernel, a block or an op, which never change, and stored with the object."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def once(question: Callable[[K], T]) -> Callable[[K], T]:
    """Return a function that asks `question` of each object once; callers share the answer and do not change it."""
    key = f"{question.__module__}.{question.__qualname__}"

    @wraps(question)
    def answer(about: K) -> T:
        known = vars(about)
        if key not in known:
            known[key] = question(about)
        return known[key]  # type: ignore[no-any-return]

    return answer
