"""`CallCache`: what earlier calls of a kernel found, for the next one with the same key."""

from __future__ import annotations

from typing import TypeVar

KEPT_CALLS = 1024
"""The most calls of a kernel that are stored, unless its cache says otherwise."""

K = TypeVar("K")
T = TypeVar("T")


class CallCache(dict[K, T]):
    """A dictionary from the keys of calls to their launches; one entry too many clears it.

    Reading it is a dictionary's `get`, in Python and in machine code. Nothing orders the entries: a cache that orders
    them costs every call, and one that is too small is cleared seldom.
    """

    def __init__(self, most: int = KEPT_CALLS) -> None:
        super().__init__()
        self.most = most

    def keep(self, key: K, found: T) -> T:
        """Store what a call found, and return it."""
        if len(self) >= self.most:
            self.clear()
        self[key] = found
        return found
