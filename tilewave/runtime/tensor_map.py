"""Tensor maps: the descriptors from which TMA knows an array's layout and the box that one copy takes.

The driver counts axes from the fastest; here they count from the slowest, as in arrays. What TMA cannot do is refused
before the driver sees it, with the reason; out of bounds it reads zeros and writes nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref
from typing import Any, NamedTuple

from tilewave.ir.host_program import Number, chosen, rounded_up
from tilewave.ir.types import DType
from tilewave.machine.chips import TENSOR_MAPS as ENGINE
from tilewave.runtime.cuda_driver import CudaDriver

MAP_BYTES, MAP_ALIGNMENT = 128, 64
GRAIN = ENGINE.grain_bytes

# CUtensorMapDataType; TMA only moves bytes, so every dtype of one byte is its UINT8, and i16 its UINT16.
_DTYPES = {
    "f8e4m3fn": 0,
    "f8e5m2": 0,
    "f8e4m3fnuz": 0,
    "f8e5m2fnuz": 0,
    "i8": 0,
    "u8": 0,
    "bool": 0,
    "i16": 1,
    "u16": 1,
    "u32": 2,
    "i32": 3,
    "u64": 4,
    "i64": 5,
    "f16": 6,
    "f32": 7,
    "f64": 8,
    "bf16": 9,
}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
_NO_INTERLEAVE, _FILL_WITH_ZEROS = 0, 0


class TensorMap(NamedTuple):
    """An array as TMA sees it; sizes, strides and box from the slowest axis to the fastest."""

    dtype: DType
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes; one element along the fastest axis, and ignored along an axis of length 1."""
    box: tuple[int, ...]
    """The elements of one copy along each axis."""
    swizzle_bytes: int = 128
    l2_promotion_bytes: int = 128
    """The bytes that the L2 cache fetches at once."""

    def problem(self, pointer: int) -> str:
        """Return why TMA cannot access this array at this address, as said after its name; empty if it can."""
        sizes, strides, item, grain = self.sizes, self.strides, self.dtype.bytes, ENGINE.grain_bytes
        if not 1 <= len(sizes) <= ENGINE.most_axes:
            return f"has {len(sizes)} axes, and TMA takes 1 to {ENGINE.most_axes}"
        if pointer % grain or not pointer:
            return f"begins at {pointer:#x}, and TMA needs a multiple of {grain} bytes"
        if min(sizes) < 1 or max(sizes) > 1 << 32:
            return f"has sizes {sizes}, and TMA takes 1 to 2³² along each axis"
        if sizes[-1] > 1 and strides[-1] != item:
            return f"steps {strides[-1]} bytes along its fastest axis, and TMA needs {item}"
        for size, stride in zip(sizes[:-1], strides, strict=False):
            if size > 1 and stride < 0:
                return f"has a negative stride ({stride} bytes), and TMA takes none"
            if size > 1 and (stride % grain or stride >= 1 << 40):
                return f"has rows {stride} bytes apart, and TMA needs a multiple of {grain}"
        return ""

    def encode(self, driver: CudaDriver, pointer: int, kernel: str) -> TensorMapBytes:
        """Return the map as the 128 bytes that TMA reads."""
        descriptor, rank = TensorMapBytes(), len(self.sizes)
        numbers = (ctypes.c_uint64 * (2 * rank))(*self.numbers())
        kind = self.encoding()
        where = descriptor.address, kind.dtype, kind.rank, pointer
        sizes = byref(numbers), byref(numbers, 8 * rank), byref(kind.box), byref(kind.box, kind.units_at)
        how = kind.interleave, kind.swizzle, kind.promotion, kind.fill
        driver.call(kernel, "cuTensorMapEncodeTiled", *where, *sizes, *how)
        return descriptor

    def numbers(self) -> list[int]:
        """Return the sizes and strides in the driver's order."""
        item = self.dtype.bytes
        return map_numbers(self.sizes[::-1], [stride // item for stride in reversed(self.strides)], item)

    def encoding(self) -> Encoding:
        """Return the driver's arguments that do not depend on the array's address and lengths."""
        assert len(self.box) == len(self.sizes) == len(self.strides), f"a box of {self.box} for sizes {self.sizes}"
        return encoding(self.box, self.swizzle_bytes, self.l2_promotion_bytes, self.dtype)


class Encoding(NamedTuple):
    """The arguments of cuTensorMapEncodeTiled that all tensor maps of one kind share."""

    dtype: int
    rank: int
    box: Any
    """The box in memory, followed by an element stride of 1 for each axis."""
    interleave: int
    swizzle: int
    promotion: int
    fill: int

    @property
    def units_at(self) -> int:
        """The offset of the element strides, which follow the box."""
        return ctypes.sizeof(self.box) // 2


def map_numbers(lengths: Sequence[Number], steps: Sequence[Number], item_bytes: int) -> list[Number]:
    """Return the sizes and strides of a map: lengths, then strides in bytes of all axes but the first, and a 0 for it.

    Axes go from the fastest to the slowest; one of length 1 gets a stride that TMA accepts.
    """
    row = rounded_up(lengths[0] * item_bytes, GRAIN) * GRAIN
    axes = zip(lengths[1:], steps[1:], strict=True)
    return [*lengths, *(chosen(length > 1, step * item_bytes, row) for length, step in axes), 0]


def encoding(box: tuple[int, ...], swizzle_bytes: int, l2_promotion_bytes: int, dtype: DType) -> Encoding:
    """Return the encoding of tensor maps with this box, swizzle, L2 promotion and dtype."""
    row, rank = box[-1] * dtype.bytes, len(box)
    assert all(1 <= size <= ENGINE.longest_side for size in box), f"a box of {box}: 1 to {ENGINE.longest_side} per axis"
    assert row % GRAIN == 0, f"rows of {row} bytes in a box; multiples of {GRAIN} are needed"
    assert swizzle_bytes in _SWIZZLES, f"no swizzle of {swizzle_bytes} bytes"
    assert l2_promotion_bytes in _PROMOTIONS, f"no promotion to {l2_promotion_bytes} bytes"
    fits = not swizzle_bytes or row <= swizzle_bytes
    assert fits, f"rows of {row} bytes in a box, but a swizzle over {swizzle_bytes}"
    assert dtype.name in _DTYPES, f"no tensor map of {dtype.name}"
    memory = (ctypes.c_uint32 * (2 * rank))(*box[::-1], *[1] * rank)
    how = _NO_INTERLEAVE, _SWIZZLES[swizzle_bytes], _PROMOTIONS[l2_promotion_bytes], _FILL_WITH_ZEROS
    return Encoding(_DTYPES[dtype.name], rank, memory, *how)


class TensorMapBytes:
    """128 bytes at an address that the driver accepts."""

    __slots__ = ("_memory", "address")

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT

    def __bytes__(self) -> bytes:
        return ctypes.string_at(self.address, MAP_BYTES)
