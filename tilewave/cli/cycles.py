"""`tilewave cycles`: the K loop of AMD machine code in the model of a compute unit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.box import SQUARE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewave.backend.names import MODELLED_TARGETS
from tilewave.cli.asked import given, refuse_given
from tilewave.cli.diff import compiled_in, named_kernels, parse_names, parse_sizes
from tilewave.cli.emulate import emulator_of
from tilewave.cycles import LoopCycles, LoopModel, conflicts_of, loop_model
from tilewave.cycles.compute_unit import Reason
from tilewave.cycles.stalls import LineStall, by_line
from tilewave.cycles.timeline import loop_timeline
from tilewave.emulator.assembly import MachineCode, read_assembly
from tilewave.emulator.findings import UnsupportedCode
from tilewave.errors import TilewaveError, text_error
from tilewave.explore.code import cycles_json
from tilewave.records import dataclass
from tilewave.view.cycles_timeline import cycles_timeline
from tilewave.view.placement import counted
from tilewave.view.save import check_place, save

OF_PYTHON = ("target", "set_", "left_open")
"""Options that say how a Python file's kernels are compiled."""
LONGEST_LATENCY = 100_000
TOP = 6
"""How many stalls are printed."""


@dataclass(frozen=True)
class KernelLoop:
    """The K loop of a kernel; `name` tells kernels of one name apart."""

    name: str
    model: LoopModel


def cycles_command(
    *,
    context: typer.Context,
    file: Path,
    kernel: str,
    latency: str,
    workgroups: int | None,
    timeline: Path | None,
    conflicts: bool,
    target: str,
    set_: list[str],
    left_open: str,
    as_json: bool,
) -> None:
    latencies = _latencies(latency)
    check_place(timeline)
    if file.suffix == ".py":
        refuse_given(context, ("conflicts",), "has no effect on a Python file", "they always count there: leave it out")
        kernels = _compiled(file, kernel, target, set_, left_open, given(context, *OF_PYTHON))
    else:
        refuse_given(context, OF_PYTHON, f"has no effect on {file}", "it is compiled already: leave it out")
        kernels = _read(file, kernel, conflicts)
    found = {
        one.name: [one.model.cycles(cycles, workgroups or one.model.fitting) for cycles in latencies] for one in kernels
    }
    if timeline is not None:
        _draw(kernels, timeline, latencies[0], workgroups)
    if as_json:
        print(json.dumps({name: cycles_json(loops) for name, loops in found.items()}, indent=2))
        return
    console = Console(highlight=False)
    for one in kernels:
        _print(console, one, found[one.name])
    if timeline is not None:
        console.print(f"drawn: {timeline}", markup=False)


# -- what was asked ----------------------------------------------------------------------------------------------------


def _latencies(text: str) -> list[int]:
    if re.fullmatch(r"\d{1,6}(,\d{1,6}){0,9}", text, re.ASCII) is None:
        remedy = "write one to ten numbers of cycles: 500,1000"
        raise TilewaveError(text_error("--latency: these are no cycles", text, 0, len(text), remedy))
    found = [int(part) for part in text.split(",")]
    if max(found) > LONGEST_LATENCY:
        what = f"--latency: {max(found):,} cycles"
        raise TilewaveError(text_error(what, text, 0, len(text), f"at most {LONGEST_LATENCY:,} are modelled"))
    return found


def _compiled(
    file: Path, kernel: str, target: str, sizes: list[str], left_open: str, asked: Sequence[str]
) -> list[KernelLoop]:
    """The K loops of a Python file's kernels."""
    if not file.is_file():
        raise TilewaveError(
            f"there is no file {file}", remedy="name machine code, or a Python file that defines kernels"
        )
    compiled = compiled_in(file, parse_sizes(sizes), target, asked=asked, left_open=parse_names(left_open))
    found = named_kernels(compiled, kernel)
    if not found:
        raise TilewaveError(f"{file} defines no kernel" + (f" {kernel!r}" if kernel else ""))
    for name, c in found.items():
        if c.target not in MODELLED_TARGETS:
            able = " or ".join(f"--target {name}" for name in MODELLED_TARGETS)
            what = f"{name} was compiled for {c.target}, which has no model of a compute unit"
            raise TilewaveError(what, remedy=f"write {able}, or let the file compile for one of these")
    return _with_loops([(name, c.name, read_assembly(c.asm)) for name, c in found.items()], probed=True)


