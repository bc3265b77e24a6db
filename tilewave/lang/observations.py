"""`assert_` and `debug_log`: what interpreters, and calls with `check=True`, check and print while a kernel runs."""

from __future__ import annotations

from typing import Any

from tilewave.errors import DTypeError, TraceError, here
from tilewave.ir import ops as ir
from tilewave.ir.build import Number
from tilewave.ir.core import Value
from tilewave.ir.types import INDEX
from tilewave.lang.conditions import truth
from tilewave.lang.ops import minimum, scalar
from tilewave.lang.symbols import Expression
from tilewave.lang.tags import taggable
from tilewave.lang.types import MemoryArgument
from tilewave.lang.values import Traced, describe, extents_of, scalar_of
from tilewave.lang.windows import end_of, ends_with_a_tile
from tilewave.trace import Trace, current


@taggable
def assert_(condition: Any, message: str = "") -> None:
    """Raise an error where the condition is false for an element in bounds: in interpreters and checked calls.

    Compiled code has no assertions. A call with `check=True`, or TILEWAVE_CHECK=1, evaluates them in another kernel.
    """
    trace = current("assert_")
    if not isinstance(message, str):
        raise TraceError(f"assert_: the message is a text, not {message!r}", loc=here(), remedy='write "…"')
    holds = truth(trace, "assert_", condition)
    if isinstance(holds, bool):
        if not holds:
            raise TraceError(_false(message), loc=here(), remedy="it is false for these sizes and tiles")
        return
    if trace.mask is not None:
        holds = holds | ~trace.mask
    _observe(trace, ir.Assert, holds, message)


def _false(message: str) -> str:
    return f"assert_ fails: {message}" if message else "assert_ fails"


@taggable
def debug_log(x: Any, label: str = "") -> None:
    """Print the workgroup's elements of a tile, or a number, in interpreters and checked calls."""
    trace = current("debug_log")
    if isinstance(x, MemoryArgument):
        raise TraceError(f"debug_log: {x} is a memory", loc=here(), remedy=f"write {x.read_as}")
    if isinstance(x, (Expression, Number)) and not isinstance(x, Traced):
        x = scalar(x)
    if not isinstance(x, Traced):
        remedy = "Python's print shows what is known while the kernel is traced"
        raise DTypeError(f"debug_log prints tiles and numbers of the kernel, not {x!r}", loc=here(), remedy=remedy)
    _observe(trace, ir.DebugLog, x, label or describe(x))


def _observe(trace: Trace, cls: type[ir.Observation], x: Traced, text: str) -> None:
    spans = [_span(trace, d, extent) for d, extent in extents_of(x).items()]
    starts, counts = tuple(start for start, _ in spans), tuple(count for _, count in spans)
    trace.effect(cls, x.value, starts, counts, tuple(map(str, x.dims)), text)


def _span(trace: Trace, dim: Any, extent: int) -> tuple[Value, Value]:
    """Return where a tile begins along a dim, and how many of its elements are in bounds."""
    if dim not in trace.windows:
        return trace.const(0), trace.const(extent)
    start = scalar_of(trace, trace.windows[dim].start, INDEX)
    if ends_with_a_tile(trace, dim, extent):
        return start.value, trace.const(extent)
    left = scalar_of(trace, end_of(trace, dim), INDEX) - start
    return start.value, minimum(left, extent).value
