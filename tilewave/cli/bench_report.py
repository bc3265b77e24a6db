"""A benchmark's report for people, and as bars for the plot."""

from __future__ import annotations

from rich.box import SQUARE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewave.bench.result import CUBLAS, Checked, GemmReport, Result, Settings
from tilewave.bench.rounds import MODES, Estimate, Mode, Rounds
from tilewave.ir.types import dims
from tilewave.view.bench_plot import Bar
from tilewave.view.placement import counted

NOTHING = "–"


# -- for people --------------------------------------------------------------------------------------------------------


def print_report(console: Console, report: GemmReport) -> None:
    """A table for each mode, then what a reader must know."""
    settings, machine = report.settings, report.machine
    console.print(
        Text(
            f"{_kernel(settings)}, {settings.dtype} → {settings.out}, tiles of {dims(settings.tile)}, "
            f"on {machine.device} (driver {machine.driver}; torch {machine.torch})",
            style="bold",
        )
    )
    for mode in MODES[settings.modes]:
        console.print(f"\n{mode}; medians of {counted(settings.rounds, 'round')}; launched by {launched_by(report)}")
        console.print(_table(report, mode))
    for note in report.notes:
        console.print(f"Note: {note}.", markup=False)


def _kernel(settings: Settings) -> str:
    return f"gemm with {settings.epilogue}" if settings.epilogue else "gemm"


def launched_by(report: GemmReport) -> str:
    return "; ".join(dict.fromkeys(result.launched_by for result in report.results))


def _table(report: GemmReport, mode: Mode) -> Table:
    table = Table("shape", "contestant", box=SQUARE)
    rate = "TFLOP/s" if report.settings.dtype.is_float else "TOP/s"
    for title in (rate, f"ratio to {CUBLAS}", "error"):
        table.add_column(title, justify="right", no_wrap=True)
    for result in report.results:
        for at, row in enumerate(_rows(result, mode)):
            table.add_row("" if at else result.name, *row)
        table.add_section()
    for name, mean in report.geometric_means(mode.name).items():
        table.add_row("geometric mean", name, "", Text(f"{mean:.3f}", style="bold"), "")
    return table


def _rows(result: Result, mode: Mode) -> list[tuple[str | Text, ...]]:
    rounds = rounds_in(result, mode)
    rows: list[tuple[str | Text, ...]] = []
    for check in result.checks:
        if rounds is None or check.contestant not in rounds.contestants:
            rows.append((check.contestant, NOTHING, NOTHING, _error(check)))
            continue
        rate = rounds.tflops(check.contestant, result.operations)
        ratio = rounds.ratio(check.contestant)
        given = _rounded(ratio, 3) if ratio else NOTHING
        rows.append((check.contestant, _rounded(rate, 1), given, _error(check)))
    return [*rows, *((failed.contestant, NOTHING, NOTHING, NOTHING) for failed in result.failed)]


def rounds_in(result: Result, mode: Mode) -> Rounds | None:
    return next((rounds for rounds in result.rounds if rounds.mode == mode), None)


def _rounded(estimate: Estimate, digits: int) -> str:
    return f"{estimate.median:.{digits}f} ± {estimate.spread:.{digits}f}"


def _error(check: Checked) -> Text:
    return Text(f"{check.error:.2e}") if check.passed else Text(f"✗ {check.error:.2e}", style="bold red")


# -- as bars -----------------------------------------------------------------------------------------------------------


def bars_of(report: GemmReport) -> tuple[Bar, ...]:
    """Every ratio, shape by shape and mode by mode."""
    modes = MODES[report.settings.modes]
    bars = []
    for result in report.results:
        for rounds in result.rounds:
            for check in result.checks:
                if ratio := rounds.ratio(check.contestant):
                    named = f"{check.contestant}, {rounds.mode.name}" if len(modes) > 1 else check.contestant
                    bars.append(Bar(result.name, named, ratio.median, ratio.spread))
    return tuple(bars)


def caption_of(report: GemmReport) -> str:
    settings, machine = report.settings, report.machine
    modes = "; ".join(map(str, MODES[settings.modes]))
    return (
        f"{_kernel(settings)}, {settings.dtype} → {settings.out}, tiles of {dims(settings.tile)}, random data, on "
        f"{machine.device} (driver {machine.driver}; torch {machine.torch}), clocks untouched. {modes}. Medians of "
        f"{counted(settings.rounds, 'round')}; lines are half the distance between the quartiles, up and down."
    )
