"""`tilewave bench`: our GEMM beside cuBLAS and Triton on this machine's GPU, in turns, with medians and spreads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilewave.bench.ablation import TARGET, Rung, checked_rung, ladder_rungs, rung_named
from tilewave.bench.contestants import PACKAGES, RIVALS, compile_ahead, of_rung, ours
from tilewave.bench.epilogue import BIAS_GELU, EPILOGUES
from tilewave.bench.gpu import Arena, Bursts, Contestant, Launching, first_line, torch_on_the_gpu
from tilewave.bench.result import Checked, Failed, Machine, Report, Result, Settings, Shape
from tilewave.bench.rounds import MODES, Rounds, play
from tilewave.bench.trial import Advance
from tilewave.cli.asked import known_dtype, sizes
from tilewave.cli.bench_report import bars_of, caption_of, print_report, to_json
from tilewave.errors import TargetError, TilewaveError, text_error
from tilewave.ir.types import BF16, F8E4M3FN, F8E5M2, F16, F32, I8, I32, DType
from tilewave.mapping import as_mapping
from tilewave.runtime.cuda_driver import CudaDevice, cuda_driver
from tilewave.view.bench_plot import bench_plot
from tilewave.view.save import save

KERNELS = ("gemm",)
SHAPES: dict[str, tuple[Shape, ...]] = {
    "seeds": (
        (2048, 2048, 2048),
        (4096, 4096, 4096),
        (4864, 4096, 4160),
        (4864, 8192, 4160),
        (16384, 4096, 8192),
        (8192, 8192, 8192),
    ),
    "unseen": ((8200, 8200, 8200), (5120, 13824, 5120), (1024, 28672, 8192)),
}
"""`seeds` are those that the order of tiles was chosen on; `unseen` are not."""

INPUTS = (F16, BF16, F8E4M3FN, F8E5M2, I8)
OUTPUTS = {"float": (F16, BF16, F32), "int": (I32, F32)}
DEFAULT_OUT = {F16: F16, BF16: BF16, F8E4M3FN: BF16, F8E5M2: BF16, I8: I32}
"""What cuBLAS writes for such operands when torch calls it."""

BEST_MAPPING = "grouped(12)"
LOADED_DRIVER = Path("/proc/driver/nvidia/version")

KernelName = Annotated[str, typer.Argument(metavar="KERNEL", help="What to measure: gemm.")]
ShapesText = Annotated[str, typer.Option("--shapes", metavar="SHAPES", help="seeds, unseen, or MxNxK,MxNxK,…")]
DTypeText = Annotated[str, typer.Option("--dtype", metavar="DTYPE", help=f"Of A and B: {', '.join(map(str, INPUTS))}.")]
OutText = Annotated[str, typer.Option(metavar="DTYPE", help="Of C; without it, what cuBLAS writes.")]
TileText = Annotated[str, typer.Option(metavar="MxNxK", help="What a workgroup computes at a time.")]
Maps = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="MAPPING", help=f"An order of tiles; repeatable. Without it, {BEST_MAPPING}."),
]
Against = Annotated[str, typer.Option(metavar="NAMES", help=f'Rivals: {",".join(RIVALS)}; none with "".')]
RoundCount = Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="How often each is timed in a mode.")]
ModeName = Annotated[
    str, typer.Option("--mode", metavar="MODE", help="short (2 ms bursts), sustained (150 ms), or both.")
]
EpilogueName = Annotated[str, typer.Option("--epilogue", metavar="NAME", help=f"After the sums: {BIAS_GELU}.")]
Ladder = Annotated[bool, typer.Option("--ladder", help="Also ours with one optimisation left out at a time.")]
Without = Annotated[
    list[str] | None, typer.Option("--without", metavar="PASS", help="Also ours without that pass; repeatable.")
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Of the numbers, and of the order of measurements.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything for machines, every sample included.")]
JsonFile = Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Write to a file what --json prints.")]
SvgFile = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the ratios to cuBLAS as bars.")]


def bench_command(
    what: KernelName = "gemm",
    shapes: ShapesText = "seeds",
    dtype: DTypeText = "f16",
    out: OutText = "",
    tile: TileText = "128x256x64",
    maps: Maps = None,
    against: Against = "cublas",
    rounds: RoundCount = 15,
    mode: ModeName = "both",
    epilogue: EpilogueName = "",
    ladder: Ladder = False,
    left_out: Without = None,
    seed: Seed = 0,
    as_json: Json = False,
    saved: JsonFile = None,
    svg: SvgFile = None,
) -> None:
    """Measure a kernel on this machine's NVIDIA GPU beside cuBLAS and Triton; the GPU's clocks are left alone.

    Every result is held against float64 first; one of ours that is wrong is not timed, and the exit code is 1.

    Then rounds: all in a new random order each time, cuBLAS before and after each of them. A ratio is the mean time of
    those two over ours; medians stand beside half the distance between the quartiles.

    Examples:

      tilewave bench gemm --shapes seeds --against cublas,triton

      tilewave bench gemm --shapes unseen --dtype bf16 --svg ratios.svg

      tilewave bench gemm --shapes 4096x4096x4096,8192x8192x8192 --map "grouped(8)" --map "hilbert()" --mode short

      tilewave bench gemm --epilogue bias+gelu --shapes 8192x8192x8192

      tilewave bench gemm --ladder --against cublas,triton --mode short --rounds 7

      tilewave bench gemm --json
    """
    if what not in KERNELS:
        raise TilewaveError(f"no kernel is called {what!r}", remedy=f"the kernels are: {', '.join(KERNELS)}")
    given = known_dtype("--dtype", dtype, INPUTS)
    written = known_dtype("--out", out, OUTPUTS[given.kind]) if out else DEFAULT_OUT[given]
    orders = tuple(dict.fromkeys(str(as_mapping(text)) for text in maps or (BEST_MAPPING,)))
    facts = given, written, sizes("a tile", tile, (2, 2, 1), "128x256x64"), orders, _rivals(against)
    after = _epilogue(epilogue, given, written), _names_of_rungs(ladder, left_out or [], epilogue)
    report = _measure(Settings(_shapes(shapes), *facts, _mode(mode), rounds, seed, *after))
    told = json.dumps(to_json(report), indent=2, allow_nan=False)
    if saved is not None:
        save(saved, told + "\n")
    if svg is not None:
        save(svg, bench_plot(bars_of(report), caption_of(report)))
    if as_json:
        print(told)
    else:
        print_report(Console(highlight=False), report)
    if not report.passed:
        raise typer.Exit(1)


# -- what was asked ----------------------------------------------------------------------------------------------------


def _shapes(text: str) -> tuple[Shape, ...]:
    if text in SHAPES:
        return SHAPES[text]
    if not re.match(r"\s*\d", text):
        remedy = f"there are {' and '.join(SHAPES)}, or write 4096x4096x4096,8192x8192x8192"
        raise TilewaveError(text_error(f"--shapes: no shapes are called `{text}`", text, 0, len(text), remedy))
    found = [sizes("a shape", one.strip(), (1, 1, 1), "4096x4096x4096") for one in text.split(",")]
    return tuple(dict.fromkeys(found))


def _rivals(text: str) -> tuple[str, ...]:
    for match in re.finditer(r"[^,\s]+", text):
        if match[0] not in RIVALS:
            what = f"--against: no rival is called `{match[0]}`"
            raise TilewaveError(text_error(what, text, *match.span(), f"there are {', '.join(RIVALS)}"))
    return tuple(dict.fromkeys(re.findall(r"[^,\s]+", text)))


def _mode(text: str) -> str:
    if text not in MODES:
        remedy = f"there are {', '.join(MODES)}"
        raise TilewaveError(text_error(f"--mode: no mode is called `{text}`", text, 0, len(text), remedy))
    return text


def _epilogue(name: str, dtype: DType, out: DType) -> str:
    if name not in EPILOGUES:
        known = ", ".join(filter(None, EPILOGUES))
        raise TilewaveError(text_error(f"--epilogue: none is called `{name}`", name, 0, len(name), f"there is {known}"))
    if name and (dtype.bits != 16 or out != dtype):
        told = f"--epilogue {name} is measured where A, B, bias and C are all f16 or all bf16, not {dtype} → {out}"
        raise TilewaveError(told, remedy="leave --out away, and write --dtype f16")
    return name


def _names_of_rungs(all_of_them: bool, left_out: list[str], epilogue: str) -> tuple[str, ...]:
    rungs = [*(ladder_rungs() if all_of_them else ()), *map(checked_rung, left_out)]
    if rungs and epilogue:
        raise TilewaveError("the ladder is climbed without an epilogue", remedy="leave --epilogue away")
    return tuple(dict.fromkeys(rung.name for rung in rungs))


def _rungs(settings: Settings) -> list[Rung]:
    return [rung_named(name) for name in settings.rungs]


# -- the machine -------------------------------------------------------------------------------------------------------


def _device() -> tuple[CudaDevice, str]:
    """The GPU and its driver, or an error that says why nothing can be measured here."""
    try:
        driver = cuda_driver()
        device = driver.device(0)
    except TargetError as error:
        remedy = "run it where nvidia-smi shows an H100 or H200; `tilewave sim --machine H200` needs no GPU"
        raise TargetError(f"tilewave bench measures on an NVIDIA GPU, but {error.what}", remedy=remedy) from None
    if not device.runs(TARGET):
        what = f"tilewave bench measures kernels for {TARGET}, but {device.name} is {device.arch}"
        raise TargetError(what, remedy="run it on an H100 or H200")
    major, minor = driver.version
    return device, f"{_loaded_driver()}CUDA {major}.{minor}"


def _loaded_driver() -> str:
    try:
        found = re.search(r"\d+\.\d+(\.\d+)?", LOADED_DRIVER.read_text())
    except OSError:
        return ""
    return f"{found[0]}, " if found else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


# -- the measurement ---------------------------------------------------------------------------------------------------


def _measure(settings: Settings) -> Report:
    device, driver = _device()
    torch = torch_on_the_gpu()
    versions = {PACKAGES[name]: _version(PACKAGES[name]) for name in settings.against}
    machine = Machine(device.name, driver, str(torch.__version__), versions)
    pieces = len(settings.shapes) * (1 + len(MODES[settings.modes]) * settings.rounds)
    with _progress("measuring", pieces) as advance:
        results = tuple(_result(torch, settings, shape, advance) for shape in settings.shapes)
    return Report(settings, machine, results)


@contextmanager
def _progress(what: str, total: int) -> Iterator[Advance]:
    """A bar on stderr, if that is a terminal; drawn between rounds: a thread that draws would disturb them."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, auto_refresh=False, disable=not console.is_interactive)
    with bar:
        task = bar.add_task(what, total=total)
        bar.refresh()
        yield lambda: bar.update(task, advance=1, refresh=True)


