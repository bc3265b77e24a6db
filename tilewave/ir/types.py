"""Types of values: scalars, tiles and vectors in registers, memories, mbarriers and exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import ml_dtypes
import numpy as np

from tilewave.forks import cached_property
from tilewave.records import dataclass

Kind = Literal["float", "int", "bool"]


@dataclass(frozen=True, eq=False)
class DType:
    """The type of one number; each exists once, so that comparing and hashing are those of the object."""

    name: str
    kind: Kind
    bits: int
    is_signed: bool = True
    """Whether the dtype has negative numbers."""

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(getattr(ml_dtypes, _ML_DTYPES[self.name]) if self.name in _ML_DTYPES else _NUMPY[self.name])

    @cached_property
    def bytes(self) -> int:
        return max(1, self.bits // 8)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how a copy, or another process, finds the dtype."""
        return _dtype_named, (self.name,)

    @cached_property
    def is_float(self) -> bool:
        return self.kind == "float"

    def is_float_asm(self) -> bool:
        """Return `is_float`, by its name in Wave."""
        return self.is_float

    @cached_property
    def is_int(self) -> bool:
        return self.kind == "int"

    def is_int_asm(self) -> bool:
        """Return `is_int`, by its name in Wave."""
        return self.is_int

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest number of an integer dtype."""
        assert self.is_int, f"{self} has no integers"
        return (-(1 << self.bits - 1), (1 << self.bits - 1) - 1) if self.is_signed else (0, (1 << self.bits) - 1)

    @property
    def largest(self) -> float:
        """The largest number of a float dtype: infinity, where it has one."""
        with np.errstate(over="ignore"):
            infinite = float(self.numpy.type(np.inf))
        return infinite if infinite == np.inf else float(ml_dtypes.finfo(self.numpy).max)  # type: ignore[no-untyped-call]


_ML_DTYPES = {
    "bf16": "bfloat16",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz",
}
_NUMPY = {
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "bool": np.bool_,
    "index": np.int64,
}

F16, BF16 = DType("f16", "float", 16), DType("bf16", "float", 16)
F32, F64 = DType("f32", "float", 32), DType("f64", "float", 64)
F8E4M3FN, F8E5M2, F8E4M3FNUZ, F8E5M2FNUZ = (
    DType(name, "float", 8) for name in ("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
)
I8, I16, I32, I64 = (DType(f"i{bits}", "int", bits) for bits in (8, 16, 32, 64))
U8, U16, U32, U64 = (DType(f"u{bits}", "int", bits, is_signed=False) for bits in (8, 16, 32, 64))
BOOL = DType("bool", "bool", 1, is_signed=False)
INDEX = DType("index", "int", 64)
"""A position, a count or a workgroup id: an integer wide enough for any of them."""

FLOAT8 = (F8E4M3FN, F8E5M2, F8E4M3FNUZ, F8E5M2FNUZ)
DTYPES = {d.name: d for d in (F16, BF16, F32, F64, *FLOAT8, I8, I16, I32, I64, U8, U16, U32, U64, BOOL, INDEX)}
INTERNAL = (INDEX,)
"""Dtypes that no array of a call has: positions."""
WIDEST_BYTES = max(d.bytes for d in DTYPES.values())
"""Bytes of the widest element."""


def _dtype_named(name: str) -> DType:
    return DTYPES[name]


Extent = int | str
"""The length of an axis: a number, or, for a dynamic size of a memory, the name of an index of the launch."""


def known_at_most(a: Extent, b: Extent) -> bool:
    """Return whether one length is at most another for all sizes of a call."""
    return a == b or (isinstance(a, int) and isinstance(b, int) and a <= b)


class Sized:
    """A type with a static shape: every type but `Memory`."""

    shape: tuple[int, ...]

    @property
    def extents(self) -> tuple[Extent, ...]:
        return self.shape

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Scalar(Sized):
    """One number: `index`, `f32`."""

    dtype: DType
    shape = ()

    def __str__(self) -> str:
        return self.dtype.name


@dataclass(frozen=True)
class Tile(Sized):
    """Numbers that a workgroup holds in registers: `tile<64x32xf16>`."""

    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"tile<{dims(self.shape)}x{self.dtype}>"


@dataclass(frozen=True)
class Padded:
    """Rows with some unused elements after each: `pad(16)`."""

    elements: int

    def __str__(self) -> str:
        return f"pad({self.elements})"


@dataclass(frozen=True)
class Swizzled:
    """Rows with an XOR swizzle: chunk c of row r is placed at c ^ (r // every % period): `xor(8, 8, 1)`.

    `period` is a power of two and divides the number of chunks in a row, so that no two chunks share a place.
    """

    chunk: int
    period: int
    every: int

    @property
    def rows(self) -> int:
        """The number of rows after which the swizzle repeats."""
        return self.period * self.every

    def __str__(self) -> str:
        return f"xor({self.chunk}, {self.period}, {self.every})"


@dataclass(frozen=True)
class SwizzledByBits:
    """Rows with a swizzle in which each bit of the row's number has an XOR mask: `bits(8, 2, 4, 0, 1)`.

    Chunk c of row r is placed at c ^ (the masks of the bits that are 1 in r, XORed); bits after the last move none.
    """

    chunk: int
    moves: tuple[int, ...]

    @property
    def rows(self) -> int:
        return 1 << len(self.moves)

    def __str__(self) -> str:
        return f"bits({', '.join(map(str, (self.chunk, *self.moves)))})"


@dataclass(frozen=True)
class Panels:
    """Columns in consecutive panels of `width`, each with its part of all rows: `panels(64, 8, 8, 1)`.

    Within a panel chunks are swizzled as in `xor(chunk, period, every)`.
    """

    width: int
    chunk: int
    period: int
    every: int

    def __str__(self) -> str:
        return f"panels({self.width}, {self.chunk}, {self.period}, {self.every})"


@dataclass(frozen=True)
class Columns:
    """A global memory that the launch stores with its last two axes exchanged, with some unused elements after each
    column: `columns(61)`; 0 where the launch decides the length of columns."""

    elements: int

    def __str__(self) -> str:
        return f"columns({self.elements})"


Swizzle = Swizzled | SwizzledByBits
Placement = Padded | Columns | Swizzle | Panels


@dataclass(frozen=True)
class Memory:
    """Numbers at addresses: `memory<128x64xf16, global>`; its strides are known at the call.

    A shared memory is row-major, unless a placement says otherwise: `…, shared, pad(16)>`. For a global memory,
    `pad(16)` says that a launch packs it into rows with so many unused elements after each, and `columns(16)` that it
    packs it into columns.
    Dynamic sizes are named: `memory<{M}x64xf16, global>`.
    """

    extents: tuple[Extent, ...]
    dtype: DType
    space: str
    placement: Placement | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, all of them static; code that supports dynamic extents uses `extents`."""
        if self.is_open:
            raise NotImplementedError(f"{self} has sizes that are known only at the launch")
        return self.extents  # type: ignore[return-value]

    @cached_property
    def is_open(self) -> bool:
        return any(isinstance(extent, str) for extent in self.extents)

    @property
    def rank(self) -> int:
        return len(self.extents)

    def __str__(self) -> str:
        placed = f", {self.placement}" if self.placement else ""
        return f"memory<{dims(self.extents)}x{self.dtype}, {self.space}{placed}>"


@dataclass(frozen=True)
class Accumulator(Sized):
    """A tile of sums in the registers of a matrix unit: `accumulator<32x32xf32>`."""

    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"accumulator<{dims(self.shape)}x{self.dtype}>"


@dataclass(frozen=True)
class Vector(Sized):
    """Numbers that each lane holds: `vector<2x8xf16>` is two groups of eight neighbours."""

    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"vector<{dims(self.shape)}x{self.dtype}>"


@dataclass(frozen=True)
class Mbarriers(Sized):
    """Mbarriers in shared memory: `mbarriers<4>`; each completes a phase when all its arrivals have come."""

    shape: tuple[int, ...]
    dtype: DType = I64

    def __str__(self) -> str:
        return f"mbarriers<{dims(self.shape)}>"


@dataclass(frozen=True)
class Exchange(Sized):
    """Slots, empty at first, through which workgroups pass tiles to each other: `exchange<112x128x256xf32>` has 112.

    It is memory of the launch, passed after the kernel's arguments.
    """

    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"exchange<{dims(self.shape)}x{self.dtype}>"


Type = Scalar | Tile | Memory | Accumulator | Vector | Mbarriers | Exchange
INDEX_SCALAR = Scalar(INDEX)
SPACES = ("global", "shared", "packed")


def space_of(kind: Type) -> str:
    """Return the address space of a memory, or the pseudo space of mbarriers or an exchange; "" for registers."""
    if isinstance(kind, Memory):
        return kind.space
    return "mbarriers" if isinstance(kind, Mbarriers) else "exchange" if isinstance(kind, Exchange) else ""


def is_held(kind: Type) -> bool:
    """Return whether a type is a scalar, or numbers in registers."""
    return isinstance(kind, (Scalar, Tile, Vector))


def dims(extents: Sequence[Extent]) -> str:
    """Return extents as text: `128x64`, or `{M}x64` with a dynamic size."""
    return _dims(tuple(extents))


@lru_cache(maxsize=1024)
def _dims(extents: tuple[Extent, ...]) -> str:
    return "x".join(f"{{{extent}}}" if isinstance(extent, str) else str(extent) for extent in extents)


def elementwise(like: Type, dtype: DType) -> Type:
    """Return the type of an elementwise result: the shape of `like` with another dtype."""
    return type(like)(like.shape, dtype) if isinstance(like, (Tile, Vector)) else Scalar(dtype)
