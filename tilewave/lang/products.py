"""Matrix products, as authors write them."""

from __future__ import annotations

from typing import Any

from tilewave.errors import DTypeError, ShapeError, TraceError, here
from tilewave.ir import ops as ir
from tilewave.ir.types import F32, F64, FLOAT8, I8, I32, DType, Tile, dims
from tilewave.lang.mma_types import MMAType, instruction_asked
from tilewave.lang.operands import want_tile
from tilewave.lang.reductions import inside_of
from tilewave.lang.symbols import Expression, Symbol
from tilewave.lang.tags import taggable
from tilewave.lang.values import Traced, extents_of, in_order, repeated, without_single_dims
from tilewave.lang.windows import length_of
from tilewave.trace import TileProduct, Trace, current


@taggable
def mma(a: Traced, b: Traced, acc: Traced | None = None, mma_type: MMAType | None = None) -> Traced:
    """Return acc + a · bᵀ over the dimension that a and b share and acc lacks; `mma_type` asks for an instruction."""
    trace = current("mma")
    asked = instruction_asked("mma: ", mma_type, here())
    if acc is None:
        remedy = "write mma(a, b, acc); without sums to go on with, acc is Register[M, N, f32](0.0)"
        raise TraceError("mma adds products to sums, and none are given", loc=here(), remedy=remedy)
    for x in (a, b, acc):
        want_tile("mma", x)
    a, b = _without_others(trace, a, b, acc), _without_others(trace, b, a, acc)
    a, b = _with_batch(trace, a, b, acc), _with_batch(trace, b, a, acc)
    _check_product(trace, a, b, acc)
    *batch, rows, cols = acc.dims
    if cols in a.dims and rows in b.dims and rows not in a.dims:
        a, b = b, a
    (depth,) = (d for d in a.dims if d in b.dims and d not in acc.dims)
    trace.products.append(TileProduct(rows, cols, depth, tuple(batch), a.dtype, acc.dtype, trace.walked))
    x = _whole_depth(trace, in_order(a, (*batch, rows, depth)), depth)
    y = _whole_depth(trace, in_order(b, (*batch, cols, depth)), depth)
    wish = asked.value if asked else ""
    return acc.make(trace.emit(ir.Mma, x.value, y.value, acc.value, wish, type=acc.type))


def _without_others(trace: Trace, x: Traced, other: Traced, acc: Traced) -> Traced:
    """Return an operand without dims of one element that are no part of its rows or columns, or of the depth."""
    alone = [d for d in x.dims if d not in acc.dims and d not in other.dims]
    rows_and_cols = acc.dims[-2:]
    if any(d in x.dims and d not in other.dims for d in rows_and_cols):
        alone += [d for d in rows_and_cols if d in x.dims and d in other.dims and _is_side(x, other, acc)]
    extents = extents_of(x)
    shared = [d for d in x.dims if d in other.dims and d not in acc.dims]
    if len(long := [d for d in shared if extents[d] > 1]) == 1:  # which is summed over
        alone += [d for d in shared if d not in long]
    return _without(trace, x, [d for d in alone if extents[d] == 1])


def _without(trace: Trace, x: Traced, dims: list[Any]) -> Traced:
    """Return x without dims of one element; a tile just read, before any write, is read without them."""
    at = next((at for at, op in enumerate(trace.ops) if x.value in op.results), len(trace.ops))
    made, *later = [*trace.ops[at:], None]
    is_fresh = all(op is None or (op.results and not op.blocks) for op in later)
    if not dims or not isinstance(made, ir.Read) or not is_fresh or any(length_of(trace, d) == 0 for d in dims):
        return without_single_dims(trace, x, dims)
    kept = [(axis, n, d) for axis, n, d in zip(made.axes, x.type.shape, x.dims, strict=True) if d not in dims]
    axes, shape, left = zip(*kept, strict=True)
    value = trace.emit(ir.Read, made.memory, made.at, axes, made.through, made.per_lane, type=Tile(shape, x.dtype))
    trace.zero_outside[value] = trace.zero_outside.get(x.value, frozenset()).difference(dims)
    return Traced(trace, value, left)


def _is_side(x: Traced, other: Traced, acc: Traced) -> bool:
    """Return whether the other operand has no row or column dim of the result but those that x has too."""
    return not any(d in other.dims and d not in x.dims for d in acc.dims[-2:])


def _with_batch(trace: Trace, x: Traced, other: Traced, acc: Traced) -> Traced:
    """Return an operand repeated along the batch dims of the result that only the other operand has."""
    missing = [d for d in acc.dims[:-2] if d in other.dims and d not in x.dims]
    if not any(d in other.dims for d in acc.dims[-2:]):
        return x  # the other operand has no row or column of the last two dims
    if not missing or any(d in x.dims and d in other.dims for d in acc.dims[-2:]):
        return x
    extents = extents_of(other)
    found = repeated(trace, x, {**{d: extents[d] for d in missing}, **extents_of(x)})
    trace.zero_outside[found.value] = trace.zero_outside.get(x.value, frozenset())
    return found


def _whole_depth(trace: Trace, x: Traced, depth: Any) -> Traced:
    """Return x with zeros past the end of the K dimension, where it may have something else there."""
    inside = None if depth in trace.zero_outside.get(x.value, ()) else inside_of(trace, x, depth, "mma")
    if inside is None:
        return x
    zero = trace.const(0.0 if x.dtype.is_float else 0, x.type)
    return x.make(trace.emit(ir.Select, inside, x.value, zero, type=x.type))


