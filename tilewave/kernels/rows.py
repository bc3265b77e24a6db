"""Kernels on the rows of a matrix: how many rows a workgroup takes, and whether in registers or in a loop of steps."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from tilewave.backend.targets import target_named, target_on
from tilewave.call import room_for
from tilewave.errors import CallError, DTypeError, here
from tilewave.ir.types import F32, F64, DType
from tilewave.lang.constraints import Constraint, TilingConstraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel, wave
from tilewave.lang.loops import iterate
from tilewave.lang.ops import fma
from tilewave.lang.symbols import sym
from tilewave.lang.types import GLOBAL_ADDRESS_SPACE, MemoryType, RegisterType
from tilewave.records import dataclass
from tilewave.runtime.arrays import ArrayView, quick_device, view

M, N = sym.M, sym.N

TILE_BYTES, MOST_ROWS = 8192, 64
"""The bytes of a CPU's tile of short rows, and the most rows in it."""
SHORT_BYTES, SHORT_ROWS, FILLED_BYTES = 1536, 4, 2048
"""A row up to `SHORT_BYTES` takes one wave three loads of 16 bytes for each of 32 lanes: a workgroup then has a row for
each of four waves; of still shorter rows as many as fill these with one load. Measured on an H200."""
HELD_BYTES = 131072
"""The longest row that a GPU keeps in registers: eight loads of 16 bytes for each of a workgroup's 1024 lanes."""
STEP_BYTES = 16384
"""The bytes of a step, for rows that are read in a loop."""
KEPT_KERNELS = 1024
"""The most kinds of calls whose kernel is stored."""


@dataclass(frozen=True)
class Rows:
    """The rows of a workgroup, and the columns of a step where rows are read in a loop; None: whole rows."""

    together: int
    step: int | None = None

    @property
    def constraints(self) -> list[Constraint]:
        rows = WorkgroupConstraint(M, self.together, 0)
        return [rows] if self.step is None else [rows, TilingConstraint(N, self.step)]

    def kernel(self, function: Callable[..., None], **parameters: MemoryType | DType) -> WaveKernel:
        """Return the kernel of a function with these parameters."""
        function.__annotations__ = parameters
        return wave(self.constraints)(function)


