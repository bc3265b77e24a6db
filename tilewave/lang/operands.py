"""Checks of what authors pass to the ops of a kernel."""

from __future__ import annotations

from typing import Any

from tilewave.errors import TraceError, here
from tilewave.lang.symbols import Expression
from tilewave.lang.types import MemoryArgument
from tilewave.lang.values import Traced, describe
from tilewave.trace import Trace


def count(trace: Trace, op: str, given: Any) -> int:
    """Return the elements for each lane; 0 where the author gives none."""
    x = given.evaluate(trace.symbols) if isinstance(given, Expression) else given
    if isinstance(x, bool) or not isinstance(x, int) or x < 0:
        remedy = "write elements_per_thread=8, say, or leave it out"
        raise TraceError(f"{op}: elements_per_thread is {given!r}, no number of elements", loc=here(), remedy=remedy)
    return x


def want_tile(op: str, x: object) -> None:
    if isinstance(x, MemoryArgument):
        raise TraceError(f"{op} needs a tile, and `{x.name}` is a memory", loc=here(), remedy=f"write {x.read_as}")
    if not isinstance(x, Traced) or not x.dims:
        found = describe(x) if isinstance(x, Traced) else "nothing" if x is None else repr(x)
        remedy = "a tile is read(memory), Register[M, N, f32](0.0), or what is computed from them"
        if x is None:
            remedy += "; write and atomics return nothing"
        raise TraceError(f"{op} needs a tile, not {found}", loc=here(), remedy=remedy)
