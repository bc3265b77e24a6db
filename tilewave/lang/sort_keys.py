"""Keys: unsigned numbers that have the order of a tile's elements, and from which these come back.

A key is the bits of an element, made so that unsigned comparison orders them, above its index:

    f32      negative: all bits inverted; else the sign bit set      -1.0 → 0x407fffff, 0.0 → 0x80000000
    i32      the sign bit inverted                                   -1 → 0x7fffffff, 0 → 0x80000000
    below    index · 2, plus 1 for -0, which is equal to 0           of equal elements the lower index is lower

So no two keys are equal. Keys of elements of up to 32 bits are one u64, those of wider ones a u64 and a u32, of which
the second decides between equal ones. NaN is larger than infinity, whatever its sign.
"""

from __future__ import annotations

from typing import Any

from tilewave.ir.types import BOOL, F32, F64, I8, I32, I64, U32, U64, DType
from tilewave.lang.ops import bitcast, cast, select
from tilewave.lang.reductions import inside_of, positions
from tilewave.lang.values import beside
from tilewave.records import dataclass
from tilewave.trace import Trace

Keys = tuple[Any, ...]
"""The tiles of a key: a u64, or a u64 and a u32."""
NAN = {F32: 0x7FC00000, F64: 0x7FF8 << 48}
"""The bits that every NaN has in a key."""


@dataclass(frozen=True)
class KeyOrder:
    """The order of keys: that of values and indices, or the opposite of either."""

    dtype: DType
    """The dtype of the elements."""
    inverts_values: bool
    inverts_indices: bool

    @property
    def wide(self) -> DType:
        """The dtype of 32 or 64 bits that has all numbers of the elements' one."""
        if self.dtype.is_float:
            return F64 if self.dtype == F64 else F32
        if self.dtype.bits == 64:
            return I64 if self.dtype.is_signed else U64
        return I32 if self.dtype.is_signed else U32

    @property
    def bits(self) -> DType:
        """The dtype of the values' part of a key."""
        return U64 if self.wide.bits == 64 else U32

    @property
    def sign(self) -> int:
        return 1 << (self.wide.bits - 1)

    def keys(self, trace: Trace, x: Any, dim: Any, op: str) -> Keys:
        """Return the keys of a tile along a dim.

        Past its end they are above all others; where indices are inverted they are 0, which no element's key is.
        """
        wide = cast(cast(x, I8) if x.dtype == BOOL else x, self.wide)
        value, index = self._of_value(wide), beside(positions(trace, x, dim, U32), cast(wide, U32)) << 1
        if self.wide.is_float:
            index = index | cast((wide == 0) & (bitcast(wide, self.bits) >= self.sign), U32)
        value, index = ~value if self.inverts_values else value, ~index if self.inverts_indices else index
        keys = (value, index) if self.bits == U64 else ((cast(value, U64) << 32) | cast(index, U64),)
        inside = inside_of(trace, x, dim, op)
        if inside is None:
            return keys
        beyond = (0 if self.inverts_indices else key.dtype.bounds[1] for key in keys)
        return tuple(select(x.make(inside), key, end) for key, end in zip(keys, beyond, strict=True))

    def _of_value(self, x: Any) -> Any:
        """Return unsigned numbers with the order of x."""
        if not self.wide.is_float:
            return bitcast(x, self.bits) ^ self.sign if self.wide.is_signed else x
        number = select(x != x, NAN[self.wide], bitcast(select(x == 0, 0.0, x), self.bits))
        return select(number >= self.sign, ~number, number | self.sign)

    def values(self, keys: Keys) -> Any:
        """Return the elements of keys."""
        number, index = self._parts(keys)
        if not self.wide.is_float:
            whole = bitcast(number ^ self.sign, self.wide) if self.wide.is_signed else number
            return whole != 0 if self.dtype == BOOL else cast(whole, self.dtype)
        found = bitcast(select(number >= self.sign, number ^ self.sign, ~number), self.wide)
        return cast(select((index & 1) != 0, -0.0, found), self.dtype)

    def indices(self, keys: Keys) -> Any:
        """Return the indices of keys, as an i32."""
        return cast(self._parts(keys)[1] >> 1, I32)

    def _parts(self, keys: Keys) -> tuple[Any, Any]:
        value, index = keys if self.bits == U64 else (cast(keys[0] >> 32, U32), cast(keys[0], U32))
        return ~value if self.inverts_values else value, ~index if self.inverts_indices else index
