"""Keys and values stored in the pages of a cache, at slots from memory, with rotary embedding on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache as kept
from typing import Any

from tilewave.call import power_of_two_for
from tilewave.errors import CallError, here
from tilewave.ir.types import I32, I64, DType
from tilewave.kernels.indexed import WIDEST_BYTES, array_of, want_indices
from tilewave.kernels.parameters import kernel_of
from tilewave.kernels.rows import arithmetic_of, looked_at
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import Constraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.ops import cast, scalar
from tilewave.lang.symbols import sym
from tilewave.lang.types import Indices
from tilewave.records import dataclass

Array = Any
T, H, D, V, S, P = sym.T, sym.H, sym.D, sym.V, sym.S, sym.P

TILE_BYTES = 4096
"""The bytes of a tile of several heads. Measured on an H200."""


@dataclass(frozen=True)
class CacheTile:
    """The tokens, heads and elements of a head that a workgroup stores."""

    tokens: int
    heads: int
    elements: int

    @property
    def constraints(self) -> list[Constraint]:
        sizes = ((T, self.tokens), (H, self.heads), (D, self.elements))
        return [WorkgroupConstraint(d, size, i) for i, (d, size) in enumerate(sizes)]


def cache_tile_for(heads: int, elements: int, dtype: DType) -> CacheTile:
    """Return the tile for tokens with so many heads."""
    size = max(2, dtype.bytes)
    tile = min(power_of_two_for(elements), WIDEST_BYTES // size)
    most = max(1, TILE_BYTES // (tile * size))
    together = min(most, 1 << max(heads - 1, 0).bit_length())
    return CacheTile(max(1, most // together), together, tile)


def kv_cache_write(
    x: Array, slots: Array, cache: Array, cos: Array = None, sin: Array = None, positions: Array = None
) -> None:
    """cache[slots[t] // S, slots[t] % S] = x[t]: the heads of token t, in the page and place of its slot.

    x is [token, head, element], the cache [page, place, head, element] with S places in a page; pass
    `cache.transpose(0, 2, 1, 3)` of one whose heads come first. No two slots are equal, apart from those out of bounds,
    such as -1, which store nothing.

    With cos and sin, [position, element / 2], x is rotated: the first half of each head's elements becomes
    a · cos[p] - b · sin[p], the second b · cos[p] + a · sin[p], where p is positions[t].
    """
    _want_axes(x=(x, 3), slots=(slots, 1), cache=(cache, 4))
    rotary = {"cos": cos, "sin": sin, "positions": positions}
    missing = [name for name, array in rotary.items() if array is None]
    if missing and len(missing) < len(rotary):
        what = f"kv_cache_write: {missing[0]} is missing"
        raise CallError(what, loc=here(), remedy="pass cos, sin and positions, or none of them")
    if missing:
        dtypes = _dtypes(x, slots, cache)
        kv_cache_write_kernel(cache_tile_for(x.shape[1], x.shape[2], dtypes[2]), *dtypes)(x, slots, cache)
        return
    half = x.shape[2] // 2
    if x.shape[2] != 2 * half or cache.shape[3] != 2 * half:
        what = f"kv_cache_write: heads of {x.shape[2]} elements in x, {cache.shape[3]} in the cache"
        raise CallError(what, loc=here(), remedy="pass heads of an even number of elements")
    halves = [array[..., part] for array in (x, cache) for part in (slice(half), slice(half, None))]
    a, b, first, second = halves
    dtypes = _dtypes(a, slots, first, cos, sin, positions)
    tile = cache_tile_for(x.shape[1], 2 * half, dtypes[2])
    kernel = rotary_cache_write_kernel(replace(tile, elements=max(1, tile.elements // 2)), *dtypes)
    kernel(a, b, slots, first, second, cos, sin, positions)


def _dtypes(*arrays: Array) -> list[DType]:
    names = ("x", "slots", "cache", "cos", "sin", "positions")
    return [looked_at("kv_cache_write", name, array).dtype for name, array in zip(names, arrays, strict=False)]


def _want_axes(**arrays: tuple[Array, int]) -> None:
    for name, (array, axes) in arrays.items():
        found = looked_at("kv_cache_write", name, array)
        if len(found.shape) != axes:
            what = f"kv_cache_write: {name} has {len(found.shape)} axes, but it takes {axes}"
            raise CallError(what, loc=here(), remedy=f"pass {name} as [{', '.join(_AXES[name])}]")


_AXES: dict[str, Sequence[str]] = {
    "x": ("token", "head", "element"),
    "slots": ("token",),
    "cache": ("page", "place", "head", "element"),
}


@kept
def kv_cache_write_kernel(tile: CacheTile, x_dtype: DType, slots_dtype: DType, cache_dtype: DType) -> WaveKernel:
    """Return the kernel from x[T, H, D] and slots[T] to cache[V, S, H, D]."""
    arithmetic_of("kv_cache_write", x=x_dtype, cache=cache_dtype)
    want_indices("kv_cache_write", slots=slots_dtype)

    def store(to: Any) -> None:
        write(cast(read(to.x), cache_dtype), to.cache, at=_place(to.slots))

    arrays = {"x": array_of(x_dtype, T, H, D), "slots": _slots(slots_dtype), "cache": array_of(cache_dtype, V, S, H, D)}
    return kernel_of("kv_cache_write", tile.constraints, arrays, store)


@kept
def rotary_cache_write_kernel(
    tile: CacheTile,
    x_dtype: DType,
    slots_dtype: DType,
    cache_dtype: DType,
    cos_dtype: DType,
    sin_dtype: DType,
    positions_dtype: DType,
) -> WaveKernel:
    """Return the kernel from the halves a and b of x, both [T, H, D], to the halves of the cache, both [V, S, H, D],
    by cos[P, D] and sin[P, D] at positions[T]."""
    of = arithmetic_of("kv_cache_write", x=x_dtype, cache=cache_dtype, cos=cos_dtype, sin=sin_dtype)
    want_indices("kv_cache_write", slots=slots_dtype, positions=positions_dtype)

    def store(to: Any) -> None:
        at = {P: read(to.positions)}
        cos, sin = (cast(read(array, at=at), of) for array in (to.cos, to.sin))
        a, b = (cast(read(array), of) for array in (to.a, to.b))
        place = _place(to.slots)
        write(cast(a * cos - b * sin, cache_dtype), to.first, at=place)
        write(cast(b * cos + a * sin, cache_dtype), to.second, at=place)

    arrays = {
        **{name: array_of(x_dtype, T, H, D) for name in ("a", "b")},
        "slots": _slots(slots_dtype),
        **{name: array_of(cache_dtype, V, S, H, D) for name in ("first", "second")},
        "cos": array_of(cos_dtype, P, D),
        "sin": array_of(sin_dtype, P, D),
        "positions": array_of(positions_dtype, T),
    }
    return kernel_of("kv_cache_write", tile.constraints, arrays, store)


def _slots(dtype: DType) -> Any:
    return array_of(dtype, T, contract=Indices(unique=True))


def _place(slots: Any) -> dict[Any, Any]:
    """Return the page of each slot, and its place there; divisions of 64 bits only where slots have them."""
    slot = read(slots)
    of = I64 if slot.dtype.bits > 32 else I32
    slot, places = cast(slot, of), scalar(S, of)
    return {V: slot // places, S: slot % places}
