"""What an author asks the interpreters to look at; compiled code has none of these ops"""

from __future__ import annotations

from tilewave.ir.core import Op, Value, Want
from tilewave.ir.rules import ON_TILES, are_indices
from tilewave.ir.types import BOOL
from tilewave.records import dataclass

__all__ = [
    "Assert",
    "DebugLog",
    "Observation",
]


Text = str
"""What an author wrote, for people: unlike other attributes it may have any characters."""


@dataclass(frozen=True)
class Observation(Op):
    """An op that looks at a tile or number `x`, whose elements along `dims` begin at `start`; `count` are in bounds."""

    levels = ON_TILES

    x: Value
    start: tuple[Value, ...] = ()
    count: tuple[Value, ...] = ()
    dims: tuple[Text, ...] = ()
    text: Text = ""

    def check(self, want: Want) -> None:
        rank = len(getattr(self.x.type, "shape", ()))
        each = len(self.start) == len(self.count) == len(self.dims) == rank
        want(each, f"{self.x.type} needs {rank} starts, counts and dims")
        want(are_indices((*self.start, *self.count)), "its starts and counts are of type index")


class Assert(Observation):
    """An error where an element of `x` that is in bounds is false; `text` is the author's."""

    def check(self, want: Want) -> None:
        super().check(want)
        want(getattr(self.x.type, "dtype", None) == BOOL, f"takes truth values, not {self.x.type}")


class DebugLog(Observation):
    """Print the elements of `x` that are in bounds, with `text` before them."""


OPS: tuple[type[Op], ...] = (Assert, DebugLog)
