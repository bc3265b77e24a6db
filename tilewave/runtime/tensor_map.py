"""Tensor maps: how Hopper's copy engine is told where an array lies and which box of it one copy takes.

The driver counts axes from the fastest, we from the slowest, as arrays do. What the engine cannot do is refused here,
before the driver sees it, with the reason; out of bounds it reads zeros and writes nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_void_p
from typing import Any, NamedTuple

from tilewave.ir.python_code import code_of, pattern
from tilewave.ir.types import DType
from tilewave.machine.chips import TENSOR_MAPS as ENGINE
from tilewave.runtime.array_places import ArrayNames
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
        kind, how = self.encoding()
        encode = driver.unconverted("cuTensorMapEncodeTiled", kernel)
        code = encode(
            c_void_p(descriptor.address), *kind, c_void_p(pointer), byref(numbers), byref(numbers, 8 * rank), *how
        )
        if code:
            raise driver.failure(kernel, "cuTensorMapEncodeTiled", code)
        return descriptor

    def numbers(self) -> list[int]:
        """Its sizes and strides, as the driver reads them."""
        item, of = self.dtype.bytes, ArrayNames([len(self.sizes)])
        numbers = map_numbers(of.lengths[0][::-1], of.steps[0][::-1], item)
        code = code_of("pointers, shapes, strides", [*of.taken(), f"return {pattern(numbers)}"])
        return [*code((0,), (self.sizes,), ([stride // item for stride in self.strides],))]

    def encoding(self) -> Encoding:
        """What the driver is told before where an array is and how long, and behind that."""
        assert len(self.box) == len(self.sizes) == len(self.strides), f"a box of {self.box} for sizes {self.sizes}"
        return encoding(self.box, self.swizzle_bytes, self.l2_promotion_bytes, self.dtype)


Encoding = tuple[tuple[int, int], tuple[Any, ...]]
"""The dtype and how many axes; references to a box and to steps of one element, and four words of the driver's own."""


def map_numbers(lengths: Sequence[str], steps: Sequence[str], item_bytes: int) -> list[str]:
    """How the numbers of a map are computed: lengths, then strides in bytes of all axes but the first, and a 0 for it.

    Axes go from the fastest to the slowest; one of length 1 gets a stride that the engine accepts.
    """
    row = f"-(-{lengths[0]} * {item_bytes} // {GRAIN}) * {GRAIN}"
    axes = zip(lengths[1:], steps[1:], strict=True)
    return [*lengths, *(f"{step} * {item_bytes} if {length} > 1 else {row}" for length, step in axes), "0"]


def encoding(box: tuple[int, ...], swizzle_bytes: int, l2_promotion_bytes: int, dtype: DType) -> Encoding:
    """What all tensor maps of one kind have in common."""
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
    return (_DTYPES[dtype.name], rank), (byref(memory), byref(memory, 4 * rank), *how)


class TensorMapBytes:
    """128 bytes at an address that the driver accepts."""

    __slots__ = ("_memory", "address")

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT

    def __bytes__(self) -> bytes:
        return ctypes.string_at(self.address, MAP_BYTES)
