"""The window of a dimension that a tile spans: a part by the grid, a step of a loop, or all of it.

A dim that is an expression of a tiled dim follows it. Where K has tiles of 128 elements, the third of them is

    K           [256, 384)
    K / 64      [4, 6)         one element for each 64 of K
    2 * K       [512, 768)
    K / 512     [0, 1)         one element, which four tiles of K have

In the step of a loop over K, a tile of `Memory[M, K / 64]` has the two elements that belong to the 128 of K.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NoReturn

from tilewave.errors import DimensionError, here
from tilewave.ir.types import Tile
from tilewave.ir.types import dims as extents
from tilewave.lang.symbols import Combined, Expression, Rounded, Symbol, rounded_where_open
from tilewave.trace import DimensionWindow, Trace

Windows = Mapping[Any, DimensionWindow]
Values = Mapping[Symbol, Any]


def window_of(trace: Trace, dim: Expression, what: str) -> DimensionWindow:
    """Return the current window of `dim`: all of it where no constraint divides it."""
    return _window(trace, dim, what, trace.windows)


def extent_here(trace: Trace, dim: Expression, what: str) -> int:
    """Return the length of a tile along `dim` here, as `window_of` does, without emitting ops."""
    return _window(trace, dim, what, {d: _unplaced(w) for d, w in trace.windows.items()}).extent


def extent_of(trace: Trace, dim: Expression, what: str) -> int:
    """Return the length of a tile along `dim`, wherever it begins."""
    known = {d: DimensionWindow.tile(0, walk.step) for d, walk in trace.walks.items()}
    return _window(trace, dim, what, known | {d: _unplaced(w) for d, w in trace.windows.items()}).extent


def _unplaced(window: DimensionWindow) -> DimensionWindow:
    """Return a window of the same extent at 0."""
    return DimensionWindow(0, window.extent, None if window.number is None else 0)


def _window(trace: Trace, dim: Expression, what: str, windows: Windows) -> DimensionWindow:
    if dim in windows:
        return windows[dim]
    cut = cut_symbols(trace, dim)
    for s in cut:
        if s not in windows:
            _refuse_outside_loop(dim, s, what)
    if not cut:
        return DimensionWindow.tile(0, _whole(trace, dim, what))
    return followed(dim, windows, trace.symbols) or _refuse_apart(dim, cut, windows, what, trace.symbols)


def cut_symbols(trace: Trace, dim: Expression) -> list[Symbol]:
    """Return the symbols of a dim that the grid or a loop divides."""
    return [s for s in dict.fromkeys(dim.symbols()) if s in trace.windows or s in trace.walks]


def is_whole(trace: Trace, dim: Any) -> bool:
    """Return whether every workgroup takes a dim whole: no constraint divides it or its symbols."""
    return not cut_symbols(trace, dim)


def followed(dim: Expression, windows: Windows, values: Values) -> DimensionWindow | None:
    """Return the part of a dim that belongs to the window of its symbol; None unless it is a multiple or fraction."""
    match dim:
        case Symbol() if dim in windows:
            return windows[dim]
        case Combined("*", a, b):
            for x, factor in ((a, _known(b, windows, values)), (b, _known(a, windows, values))):
                if factor is not None:
                    found = followed(x, windows, values)
                    return found and found.times(factor)
        case Combined("/" | "//", a, b) if (block := _known(b, windows, values)) is not None:
            found = followed(a, windows, values)
            return found and found.per(block)
        case Rounded(_, x):
            return followed(x, windows, values)
        case _:
            pass
    return None


def _known(e: Expression, windows: Windows, values: Values) -> int | None:
    """Return the value of a factor or divisor; None unless it is a positive number at compile time."""
    if any(s in windows or not isinstance(values.get(s), int) for s in e.symbols()):
        return None
    value = e.evaluate(values)
    return value if isinstance(value, int) and value >= 1 else None


def start_of(trace: Trace, dim: Expression) -> Any:
    """Return where the current window of a dim begins; 0 where it is whole, and outside its loop."""
    is_here = all(s in trace.windows for s in cut_symbols(trace, dim))
    return window_of(trace, dim, "a tile").start if is_here and not is_whole(trace, dim) else 0


def length_of(trace: Trace, dim: Any) -> Any:
    """Return the length of a dim; a number of the kernel where it is known only at the launch."""
    if dim in trace.walks:
        return trace.walks[dim].length
    if dim in trace.lengths:
        return trace.lengths[dim]
    return rounded_where_open(dim, trace.symbols).evaluate(trace.symbols)


def end_of(trace: Trace, dim: Any) -> Any:
    """Return the end of a dim's elements that belong to the current tile: that of its group, or of the dim."""
    return window_of(trace, dim, "a tile").end if ends_with_a_group(trace, dim) else length_of(trace, dim)


def ends_with_a_group(trace: Trace, dim: Any) -> bool:
    """Return whether the elements of a tile along a dim may end with a group, before the dim does."""
    return any(s in trace.windows and trace.windows[s].end is not None for s in dim.symbols())


