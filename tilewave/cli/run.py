"""`tilewave run`: a kernel that comes with tilewave, checked and timed in several orders of its tiles."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.box import SQUARE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here
from tilewave.bench.baselines import BASELINES
from tilewave.bench.measure import threads_of
from tilewave.bench.problem import Problem
from tilewave.bench.trial import Setup, Trial, TrialReport
from tilewave.cli.asked import known_dtype, sizes
from tilewave.cli.progress import progress
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
    with threads_of(threads) as count:
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
        if name not in BASELINES:
            start, known = text.index(name), ", ".join(BASELINES)
            what = f"--against: no library is called `{name}`"
            raise TilewaveError(text_error(what, text, start, start + len(name), f"there are {known}"))
    return tuple(dict.fromkeys(names))


def _instruction_set(name: str | None) -> str | None:
    here = ", ".join(s.name for s in INSTRUCTION_SETS.values() if runs_here(s))
    if name is not None and name not in INSTRUCTION_SETS:
        what = f"no instruction set is called `{name}`"
        raise TilewaveError(text_error(what, name, 0, len(name), f"this machine has {here}"))
    if name is not None and not runs_here(INSTRUCTION_SETS[name]):
        raise TilewaveError(f"this machine does not have {name}", remedy=f"it has {here}")
    return name


# -- the run, for people -----------------------------------------------------------------------------------------------


def _run(setup: Setup) -> bool:
    """Print each result as soon as it is there; whether all are right."""
    console = Console(highlight=False)
    with progress("compiling and checking", 2 * len(setup.mappings)) as advance:
        trial = Trial.of(setup, advance)
        report = TrialReport(trial, trial.checks(advance))
    _print_checks(console, report)
    if not report.passed:
        console.print("\nNot timed: a wrong result has no speed.")
        return False
    with progress("measuring", setup.repeats * (len(setup.mappings) + len(setup.against))) as advance:
        report = report.timed(advance)
    _print_comparison(console, report)
    return True


def _print_checks(console: Console, report: TrialReport) -> None:
    trial, setup, problem = report.trial, report.trial.setup, report.trial.setup.problem
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
    for mapping, check in zip(setup.mappings, report.checks, strict=True):
        share = 100 * check.errors / check.elements
        verdict = Text("✓ PASS", "green") if check.passed else Text("✗ FAIL", "bold red")
        console.print(f"\nTesting {mapping}")
        console.print(f"  Max absolute difference: {check.max_difference:.3g}")
        console.print(f"  Errors: {check.errors} / {check.elements} ({share:.2f}%)")
        console.print(Text(f"  {mapping}: ").append(verdict))


def _print_comparison(console: Console, report: TrialReport) -> None:
    setup, comparison = report.trial.setup, report.comparison
    assert comparison is not None, "it is right, and was timed"
    rate = "GFLOP/s" if setup.problem.dtype.is_float else "GOP/s"
    table = Table("Mapping", box=SQUARE)
    for title in ("Time (ms)", "± (ms)", rate):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("Speed-up", no_wrap=True)
    for at, (name, timing) in enumerate(comparison.timings.items()):
        baseline = "" if at else " (baseline)"
        times = f"{1e3 * timing.median:.3f}", f"{1e3 * timing.spread:.3f}"
        table.add_row(name, *times, f"{comparison.gflops(name):.2f}", f"{comparison.speedup(name):.2f}x{baseline}")
        if at == len(setup.mappings) - 1:
            table.add_section()
    console.print(f"\nTest 2: performance, medians of {counted(setup.repeats, 'repeat')} in turns")
    console.print(table)
    for note in report.trial.notes(report.found):
        console.print(f"Note: {note}.")
    console.print(comparison.conclusion)


def _run_for_machines(setup: Setup) -> bool:
    """Print everything as JSON; whether all results are right."""
    report = TrialReport.of(setup, lambda: None)
    print(json.dumps(report.to_json(), indent=2, allow_nan=False))
    return report.passed
