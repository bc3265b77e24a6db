"""Who takes part in a benchmark on the GPU: our kernel in an order of tiles, cuBLAS through torch, Triton."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewave.bench.ablation import TARGET, Ablation, compiled_ablation
from tilewave.bench.contestant import Contestant, LeftOut, first_line
from tilewave.bench.gpu import Arena, Bursts, Launching, torch_dtype
from tilewave.bench.result import CUBLAS, Settings
from tilewave.bench.rounds import SHORT, play
from tilewave.compile import wave_compile
from tilewave.compiled import Compiled
from tilewave.errors import TilewaveError
from tilewave.ir.types import BF16, F16, F32, FLOAT8, I32, DType
from tilewave.kernels import gemm, gemm_bias_gelu
from tilewave.options import WaveCompileOptions

TRITON_KERNEL = Path(__file__).parents[2] / "benchmarks" / "triton_gemm.py"
ROUNDS_TO_CHOOSE = 3
FAST_SUMS = "cublas, fast sums leaves sums to the tensor cores, as we do; cublas moves them to f32 every few steps"


def ours(arena: Arena, mapping: str, settings: Settings) -> Contestant | LeftOut:
    """Compiled and called as a user would; the compiler decides how many workgroups there are."""
    facts = arena.shape, arena.dtype, settings.out, settings.tile, mapping

    def compile_it() -> Compiled:
        made = gemm_bias_gelu(*facts) if settings.epilogue else gemm(*facts)
        return wave_compile(WaveCompileOptions(subs=made.subs, target=TARGET), made.kernel)

    return _of_ours(f"tilewave {mapping}", arena, settings, compile_it)


def ablated(arena: Arena, ablation: Ablation, settings: Settings) -> Contestant | LeftOut:
    """Ours with one optimisation left out, or another number."""
    return _of_ours(ablation.name, arena, settings, lambda: compiled_ablation(ablation, arena.shape, settings))


def _of_ours(name: str, arena: Arena, settings: Settings, compile_it: Callable[[], Compiled]) -> Contestant | LeftOut:
    try:
        compiled = compile_it()
    except TilewaveError as error:
        return LeftOut(name, error.what, is_ours=True)
    c = arena.output(settings.out)
    operands = (arena.a, arena.b) if arena.bias is None else (arena.a, arena.b, arena.bias)
    launch, prepare = partial(compiled, *operands, c), lambda: compiled.code_object
    return Contestant(name, launch, c, settings.out, is_ours=True, prepare=prepare)


def compile_ahead(contestants: Sequence[Contestant | LeftOut]) -> None:
    """Compile all tilewave contestants in parallel; threads suffice, because LLVM runs in separate processes."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(_make_code, [one for one in contestants if isinstance(one, Contestant)]))


def _make_code(contestant: Contestant) -> None:
    with suppress(TilewaveError):  # which its launch will raise again
        contestant.prepare()


# -- cuBLAS ------------------------------------------------------------------------------------------------------------


def cublas(arena: Arena, out: DType) -> list[Contestant | LeftOut]:
    """Return cuBLAS as torch calls it: mm, _scaled_mm for 8-bit floats, _int_mm for i8; epilogues are extra kernels."""
    writes = _written_by_cublas(arena.dtype, out)
    note = "" if writes == out else f"cublas writes {writes}, not {out}"
    c = arena.output(writes)
    if arena.epilogue.name:
        return _followed_by_gelu(arena, c, writes)
    first = Contestant(CUBLAS, _product(arena, c, writes), c, writes, is_ours=False, note=note)
    if arena.dtype not in FLOAT8:
        return [first]
    fast = _product(arena, c, writes, use_fast_accum=True)
    return [first, Contestant("cublas, fast sums", fast, c, writes, is_ours=False, note=FAST_SUMS)]


def _product(arena: Arena, c: Any, writes: DType, **more: Any) -> Callable[[], object]:
    torch, a, b = arena.torch, arena.a, arena.b.T
    if arena.dtype in FLOAT8:
        one = torch.ones((), device="cuda")
        facts = {"scale_a": one, "scale_b": one, "out_dtype": torch_dtype(torch, writes), "out": c, **more}
        return partial(torch._scaled_mm, a, b, **facts)
    return partial(torch._int_mm if arena.dtype.is_int else torch.mm, a, b, out=c)


def _followed_by_gelu(arena: Arena, c: Any, writes: DType) -> list[Contestant | LeftOut]:
    """gelu(a @ b.T + bias), which is three kernels, and gelu(linear(a, b, bias)), in which cuBLAS adds the bias."""
    torch, a, b, bias = arena.torch, arena.a, arena.b.T, arena.bias
    sums, biased = torch.empty_like(c), torch.empty_like(c)
    finish = torch.ops.aten.gelu.out

    def three() -> None:
        torch.mm(a, b, out=sums)
        torch.add(sums, bias, out=biased)
        finish(biased, out=c)

    def two() -> None:
        torch.addmm(bias, a, b, out=biased)
        finish(biased, out=c)

    return [
        Contestant(CUBLAS, three, c, writes, is_ours=False, kernels=3, note="cublas is mm, add and gelu"),
        Contestant("cublas linear", two, c, writes, is_ours=False, kernels=2, note="cublas linear is addmm and gelu"),
    ]


def _written_by_cublas(dtype: DType, out: DType) -> DType:
    if dtype.is_int:
        return I32
    if dtype in FLOAT8:
        return out if out in (F16, BF16, F32) else BF16
    return dtype


# -- Triton ------------------------------------------------------------------------------------------------------------


def triton(arena: Arena, out: DType) -> list[Contestant | LeftOut]:
    """Return the Triton kernel with its fastest group size, chosen in a few extra rounds."""
    if arena.epilogue.name:
        return [LeftOut("triton", "its kernel has no epilogue", is_ours=False)]
    if not TRITON_KERNEL.is_file():
        why = "its kernel, benchmarks/triton_gemm.py, is in tilewave's repository only"
        return [LeftOut("triton", why, is_ours=False)]
    try:
        module = _load(TRITON_KERNEL)
        c = arena.output(out)
        launches = module.launches(arena.a, arena.b, c)
        group = _fastest(arena.torch, launches)
    except Exception as error:  # Triton's compiler raises whatever it likes
        return [LeftOut("triton", first_line(error), is_ours=False)]
    return [Contestant("triton", launches[group], c, out, is_ours=False, note=f"triton took groups of {group} rows")]


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
    rounds = play(tuple(named), "", ROUNDS_TO_CHOOSE, 0, bursts.take, lambda: None)
    times: dict[str, list[float]] = {}
    for sample in (sample for one in rounds for sample in one):
        times.setdefault(sample.contestant, []).append(sample.seconds)
    return int(min(times, key=lambda name: statistics.median(times[name])))


BASELINES: dict[str, Callable[[Arena, DType], list[Contestant | LeftOut]]] = {"cublas": cublas, "triton": triton}
PACKAGES = {"cublas": "torch", "triton": "triton"}
