"""`tilewave records`: show, merge and check files of decisions."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.box import SQUARE
from rich.console import Console

from tilewave.errors import TilewaveError
from tilewave.tune.choose import seconds_text
from tilewave.tune.records import NewerRecord, TileRecord, merged
from tilewave.tune.store import FILE, RecordFile, read_lines, search_path, tidy
from tilewave.view.tables import names, numbers, print_table, words

ACTIONS = ("show", "merge", "check")


def records_command(
    *,
    action: str,
    files: list[Path] | None,
    into: Path,
    as_json: bool,
) -> None:
    if action not in ACTIONS:
        raise TilewaveError(f"records: unknown action {action!r}", remedy=f"there are {', '.join(ACTIONS)}")
    given = [path / FILE if path.is_dir() else path for path in files or ()]
    paths = given or [path / FILE for path in search_path()]
    if missing := next((path for path in given if not path.exists()), None):
        raise TilewaveError(f"records: there is no file {missing}")
    if action == "merge":
        _merge(paths, into, as_json)
    elif action == "check":
        _check(paths, as_json)
    else:
        _show(paths, as_json)


def _show(paths: list[Path], as_json: bool) -> None:
    found = {path: merged(read_lines(path))[0] for path in paths}
    if as_json:
        print(
            json.dumps({str(path): [json.loads(r.line) for r in records] for path, records in found.items()}, indent=2)
        )
        return
    for path, records in found.items():
        if records:
            _print_records(path, records)
    if not any(found.values()):
        print("no records: " + ", ".join(map(str, paths)))


def _print_records(path: Path, records: list[TileRecord]) -> None:
    rows = []
    for r in records:
        choice = ", ".join(f"{name}={value}" for name, value in r.choice.items()) + (f", {r.order}" if r.order else "")
        times = ("" if r.measured is None else seconds_text(r.measured)), seconds_text(r.predicted)
        rows.append((r.key.kernel, r.key.chip, r.key.sizes.replace(",", ", "), choice, r.how, *times))
    columns = (*names("Kernel", "Chip"), *words("Sizes", "Choice", "How"), *numbers("Measured", "Predicted"))
    print_table(Console(highlight=False), columns, rows, str(path), SQUARE)


def _merge(paths: list[Path], into: Path, as_json: bool) -> None:
    bad = tidy(into, paths)
    count = len(merged(read_lines(into / FILE))[0])
    if as_json:
        kept = [{"file": str(path), "line": number, "why": str(why)} for path, number, why in bad]
        print(json.dumps({"file": str(into / FILE), "records": count, "kept_as_is": kept}, indent=2))
        return
    for path, number, why in bad:
        print(f"{path}:{number}: kept as it is: {why}")
    print(f"{count} tuning records in {into / FILE}")


def _check(paths: list[Path], as_json: bool) -> None:
    rows = []
    for path in paths:
        records, bad = merged(read_lines(path))
        wrong = [{"line": number, "why": str(why), "newer": isinstance(why, NewerRecord)} for number, _, why in bad]
        passed_over = {"passed_over": fault} if (fault := RecordFile(path).fault) else {}
        rows.append({"file": str(path), "records": len(records), "damaged": wrong, **passed_over})
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print(f"{row['file']}: {row['records']} records")
            if "passed_over" in row:
                print(row["passed_over"])
            for one in row["damaged"]:  # type: ignore[attr-defined]
                print(f"{row['file']}:{one['line']}: {one['why']}")
    if any(not one["newer"] for row in rows for one in row["damaged"]):  # type: ignore[attr-defined]
        raise typer.Exit(1)
