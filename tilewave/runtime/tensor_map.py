"""Tensor maps: how Hopper's copy engine is told where an array lies and which box of it one copy takes.

The driver counts axes from the fastest, we from the slowest, as arrays do. What the engine cannot do is refused here,
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

_DTYPES = {
    "f8e4m3fn": 0,
    "f8e5m2": 0,
    "f8e4m3fnuz": 0,
    "f8e5m2fnuz": 0,
    "i8": 0,
    "bool": 0,
    "i32": 3,
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
    """An array as the copy engine sees it; sizes, strides and box from the slowest axis to the fastest."""

    dtype: DType
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes; that of the fastest axis is one element, and that of an axis of length 1 counts for nothing."""
    box: tuple[int, ...]
    """How many elements along each axis one copy takes."""
    swizzle_bytes: int = 128
    l2_promotion_bytes: int = 128
    """How much the L2 cache fetches at once."""

    def problem(self, pointer: int) -> str:
        """Why the copy engine cannot take this array at this address, as said after its name; empty if it can."""
        sizes, strides, item, grain = self.sizes, self.strides, self.dtype.bytes, ENGINE.grain_bytes
        if not 1 <= len(sizes) <= ENGINE.most_axes:
            return f"has {len(sizes)} axes, and the copy engine takes 1 to {ENGINE.most_axes}"
        if pointer % grain or not pointer:
            return f"begins at {pointer:#x}, and the copy engine needs a multiple of {grain} bytes"
        if min(sizes) < 1 or max(sizes) > 1 << 32:
            return f"has sizes {sizes}, and the copy engine takes 1 to 2³² along each axis"
        if sizes[-1] > 1 and strides[-1] != item:
            return f"steps {strides[-1]} bytes along its fastest axis, and the copy engine needs {item}"
        for size, stride in zip(sizes[:-1], strides, strict=False):
            if size > 1 and stride < 0:
                return f"has a negative stride ({stride} bytes), and the copy engine only goes forward"
            if size > 1 and (stride % grain or stride >= 1 << 40):
                return f"has rows {stride} bytes apart, and the copy engine needs a multiple of {grain}"
        return ""

    def encode(self, driver: CudaDriver, pointer: int, kernel: str) -> TensorMapBytes:
        """The map in the copy engine's own words."""
        descriptor, rank = TensorMapBytes(), len(self.sizes)
        numbers = (ctypes.c_uint64 * (2 * rank))(*self.numbers())
        kind = self.encoding()
        where = descriptor.address, kind.dtype, kind.rank, pointer
        sizes = byref(numbers), byref(numbers, 8 * rank), byref(kind.box), byref(kind.box, kind.units_at)
        how = kind.interleave, kind.swizzle, kind.promotion, kind.fill
        driver.call(kernel, "cuTensorMapEncodeTiled", *where, *sizes, *how)
        return descriptor

    def numbers(self) -> list[int]:
        """Its sizes and strides, as the driver reads them."""
        item = self.dtype.bytes
        return map_numbers(self.sizes[::-1], [stride // item for stride in reversed(self.strides)], item)

    def encoding(self) -> Encoding:
        """What the driver is told before where an array is and how long, and behind that."""
        assert len(self.box) == len(self.sizes) == len(self.strides), f"a box of {self.box} for sizes {self.sizes}"
        return encoding(self.box, self.swizzle_bytes, self.l2_promotion_bytes, self.dtype)


class Encoding(NamedTuple):
    """What the driver is told of all tensor maps of one kind, as it has the words."""

    dtype: int
    rank: int
    box: Any
    """In memory, and behind it as many steps of one element."""
    interleave: int
    swizzle: int
    promotion: int
    fill: int

    @property
    def units_at(self) -> int:
        """Where the steps begin behind the box."""
        return ctypes.sizeof(self.box) // 2


def map_numbers(lengths: Sequence[Number], steps: Sequence[Number], item_bytes: int) -> list[Number]:
    """The numbers of a map: lengths, then strides in bytes of all axes but the first, and a 0 for it.

    Axes go from the fastest to the slowest; one of length 1 gets a stride that the engine accepts.
    """
    row = rounded_up(lengths[0] * item_bytes, GRAIN) * GRAIN
    axes = zip(lengths[1:], steps[1:], strict=True)
    return [*lengths, *(chosen(length > 1, step * item_bytes, row) for length, step in axes), 0]


def encoding(box: tuple[int, ...], swizzle_bytes: int, l2_promotion_bytes: int, dtype: DType) -> Encoding:
    """Of tensor maps of such boxes."""
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
