"""`tilewave run`: a kernel that comes with tilewave, checked and timed in several orders of its tiles."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.box import SQUARE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tilewave._version import __version__
from tilewave.bench.problem import Check, Problem
from tilewave.bench.rivals import RIVALS, Absent, Rival
from tilewave.bench.trial import Advance, Setup, Standings, Trial
from tilewave.cli.asked import known_dtype, sizes
from tilewave.errors import TilewaveError, text_error
from tilewave.ir.types import BF16, DTYPES, F16, F32, F64, I8, I32, dims
from tilewave.kernels import accumulator
from tilewave.mapping import as_mapping
from tilewave.view.placement import counted

KERNELS = ("gemm",)
LINEAR = as_mapping("linear()")
FLOATS = (F16, BF16, F32, F64)
INPUTS = (*(dtype for dtype in DTYPES.values() if dtype.is_float), I8)
OUTPUTS = {"float": FLOATS, "int": (I32, F32, F64)}
"""By the kind of the input; narrower ones would overflow, and overflow is no error of the kernel's."""

KernelName = Annotated[str, typer.Argument(metavar="KERNEL", help="What to run: gemm.")]
ShapeText = Annotated[str, typer.Option(metavar="MxNxK", help="C is M x N, and every sum has K products.")]
DTypeText = Annotated[str, typer.Option("--dtype", metavar="DTYPE", help=f"Of A and B: {', '.join(map(str, INPUTS))}.")]
OutText = Annotated[str, typer.Option(metavar="DTYPE", help="Of C; without it, what the sums are held in.")]
TileText = Annotated[str, typer.Option(metavar="MxNxK", help="What a workgroup computes at a time.")]
Maps = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="MAPPING", help="An order of tiles beside linear(); repeatable. See tilewave map."),
]
Workgroups = Annotated[int | None, typer.Option(metavar="N", min=1, help="Persistent: N workgroups, in rounds.")]
Threads = Annotated[
    int | None, typer.Option(metavar="N", min=1, max=1024, help="Threads of every contestant; without it, all cores.")
]
InstructionSetName = Annotated[str | None, typer.Option(metavar="NAME", help="Such as avx2; without it, the best.")]
Repeats = Annotated[int, typer.Option(metavar="N", min=1, help="How often each is timed.")]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Of the numbers, and of the order of measurements.")]
Against = Annotated[str, typer.Option(metavar="NAMES", help='Libraries beside it: numpy,torch; none with "".')]
Json = Annotated[bool, typer.Option("--json", help="Print everything for machines.")]


def run_command(
    kernel: KernelName,
    shape: ShapeText = "2048x2048x2048",
    dtype: DTypeText = "f32",
    out: OutText = "",
    tile: TileText = "128x256x64",
    maps: Maps = None,
    workgroups: Workgroups = None,
    threads: Threads = None,
    instruction_set: InstructionSetName = None,
    repeats: Repeats = 15,
    seed: Seed = 0,
    against: Against = "numpy",
    as_json: Json = False,
) -> None:
    """Run a kernel on this machine: is it right, and how fast is it in each order of tiles?

    Every result is held against float64, within what K products may err; one that is wrong makes the exit code 1.

    Then all orders of tiles and all libraries are timed in turns, each repeat in a new random order.

    Examples:

      tilewave run gemm

      tilewave run gemm --shape 4096x1024x2048 --map "grouped(8)" --map "xcd_contiguous(8) >> grouped(8)"

      tilewave run gemm --dtype bf16 --out bf16 --against torch --threads 1

      tilewave run gemm --shape 1000x1000x1000 --workgroups 8 --instruction-set avx2

      tilewave run gemm --shape 512x512x512 --map "hilbert()" --json
    """
    if kernel not in KERNELS:
        raise TilewaveError(f"no kernel is called {kernel!r}", remedy=f"the kernels are: {', '.join(KERNELS)}")
    problem = _problem(shape, dtype, out)
    blocks = sizes("a tile", tile, (2, 2, 1), "128x256x64")
    mappings = tuple(dict.fromkeys([LINEAR, *map(as_mapping, maps or ())]))
    name, libraries = _instruction_set(instruction_set), _libraries(against)
    problem.check_memory(len(libraries))
    with _threads(threads) as count:
        setup = Setup(problem, blocks, mappings, workgroups, name, count, repeats, seed, libraries)
        passed = _run_for_machines(setup) if as_json else _run(setup)
    if not passed:
        raise typer.Exit(1)


