"""Who takes part in a benchmark on the GPU: our kernel in an order of tiles, cuBLAS through torch, Triton."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewave.cli.bench_gpu import Arena, Bursts, Contestant, Launching, first_line, torch_dtype
from tilewave.cli.bench_result import Failed, Shape
from tilewave.cli.bench_rounds import SHORT, play
from tilewave.compile import WaveCompileOptions, wave_compile
from tilewave.errors import TilewaveError
from tilewave.ir.types import BF16, F16, F32, FLOAT8, I32, DType
from tilewave.kernels import gemm

TARGET = "sm_90a"
TRITON_KERNEL = Path(__file__).parents[2] / "benchmarks" / "triton_gemm.py"
ROUNDS_TO_CHOOSE = 3


def ours(arena: Arena, mapping: str, tile: Shape, out: DType) -> Contestant | Failed:
    """Compiled and called as a user would; the compiler decides how many workgroups there are."""
    made = gemm(arena.shape, arena.dtype, out, tile, mapping)
    try:
        compiled = wave_compile(WaveCompileOptions(subs=made.subs, target=TARGET), made.kernel)
    except TilewaveError as error:
        return Failed(f"tilewave {mapping}", error.what, is_ours=True)
    c = arena.output(out)
    return Contestant(f"tilewave {mapping}", partial(compiled, arena.a, arena.b, c), c, out, is_ours=True)


def cublas(arena: Arena, out: DType) -> Contestant | Failed:
    """As torch calls it: mm, _scaled_mm for 8-bit floats, _int_mm for i8."""
    torch, a, b = arena.torch, arena.a, arena.b.T
    writes = _written_by_cublas(arena.dtype, out)
    c = arena.output(writes)
    run: Callable[[], object]
    if arena.dtype in FLOAT8:
        one = torch.ones((), device="cuda")
        run = partial(torch._scaled_mm, a, b, scale_a=one, scale_b=one, out_dtype=torch_dtype(torch, writes), out=c)
    elif arena.dtype.is_int:
        run = partial(torch._int_mm, a, b, out=c)
    else:
        run = partial(torch.mm, a, b, out=c)
    note = "" if writes == out else f"cublas writes {writes}, not {out}"
    return Contestant("cublas", run, c, writes, is_ours=False, note=note)


def _written_by_cublas(dtype: DType, out: DType) -> DType:
    if dtype.is_int:
        return I32
    if dtype in FLOAT8:
        return out if out in (F16, BF16, F32) else BF16
    return dtype


def triton(arena: Arena, out: DType) -> Contestant | Failed:
    """The fastest of its groups, found in a few rounds of their own."""
    if not TRITON_KERNEL.is_file():
        return Failed(
            "triton", "its kernel, benchmarks/triton_gemm.py, is in tilewave's repository only", is_ours=False
        )
    try:
        module = _load(TRITON_KERNEL)
        c = arena.output(out)
        launches = module.launches(arena.a, arena.b, c)
        group = _fastest(arena.torch, launches)
    except Exception as error:  # Triton's compiler raises whatever it likes
        return Failed("triton", first_line(error), is_ours=False)
    return Contestant("triton", launches[group], c, out, is_ours=False, note=f"triton took groups of {group} rows")


def _load(path: Path) -> ModuleType:
    name = f"tilewave_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None, "it is a Python file"
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


def _fastest(torch: Any, launches: dict[int, Callable[[], object]]) -> int:
    named = {str(group): launch for group, launch in launches.items()}
    bursts = Bursts.of(Launching.of(torch, named), named, SHORT)
    rounds = play(tuple(named), ROUNDS_TO_CHOOSE, 0, bursts.take, lambda: None)
    times: dict[str, list[float]] = {}
    for sample in (sample for one in rounds for sample in one):
        times.setdefault(sample.contestant, []).append(sample.seconds)
    return int(min(times, key=lambda name: statistics.median(times[name])))


RIVALS: dict[str, Callable[[Arena, DType], Contestant | Failed]] = {"cublas": cublas, "triton": triton}
PACKAGES = {"cublas": "torch", "triton": "triton"}
