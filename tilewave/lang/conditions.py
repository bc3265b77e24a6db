"""`conditional`: code under a condition, for a whole workgroup or element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from tilewave.errors import DTypeError, ShapeError, TilewaveError, TraceError, here
from tilewave.ir.build import Number
from tilewave.ir.types import BOOL, INDEX, INDEX_SCALAR
from tilewave.lang.loops import Carrying
from tilewave.lang.ops import select
from tilewave.lang.symbols import Expression, expression
from tilewave.lang.values import Traced, describe
from tilewave.trace import Trace, current


def conditional(condition: Any, else_return: Sequence[Traced] | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Run the decorated function where the condition holds; its name then has its results, or else `else_return`.

    The condition is one truth value for the whole workgroup, or a tile of them: then writes store those elements alone.
    """
    trace = current("conditional")
    given = [] if else_return is None else else_return
    if isinstance(given, Traced) or not all(isinstance(x, Traced) for x in given):
        raise TraceError("else_return is a list of tiles and numbers", loc=here(), remedy="write else_return=[x, …]")
    holds = truth(trace, "conditional", condition)
    if isinstance(holds, bool):
        return lambda body: _Known(trace, given, _taking(body, given)).run(holds)
    if holds.dims:
        return lambda body: _Masked(trace, given, _taking(body, given)).run(holds)
    return lambda body: _Once(trace, given, _taking(body, given)).run(holds)


def truth(trace: Trace, op: str, condition: Any) -> Traced | bool:
    """Return a condition as a truth value: a Python bool, a traced number, or a tile."""
    if hasattr(condition, "free_symbols"):  # sympy's, over tilewave's symbols
        condition = expression(condition)
    found = condition.evaluate(trace.symbols) if isinstance(condition, Expression) else condition
    if isinstance(found, Number) and not isinstance(found, Traced):
        found = Traced(trace, found.value)
    if isinstance(found, bool):
        return found
    if not isinstance(found, Traced) or found.dtype != BOOL:
        shown = describe(found) if isinstance(found, Traced) else repr(found)
        raise DTypeError(f"{op} needs a truth value, not {shown}", loc=here(), remedy="write x > 0, x != y, …")
    return found


def _taking(body: Callable[..., Any], given: Sequence[Traced]) -> Callable[..., Any]:
    """Return the author's function as one of `else_return`, which its parameters may leave out."""
    if not given or signature(body).parameters:
        return body

    def taking(*_: Traced) -> Any:
        return body()

    taking.__name__ = body.__name__
    return taking


class _Conditional(Carrying):
    """A condition that carries `else_return` in, and what the function returns out."""

    def returned_wrong(self, found: list[Any]) -> TilewaveError:
        wanted, given = self.wanted_and_given(found)
        return ShapeError(
            f"{self.body.__name__} returns {given}, but else_return is {wanted}",
            loc=here(),
            remedy="both have the same tiles and numbers, in the same order, dims and dtype",
        )


class _Once(_Conditional):
    """A condition for the workgroup: a loop with one iteration or none."""

    def run(self, holds: Traced) -> Any:
        trace = self.trace
        trips, count = trace.cast(holds.value, INDEX), trace.fresh("once", INDEX_SCALAR)
        return self.looped(trips, count, lambda: None, optional=True)


class _Known(_Conditional):
    """A condition that is known while the kernel is traced."""

    def run(self, holds: bool) -> Any:
        if not holds:
            return self.finish([], tuple(x.value for x in self.init))
        returned = self.called(self.init)
        return self.finish([], tuple(x.value for x in returned))


class _Masked(_Conditional):
    """A condition for each element: all elements are computed, and masked ones keep their old value."""

    def run(self, holds: Traced) -> Any:
        trace, outer = self.trace, self.trace.mask
        trace.mask = holds if outer is None else outer & holds
        try:
            returned = self.called(self.init)
        finally:
            trace.mask = outer
        if trace.settable != self.before:
            raise TraceError(
                f"{self.body.__name__} sets a symbol under {describe(holds)}, which differs from element to element",
                loc=here(),
                remedy="a symbol has one value for all elements: set it outside",
            )
        chosen = [select(holds, x, y) for x, y in zip(returned, self.init, strict=True)]
        return self.finish([], tuple(x.value for x in chosen))