def ends_with_a_tile(trace: Trace, dim: Any, extent: int) -> bool:
    """Return whether certainly no tile along a dim is a boundary tile."""
    length, cut = end_of(trace, dim), cut_symbols(trace, dim)
    if extent == 1 and dim in trace.windows and trace.windows[dim].number is not None:
        return not ends_with_a_group(trace, dim)  # a tile begins inside
    if not isinstance(length, int):
        return dim in trace.windows and not ends_with_a_group(trace, dim) and trace.multiples.get(dim, 1) % extent == 0
    if length == 0:
        return False
    if isinstance(dim, Symbol) or not cut:
        return length % extent == 0
    (of,) = cut
    whole, step = length_of(trace, of), extent_of(trace, of, "a tile")
    if not isinstance(whole, int) or (of in trace.windows and trace.windows[of].number is None):
        return False
    last = followed(dim, {of: DimensionWindow.tile(-(-whole // step) - 1, step)}, trace.symbols)
    return last is not None and last.start + last.extent <= length


# -- what is refused ------------------------------------------------------------------------------------------------


def _refuse_outside_loop(dim: Expression, walked: Symbol, what: str) -> NoReturn:
    goes_with, otherwise = "", ""
    if dim != walked:
        goes_with = f"goes with {walked}, which "
        otherwise = "; or take it whole, as a separate dim: Memory[…, sym.L, …]"
    raise DimensionError(
        f"{what} spans {dim}, which {goes_with}has a tile only inside iterate({walked})",
        loc=here(),
        remedy=f"move it into the function under @iterate({walked}, …){otherwise}",
    )


def _refuse_apart(dim: Expression, cut: list[Symbol], windows: Windows, what: str, values: Values) -> NoReturn:
    tiles = " and ".join(f"{windows[s].extent} of {s}" for s in cut)
    named = ", ".join(f"{s}: …" for s in cut)
    remedy = f"say where its elements are, mapping=IndexMapping(…, inputs={{{dim}: …}}, outputs={{{named}}})"
    fitting = _fitting_tile(dim, cut, windows, values)
    if fitting is not None:
        remedy = f"cut {cut[0]} into tiles of {fitting}, say"
    raise DimensionError(
        f"{what} spans {dim}, of which no whole number of elements belongs to a tile of {tiles}",
        loc=here(),
        remedy=f"{remedy}; or take it whole, as a separate dim: Memory[…, sym.L, …]",
    )


MOST_TIMES_LONGER = 1024
"""The limit of the multiple of a tile that an error message suggests."""


def _fitting_tile(dim: Expression, cut: list[Symbol], windows: Windows, values: Values) -> int | None:
    """Return a multiple of the tile that divides a dim into whole elements; None where a longer tile does not help."""
    if len(cut) > 1 or windows[cut[0]].number is None:
        return None
    longer = (windows[cut[0]].extent * n for n in range(2, MOST_TIMES_LONGER))
    return next((n for n in longer if followed(dim, {cut[0]: DimensionWindow.tile(0, n)}, values)), None)


def want_room(trace: Trace, kind: Tile, dims: tuple[Any, ...], what: str) -> None:
    """Refuse a tile with a whole dim that exceeds a workgroup's registers."""
    held, room = prod(kind.shape) * kind.dtype.bytes, trace.room
    whole = max((d for d in dims if is_whole(trace, d)), key=lambda d: kind.shape[dims.index(d)], default=None)
    if whole is None or room.most_bytes is None or held <= room.most_bytes:
        return
    raise DimensionError(
        f"{what} takes {whole} whole: a tile of {extents(kind.shape)} {kind.dtype} is {held:,} bytes, and the "
        f"registers of a workgroup on {room.target} hold {room.most_bytes:,}",
        loc=here(),
        remedy=f"take it in tiles: {_walked(whole)}",
    )


def _whole(trace: Trace, dim: Expression, what: str) -> int:
    """Return the length of a dim that a workgroup takes whole, or its largest allowed length."""
    length = length_of(trace, dim)
    if isinstance(length, int):
        return max(length, 1)
    if dim in trace.max_sizes:
        trace.limits.setdefault(dim, (0, trace.max_sizes[dim]))
        return trace.max_sizes[dim]
    raise DimensionError(
        f"{what} spans {dim}, which no constraint cuts, and whose length is known only at the launch",
        loc=here(),
        remedy=_cut_or_known(dim),
    )


def _cut_or_known(dim: Expression) -> str:
    """Return what to do about a whole dim of dynamic length."""
    if not isinstance(dim, Symbol):
        return f"say how long it is, subs={{{next(dim.symbols())}: …}}; or {_walked(dim)}"
    return (
        f"call the kernel with its arrays, or say how long it is, subs={{{dim}: …}}, or how long at most, "
        f"max_sizes={{{dim}: 4096}}; or cut it: add WorkgroupConstraint({dim}, BLOCK_{dim}, …), or "
        f"TilingConstraint({dim}, BLOCK_{dim}) and do this inside an iterate over {dim}"
    )


def _walked(dim: Expression) -> str:
    """Return how to tile a dim; one that is an expression needs a symbol that a constraint can name."""
    if isinstance(dim, Symbol):
        return f"add TilingConstraint({dim}, BLOCK_{dim}), and do this inside an iterate over {dim}"
    return (
        "give it its own symbol, Memory[…, sym.L, …], add TilingConstraint(sym.L, BLOCK_L), and do this inside "
        "an iterate over sym.L"
    )
