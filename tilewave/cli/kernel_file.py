"""Kernels of a user's own file, for `run` and `bench`: found, measured, printed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.box import SQUARE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewave.bench import baselines, contestants
from tilewave.bench.arguments import signature_text
from tilewave.bench.kernel import KernelReport, KernelSettings, Measured, grouped, measure_kernels, pieces
from tilewave.bench.measure import threads_of
from tilewave.bench.rounds import Rounds
from tilewave.cli.diff import fixed_in, named_kernels, parse_sizes
from tilewave.cli.progress import progress
from tilewave.compiled import Compiled
from tilewave.errors import TilewaveError
from tilewave.records import dataclass
from tilewave.view.placement import counted
from tilewave.view.save import check_place, save

KERNELS = ("gemm",)
LIBRARIES = (*baselines.BASELINES, *contestants.BASELINES)
"""Libraries that the built-in gemm is compared with, by `run` or by `bench`."""
ITS_OWN = "the kernel's file decides it; leave it out"
"""The remedy for options that describe the built-in gemm."""
OF_A_FILE = "has no effect on gemm"
OPTIONS_OF_FILES = ("set_", "target", "kernel", "scalars")


@dataclass(frozen=True)
class FileRequest:
    """What a command line says of a kernel file."""

    file: Path
    sizes: Sequence[str]
    target: str
    said: Sequence[str]
    """The options that were given and say how it is compiled."""
    kernel: str
    against: str
    scalars: Sequence[str]
    threads: int | None
    settings: KernelSettings


def is_file(what: str) -> bool:
    """Whether a file is meant, and not a kernel that comes with tilewave; an error where it is neither."""
    if what in KERNELS:
        return False
    if Path(what).is_file():
        return True
    if what.endswith(".py"):
        raise TilewaveError(f"there is no file {what}", remedy="name a Python file that defines kernels")
    names = ", ".join(KERNELS)
    raise TilewaveError(f"unknown kernel {what!r}", remedy=f"there is {names}; or name a Python file")


def measure_file(asked: FileRequest, as_json: bool, saved: Path | None = None) -> bool:
    """Measure the kernels of a file, and print what was found; whether all results are right."""
    check_place(saved)
    groups = grouped(_kernels(asked), _others(asked))
    settings = replace(asked.settings, numbers=_scalars(asked.scalars, groups))
    console = Console(highlight=False)
    with threads_of(asked.threads) as threads:
        reports = []
        for group in groups:
            with progress("measuring", pieces(group, settings)) as advance:
                reports.append(measure_kernels(group, settings, advance))
            if not as_json:
                _print(console, asked.file, reports[-1], threads)
    record = {"file": str(asked.file), "threads": threads, "reports": [report.to_json() for report in reports]}
    given = json.dumps(record, indent=2, allow_nan=False)
    if saved is not None:
        save(saved, given + "\n")
    if as_json:
        print(given)
    return all(report.passed for report in reports)


def _scalars(texts: Sequence[str], groups: Sequence[Mapping[str, Compiled]]) -> dict[str, float]:
    """`alpha=0.5` as values; an error for what is no number, or what no kernel takes."""
    known = [name for group in groups for kernel in group.values() for name in kernel.signature.dtypes]
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for text in texts for part in text.split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        try:
            found[name] = float(value)
        except ValueError:
            raise TilewaveError(f"--scalar: {part!r} gives no number", remedy="write --scalar alpha=0.5") from None
        if name not in known:
            remedy = f"they take {', '.join(dict.fromkeys(known))}" if known else "they take none: leave --scalar out"
            raise TilewaveError(f"--scalar: no kernel of the file takes a scalar argument {name!r}", remedy=remedy)
    return found


def _kernels(asked: FileRequest) -> dict[str, Compiled]:
    compiled = fixed_in(asked.file, parse_sizes([*asked.sizes]), "--sizes", asked.target, asked.said)
    found = named_kernels(compiled, asked.kernel)
    if not found:
        known = ", ".join(named_kernels(compiled, ""))
        remedy = f"it defines {known}" if known else "decorate a function with @wave([…])"
        raise TilewaveError(f"{asked.file} defines no kernel" + (f" {asked.kernel!r}" if known else ""), remedy=remedy)
    return found


def _others(asked: FileRequest) -> dict[str, Compiled]:
    """Return the kernels of the `--against` files, under the names of their files."""
    found = {}
    for text in filter(None, (part.strip() for part in asked.against.split(","))):
        path = Path(text)
        if not path.is_file():
            raise _no_file(text)
        compiled = fixed_in(path, parse_sizes([*asked.sizes]), "--sizes", asked.target, asked.said)
        found.update({f"{path.name}:{name}": c for name, c in named_kernels(compiled, asked.kernel).items()})
    return found


def _no_file(text: str) -> TilewaveError:
    """Return the error for an `--against` that names a library, or a file that does not exist."""
    remedy = "the kernels of a file are compared with those of other files: --against other.py"
    if text not in LIBRARIES:
        return TilewaveError(f"--against: there is no file {text}", remedy=remedy)
    functions = "and with functions of a library by tilewave.bench.measure (docs/benchmarks/measuring.md)"
    what = f"--against: {text} is compared with the built-in gemm only"
    return TilewaveError(what, remedy=f"{remedy},\n{functions}")


# -- for people --------------------------------------------------------------------------------------------------------


def _print(console: Console, file: Path, report: KernelReport, threads: int) -> None:
    machine, target = report.machine, (report.kernels[0].target if report.kernels else "")
    where = f"driver {machine.driver}; torch {machine.torch}" if machine.driver else counted(threads, "thread")
    console.print(f"{file}, {target}, on {machine.device}, {where}", style="bold", markup=False)
    console.print(f"{signature_text(report.parameters)}; random numbers, seed {report.settings.seed}", markup=False)
    if numbers := report.settings.numbers:
        given = ", ".join(f"{name} = {value:g}" for name, value in numbers.items())
        console.print(f"scalar arguments: {given}", markup=False)
    for config in dict.fromkeys(kernel.config for kernel in report.kernels if kernel.config):
        console.print(f"tiles: {config}", markup=False)
    console.print("\nTest 1: correctness, against the kernel's own program in float64")
    for kernel in report.kernels:
        _print_check(console, kernel)
    for rounds in report.rounds:
        how = f"medians of {counted(report.settings.rounds, 'round')}, interleaved; {rounds.mode}"
        console.print(f"\nTest 2: performance, {how}; launched by {report.launched_by}", markup=False)
        console.print(_table(rounds))
    if not report.rounds:
        console.print("\nNot timed, because the result is wrong.")
    for note in report.notes:
        console.print(f"Note: {note}.", markup=False)
    if report.conclusion:
        console.print(report.conclusion, markup=False)


def _print_check(console: Console, kernel: Measured) -> None:
    a = kernel.accuracy
    verdict = Text("✓ PASS", "green") if a.passed else Text("✗ FAIL", "bold red")
    console.print(Text(f"  {kernel.name}: ").append(verdict))
    console.print(f"    Max absolute difference: {a.max_difference:.3g}")
    console.print(f"    Errors: {a.errors} / {a.elements} ({100 * a.errors / max(1, a.elements):.2f}%)")
    if a.workgroups < a.of_workgroups:
        console.print(f"    checked: {a.workgroups} of {a.of_workgroups} workgroups, drawn at random")


def _table(rounds: Rounds) -> Table:
    table = Table("Kernel", box=SQUARE)
    for title in ("Time (ms)", "± (ms)", "Times as fast"):
        table.add_column(title, justify="right", no_wrap=True)
    ordered = [rounds.baseline, *(name for name in rounds.contestants if name != rounds.baseline)]
    for name in ordered:
        time, ratio = rounds.time(name), rounds.ratio(name)
        given = f"{ratio.median:.3f} ± {ratio.spread:.3f}" if ratio else "1 (baseline)"
        table.add_row(Text(name), f"{1e3 * time.median:.3f}", f"{1e3 * time.spread:.3f}", given)
    return table
