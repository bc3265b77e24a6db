"""The GEMM measured on a GPU: our kernel in orders of tiles, with optimisations left out, cuBLAS, Triton."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewave.bench.ablation import TARGET, ablation_named
from tilewave.bench.contestant import Advance, Contestant, Launch, LeftOut, first_line
from tilewave.bench.contestants import BASELINES, PACKAGES, ablated, compile_ahead, ours
from tilewave.bench.epilogue import EPILOGUES
from tilewave.bench.gpu import Arena, Bursts, Launching, torch_on_the_gpu
from tilewave.bench.measured_on import nvidia_gpu, this_gpu, version_of
from tilewave.bench.result import CUBLAS, Checked, GemmReport, Result, Settings, Shape
from tilewave.bench.rounds import MODES, Mode, Rounds, play
from tilewave.errors import TilewaveError


def measure_gemm(settings: Settings, advance: Advance) -> GemmReport:
    """All shapes, one after the other; `advance` is called `settings.pieces` times."""
    device, driver = nvidia_gpu(TARGET)
    torch = torch_on_the_gpu()
    packages = {PACKAGES[name]: version_of(PACKAGES[name]) for name in settings.against}
    results = tuple(_result(torch, settings, shape, advance) for shape in settings.shapes)
    return GemmReport(settings, this_gpu(device, driver, torch, packages), results)


def _result(torch: Any, settings: Settings, shape: Shape, advance: Advance) -> Result:
    """One shape: who is right takes part."""
    arena = Arena.of(torch, shape, settings.dtype, settings.seed, EPILOGUES[settings.epilogue])
    found = _contestants(arena, settings)
    contestants = [one for one in found if isinstance(one, Contestant)]
    checked = [_check(arena, one) for one in contestants]
    advance()
    right = [
        one for one, check in zip(contestants, checked, strict=True) if isinstance(check, Checked) and check.passed
    ]
    launches = {one.name: one.launch for one in right}
    how = Launching.of(torch, launches) if launches else None
    rounds = tuple(_rounds(how, launches, mode, settings, advance) for mode in MODES[settings.modes]) if how else ()
    return Result(
        shape,
        tuple(check for check in checked if isinstance(check, Checked)),
        tuple(one for one in [*found, *checked] if isinstance(one, LeftOut)),
        rounds,
        how.words if how else "nothing",
        tuple(one.note for one in contestants if one.note),
    )


def _contestants(arena: Arena, settings: Settings) -> list[Contestant | LeftOut]:
    found = [ours(arena, mapping, settings) for mapping in settings.mappings]
    found += [ablated(arena, ablation_named(name), settings) for name in settings.ablations]
    compile_ahead(found)
    return found + [one for name in settings.against for one in BASELINES[name](arena, settings.out)]


def _check(arena: Arena, contestant: Contestant) -> Checked | LeftOut:
    try:
        return arena.check(contestant)
    except (RuntimeError, TilewaveError) as error:
        return LeftOut(contestant.name, first_line(error), contestant.is_ours)


def _rounds(how: Launching, launches: Mapping[str, Launch], mode: Mode, settings: Settings, advance: Advance) -> Rounds:
    bursts = Bursts.of(how, launches, mode)
    rounds = play(tuple(launches), CUBLAS, settings.rounds, settings.seed, bursts.take, advance)
    return Rounds(mode, bursts.launches, rounds, CUBLAS)
