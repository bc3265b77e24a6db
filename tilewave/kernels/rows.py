"""Kernels on the rows of a matrix: how many rows a workgroup takes, and whether it holds them whole or walks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

from tilewave.backend.targets import target_named, target_on
from tilewave.call import room_for
from tilewave.errors import CallError, DTypeError, here
from tilewave.ir.types import F32, F64, DType
from tilewave.lang.constraints import Constraint, TilingConstraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel, wave
from tilewave.lang.loops import iterate
from tilewave.lang.symbols import sym
from tilewave.lang.types import GLOBAL_ADDRESS_SPACE, MemoryType, RegisterType
from tilewave.runtime.arrays import ArrayView, quick_device, view

M, N = sym.M, sym.N

TILE_BYTES, MOST_ROWS = 8192, 64
"""Of short rows a CPU takes so much at a time, and so many at most."""
SHORT_BYTES, SHORT_ROWS, FILLED_BYTES = 1024, 4, 2048
"""Of a row that one wave of a GPU reads in two loads of 16 bytes for each of 32 lanes: a workgroup takes a row for each
of four waves, or, of still shorter ones, as many as fill those with one load. Measured on an H200."""
HELD_BYTES = 131072
"""Of the longest row that a GPU holds whole: eight loads of 16 bytes for each of a workgroup's 1024 lanes."""
STEP_BYTES = 16384
"""Of a row that is walked, a step."""
KEPT_KERNELS = 1024
"""For so many kinds of calls it is remembered which kernel serves them."""


@dataclass(frozen=True)
class Rows:
    """How a kernel takes its rows: so many to a workgroup, and whole, or so many columns at a time."""

    together: int
    step: int | None = None

    @property
    def constraints(self) -> list[Constraint]:
        rows = WorkgroupConstraint(M, self.together, 0)
        return [rows] if self.step is None else [rows, TilingConstraint(N, self.step)]

    def kernel(self, function: Callable[..., None], **parameters: MemoryType | DType) -> WaveKernel:
        """The kernel of a function, whose parameters are these."""
        function.__annotations__ = parameters
        return wave(self.constraints)(function)


def rows_for(target: str, columns: int, dtype: DType) -> Rows:
    """How to take rows on a target: whole where they leave half of a GPU's registers to compute with, at least."""
    held_bytes, most_bytes = room_for(columns) * max(2, dtype.bytes), target_named(target).most_bytes
    if most_bytes is None:
        return Rows(max(1, min(MOST_ROWS, TILE_BYTES // held_bytes)))
    if held_bytes > min(HELD_BYTES, most_bytes // 2):
        return Rows(1, STEP_BYTES // dtype.bytes)
    return Rows(1 if held_bytes > SHORT_BYTES else max(SHORT_ROWS, FILLED_BYTES // held_bytes))


def matrix(dtype: DType) -> MemoryType:
    return MemoryType((M, N), GLOBAL_ADDRESS_SPACE, dtype)


def a_number_a_row(dtype: DType) -> MemoryType:
    return MemoryType((M,), GLOBAL_ADDRESS_SPACE, dtype)


def a_number_a_column(dtype: DType) -> MemoryType:
    return MemoryType((N,), GLOBAL_ADDRESS_SPACE, dtype)


class RowNumbers:
    """The numbers of a kernel's rows, as often as it needs them: held, or read again at every step of a walk."""

    def __init__(self, rows: Rows, dtype: DType, read_them: Callable[[], Any]) -> None:
        self.dtype, self.read_them = dtype, read_them
        self.held = None if rows.step else read_them()

    def sum(self, of_each: Callable[[Any], Any]) -> Any:
        """For each row the sum of what is made of its numbers."""
        if self.held is not None:
            return of_each(self.held).sum(dim=N)

        @iterate(N, init_args=[RegisterType((M,), self.dtype)(0)])
        def total(so_far: Any) -> Any:
            return of_each(self.read_them()).sum(dim=N, acc=so_far)

        return total

    def each(self, do: Callable[[Any], None]) -> None:
        """Do something with all of them, or with those of every step."""
        if self.held is not None:
            do(self.held)
            return

        @iterate(N)
        def step() -> None:
            do(self.read_them())


# which kernel serves a call -----------------------------------------------------------------------------------------

Make = Callable[..., WaveKernel]
"""Of rows and the dtype of each array, the kernel; no dtype for an array that is not given."""
Choose = Callable[[str, int, DType], Rows]
"""Of a target, the number of columns and the dtype of x, how rows are taken."""
_KERNELS: dict[tuple[Any, ...] | None, WaveKernel] = {}


def kernel_for(make: Make, choose: Choose = rows_for, **arrays: Any) -> WaveKernel:
    """The kernel for a call with these arrays: the first is `x`, the rows, and those that are left out are None."""
    key = _quick_key(make, tuple(arrays.values()))
    if key in _KERNELS:
        return _KERNELS[key]
    name = make.__name__.removesuffix("_kernel")
    made = _made(name, make, choose, _views(name, make, arrays))
    if key is not None and len(_KERNELS) < KEPT_KERNELS:
        _KERNELS[key] = made
    return made


def _views(name: str, make: Make, arrays: dict[str, Any]) -> dict[str, ArrayView | None]:
    """The memory of each array; None only for one that the kernel can do without: its dtype has a default."""
    _, *dtypes = signature(make).parameters.values()
    can_miss = [parameter.default is None for parameter in dtypes]
    return {
        of: None if array is None and missing else looked_at(name, of, array)
        for (of, array), missing in zip(arrays.items(), can_miss, strict=False)
    }


def _made(name: str, make: Make, choose: Choose, views: dict[str, ArrayView | None]) -> WaveKernel:
    x = views["x"]
    assert x is not None, "every kernel has rows"
    if len(x.shape) != 2:
        what = f"{name}: x has {len(x.shape)} axes, but it takes rows and columns"
        raise CallError(what, loc=here(), remedy="pass x.reshape(-1, x.shape[-1])")
    rows = choose(target_on(name, x.device).name, x.shape[1], x.dtype)
    return make(rows, *(None if v is None else v.dtype for v in views.values()))


def _quick_key(make: Make, arrays: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What decides which kernel serves a call; None where that must be looked at closely."""
    try:
        device, (_, columns) = quick_device(arrays[0]), arrays[0].shape
        return (make, device, room_for(columns), *[None if a is None else a.dtype for a in arrays]) if device else None
    except (AttributeError, TypeError, ValueError):
        return None


def looked_at(kernel: str, name: str, array: Any) -> ArrayView:
    """The memory of an array that a call gives a kernel."""
    try:
        return view(array, f"{kernel}: {name}")
    except CallError as error:
        raise CallError(error.what, loc=here(), remedy=error.remedy) from None


# what rows are computed in ------------------------------------------------------------------------------------------


def arithmetic_of(kernel: str, **dtypes: DType | None) -> DType:
    """What a kernel on floats computes in: f32, or f64 where one of its arrays is that."""
    for name, dtype in dtypes.items():
        if dtype is not None and not dtype.is_float:
            what = f"{kernel}: {name} is {dtype}, but it takes floats"
            raise DTypeError(what, loc=here(), remedy=f"cast {name} to f32 first")
    return F64 if F64 in dtypes.values() else F32
