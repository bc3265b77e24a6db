"""The problem that is simulated without a kernel: a plain GEMM, its tiles, and its number of workgroups."""

from __future__ import annotations

from tilewave.errors import TilewaveError
from tilewave.ir.types import DTYPES, F32, F64, I8, I32, DType
from tilewave.mapping import Grid
from tilewave.records import dataclass

LARGEST_SIZE = (1 << 31) - 1
MOST_TILES = 1 << 22
"""Tiles of one launch: the simulator's arrays then stay below a gigabyte."""
WALKS = ("forwards", "to-and-fro")
"""How a workgroup goes through K: always from its start, or back on every second of its tiles."""
LAST_WAVES = ("whole tiles", "stream-K")
"""What workgroups compute in a last wave that is not full: whole tiles, or equal parts of all its tiles."""


class SimError(TilewaveError):
    """Something that cannot be simulated, and what to ask instead."""


@dataclass(frozen=True)
class Gemm:
    """C[M, N] = A[M, K] · B[N, K]ᵀ in tiles of (m, n, k); `workgroups` makes it persistent."""

    m: int
    n: int
    k: int
    tile: tuple[int, int, int] = (128, 256, 64)
    dtype: str = "f16"
    out: str = ""
    """The dtype of C; without it, that of A and B, or what i8 is summed in."""
    workgroups: int | None = None
    walk: str = WALKS[0]
    """One of WALKS; to and fro, a tile starts at the end of K where the workgroup's previous tile finished."""
    last_wave: str = LAST_WAVES[0]
    """One of LAST_WAVES; on AMD cards the predicted time depends on it."""

    def __post_init__(self) -> None:
        for name, size in (("m", self.m), ("n", self.n), ("k", self.k)):
            _check_size(f"a gemm's {name}", size)
        if not isinstance(self.tile, tuple) or len(self.tile) != 3:
            raise SimError(f"a tile has three sizes, not {self.tile!r}", remedy="write tile=(128, 256, 64)")
        for name, size in zip("mnk", self.tile, strict=True):
            _check_size(f"a tile's {name}", size)
        for name in (self.dtype, self.out or self.dtype):
            if name not in DTYPES:
                raise SimError(f"unknown dtype {name!r}", remedy=f"there are {', '.join(DTYPES)}")
        if self.workgroups is not None:
            _check_size("a launch's number of workgroups", self.workgroups)
        if self.walk not in WALKS:
            raise SimError(f"unknown direction of K: {self.walk!r}", remedy=f"there are {' and '.join(WALKS)}")
        if self.last_wave not in LAST_WAVES:
            raise SimError(f"unknown last wave: {self.last_wave!r}", remedy=f"there are {' and '.join(LAST_WAVES)}")
        tiles = -(-self.m // self.tile[0]) * -(-self.n // self.tile[1])
        if tiles > MOST_TILES:
            raise SimError(
                f"{self.m}×{self.n} has {tiles:,} tiles of {self.tile[0]}×{self.tile[1]}; "
                f"at most {MOST_TILES:,} are simulated",
                remedy="take larger tiles, or a part of the matrix: caches forget the rest anyway",
            )

    @property
    def grid(self) -> Grid:
        """Tiles along M and N."""
        return Grid(-(-self.m // self.tile[0]), -(-self.n // self.tile[1]))

    @property
    def steps(self) -> int:
        """Times round the K loop."""
        return -(-self.k // self.tile[2])

    @property
    def element(self) -> DType:
        """The dtype of A and B."""
        return DTYPES[self.dtype]

    @property
    def written(self) -> DType:
        """The dtype of C."""
        if self.out:
            return DTYPES[self.out]
        return I32 if self.element == I8 else F64 if self.element == F64 else F32 if _is_f8(self) else self.element

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.n * self.k

    def __str__(self) -> str:
        persistent = f", {self.workgroups} workgroups" if self.workgroups else ""
        walk = "" if self.walk == WALKS[0] else f", K {self.walk}"
        last = "" if self.last_wave == LAST_WAVES[0] else f", {self.last_wave}"
        tile = "×".join(map(str, self.tile))
        return f"{self.m}×{self.n}×{self.k} {self.dtype}, tiles of {tile}{persistent}{walk}{last}"


def _is_f8(gemm: Gemm) -> bool:
    return gemm.element.is_float and gemm.element.bits == 8


def _check_size(what: str, size: object) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST_SIZE:
        raise SimError(f"{what} is a whole number from 1 to {LARGEST_SIZE:,}, not {size!r}")