def _check_product(trace: Trace, a: Traced, b: Traced, acc: Traced) -> None:
    shared = [d for d in a.dims if d in b.dims and d not in acc.dims]
    mine = [d for d in a.dims if d in acc.dims and d not in b.dims]
    theirs = [d for d in b.dims if d in acc.dims and d not in a.dims]
    batch = [d for d in acc.dims if d in a.dims and d in b.dims]
    fits = len(shared) == len(mine) == len(theirs) == 1 and set(acc.dims[:-2]) == set(batch)
    fits = fits and len(a.dims) == len(b.dims) == len(acc.dims) >= 2
    if not fits or not _extents_agree(a, b, acc):
        first = f"mma: a is {_plain(a)} and b is {_plain(b)}, but the accumulator is {_plain(acc)}"
        raise ShapeError(first, loc=here(), remedy=_product_remedy(trace, a, b, acc, shared))
    _check_dtypes(a.dtype, b.dtype, acc.dtype)


def _check_dtypes(a: DType, b: DType, acc: DType) -> None:
    if a != b and not (a in FLOAT8 and b in FLOAT8):
        narrow, wide = sorted((a, b), key=lambda dtype: dtype.bits)
        remedy = f"write cast(x, {narrow}) or cast(x, {wide}) for one of them; GPUs multiply f16, bf16, f8 and i8"
        raise DTypeError(f"mma multiplies operands of one dtype, not {a} and {b}", loc=here(), remedy=remedy)
    sums = SUMS.get(a, (F32, F64) if a.is_float else ())
    if not sums:
        remedy = "cast its operands: floats, or i8 for whole numbers"
        raise DTypeError(f"mma does not multiply {a}", loc=here(), remedy=remedy)
    if acc not in sums:
        zero = "0.0" if sums[0].is_float else "0"
        raise DTypeError(
            f"mma adds products of {a} up in {' or '.join(map(str, sums))}, not in {acc}",
            loc=here(),
            remedy=f"begin with Register[M, N, {sums[0]}]({zero}), and cast the result afterwards",
        )


SUMS: dict[DType, tuple[DType, ...]] = {F64: (F64,), I8: (I32,)}
"""The accumulator dtypes of operand dtypes, where they are not f32 or f64."""


def _extents_agree(*tiles: Traced) -> bool:
    extents: dict[Any, int] = {}
    pairs = (pair for t in tiles for pair in zip(t.dims, t.type.shape, strict=True))
    return all(extents.setdefault(d, n) == n for d, n in pairs)


def _plain(x: Traced) -> str:
    return f"{dims(x.type.shape)} [{', '.join(map(str, x.dims))}]"


def _product_remedy(trace: Trace, a: Traced, b: Traced, acc: Traced, shared: list[Any]) -> str:
    def elsewhere(x: Traced) -> bool:
        return x.value in trace.made_at and trace.made_at[x.value].line != here().line

    named = (("a", a), ("b", b))
    made = "; ".join(f"{name} was made at {trace.made_at[x.value]}" for name, x in named if elsewhere(x))
    if len(shared) != 1:
        return f"a and b must share exactly one dim that the accumulator has not, to sum over; {made}".rstrip("; ")
    rows, cols = acc.dims[-2:]
    depth = shared[0]
    for batch in acc.dims[:-2]:
        for name, x, side in (("a", a, rows), ("b", b, cols)):
            wanted = (*acc.dims[:-2], side, depth)
            if batch not in x.dims and set(x.dims) <= set(wanted):
                listed = ", ".join(map(str, wanted))
                return f"{name} has no {batch}: write broadcast({name}, target_shape=[{listed}]); {made}".rstrip("; ")
    for name, x, other in (("a", a, b), ("b", b, a)):
        if single := _single_dims(x, other, acc):
            left = ", ".join(str(d) for d in acc.dims if d not in single)
            gone = ", ".join(map(str, single))
            return (
                f"{name} has one element along {gone}: leave that out, {name}.max(dim=[{gone}]), and begin with "
                f"Register[{left}, {acc.dtype}](…); write puts a dim of one element back"
            )
    for name, x in named:
        if repeated := _blocks_to_repeat(name, x):
            return repeated
    return f"a needs the dims [{rows}, {depth}] and b [{cols}, {depth}], in any order; {made}".rstrip("; ")


def _blocks_to_repeat(name: str, x: Traced) -> str:
    """Return what to write for an operand that was scaled by several blocks of a dim; empty where it was not."""
    extents = dict(zip(x.dims, x.type.shape, strict=True))
    for d, count in extents.items():
        if not isinstance(d, Expression) or isinstance(d, Symbol):
            continue
        cut = [s for s in d.symbols() if s in extents]
        if len(cut) == 1 and extents[cut[0]] % count == 0:
            block, along = extents[cut[0]] // count, cut[0]
            return (
                f"{name} has {count} blocks of {block} along {along}: repeat each element of {d} along its block, "
                f"read(…, mapping=IndexMapping(…, inputs={{…, {d}: j // {block}}}, outputs={{…, {along}: j}})), "
                f"or tile {along} by {block}"
            )
    return ""


def _single_dims(x: Traced, other: Traced, acc: Traced) -> list[Any]:
    """Return the dims of one element that an operand has besides its row or column dim of the result."""
    alone = [d for d in x.dims if d in acc.dims and d not in other.dims]
    extents = extents_of(x)
    single = [d for d in alone if extents[d] == 1]
    return single if len(alone) - len(single) == 1 else single[:-1] if len(alone) == len(single) else []
