"""`iterate`: loops over the tiles of a dimension, and while loops with a condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

from tilewave.analysis.tile_programs import only_adds_up
from tilewave.errors import DimensionError, EndlessLoop, ShapeError, TilewaveError, TraceError, here
from tilewave.ir import ops as ir
from tilewave.ir.build import Number
from tilewave.ir.core import Value
from tilewave.ir.rewrite import substitute_block
from tilewave.ir.split_steps import splits_with_steps
from tilewave.ir.types import INDEX_SCALAR
from tilewave.lang.symbols import Expression, Symbol, expression
from tilewave.lang.tags import taggable
from tilewave.lang.types import MemoryArgument, RegisterType
from tilewave.lang.values import Traced, describe, index_of, want_number, with_dims_of
from tilewave.trace import DimensionWindow, Trace, current, steps_along


@taggable
def iterate(
    axis: Symbol, init_args: Sequence[Traced] = (), start: Any = None, condition: Any = None, stop: Any = None
) -> Callable[[Callable[..., Any]], Any]:
    """Run the decorated function for every step along `axis`; its name then has the last values that it returned.

    Along a tiled dimension only the steps are taken that have an element from `start` on and before `stop`.
    """
    trace = current("iterate")
    if axis in trace.driven:
        return lambda body: _While(trace, axis, init_args, start, condition, body).run()
    if axis not in trace.walks:
        raise _not_walked(trace, axis)
    if condition is not None:
        raise DimensionError(
            f"iterate: {axis} is tiled, so its steps are counted",
            loc=here(),
            remedy=f"write iterate({axis}, start=…, stop=…), or TilingConstraint({axis}) without a tile for one with "
            "a condition",
        )
    for name, end in (("start", start), ("stop", stop)):
        want_number("iterate", end, f"{name} is one number for the workgroup, such as first_index(M) + BLOCK_M")
    return lambda body: _Walk(trace, axis, init_args, body, start, stop).run()


def _not_walked(trace: Trace, axis: Symbol) -> TilewaveError:
    if axis in trace.windows:
        remedy = (
            f"leave the loop out, or cut it by TilingConstraint({axis}, BLOCK_{axis}) in place of WorkgroupConstraint"
        )
        what = f"iterate: {axis} is cut over the grid, and a workgroup has one tile of it"
        return DimensionError(what, loc=here(), remedy=remedy)
    remedy = f"add TilingConstraint({axis}, BLOCK_{axis}), or TilingConstraint({axis}) for a while loop"
    if not isinstance(axis, Symbol):
        remedy = f"give it its own symbol, L say, with subs={{L: {axis}}}, and add TilingConstraint(L, BLOCK_L)"
    return DimensionError(f"iterate: no constraint tiles {axis}", loc=here(), remedy=remedy)


def _not_carried(trace: Trace, x: Any) -> TilewaveError:
    """Return the error for one of init_args that is neither a tile nor a number of the kernel."""
    dims = ", ".join(map(str, trace.windows)) or "M"
    zero = f"Register[{dims}, f32](0.0)"
    shown, remedy = repr(x), f"write {zero} for a tile, or scalar(0, i32) for a number"
    if isinstance(x, (int, float)):
        shown = f"Python's {x!r}, which has no dtype"
        one = f"scalar({x!r}, {'f32' if isinstance(x, float) else 'i32'})"
        remedy = f"write Register[{dims}, f32]({float(x)!r}) for a tile, or {one} for a number"
    elif hasattr(x, "shape") and hasattr(x, "dtype"):
        shown = f"an array of shape {tuple(x.shape)} and dtype {x.dtype}"
        remedy = f"write {zero}, or make the array an argument of the kernel, a: Memory[…], and write read(a)"
    elif isinstance(x, Expression):
        shown, remedy = f"the expression {x}", f"write scalar({x})"
    elif isinstance(x, MemoryArgument):
        shown, remedy = f"the memory {x}", f"write {x.read_as}"
    elif isinstance(x, RegisterType):
        shown, remedy = "a type", f"write {zero}, with a value"
    return TraceError(f"iterate carries tiles and numbers of the kernel, not {shown}", loc=here(), remedy=remedy)


class Carrying:
    """A loop with its loop-carried values: the author's, then the symbols that the body sets."""

    def __init__(self, trace: Trace, init: Sequence[Traced], body: Any) -> None:
        if isinstance(init, Traced):
            raise TraceError(f"init_args is a list, not {describe(init)}", loc=here(), remedy="write init_args=[…]")
        self.trace, self.init, self.body = trace, list(init), body
        self.check_parameters()
        for x in self.init:
            if not isinstance(x, Traced):
                raise _not_carried(trace, x)
        self.args = [trace.fresh(f"{body.__name__}_{i}" if i else body.__name__, x.type) for i, x in enumerate(init)]
        self.before = dict(trace.settable)
        self.stand_ins = {s: trace.fresh(str(s).lower(), INDEX_SCALAR) for s in self.before}

    def check_parameters(self) -> None:
        name = self.body.__name__
        try:
            signature(self.body).bind(*self.init)
        except TypeError:
            takes = list(signature(self.body).parameters)
            names = ", ".join(f"value_{i}" if i else "value" for i in range(len(self.init)))
            remedy = f"write def {name}({names}), with one parameter for each of init_args"
            if not self.init:
                begun = f"what {' and '.join(takes)} {'begins' if len(takes) == 1 else 'begin'} with"
                remedy = f"write init_args=[…], {begun}, such as Register[M, N, f32](0.0)"
            counted = f"{len(takes)} parameter{'s' * (len(takes) != 1)}"
            what = f"{name} takes {counted}, but init_args has length {len(self.init)}"
            raise TraceError(what, loc=here(), remedy=remedy) from None

    def trace_body(self) -> list[Value]:
        """Run the author's function on the loop-carried values, and return its results."""
        trace = self.trace
        for symbol, value in self.stand_ins.items():
            trace.set_symbol(symbol, trace.number(value))
        carried = [Traced(trace, v, x.dims) for v, x in zip(self.args, self.init, strict=True)]
        return [x.value for x in self.called(carried)]

    def called(self, carried: Sequence[Traced]) -> list[Traced]:
        """Return the results of the author's function for these values: as many, of the same types."""
        returned = self.body(*carried)
        found = [] if returned is None else list(returned) if isinstance(returned, (tuple, list)) else [returned]
        if len(found) == len(self.init):
            found = [self.fitted(x, first) for x, first in zip(found, self.init, strict=True)]
        kinds = [(x.type, x.dims) for x in found if isinstance(x, Traced)]
        if kinds != [(x.type, x.dims) for x in self.init]:
            raise self.returned_wrong(found)
        return found

    def fitted(self, x: Any, first: Traced) -> Any:
        """Return a result with the dims of its loop-carried value, where they differ in dims of one element only."""
        return with_dims_of(self.trace, x, first) if isinstance(x, Traced) and x.dims != first.dims else x

    def wanted_and_given(self, found: list[Any]) -> tuple[str, str]:
        """Return descriptions of what the author's function should return, and of what it does."""
        given = ", ".join(describe(x) if isinstance(x, Traced) else repr(x) for x in found)
        return ", ".join(map(describe, self.init)) or "nothing", given or "nothing"

    def returned_wrong(self, found: list[Any]) -> TilewaveError:
        wanted, given = self.wanted_and_given(found)
        return ShapeError(
            f"{self.body.__name__} carries {wanted}, but returns {given}",
            loc=here(),
            remedy="return the next value of each of init_args, in the same order, dims and dtype",
        )

    def changed(self) -> list[Any]:
        """Return the symbols set before the loop that the body sets again."""
        return [s for s, stand_in in self.stand_ins.items() if self.trace.settable[s].value != stand_in]

    def unchanged(self) -> dict[Value, Value]:
        changed = self.changed()
        return {v: self.before[s].value for s, v in self.stand_ins.items() if s not in changed}

    def finish(self, changed: list[Any], results: tuple[Value, ...]) -> Any:
        """Return what the decorated name has after the loop."""
        trace = self.trace
        for symbol, value in zip(changed, results[len(self.init) :], strict=True):
            trace.set_symbol(symbol, trace.number(value))
        found = [Traced(trace, v, x.dims) for v, x in zip(results, self.init, strict=False)]
        return None if not found else found[0] if len(found) == 1 else tuple(found)

    def looped(
        self, trips: Value, count: Value, place: Callable[[], None], optional: bool = False, parts: int = 1
    ) -> Any:
        """Emit a loop of `trips` iterations of the author's function, each after `place` has set its windows."""
        trace = self.trace
        with trace.scope():
            with trace.region():
                place()
                returned = self.trace_body()
                changed = self.changed()
                carried = [*self.args, *(self.stand_ins[s] for s in changed)]
                block = trace.block([count, *carried], [*returned, *(trace.settable[s].value for s in changed)])
            block = substitute_block(block, self.unchanged())
        results = self.results(changed)
        init = tuple([x.value for x in self.init] + [self.before[s].value for s in changed])
        trace.effect(ir.Loop, trips, init, block, optional, parts, results=results)
        return self.finish(changed, results)

    def results(self, changed: list[Any]) -> tuple[Value, ...]:
        name = self.body.__name__
        mine = [self.trace.fresh(f"{name}_end", x.type) for x in self.init]
        return (*mine, *(self.trace.fresh(str(s).lower(), INDEX_SCALAR) for s in changed))


