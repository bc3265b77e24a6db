"""The arrays of a GEMM, its product in float64, and the check of a result against it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewave.errors import TilewaveError
from tilewave.ir.types import DType, dims
from tilewave.kernels import Floats, accumulator, error_bound
from tilewave.records import dataclass

Array = npt.NDArray[Any]

MOST_PRODUCTS = 1 << 33
"""Multiplications of a check, as many as in 2048³: a second or two in float64. Beyond, rows are drawn."""

MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class Problem:
    """C[M, N] = A[M, K] · B[N, K]ᵀ, and what its numbers are."""

    m: int
    n: int
    k: int
    dtype: DType
    out: DType

    @property
    def checked_rows(self) -> int:
        """Rows of C that are held against float64."""
        return max(1, min(self.m, MOST_PRODUCTS // (self.n * self.k)))

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k

    def needed_bytes(self, libraries: int) -> int:
        """About what a run takes: operands, the same packed, every contestant's output, the check in float64."""
        operands = (self.m + self.n) * self.k * (self.dtype.bytes + max(4, self.dtype.bytes))
        widest = max(self.out.bytes, accumulator(self.dtype).bytes)
        outputs = self.m * self.n * (self.out.bytes + libraries * widest)
        reference = (self.n + self.checked_rows) * self.k + 5 * self.checked_rows * self.n
        return operands + outputs + 8 * reference

    def check_memory(self, libraries: int) -> None:
        """An error before anything is allocated that this machine cannot hold."""
        needed, free = self.needed_bytes(libraries), available_bytes()
        if free is not None and needed > free:
            raise TilewaveError(
                f"a gemm of {dims((self.m, self.n, self.k))} in {self.dtype} needs about {_gigabytes(needed)}, "
                f"but only {_gigabytes(free)} of memory are available",
                remedy="choose a smaller shape or a narrower dtype",
            )

    def operands(self, seed: int) -> tuple[Array, Array]:
        """Random normal numbers; for i8, whole numbers from -127 to 127."""
        rng = np.random.default_rng(seed)
        a, b = (self._random(rng, rows) for rows in (self.m, self.n))
        return a, b

    def _random(self, rng: np.random.Generator, rows: int) -> Array:
        if self.dtype.is_int:
            return rng.integers(-127, 128, (rows, self.k), dtype=self.dtype.numpy.type)
        wide = np.float64 if self.dtype.bits == 64 else np.float32
        return rng.standard_normal((rows, self.k), wide).astype(self.dtype.numpy, copy=False)

    def empty_output(self) -> Array:
        return np.empty((self.m, self.n), self.out.numpy)

    def poison(self, c: Array) -> None:
        """Fill an output with values that reveal every element that is not written."""
        c.fill(np.nan if self.out.is_float else np.iinfo(self.out.numpy).min)


@dataclass(frozen=True)
class Check:
    """A result compared with float64; `max_difference` is nan if an element is not a number."""

    max_difference: float
    errors: int
    elements: int

    @property
    def passed(self) -> bool:
        return self.errors == 0

    def to_json(self) -> dict[str, Any]:
        difference = self.max_difference if math.isfinite(self.max_difference) else None
        counts = {"errors": self.errors, "elements": self.elements, "passed": self.passed}
        return {"max_difference": difference, **counts}


@dataclass(frozen=True, eq=False)
class Reference:
    """Rows of the product in float64, and the error bound of each element."""

    rows: Array
    want: Floats
    bound: Floats

    @staticmethod
    def of(problem: Problem, a: Array, b: Array, seed: int) -> Reference:
        rows = drawn_rows(problem.m, problem.checked_rows, seed)
        wide_a, wide_b = a[rows].astype(np.float64), b.astype(np.float64)
        want = wide_a @ wide_b.T
        magnitude = np.abs(wide_a, out=wide_a) @ np.abs(wide_b, out=wide_b).T
        return Reference(rows, want, error_bound(want, magnitude, problem.k, problem.dtype, problem.out))

    def check(self, c: Array) -> Check:
        difference = np.abs(c[self.rows].astype(np.float64) - self.want)
        errors = difference.size - int(np.count_nonzero(difference <= self.bound))
        return Check(float(difference.max()), errors, difference.size)


def drawn_rows(rows: int, count: int, seed: int) -> Array:
    """One row at random from each of `count` equal strips: no tile that is twice as high as a strip goes unseen."""
    edges = np.arange(count + 1) * rows // count
    return np.random.default_rng(seed).integers(edges[:-1], edges[1:])


def available_bytes() -> int | None:
    """Return the memory available without swapping; None if the system does not report it."""
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
