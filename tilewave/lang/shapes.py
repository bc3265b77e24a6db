"""The dims of tiles: permute, broadcast, and index formulas applied to tiles."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from tilewave.errors import DTypeError, ShapeError, TraceError, here
from tilewave.ir.build import Number
from tilewave.ir.types import BOOL
from tilewave.lang.ops import select
from tilewave.lang.reductions import inside_of
from tilewave.lang.symbols import Symbol, expression
from tilewave.lang.tags import taggable
from tilewave.lang.values import Traced, describe, dims_of, extents_of, in_order, permuted, repeated, scalar_of
from tilewave.lang.windows import extent_of
from tilewave.trace import Trace, current


@taggable
def permute(x: Traced, target_shape: Sequence[Hashable]) -> Traced:
    """Return the tile with its dims in this order."""
    _want_traced("permute", x)
    return permuted(x, target_shape)


@taggable
def broadcast(x: Traced, target_shape: Sequence[Hashable]) -> Traced:
    """Return x broadcast to these dims."""
    trace = current("broadcast")
    _want_traced("broadcast", x)
    wanted = dims_of("broadcast", target_shape)
    lost = [d for d in x.dims if d not in wanted]
    if lost or len(set(wanted)) < len(wanted):
        why = f"does not name {lost[0]}" if lost else "names a dim twice"
        raise ShapeError(
            f"broadcast: target_shape [{', '.join(map(str, wanted))}] {why}, of {describe(x)}",
            loc=here(),
            remedy="it names each dim of the tile once, in any order, and those along which it is repeated",
        )
    if set(wanted) == set(x.dims):
        return in_order(x, wanted)
    mine = extents_of(x)
    return repeated(trace, x, {d: mine.get(d) or extent_of(trace, d, "broadcast: the tile") for d in wanted})


@taggable
def rename(x: Traced, dims: Mapping[Any, Any]) -> Traced:
    """Return the tile with other names for some of its dims: `rename(x, {M: N})`; elements keep their places in it.

    A tile along the new dim has the same length here. Elements past the end of the old dim are 0.
    """
    trace = current("rename")
    _want_traced("rename", x)
    new: dict[Any, Any] = {expression(old): expression(dim) for old, dim in dims.items()}
    extents, names = extents_of(x), tuple(new.get(d, d) for d in x.dims)
    lost = next((d for d in new if d not in x.dims), None)
    if lost is not None or len(set(names)) < len(names):
        why = f"has no dim {lost}" if lost is not None else f"would have the dims [{', '.join(map(str, names))}]"
        remedy = "name dims of the tile, and new ones that it lacks: rename(x, {M: N})"
        raise ShapeError(f"rename: {describe(x)} {why}", loc=here(), remedy=remedy)
    for old, dim in new.items():
        if (wanted := extent_of(trace, dim, "rename: the tile")) != extents[old]:
            what = f"rename: {describe(x)} has {extents[old]} elements along {old}, and a tile along {dim} has {wanted}"
            raise ShapeError(what, loc=here(), remedy=f"cut {old} and {dim} into tiles of one length")
        inside = inside_of(trace, x, old, "rename")
        if inside is not None and old not in trace.zero_outside.get(x.value, ()):
            x = select(x.make(inside), x, False if x.dtype == BOOL else 0)
    return Traced(trace, x.value, names)


@taggable
def apply_expr(value: Traced | Sequence[Traced], expr: Callable[..., Any]) -> Traced:
    """Return a function of tiles or numbers, element by element.

    For integers the function builds an expression of symbols, with all that these support: / and ceiling, Min, Max,
    sympy's too. Other dtypes are passed to the function as tiles.
    """
    trace = current("apply_expr")
    values = [value] if isinstance(value, Traced) or not isinstance(value, Sequence) else list(value)
    for x in values:
        _want_traced("apply_expr", x)
    if not callable(expr):
        raise TraceError(f"apply_expr: {expr!r} is no function", loc=here(), remedy="write apply_expr(x, lambda x: …)")
    if all(x.dtype.is_int for x in values):
        return _formula(trace, values, expr)
    found = expr(*values)
    if not isinstance(found, Traced):
        remedy = "let it compute with what it is given: lambda x: x * 4"
        raise DTypeError(f"apply_expr: the function gives {found!r}, no tile", loc=here(), remedy=remedy)
    return found


def _formula(trace: Trace, values: Sequence[Traced], expr: Callable[..., Any]) -> Traced:
    """Return the value of an expression that the function builds from one symbol for each tile."""
    stand_ins = {Symbol(f"{chr(ord('x') + i % 3)}{i // 3 or ''}'"): x for i, x in enumerate(values)}  # x', y', z', x1'
    with trace.scope():
        trace.symbols.update(stand_ins)
        found = expr(*stand_ins)
        found = found if isinstance(found, Traced) else expression(found).evaluate(trace.symbols)
    if isinstance(found, Traced):
        return found
    if isinstance(found, Number):
        return Traced(trace, found.value)
    return scalar_of(trace, found, values[0].dtype)


def _want_traced(op: str, x: object) -> None:
    if not isinstance(x, Traced):
        what = f"{op} needs a tile or a number of the kernel, not {x!r}"
        raise TraceError(what, loc=here(), remedy="give it a tile, such as read(a)")
