"""python -m tests.mutants: break changed lines one operator at a time, and list what no test notices."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .changed import NotARevision, default_base
from .equivalent import LIST, read_equivalents
from .report import as_json, as_text, enough_killed
from .session import NotRun, Plan, run

REFUSED = 2


@contextmanager
def bars() -> Iterator[Callable[[str, int], Callable[[], None]]]:
    """Show bars on stderr, if it is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_interactive) as shown:

        def begin(what: str, total: int) -> Callable[[], None]:
            task = shown.add_task(what, total=total)
            return lambda: shown.update(task, advance=1)

        yield begin


def main(arguments: list[str] | None = None) -> int:
    """Return 0 where enough mutants are killed, 1 where too many survive, 2 where nothing can be said."""
    p = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    p.add_argument("--base", default="", help="the commit that lines have changed since; where origin/main was left")
    p.add_argument("--count", type=int, default=60, help="how many mutants are drawn")
    p.add_argument("--seed", type=int, default=1, help="which ones")
    p.add_argument("--jobs", type=int, default=2, help="processes at once")
    p.add_argument("--files", default="*", help="a pattern of the files to mutate, as tilewave/ops/*")
    p.add_argument("--root", type=Path, default=Path.cwd(), help="the work tree")
    p.add_argument("--json", action="store_true", help="print JSON")
    given = p.parse_args(arguments)
    try:
        base = given.base or default_base(given.root)
        listed = tuple(read_equivalents(LIST.read_text()))
        plan = Plan(given.root, base, given.count, given.seed, given.jobs, given.files, listed)
        with bars() as progress:
            found = run(plan, progress)
    except (NotARevision, NotRun) as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    print(as_json(found) if given.json else as_text(found))
    return 0 if enough_killed(found.tried) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # tests that run are ended then, as by the keyboard
    sys.exit(main())
