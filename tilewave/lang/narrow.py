"""Wave's numbers of less than a byte, and its products with scales: decoded where they are read.

`bitcast(read(a), f4e2m1fn)` of `a: Memory[M, K / 2, …, i8]` is a tile [M, K]: element k has the lower or the upper half
of byte k // 2. A scale of `a_scale: Memory[M, K / 32, …, i8]` belongs to 32 elements. Both are read again, at the
places of the elements along K. As bf16 they are exact, and so are they times their scales.

    s ee m   (-1)^s · 2^(ee - 1) · (1 + m / 2), and (-1)^s · m / 2 where ee is 0
"""

from __future__ import annotations

from typing import Any, NoReturn

from tilewave.errors import DTypeError, ShapeError, here
from tilewave.ir.core import Value
from tilewave.ir.types import BF16, F16, F32, FLOAT8, I32, INDEX, U8, U16, U32, DType
from tilewave.lang import ops
from tilewave.lang.indexed import read_at
from tilewave.lang.ops import cast, select, self_index
from tilewave.lang.products import mma
from tilewave.lang.symbols import Combined, Symbol, Whole
from tilewave.lang.tags import taggable
from tilewave.lang.values import Traced, describe
from tilewave.records import dataclass
from tilewave.trace import Trace, current

_UNSIGNED = {F16: U16, BF16: U16, U16: U16, U8: U8, **dict.fromkeys(FLOAT8, U8)}
"""The unsigned integers of dtypes that words are divided into."""
PER_SCALE = 32
"""The elements of an operand that share a scale."""


@dataclass(frozen=True)
class NarrowFloat:
    """A dtype that tiles are decoded from, and that none is computed in."""

    name: str
    bits: int

    def __str__(self) -> str:
        return self.name


F4E2M1FN, F8E8M0FNU = NarrowFloat("f4e2m1fn", 4), NarrowFloat("f8e8m0fnu", 8)


@taggable
def bitcast(x: Traced, dtype: DType | NarrowFloat) -> Traced:
    """Return the numbers of another dtype that have the bits of x: bitcast(x, u32) are the bits of an f32.

    A tile just read along K / n may become one along K, whose elements have an n-th of the bits.
    """
    if not isinstance(x, Traced):
        return ops.bitcast(x, dtype)
    trace = current("bitcast")
    if dtype == F8E8M0FNU:
        scale = _powers_of_two(cast(x, I32) & 255)
        trace.scales[scale.value] = x.value
        return scale
    if x.dtype.is_int and x.dtype.bits > dtype.bits:
        return _parts(trace, x, dtype)
    if isinstance(dtype, NarrowFloat):
        _refuse(x, dtype)
    return ops.bitcast(x, dtype)


@taggable
def scaled_mma(a: Traced, a_scale: Traced, b: Traced, b_scale: Traced, acc: Traced, mma_type: object = None) -> Traced:
    """Return acc + (a · its scales) · (b · its scales)ᵀ; each scale belongs to 32 neighbours along the depth."""
    trace = current("scaled_mma")
    depth = next((d for d in a.dims if d in b.dims and d not in acc.dims), None)
    return mma(_scaled(trace, a, a_scale, depth), _scaled(trace, b, b_scale, depth), acc)


def _scaled(trace: Trace, x: Traced, scale: Traced, depth: Any) -> Traced:
    """Return an operand times its scales, as f32."""
    if x.dtype not in (BF16, *FLOAT8):  # which have few enough bits to be exact as bf16
        what = f"scaled_mma multiplies f4e2m1fn, f8 and bf16, not {describe(x)}"
        raise DTypeError(what, loc=here(), remedy="write mma(a * scales, b * scales, acc)")
    blocks = [d for d in scale.dims if d not in x.dims]
    tile = trace.scales.get(scale.value)
    if tile is None or not _is_read(trace, tile) or [_per(d) for d in blocks] != [(depth, PER_SCALE)]:
        what = f"scaled_mma: the scales {describe(scale)} are not read along {depth} / {PER_SCALE}"
        remedy = f"write bitcast(read(scales), f8e8m0fnu), with scales: Memory[…, {depth} / {PER_SCALE}, …, i8]"
        raise ShapeError(what, loc=here(), remedy=remedy)
    each = _read_again(trace, tile, blocks[0], self_index(depth, INDEX) // PER_SCALE)
    return cast(cast(x, F32) * _powers_of_two(cast(each, I32) & 255), BF16)


def _parts(trace: Trace, x: Traced, dtype: DType | NarrowFloat) -> Traced:
    """Return the parts of each element of a tile that was just read along K / n, as a tile along K."""
    of = [(d, *found) for d in x.dims if (found := _per(d)) and found[1] * dtype.bits == x.dtype.bits]
    if not _is_read(trace, x.value) or len(of) != 1 or dtype not in (F4E2M1FN, *_UNSIGNED):
        _refuse(x, dtype)
    ((packed, dim, count),) = of
    place = self_index(dim, INDEX)
    each = _read_again(trace, x.value, packed, place // count)
    unsigned = cast(cast(each, I32) if each.dtype.bits < 32 else each, U32)
    part = (unsigned >> cast(place % count * dtype.bits, U32)) & (2**dtype.bits - 1)
    if isinstance(dtype, NarrowFloat):
        return _of_four_bits(part)
    bits = _UNSIGNED[dtype]
    return ops.bitcast(cast(part, bits), dtype)


def _is_read(trace: Trace, tile: Value) -> bool:
    """Return whether a tile is one that was just read."""
    return tile in trace.read_from or tile in trace.mapped


def _read_again(trace: Trace, tile: Value, dim: Any, place: Traced) -> Traced:
    """Return the elements of a tile that was just read, at other places along a dim."""
    if tile in trace.read_from:
        return read_at(trace, "read", trace.read_from[tile], {dim: place})
    memory, mapping = trace.mapped[tile]
    of = {e: d for d, e in mapping.outputs.items()}
    places = {e: place if d == dim else self_index(d, INDEX) for e, d in of.items()}
    known = {**trace.symbols, **places}
    kept = (d for d in memory.dims if d in mapping.outputs and d != dim and mapping.keeps(d))
    moved = [d for d in memory.dims if d not in tuple(kept)]
    return read_at(trace, "read", memory, {d: mapping.inputs[d].evaluate(known) for d in moved})


def _per(dim: Any) -> tuple[Symbol, int] | None:
    """Return K and n of a dim K / n."""
    match dim:
        case Combined("/", Symbol() as of, Whole(count)):
            return of, count
    return None


def _of_four_bits(bits: Traced) -> Traced:
    """Return the number of the four bits of each element."""
    exponent, is_half = (bits >> 1) & 3, bits & 1
    normal = ((exponent + 126) << 23) | (is_half << 22)
    magnitude = select(exponent == 0, is_half * (126 << 23), normal)
    return cast(ops.bitcast(magnitude | ((bits >> 3) << 31), F32), BF16)


def _powers_of_two(exponent: Traced) -> Traced:
    """Return 2^(e - 127) as an f32; NaN for 255."""
    bits = select(exponent == 0, 1 << 22, select(exponent == 255, 0x7FC00000, exponent << 23))
    return ops.bitcast(bits, F32)


def _refuse(x: Traced, dtype: DType | NarrowFloat) -> NoReturn:
    what = f"bitcast: {dtype} has {dtype.bits} bits, and {describe(x)} has {x.dtype.bits}"
    remedy = f"give it the tile of a read along K / n, where n elements of {dtype} have the bits"
    raise DTypeError(what, loc=here(), remedy=remedy)
