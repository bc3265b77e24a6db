"""A bar on stderr while something is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tilewave.bench.contestant import Advance


@contextmanager
def progress(what: str, total: int) -> Iterator[Advance]:
    """If stderr is a terminal; drawn between measurements: a thread that draws would disturb them."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, auto_refresh=False, disable=not console.is_interactive)
    with bar:
        task = bar.add_task(what, total=total)
        bar.refresh()
        yield lambda: bar.update(task, advance=1, refresh=True)
