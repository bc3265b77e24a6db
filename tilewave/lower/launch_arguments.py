"""The needs of a GPU kernel's launch; imports no lowering, so that reading a saved kernel is fast."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

from tilewave.records import dataclass

LARGEST_WINDOW = (1 << 31) - 1
"""The most bytes of one window on an array."""


@dataclass(frozen=True)
class KernelArgument:
    """A kernel argument: an array's address, its stride along an axis in elements, a scalar, or scratch memory."""

    name: str
    kind: str
    """`pointer`, `stride`, `symbol` or `scratch`."""
    axis: int = -1
    dtype: str = ""
    scratch_bytes: int = 0

    @property
    def bytes(self) -> int:
        return 8


@dataclass(frozen=True)
class MapArgument:
    """A TMA tensor map of an array: its axes from the slowest to the fastest, and the box of one copy."""

    name: str
    axes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int


@dataclass(frozen=True)
class Reach:
    """The largest distance, along each axis, of an element from the first one of a window."""

    name: str
    bytes: int
    """Bytes of one element."""
    steps: tuple[int, ...]
    grain: int = 1
    """Bytes that the array's address and row strides must be multiples of."""
    beyond: tuple[int, ...] = ()
    """For dynamic extents: how many elements past the end of each axis windows reach."""
    whole: int = 1
    """Elements that the length of rows must be a multiple of."""

    def allows(self, strides: Sequence[int], address: int = 0, shape: Sequence[int] = ()) -> bool:
        """Return whether windows can reach an array of these strides, in elements; `shape` for dynamic extents."""
        if any(n % self.grain for n in (address, *(stride * self.bytes for stride in strides[:-1]))):
            return False
        if shape and (shape[-1] % self.whole or not self._rows_apart(strides, shape)):
            return False
        distance = sum(far * stride for far, stride in zip(self._far(shape), strides, strict=True)) * self.bytes
        return strides[-1] == 1 and min(strides) >= 0 and distance + self.bytes <= LARGEST_WINDOW

    def _rows_apart(self, strides: Sequence[int], shape: Sequence[int]) -> bool:
        """Return whether the row after the last would begin after all elements, for dynamic extents."""
        last = sum((n - 1) * stride for n, stride in zip(shape[1:], strides[1:], strict=True))
        return not self.beyond or len(shape) == 1 or strides[0] > last

    def _far(self, shape: Sequence[int]) -> tuple[int, ...]:
        if not self.beyond:
            return self.steps
        ends = map(add, shape, self.beyond)
        return tuple(map(min, self.steps, ends))