def _result(torch: Any, settings: Settings, shape: Shape, advance: Advance) -> Result:
    """One shape: who is right takes part."""
    arena = Arena.of(torch, shape, settings.dtype, settings.seed, EPILOGUES[settings.epilogue])
    found = [ours(arena, mapping, settings) for mapping in settings.mappings]
    found += [of_rung(arena, rung, settings) for rung in _rungs(settings)]
    compile_ahead(found)
    found += [one for name in settings.against for one in RIVALS[name](arena, settings.out)]
    contestants = [one for one in found if isinstance(one, Contestant)]
    checked = [_check(arena, one) for one in contestants]
    advance()
    right = [
        one for one, check in zip(contestants, checked, strict=True) if isinstance(check, Checked) and check.passed
    ]
    launches = {one.name: one.launch for one in right}
    how = Launching.of(torch, launches) if launches else None
    rounds = _rounds(how, launches, settings, advance) if how else ()
    return Result(
        shape,
        tuple(check for check in checked if isinstance(check, Checked)),
        tuple(one for one in [*found, *checked] if isinstance(one, Failed)),
        rounds,
        how.words if how else "nobody",
        tuple(one.note for one in contestants if one.note),
    )


def _check(arena: Arena, contestant: Contestant) -> Checked | Failed:
    try:
        return arena.check(contestant)
    except (RuntimeError, TilewaveError) as error:
        return Failed(contestant.name, first_line(error), contestant.is_ours)


def _rounds(how: Launching, launches: dict[str, Any], settings: Settings, advance: Advance) -> tuple[Rounds, ...]:
    made = []
    for mode in MODES[settings.modes]:
        bursts = Bursts.of(how, launches, mode)
        rounds = play(tuple(launches), settings.rounds, settings.seed, bursts.take, advance)
        made.append(Rounds(mode, bursts.launches, rounds))
    return tuple(made)
