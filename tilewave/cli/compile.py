"""`tilewave compile`: the kernels of a Python file as code, and what they take of the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.box import SQUARE
from rich.console import Console
from rich.table import Table

from tilewave.backend.names import MODELLED_TARGETS
from tilewave.backend.targets import TARGETS
from tilewave.cli.asked import given
from tilewave.cli.cycles import print_cycles
from tilewave.cli.diff import compiled_in, named_kernels, parse_names, parse_sizes
from tilewave.cli.emulate import statistics_table
from tilewave.compiled import Compiled
from tilewave.errors import TilewaveError
from tilewave.explore.code import compiled_json, cycles_json, loop_json, reasons_of
from tilewave.machine.chips import CHIPS
from tilewave.options import SchedulingType


def compile_command(
    *,
    context: typer.Context,
    file: Path,
    target: str,
    set_: list[str],
    left_open: str,
    kernel: str,
    schedule: str,
    out: Path | None,
    stats: bool,
    as_json: bool,
) -> None:
    asked, names = given(context, "target", "schedule", "left_open"), parse_names(left_open)
    compiled = compiled_in(file, parse_sizes(set_), target, _schedule(schedule), asked, names)
    found = named_kernels(compiled, kernel)
    if not found:
        raise TilewaveError(f"{file} defines no kernel" + (f" {kernel!r}" if kernel else ""))
    if stats:
        _refuse_uncounted(found)
    loops = {name: _loop(c) for name, c in found.items()} if stats else {}
    records = {name: {**compiled_json(c), **loops.get(name, {})} for name, c in found.items()}
    for name, c in found.items():
        if out is not None:
            records[name]["files"] = _write(c, name, out)
    if as_json:
        print(json.dumps(records, indent=2))
        return
    for name, c in found.items():
        _print(name, records[name])
        if why := reasons_of(c):
            print(f"{why}\n")
        if stats:
            Console().print(statistics_table(c.loop_statistics))
            if c.target in MODELLED_TARGETS:
                print_cycles(Console(highlight=False), c.loop_cycles())


def _loop(c: Compiled) -> dict[str, Any]:
    """Return the counts of the K loop, and its cycles where they are modelled."""
    cycles = {"cycles": cycles_json(c.loop_cycles())} if c.target in MODELLED_TARGETS else {}
    return {"loop": loop_json(c), **cycles}


def _refuse_uncounted(found: dict[str, Compiled]) -> None:
    """In the words of this command: `loop_json` would speak of `target=`."""
    for name, c in found.items():
        if c.build.loop is None:
            able = " or ".join(f"--target {target.name}" for target in TARGETS.values() if target.counts_loops)
            instead = f"or leave --stats out: --out DIRECTORY writes what was made for {c.target}"
            raise TilewaveError(
                f"--stats: {name} was compiled for {c.target}, for which the K loop is not counted",
                remedy=f"write {able},\n{instead}",
            )


def _schedule(text: str) -> SchedulingType | None:
    if not text:
        return None
    known = {s.value: s for s in SchedulingType}
    if text not in known:
        raise TilewaveError(f"--schedule: unknown schedule {text!r}", remedy=f"there are {', '.join(known)}")
    return known[text]


def _write(c: Compiled, name: str, folder: Path) -> list[str]:
    """What the target has to show."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, content in c.build.files().items():
            path = folder / f"{name}.{suffix}"
            path.write_bytes(content)
            written.append(str(path))
    except OSError as error:
        what = f"--out: {folder} could not be written: {error.strerror or error}"
        raise TilewaveError(what, remedy="name a directory that you may write in") from None
    return written


NOT_ROWS = ("loop", "cycles", "machine", "remarks", "persistent", "roles", "resident_waves", "most_resident_waves")
"""Keys without a row: those from `persistent` on are part of other rows."""
UNKNOWN = "unknown: ptxas (CUDA toolkit) is not on the PATH"


LABELS = {
    "gfx": {
        "registers": "VGPRs (with AGPRs)",
        "accumulation_registers": "AGPRs",
        "shared_bytes": "LDS bytes",
        "waves_per_unit": "waves per SIMD",
    },
    "sm_": {
        "workgroups": "CTAs launched",
        "waves": "warps",
        "num_stages": "stages",
        "wgmma": "wgmma tile of a warpgroup",
        "workgroups_per_sm": "CTAs per SM",
    },
}
"""The vendor's words for rows of the table, by how the name of a target begins."""
ALL_LABELS = {"workgroups": "workgroups launched"}
PROCESSORS = {"gfx": ("waves", "CU"), "sm_": ("warps", "SM")}
"""The vendor's words for waves and processors."""


def _label(key: str, target: str) -> str:
    return (ALL_LABELS | LABELS.get(target[:3], {})).get(key) or key.replace("_", " ").replace("tma", "TMA")


def _print(name: str, record: dict[str, Any]) -> None:
    """Print a row for each known fact."""
    table = Table(box=SQUARE, title=name, show_header=False)
    rows = {key: value for key, value in record.items() if key not in NOT_ROWS}
    unknown = [_label(key, record["target"]) for key, value in rows.items() if value is None]
    for key, value in rows.items():
        if value not in (None, "", [], (), {}):
            table.add_row(_label(key, record["target"]), _text(key, record))
    if unknown:
        table.add_row(", ".join(unknown), UNKNOWN)
    Console().print(table)


def _text(key: str, record: dict[str, Any]) -> str:
    """Return a fact as text, with those that belong to it."""
    value, roles = record[key], record.get("roles", ())
    match key:
        case "workgroups" if record.get("persistent"):
            return f"{value} (persistent{_per_processor(value, record['target'])})"
        case "waves" if roles:
            return " + ".join(f"{role['warps']} {role['role']}" for role in roles)
        case "registers" if any(role["registers"] for role in roles):
            later = ", ".join(f"{role['role']} {role['registers']}" for role in roles)
            return f"{value} at the launch; {later}"
        case "occupancy":
            waves, processor = PROCESSORS[record["target"][:3]]
            return f"{value} ({record['resident_waves']} of {record['most_resident_waves']} {waves} per {processor})"
        case "not_as_asked":
            return "\n".join(value)
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _per_processor(workgroups: int | str, target: str) -> str:
    """Return `, 1 per SM` where a launch starts equally many workgroups on each processor of the chip."""
    chip = CHIPS.get(target)
    if chip is None or not isinstance(workgroups, int) or workgroups % chip.processors:
        return ""
    return f", {workgroups // chip.processors} per {PROCESSORS[target[:3]][1]}"