def _read(file: Path, kernel: str, conflicts: bool) -> list[KernelLoop]:
    """The K loops of machine code, or that of one kernel."""
    module = emulator_of(file).module
    names = [module.kernel(kernel).name] if kernel or not module.kernels else [*module.kernels]
    return _with_loops([(name, name, module) for name in names], conflicts)


def _with_loops(codes: Sequence[tuple[str, str, MachineCode]], probed: bool) -> list[KernelLoop]:
    """Leave out kernels without a K loop, unless no other is there."""
    found, refused = [], []
    for name, kernel, module in codes:
        try:
            lost = conflicts_of(module, kernel) if probed else {}
            found.append(KernelLoop(name, loop_model(module, kernel, conflicts=lost)))
        except UnsupportedCode as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return found


def _draw(kernels: Sequence[KernelLoop], file: Path, latency: int, workgroups: int | None) -> None:
    if len(kernels) > 1:
        names = ", ".join(one.name for one in kernels)
        raise TilewaveError("--timeline: a figure shows one kernel", remedy=f"name it: --kernel, of {names}")
    model = kernels[0].model
    save(file, cycles_timeline(loop_timeline(model, latency, workgroups or model.fitting)).svg())


# -- what is printed ---------------------------------------------------------------------------------------------------


def _print(console: Console, one: KernelLoop, loops: Sequence[LoopCycles]) -> None:
    fits = "" if loops[0].workgroups == one.model.fitting else f" ({one.model.fitting} would fit)"
    console.print(f"K loop of {one.name}, {loops[0].chip}{fits}", style="bold", markup=False)
    print_cycles(console, loops)


def print_cycles(console: Console, loops: Sequence[LoopCycles]) -> None:
    """Print cycles and stalls of a K loop for some latencies, with what is not known."""
    console.print(_cycles_table(loops))
    console.print(_stalls_table(loops))
    for note in dict.fromkeys(note for loop in loops for note in loop.notes):
        console.print(f"{note}.", markup=False)


def _cycles_table(loops: Sequence[LoopCycles]) -> Table:
    waves, groups = counted(loops[0].waves, "wave"), counted(loops[0].workgroups, "workgroup")
    table = Table(f"A compute unit with {groups} of {waves}", box=SQUARE)
    for _ in loops:
        table.add_column("", justify="right")
    table.add_row("latency of global loads, cycles", *(f"{loop.latency_cycles:,g}" for loop in loops))
    table.add_row("cycles per iteration", *(f"{loop.cycles:,.0f}" for loop in loops))
    table.add_row("of these the matrix units multiply", *(f"{loop.matrix_cycles:,.0f}" for loop in loops))
    table.add_row("utilization", *(f"{100 * loop.utilization:.1f} %" for loop in loops))
    return table


def _stalls_table(loops: Sequence[LoopCycles]) -> Table:
    """The largest stalls, one row for a line and a reason, one column for a latency."""
    by_place = [{(stall.place, stall.reason): stall for stall in by_line(loop.stalls)} for loop in loops]
    largest: dict[tuple[str, Reason], LineStall] = {}
    for stalls in by_place:
        for key, stall in stalls.items():
            if key not in largest or stall.cycles > largest[key].cycles:
                largest[key] = stall
    table = Table("Stall", box=SQUARE)
    for title in ("Line", "Instruction"):
        table.add_column(title, overflow="fold")
    for loop in loops:
        table.add_column(f"Cycles at {loop.latency_cycles:g}", justify="right")
    for shown, stall in sorted(largest.items(), key=lambda item: -item[1].cycles)[:TOP]:
        lost = [stalls[shown].cycles if shown in stalls else 0 for stalls in by_place]
        table.add_row(stall.reason, Text(stall.place), Text(stall.instruction.text), *(f"{n:,.0f}" for n in lost))
    return table