# -- what was asked ----------------------------------------------------------------------------------------------------


def _problem(shape: str, dtype: str, out: str) -> Problem:
    given = known_dtype("--dtype", dtype, INPUTS)
    written = known_dtype("--out", out, OUTPUTS[given.kind]) if out else accumulator(given)
    return Problem(*sizes("a shape", shape, (1, 1, 1), "2048x2048x2048"), given, written)


def _libraries(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in RIVALS:
            start, known = text.index(name), ", ".join(RIVALS)
            what = f"--against: no library is called `{name}`"
            raise TilewaveError(text_error(what, text, start, start + len(name), f"there are {known}"))
    return tuple(dict.fromkeys(names))


def _instruction_set(name: str | None) -> str | None:
    from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here  # noqa: PLC0415  LLVM is heavy

    here = ", ".join(s.name for s in INSTRUCTION_SETS.values() if runs_here(s))
    if name is not None and name not in INSTRUCTION_SETS:
        what = f"no instruction set is called `{name}`"
        raise TilewaveError(text_error(what, name, 0, len(name), f"this machine has {here}"))
    if name is not None and not runs_here(INSTRUCTION_SETS[name]):
        raise TilewaveError(f"this machine does not have {name}", remedy=f"it has {here}")
    return name


@contextmanager
def _threads(wanted: int | None) -> Iterator[int]:
    """So many threads for as long as this lasts, or as many as the environment and the machine say."""
    from tilewave.runtime.pool import default_threads  # noqa: PLC0415  LLVM is heavy

    before = os.environ.get("TILEWAVE_NUM_THREADS")
    if wanted is not None:
        os.environ["TILEWAVE_NUM_THREADS"] = str(wanted)
    try:
        yield default_threads()
    finally:
        os.environ.pop("TILEWAVE_NUM_THREADS", None)
        if before is not None:
            os.environ["TILEWAVE_NUM_THREADS"] = before


# -- the run, for people -----------------------------------------------------------------------------------------------


def _run(setup: Setup) -> bool:
    """Print each result as soon as it is there; whether all are right."""
    console = Console(highlight=False)
    with _progress("compiling and checking", 2 * len(setup.mappings)) as advance:
        trial = Trial.of(setup, advance)
        checks = trial.checks(advance)
    _print_checks(console, trial, checks)
    if not all(check.passed for check in checks):
        console.print("\nNot timed: a wrong result has no speed.")
        return False
    found = trial.rivals()
    rivals = [rival for rival in found if isinstance(rival, Rival)]
    with _progress("measuring", setup.repeats * (len(setup.mappings) + len(rivals))) as advance:
        standings = trial.times(rivals, advance)
    _print_standings(console, setup, standings)
    for note in _notes(trial, found):
        console.print(f"Note: {note}.")
    console.print(standings.conclusion)
    return True


@contextmanager
def _progress(what: str, total: int) -> Iterator[Advance]:
    """A bar on stderr, if that is a terminal; drawn between measurements: a thread that draws would disturb them."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, auto_refresh=False, disable=not console.is_interactive)
    with bar:
        task = bar.add_task(what, total=total)
        bar.refresh()
        yield lambda: bar.update(task, advance=1, refresh=True)


def _print_checks(console: Console, trial: Trial, checks: tuple[Check, ...]) -> None:
    setup, problem = trial.setup, trial.setup.problem
    console.print(
        f"gemm {dims((problem.m, problem.n, problem.k))}, {problem.dtype} → {problem.out}: {trial.grid} tiles of "
        f"{dims(setup.tile)}, {counted(trial.launched, 'workgroup')}, {trial.instruction_set}, "
        f"{counted(setup.threads, 'thread')}",
        style="bold",
    )
    for warning in trial.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)
    console.print("\nTest 1: correctness, against float64")
    if problem.checked_rows < problem.m:
        console.print(f"  {problem.checked_rows} of {problem.m} rows, drawn at random")
    for mapping, check in zip(setup.mappings, checks, strict=True):
        share = 100 * check.errors / check.elements
        verdict = Text("✓ PASS", "green") if check.passed else Text("✗ FAIL", "bold red")
        console.print(f"\nTesting {mapping}")
        console.print(f"  Max absolute difference: {check.max_difference:.3g}")
        console.print(f"  Errors: {check.errors} / {check.elements} ({share:.2f}%)")
        console.print(Text(f"  {mapping}: ").append(verdict))


def _print_standings(console: Console, setup: Setup, standings: Standings) -> None:
    rate = "GFLOP/s" if setup.problem.dtype.is_float else "GOP/s"
    table = Table("Mapping", box=SQUARE)
    for title in ("Time (ms)", "± (ms)", rate):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("Speed-up", no_wrap=True)
    for at, (name, timing) in enumerate(standings.timings.items()):
        baseline = "" if at else " (baseline)"
        times = f"{1e3 * timing.median:.3f}", f"{1e3 * timing.spread:.3f}"
        table.add_row(name, *times, f"{standings.gflops(name):.2f}", f"{standings.speedup(name):.2f}x{baseline}")
        if at == len(setup.mappings) - 1:
            table.add_section()
    console.print(f"\nTest 2: performance, medians of {counted(setup.repeats, 'repeat')} in turns")
    console.print(table)


def _notes(trial: Trial, found: list[Rival | Absent]) -> list[str]:
    """What a reader must know of the machine, of the libraries, and of those that are not there."""
    cores, out = os.cpu_count() or 1, trial.setup.problem.out
    busy = f"the load was {trial.load:.1f} on {counted(cores, 'core')} when this began; other work makes times longer"
    notes = [busy] if trial.load > cores / 2 else []
    for library in found:
        if isinstance(library, Absent):
            notes.append(f"{library.name} is left out: {library.why}")
        elif library.writes != out:
            notes.append(f"{library.name} writes {library.writes}, not {out}")
        if isinstance(library, Rival) and library.note:
            notes.append(library.note)
    return notes


# -- the run, for machines ---------------------------------------------------------------------------------------------


def _run_for_machines(setup: Setup) -> bool:
    """Print everything as JSON; whether all results are right."""
    trial = Trial.of(setup, _nothing)
    checks = trial.checks(_nothing)
    passed = all(check.passed for check in checks)
    found = trial.rivals() if passed else []
    rivals = [rival for rival in found if isinstance(rival, Rival)]
    standings = trial.times(rivals, _nothing) if passed else None
    report = {
        **_setup_json(trial, rivals),
        "passed": passed,
        "warnings": trial.warnings,
        "notes": _notes(trial, found),
        "correctness": [_check_json(str(m), check) for m, check in zip(setup.mappings, checks, strict=True)],
        "performance": _standings_json(setup, standings) if standings else [],
        "conclusion": standings.conclusion if standings else None,
    }
    print(json.dumps(report, indent=2, allow_nan=False))
    return passed


def _nothing() -> None:
    """No bar is drawn."""


def _setup_json(trial: Trial, rivals: list[Rival]) -> dict[str, Any]:
    setup, problem = trial.setup, trial.setup.problem
    return {
        "tilewave": __version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "libraries": {rival.name: rival.version for rival in rivals},
        "kernel": "gemm",
        "shape": [problem.m, problem.n, problem.k],
        "dtype": problem.dtype.name,
        "out": problem.out.name,
        "tile": list(setup.tile),
        "workgroups": trial.launched,
        "instruction_set": trial.instruction_set,
        "threads": setup.threads,
        "repeats": setup.repeats,
        "seed": setup.seed,
        "load": trial.load,
        "checked_rows": problem.checked_rows,
    }


def _check_json(mapping: str, check: Check) -> dict[str, Any]:
    difference = check.max_difference if math.isfinite(check.max_difference) else None
    counts = {"errors": check.errors, "elements": check.elements, "passed": check.passed}
    return {"mapping": mapping, "max_difference": difference, **counts}


def _standings_json(setup: Setup, standings: Standings) -> list[dict[str, Any]]:
    mappings = set(map(str, setup.mappings))
    return [
        {
            "name": name,
            "kind": "mapping" if name in mappings else "library",
            "median_seconds": timing.median,
            "spread_seconds": timing.spread,
            "median_cpu_seconds": timing.cpu_median,
            "gflops": standings.gflops(name),
            "speedup": standings.speedup(name),
            "calls_per_repeat": timing.calls,
            "seconds": timing.seconds,
            "cpu_seconds": timing.cpu_seconds,
        }
        for name, timing in standings.timings.items()
    ]
