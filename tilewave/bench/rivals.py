"""What a GEMM of ours is measured against: numpy's BLAS, and torch where it is installed."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewave.forks import IMPORTING
from tilewave.ir.types import BF16, F16, F32, F64, I8, I32, DType

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Rival:
    """Another library's a · bᵀ on the same arrays."""

    name: str
    run: Callable[[], object]
    writes: DType
    version: str
    note: str = ""


@dataclass(frozen=True)
class Absent:
    """A library that cannot take part, and why."""

    name: str
    why: str


def numpy_rival(a: Array, b: Array, dtype: DType, threads: int) -> Rival | Absent:
    if dtype not in (F32, F64):
        return Absent("numpy", f"its BLAS has no product of {dtype}")
    out = np.empty((a.shape[0], b.shape[0]), dtype.numpy)
    note = "" if _set_blas_threads(threads) else "numpy's BLAS takes as many threads as it likes"
    return Rival("numpy", lambda: np.matmul(a, b.T, out=out), dtype, np.__version__, note)


SETTERS = [f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")]
"""OpenBLAS's function, under the names that builds give it."""


def _set_blas_threads(threads: int) -> bool:
    """Whether the BLAS that numpy has loaded is an OpenBLAS, and now takes so many threads."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return False
    loaded = {line.split(maxsplit=5)[5] for line in lines if "openblas" in line}
    libraries = [ctypes.CDLL(path) for path in sorted(loaded)]
    known = [getattr(library, name) for library in libraries for name in SETTERS if hasattr(library, name)]
    for set_threads in known:
        set_threads(threads)
    return bool(known)


WRITTEN_BY_TORCH = {F16: F16, BF16: BF16, F32: F32, F64: F64, I8: I32}


def torch_rival(a: Array, b: Array, dtype: DType, threads: int) -> Rival | Absent:
    if dtype not in WRITTEN_BY_TORCH:
        return Absent("torch", f"it has no product of {dtype} on the CPU")
    if importlib.util.find_spec("torch") is None:
        return Absent("torch", "it is not installed")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # or its threads spin into whoever is measured next
    try:
        with IMPORTING:
            import torch  # noqa: PLC0415  optional, and heavy

        torch.set_num_threads(threads)
        run = _torch_product(torch, _tensor(torch, a, dtype), _tensor(torch, b, dtype), dtype)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            run()
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        return Absent("torch", _first_line(error))
    note = f"torch says: {_first_line(said[0].message)}" if said else ""
    return Rival("torch", run, WRITTEN_BY_TORCH[dtype], str(torch.__version__), note)


def _first_line(message: object) -> str:
    return (str(message).splitlines() or [type(message).__name__])[0]


def _tensor(torch: Any, x: Array, dtype: DType) -> Any:
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if dtype == BF16 else torch.from_numpy(x)


def _torch_product(torch: Any, x: Any, y: Any, dtype: DType) -> Callable[[], object]:
    if dtype == I8:
        multiply = torch._int_mm  # the one way to it
        return lambda: multiply(x, y.T)
    out = torch.empty((x.shape[0], y.shape[0]), dtype=x.dtype)
    return lambda: torch.mm(x, y.T, out=out)


RIVALS: dict[str, Callable[[Array, Array, DType, int], Rival | Absent]] = {
    "numpy": numpy_rival,
    "torch": torch_rival,
}
