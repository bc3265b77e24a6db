"""Tensor maps: how Hopper's copy engine is told where an array lies and which box of it one copy takes.

The driver counts axes from the fastest, we from the slowest, as arrays do. What the engine cannot do is refused here,
before the driver sees it, with the reason; out of bounds it reads zeros and writes nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewave.forks import cached_property
from tilewave.ir.types import DType
from tilewave.machine.chips import TENSOR_MAPS as ENGINE
from tilewave.runtime.cuda_driver import CudaDriver

MAP_BYTES, MAP_ALIGNMENT = 128, 64

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


@dataclass(frozen=True)
class TensorMap:
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

    @property
    def rank(self) -> int:
        return len(self.sizes)

    def problem(self, pointer: int) -> str:
        """Why the copy engine cannot take this array at this address, as said after its name; empty if it can."""
        if self._fits and _is_on_grain(pointer):
            return ""
        return next(self._problems(pointer), "")

    @cached_property
    def _fits(self) -> bool:
        """Whether the copy engine takes it at some address."""
        return not any(self._problems(ENGINE.grain_bytes))

    def _problems(self, pointer: int) -> Iterator[str]:
        item = self.dtype.bytes
        if not 1 <= self.rank <= ENGINE.most_axes:
            yield f"has {self.rank} axes, and the copy engine takes 1 to {ENGINE.most_axes}"
            return
        if not _is_on_grain(pointer):
            yield f"begins at {pointer:#x}, and the copy engine needs a multiple of {ENGINE.grain_bytes} bytes"
        if any(not 1 <= size <= 1 << 32 for size in self.sizes):
            yield f"has sizes {self.sizes}, and the copy engine takes 1 to 2³² along each axis"
        if self.sizes[-1] > 1 and self.strides[-1] != item:
            yield f"steps {self.strides[-1]} bytes along its fastest axis, and the copy engine needs {item}"
        for stride in self._outer_strides():
            if stride < 0:
                yield f"has a negative stride ({stride} bytes), and the copy engine only goes forward"
            elif stride % ENGINE.grain_bytes or stride >= 1 << 40:
                yield f"has rows {stride} bytes apart, and the copy engine needs a multiple of {ENGINE.grain_bytes}"

    def _outer_strides(self) -> list[int]:
        """Strides of all axes but the fastest; an axis of length 1 gets one that the engine accepts."""
        row = -(-self.sizes[-1] * self.dtype.bytes // ENGINE.grain_bytes) * ENGINE.grain_bytes
        axes = zip(self.sizes[:-1], self.strides[:-1], strict=True)
        return [stride if size > 1 else row for size, stride in axes]

    def check_box(self) -> None:
        """What is wrong with a box is a fault of the compiler's, whatever the array."""
        row = self.box[-1] * self.dtype.bytes
        assert len(self.box) == self.rank == len(self.strides), f"a box of {self.box} for sizes {self.sizes}"
        assert all(1 <= size <= ENGINE.longest_side for size in self.box), (
            f"a box of {self.box}: 1 to {ENGINE.longest_side} per axis"
        )
        assert row % ENGINE.grain_bytes == 0, (
            f"rows of {row} bytes in a box; multiples of {ENGINE.grain_bytes} are needed"
        )
        assert self.swizzle_bytes in _SWIZZLES, f"no swizzle of {self.swizzle_bytes} bytes"
        assert self.l2_promotion_bytes in _PROMOTIONS, f"no promotion to {self.l2_promotion_bytes} bytes"
        assert not self.swizzle_bytes or row <= self.swizzle_bytes, (
            f"rows of {row} bytes in a box, but a swizzle over {self.swizzle_bytes}"
        )
        assert self.dtype.name in _DTYPES, f"no tensor map of {self.dtype}"

    def encode(self, driver: CudaDriver, pointer: int, kernel: str) -> TensorMapBytes:
        """The map in the copy engine's own words."""
        descriptor = TensorMapBytes()
        self.encode_at(descriptor.address, driver, pointer, kernel)
        return descriptor

    def encode_at(self, address: int, driver: CudaDriver, pointer: int, kernel: str) -> None:
        """The same, at an address of 128 bytes that the driver accepts."""
        before, after = self._arguments
        driver.call(kernel, "cuTensorMapEncodeTiled", address, *before, pointer, *after)

    @cached_property
    def _arguments(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """What the driver is told of every array that lies so, before and behind its address."""
        self.check_box()
        sizes = (ctypes.c_uint64 * self.rank)(*reversed(self.sizes))
        strides = (ctypes.c_uint64 * self.rank)(*reversed(self._outer_strides()))
        box = (ctypes.c_uint32 * self.rank)(*reversed(self.box))
        steps = (ctypes.c_uint32 * self.rank)(*[1] * self.rank)
        swizzle, promotion = _SWIZZLES[self.swizzle_bytes], _PROMOTIONS[self.l2_promotion_bytes]
        after = sizes, strides, box, steps, _NO_INTERLEAVE, swizzle, promotion, _FILL_WITH_ZEROS
        return (_DTYPES[self.dtype.name], self.rank), after


def _is_on_grain(pointer: int) -> bool:
    return bool(pointer) and not pointer % ENGINE.grain_bytes


class TensorMapBytes:
    """128 bytes at an address that the driver accepts."""

    __slots__ = ("_memory", "address")

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT

    def __bytes__(self) -> bytes:
        return ctypes.string_at(self.address, MAP_BYTES)