def rows_for(target: str, columns: int, dtype: DType) -> Rows:
    """Return the tiling of rows on a target: whole rows where they leave at least half of a GPU's registers free."""
    held_bytes, most_bytes = room_for(columns) * max(2, dtype.bytes), target_named(target).most_bytes
    if most_bytes is None:
        return Rows(min(MOST_ROWS, _power_within(TILE_BYTES // held_bytes)))
    if held_bytes > min(HELD_BYTES, most_bytes // 2):
        return Rows(1, STEP_BYTES // dtype.bytes)
    return Rows(1 if held_bytes > SHORT_BYTES else max(SHORT_ROWS, _power_within(FILLED_BYTES // held_bytes)))


def _power_within(n: int) -> int:
    """Return the largest power of two up to n, at least 1: waves share the rows of a tile evenly."""
    return 1 << max(n, 1).bit_length() - 1


def matrix(dtype: DType) -> MemoryType:
    return MemoryType((M, N), GLOBAL_ADDRESS_SPACE, dtype)


def a_number_a_row(dtype: DType) -> MemoryType:
    return MemoryType((M,), GLOBAL_ADDRESS_SPACE, dtype)


def a_number_a_column(dtype: DType) -> MemoryType:
    return MemoryType((N,), GLOBAL_ADDRESS_SPACE, dtype)


class RowNumbers:
    """The values of a kernel's rows, for several passes: kept in registers, or read again in a loop of steps."""

    def __init__(self, rows: Rows, dtype: DType, read_them: Callable[[], Any]) -> None:
        self.dtype, self.read_them = dtype, read_them
        self.held = None if rows.step else read_them()

    def sum(self, of_each: Callable[[Any], Any]) -> Any:
        """Return, for each row, the sum of a function of its values."""
        if self.held is not None:
            return of_each(self.held).sum(dim=N)

        @iterate(N, init_args=[RegisterType((M,), self.dtype)(0)])
        def total(so_far: Any) -> Any:
            return of_each(self.read_them()).sum(dim=N, acc=so_far)

        return total

    def each(self, do: Callable[[Any], None]) -> None:
        """Call a function with all values of the rows, or with those of every step."""
        if self.held is not None:
            do(self.held)
            return

        @iterate(N)
        def step() -> None:
            do(self.read_them())


# which kernel serves a call -----------------------------------------------------------------------------------------

Make = Callable[..., WaveKernel]
"""From `Rows` and the dtype of each array, None for a missing one, to the kernel."""
Choose = Callable[[str, int, DType], Any]
"""From a target, the number of columns and the dtype of the first array to the tiling of rows."""
_KERNELS: dict[tuple[Any, ...] | None, WaveKernel] = {}


def kernel_for(make: Make, choose: Choose = rows_for, **arrays: Any) -> WaveKernel:
    """Return the kernel for a call with these arrays: the first has the rows; a missing one is None."""
    key = _quick_key(make, tuple(arrays.values()))
    if key in _KERNELS:
        return _KERNELS[key]
    name = make.__name__.removesuffix("_kernel")
    made = _made(name, make, choose, _views(name, make, arrays))
    if key is not None and len(_KERNELS) < KEPT_KERNELS:
        _KERNELS[key] = made
    return made


def _views(name: str, make: Make, arrays: dict[str, Any]) -> dict[str, ArrayView | None]:
    """Return a view of each array; None only for an optional one, whose dtype has a default."""
    _, *dtypes = signature(make).parameters.values()
    can_miss = [parameter.default is None for parameter in dtypes]
    return {
        of: None if array is None and missing else looked_at(name, of, array)
        for (of, array), missing in zip(arrays.items(), can_miss, strict=False)
    }


def _made(name: str, make: Make, choose: Choose, views: dict[str, ArrayView | None]) -> WaveKernel:
    first, x = next(iter(views.items()))
    assert x is not None, "every kernel has rows"
    if len(x.shape) != 2:
        what = f"{name}: {first} has {len(x.shape)} axes, but it takes rows and columns"
        raise CallError(what, loc=here(), remedy=f"pass {first}.reshape(-1, {first}.shape[-1])")
    rows = choose(target_on(name, x.device).name, x.shape[1], x.dtype)
    return make(rows, *(None if v is None else v.dtype for v in views.values()))


def _quick_key(make: Make, arrays: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return a key that decides the kernel of a call; None where the full check must."""
    try:
        device, (_, columns) = quick_device(arrays[0]), arrays[0].shape
        return (make, device, room_for(columns), *[None if a is None else a.dtype for a in arrays]) if device else None
    except (AttributeError, TypeError, ValueError):
        return None


def looked_at(kernel: str, name: str, array: Any) -> ArrayView:
    """Return a view of an array argument of a kernel."""
    try:
        return view(array, f"{kernel}: {name}")
    except CallError as error:
        raise CallError(error.what, loc=here(), remedy=error.remedy) from None


# what rows are computed in ------------------------------------------------------------------------------------------


def arithmetic_of(kernel: str, **dtypes: DType | None) -> DType:
    """Return the dtype that a kernel on floats computes in: f32, or f64 where one of its arrays is f64."""
    for name, dtype in dtypes.items():
        if dtype is not None and not dtype.is_float:
            what = f"{kernel}: {name} is {dtype}, but it takes floats"
            raise DTypeError(what, loc=here(), remedy=f"cast {name} to f32 first")
    return F64 if F64 in dtypes.values() else F32


def fused(a: Any, b: Any, c: Any) -> Any:
    """Return a · b + c, in f32 rounded once."""
    return fma(a, b, c) if c.dtype == F32 else a * b + c