class _Walk(Carrying):
    """A loop over the tiles of a dimension."""

    def __init__(
        self, trace: Trace, axis: Any, init: Sequence[Traced], body: Any, start: Any = None, stop: Any = None
    ) -> None:
        super().__init__(trace, init, body)
        self.axis, self.walk, self.start, self.stop = axis, trace.walks[axis], start, stop

    def steps(self) -> tuple[Any, Any]:
        """Return the first step that is taken, and the number of steps."""
        every = self.most_steps()
        if self.start is None and self.stop is None:
            return 0, every
        begin, end = self.number(self.start), self.number(self.stop)
        first = 0 if begin is None else begin.larger(0) // self.walk.step
        last = every if end is None else ((end.larger(0) + (self.walk.step - 1)) // self.walk.step).smaller(every)
        return first, last if begin is None else (self.trace.number(self.trace.index(last)) - first).larger(0)

    def number(self, x: Any) -> Number | None:
        return None if x is None else self.trace.number(index_of(self.trace, "iterate", x).value)

    def run(self) -> Any:
        trace = self.trace
        if self.walk.length == 0:  # not one step, so nothing changes
            return self.finish([], tuple(x.value for x in self.init))
        first, steps = self.steps()
        trips = trace.index(steps)
        count = trace.fresh(f"{self.axis}_step".lower(), INDEX_SCALAR)

        def place() -> None:
            number = trace.number(count) if isinstance(first, int) else trace.number(count) + first
            if self.walk.start is None:
                window = DimensionWindow.tile(number, self.walk.step)
            else:
                window = DimensionWindow(number * self.walk.step + self.evaluated(self.walk.start), self.walk.step)
            trace.windows[self.axis] = replace(window, end=self.walk.end)

        parts = splits_with_steps(steps, self.walk.parts) if isinstance(steps, int) else self.walk.parts
        result = self.looped(trips, count, place, parts=parts)
        if self.walk.parts > 1 and not only_adds_up(trace.ops[-1]):
            raise self.is_no_sum(self.walk.parts)
        return result

    def evaluated(self, wish: Expression) -> Any:
        """Return an expression of the constraint, where WORKGROUP_0, … are the coordinates of the workgroup's tile."""
        return wish.evaluate({**self.trace.symbols, **self.trace.tile_at})

    def is_no_sum(self, parts: int) -> TilewaveError:
        acc = next(iter(signature(self.body).parameters), "acc")
        return TraceError(
            f"{self.body.__name__} does more than add products up, and only sums can be split into {parts} parts",
            loc=here(),
            remedy=f"return mma(…, {acc}), or leave out the SplitConstraint of {self.axis}",
        )

    def most_steps(self) -> Any:
        """Return the steps that cover the dimension, or the constraint's `iters` where that is less."""
        steps = steps_along(self.walk.length, self.walk.step, f"{self.axis}_steps")
        if self.walk.iters is None:
            return steps
        wished = self.evaluated(self.walk.iters)
        if isinstance(wished, int) and isinstance(steps, int):
            return max(0, min(wished, steps))
        both = [self.trace.number(self.trace.index(n)) for n in (wished, steps)]
        return both[0].smaller(both[1]).larger(0)


class _While(Carrying):
    """A loop that continues as long as a condition on its symbol holds."""

    def __init__(self, trace: Trace, axis: Any, init: Sequence[Traced], start: Any, condition: Any, body: Any) -> None:
        if hasattr(condition, "free_symbols"):  # sympy's, over tilewave's symbols
            condition = expression(condition)
        if not isinstance(condition, Expression):
            raise TraceError(
                f"iterate: {axis} has no tile, so its loop needs a condition",
                loc=here(),
                remedy=f"write iterate({axis}, start=…, condition={axis} < LIMIT)",
            )
        self.axis, self.condition = axis, condition
        want_number("iterate", start, f"start is where {axis} begins, such as scalar(WORKGROUP_0)")
        first = index_of(trace, "iterate", 0 if start is None else start)
        trace.set_symbol(axis, trace.number(first.value))
        super().__init__(trace, init, body)

    def run(self) -> Any:
        trace = self.trace
        with trace.scope():
            with trace.region():
                if self.axis in trace.lengths:  # a tile has the one element that the loop is at
                    at = trace.number(self.stand_ins[self.axis])
                    trace.windows[self.axis] = DimensionWindow.tile(at, 1)
                returned = self.trace_body()
                changed = self.changed()
                self.check_progress(changed)
                carried = [*self.args, *(self.stand_ins[s] for s in changed)]
                body = trace.block(carried, [*returned, *(trace.settable[s].value for s in changed)])
            unchanged = self.unchanged()
        body = substitute_block(body, unchanged)
        condition = self.condition_block(changed)
        results = self.results(changed)
        init = tuple([x.value for x in self.init] + [self.before[s].value for s in changed])
        trace.effect(ir.While, init, condition, body, results=results)
        return self.finish(changed, results)

    def condition_block(self, changed: list[Any]) -> Any:
        trace = self.trace
        mine = [trace.fresh("carried", x.type) for x in self.init]
        symbols = {s: trace.fresh(str(s).lower(), INDEX_SCALAR) for s in changed}
        with trace.region():
            values = {**trace.symbols, **{s: trace.number(v) for s, v in symbols.items()}}
            holds = self.condition.evaluate(values)
            return trace.block([*mine, *symbols.values()], [holds.value])

    def check_progress(self, changed: list[Any]) -> None:
        if self.axis not in changed:
            raise EndlessLoop(
                f"{self.axis} is never set in its loop, which would not end",
                loc=here(),
                remedy=f"write set_symbol({self.axis}, next) at the end of {self.body.__name__}",
            )
