"""What a GEMM of ours is measured against on the CPU: numpy's BLAS, and torch where it is installed."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewave.bench.contestant import Contestant, Launch, LeftOut, first_line
from tilewave.forks import IMPORTING
from tilewave.ir.types import BF16, F16, F32, F64, I8, I32, DType

Array = npt.NDArray[Any]


def numpy_baseline(a: Array, b: Array, dtype: DType, threads: int) -> Contestant | LeftOut:
    if dtype not in (F32, F64):
        return LeftOut("numpy", f"its BLAS has no product of {dtype}", is_ours=False)
    out = np.empty((a.shape[0], b.shape[0]), dtype.numpy)
    note = "" if _set_blas_threads(threads) else "numpy's BLAS takes as many threads as it likes"
    product = partial(np.matmul, a, b.T, out=out)
    return Contestant("numpy", product, out, dtype, is_ours=False, note=note, version=np.__version__)


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


def torch_baseline(a: Array, b: Array, dtype: DType, threads: int) -> Contestant | LeftOut:
    if dtype not in WRITTEN_BY_TORCH:
        return LeftOut("torch", f"it has no product of {dtype} on the CPU", is_ours=False)
    if importlib.util.find_spec("torch") is None:
        return LeftOut("torch", "it is not installed", is_ours=False)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # or torch's threads spin during the next contestant's sample
    try:
        with IMPORTING:
            import torch  # noqa: PLC0415  optional, and heavy

        torch.set_num_threads(threads)
        run = _torch_product(torch, _tensor(torch, a, dtype), _tensor(torch, b, dtype), dtype)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            run()
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        return LeftOut("torch", first_line(error), is_ours=False)
    note = f"torch says: {first_line(said[0].message)}" if said else ""
    writes, version = WRITTEN_BY_TORCH[dtype], str(torch.__version__)
    return Contestant("torch", run, None, writes, is_ours=False, note=note, version=version)


def _tensor(torch: Any, x: Array, dtype: DType) -> Any:
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if dtype == BF16 else torch.from_numpy(x)


def _torch_product(torch: Any, x: Any, y: Any, dtype: DType) -> Launch:
    if dtype == I8:
        multiply = torch._int_mm  # the one way to it
        return lambda: multiply(x, y.T)
    out = torch.empty((x.shape[0], y.shape[0]), dtype=x.dtype)
    return lambda: torch.mm(x, y.T, out=out)


BASELINES: dict[str, Callable[[Array, Array, DType, int], Contestant | LeftOut]] = {
    "numpy": numpy_baseline,
    "torch": torch_baseline,
}
