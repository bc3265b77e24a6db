"""`tilewave run`: a gemm checked and timed in several orders of its tiles, or the kernels of a user's own file."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.box import SQUARE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here
from tilewave.bench.baselines import BASELINES
from tilewave.bench.kernel import KernelSettings
from tilewave.bench.measure import threads_of
from tilewave.bench.problem import Problem
from tilewave.bench.trial import Setup, Trial, TrialReport
from tilewave.cli.asked import given, known_dtype, refuse_given, sizes
from tilewave.cli.kernel_file import (
    ITS_OWN,
    OF_A_FILE,
    OPTIONS_OF_FILES,
    FileRequest,
    is_file,
    measure_file,
)
from tilewave.cli.progress import progress
from tilewave.errors import TilewaveError, text_error
from tilewave.ir.types import BF16, DTYPES, F16, F32, F64, I8, I32, dims
from tilewave.kernels import accumulator
from tilewave.mapping import as_mapping
from tilewave.view.placement import counted

LINEAR = as_mapping("linear()")
FLOATS = (F16, BF16, F32, F64)
INPUTS = (*(dtype for dtype in DTYPES.values() if dtype.is_float), I8)
OUTPUTS = {"float": FLOATS, "int": (I32, F32, F64)}
"""By the kind of the input; narrower ones would overflow, and overflow is no error of the kernel's."""


def run_command(
    *,
    context: typer.Context,
    what: str,
    set_: list[str] | None,
    target: str,
    kernel: str,
    scalars: list[str] | None,
    shape: str,
    dtype: str,
    out: str,
    tile: str,
    maps: list[str] | None,
    workgroups: int | None,
    threads: int | None,
    instruction_set: str | None,
    repeats: int,
    seed: int,
    against: str,
    as_json: bool,
) -> None:
    if is_file(what):
        refuse_given(context, OF_A_GEMM, "has no effect on a kernel from a file", ITS_OWN)
        beside = against if given(context, "against") else ""
        said, settings = given(context, "target"), KernelSettings(repeats, seed, command="tilewave run")
        asked = FileRequest(Path(what), set_ or [], target, said, kernel, beside, scalars or (), threads, settings)
        if not measure_file(asked, as_json):
            raise typer.Exit(1)
        return
    refuse_given(context, OPTIONS_OF_FILES, OF_A_FILE, "write --shape MxNxK, --tile MxNxK and --map")
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


OF_A_GEMM = ("shape", "dtype", "out", "tile", "maps", "workgroups", "instruction_set")


def _problem(shape: str, dtype: str, out: str) -> Problem:
    given = known_dtype("--dtype", dtype, INPUTS)
    written = known_dtype("--out", out, OUTPUTS[given.kind]) if out else accumulator(given)
    return Problem(*sizes("a shape", shape, (1, 1, 1), "2048x2048x2048"), given, written)


def _libraries(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in BASELINES:
            start, known = text.index(name), ", ".join(BASELINES)
            what = f"--against: unknown library `{name}`"
            raise TilewaveError(text_error(what, text, start, start + len(name), f"there are {known}"))
    return tuple(dict.fromkeys(names))


def _instruction_set(name: str | None) -> str | None:
    here = ", ".join(s.name for s in INSTRUCTION_SETS.values() if runs_here(s))
    if name is not None and name not in INSTRUCTION_SETS:
        what = f"unknown instruction set `{name}`"
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
        console.print("\nNot timed, because the result is wrong.")
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
    console.print(f"\nTest 2: performance, medians of {counted(setup.repeats, 'repeat')}, interleaved")
    console.print(table)
    for note in report.trial.notes(report.found):
        console.print(f"Note: {note}.")
    console.print(comparison.conclusion)


def _run_for_machines(setup: Setup) -> bool:
    """Print everything as JSON; whether all results are right."""
    report = TrialReport.of(setup, lambda: None)
    print(json.dumps(report.to_json(), indent=2, allow_nan=False))
    return report.passed
