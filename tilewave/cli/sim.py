"""`tilewave sim`: where the bytes of a GEMM or a kernel come from, how long it takes, and which order is best."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import typer
from rich.console import Console

from tilewave.cli.asked import refuse_given
from tilewave.cli.counts import parse_counts
from tilewave.cli.diff import compiled_for, parse_sizes
from tilewave.cli.progress import progress
from tilewave.compiled import Compiled
from tilewave.errors import TilewaveError, text_error
from tilewave.lang.symbols import Symbol
from tilewave.machine import Machine, find_or_load
from tilewave.records import dataclass
from tilewave.sim import Gemm, Ranked, Residency, best
from tilewave.sim.machine_code import loop_utilization
from tilewave.sim.report import Report
from tilewave.sim.search import best_orders, count_candidates
from tilewave.sim.simulate import SimulatedRun, run, sensitivity_of
from tilewave.tune.choose import TileChoice
from tilewave.view.extents import parse_extents
from tilewave.view.save import save
from tilewave.view.traffic_page import traffic_page
from tilewave.view.traffic_terminal import print_comparison, print_ranking, print_report

MOST_TILES_TRIED = 64

ALL_ORDERS = "the search tries every order with one workgroup per CU or SM, and the closed form; leave it out"
ITS_OWN = "the kernel's constraints and --set decide it; leave it out"
LINEAR = "linear()"


def sim_command(
    *,
    context: typer.Context,
    file: Path | None,
    shape: str,
    tile: str,
    mapping: str,
    machine: str,
    dtype: str,
    out: str,
    workgroups: int | None,
    walk: str,
    occupancy: int,
    skew: float,
    engine: str,
    compare: list[str] | None,
    best_of: bool,
    top: int,
    sizes: list[str] | None,
    counts: str,
    html: Path | None,
    as_json: bool,
) -> None:
    chip, residency = find_or_load(machine), Residency(occupancy, skew)
    own = ("walk", "shape", "tile", "dtype", "out", "workgroups")
    if file is None:
        _refuse({"--set": sizes, "--counts": counts}, "a GEMM")
        gemms = _gemms(shape, tile, dtype, out, workgroups, walk)
        simulated: _Simulated = _SimulatedGemm(gemms)
    else:
        refuse_given(context, own, "has no effect on a kernel from a file", ITS_OWN)
        simulated = _SimulatedFile(file, parse_sizes(sizes or []), parse_counts(counts) if counts else None)
    if best_of:
        _refuse({"--compare": compare}, "--best")
        refuse_given(context, ("mapping", "engine", "occupancy", "skew"), "has no effect on --best", ALL_ORDERS)
        _print_best(simulated, chip, top, html, as_json)
        return
    refuse_given(context, ("top",), "has no effect without --best", "add --best, or leave it out")
    runs = tuple(simulated.run(chip, order, engine, residency) for order in (mapping, *(compare or ())))
    if html is not None:
        save(html, traffic_page(runs))
    if as_json:
        print(json.dumps([one.report.to_json() for one in runs]))
        return
    console = Console()
    if len(runs) > 1:
        print_comparison(console, tuple(one.report for one in runs))
    else:
        print_report(console, runs[0].report, sensitivity_of(runs[0], chip) if residency == Residency() else ())
    _say_written(console, html)


def _print_best(simulated: _Simulated, chip: Machine, top: int, html: Path | None, as_json: bool) -> None:
    ranked = simulated.best(chip)
    if html is not None:
        first = ranked[0]
        orders = dict.fromkeys([first.report.mapping, LINEAR])
        runs = (simulated.run(chip, order, "closed", Residency(), first.tile) for order in orders)
        save(html, traffic_page(tuple(runs), ranked[:top]))
    if as_json:
        print(json.dumps(_ranking(ranked)))
        return
    print_ranking(Console(), ranked, top)
    _say_written(Console(), html)


def _say_written(console: Console, html: Path | None) -> None:
    if html is not None:
        console.print(f"wrote {html}", highlight=False, markup=False, soft_wrap=True)


def _refuse(given: dict[str, object], beside: str) -> None:
    for name, value in given.items():
        if value:
            raise TilewaveError(f"{name} cannot be used with {beside}", remedy="leave one of the two out")


# -- what is simulated -------------------------------------------------------------------------------------------------


class _Simulated(Protocol):
    """A GEMM or a file's kernel, in any order of tiles; an empty one is its own."""

    def run(
        self, chip: Machine, order: str, engine: str, residency: Residency, tile: tuple[int, ...] = ()
    ) -> SimulatedRun: ...

    def best(self, chip: Machine) -> tuple[Ranked, ...]: ...


@dataclass(frozen=True)
class _SimulatedGemm:
    gemms: list[Gemm]
    """One GEMM for each requested tile."""

    def run(
        self, chip: Machine, order: str, engine: str, residency: Residency, tile: tuple[int, ...] = ()
    ) -> SimulatedRun:
        gemm = next(g for g in self.gemms if g.tile == tile) if tile else _one(self.gemms)
        return run(gemm, chip, order or LINEAR, engine=engine, residency=residency)

    def best(self, chip: Machine) -> tuple[Ranked, ...]:
        tiles = [gemm.tile for gemm in self.gemms]
        with progress("simulating", count_candidates(chip, None, tiles)) as advance:
            return best(self.gemms[0], chip, tiles=tiles, advance=advance)


@dataclass(frozen=True)
class _SimulatedFile:
    file: Path
    sizes: dict[Symbol, Any]
    ends: tuple[int, ...] | None = None
    """An example of where the groups of a ragged grid end."""

    def compiled(self, chip: Machine, order: str, config: TileChoice | None = None) -> Compiled:
        """The file's kernel as it is compiled for a machine's target: tiles that it leaves open are chosen for that.

        `config` is what was chosen for it before, in another order of tiles.
        """
        found = compiled_for(chip, self.file, self.sizes, order, config)
        if len(found) != 1:
            names = ", ".join(compiled.name for compiled in found) or "none"
            raise TilewaveError(f"{self.file} has {len(found)} kernels, not one: {names}")
        return found[0]

    def run(
        self, chip: Machine, order: str, engine: str, residency: Residency, tile: tuple[int, ...] = ()
    ) -> SimulatedRun:
        found = run(self.compiled(chip, order), chip, engine=engine, residency=residency, ends=self.ends)
        return found.called(order) if order else found

    def best(self, chip: Machine) -> tuple[Ranked, ...]:
        plain = self.compiled(chip, "")
        busy = loop_utilization(plain, chip, Residency())  # no order of tiles changes the loop

        def report(order: str) -> Report:
            compiled = self.compiled(chip, order, plain.choice)
            return run(compiled, chip, utilization=busy, ends=self.ends).called(order).report

        with progress("simulating", count_candidates(chip, None, [()])) as advance:
            return best_orders(chip, report, advance)


# -- what was asked ----------------------------------------------------------------------------------------------------


def _gemms(shape: str, tile: str, dtype: str, out: str, workgroups: int | None, walk: str) -> list[Gemm]:
    m, n, k = (extent.value for extent in parse_extents(shape, "a shape", ("M", "N", "K"), "4096x4096x4096"))
    return [Gemm(m, n, k, one, dtype, out, workgroups, walk) for one in parse_tiles(tile)]


def parse_tiles(text: str) -> list[tuple[int, int, int]]:
    """`128x256x64`, or `64..256x128x64`: the doublings of the first number up to the second."""
    parts = text.lower().split("x")
    if not any(".." in part for part in parts):
        m, n, k = (extent.value for extent in parse_extents(text, "a tile", ("M", "N", "K"), "128x256x64"))
        return [(m, n, k)]
    if len(parts) != 3:
        raise TilewaveError(text_error("a tile has M, N and K", text, 0, len(text), "write 64..256x128..256x64"))
    at, sides = 0, []
    for part in parts:
        sides.append(_doublings(text, part, at))
        at += len(part) + 1
    tiles = [(m, n, k) for m, n, k in product(*sides)]
    if len(tiles) > MOST_TILES_TRIED:
        raise TilewaveError(f"{len(tiles)} tiles are more than {MOST_TILES_TRIED}", remedy="narrow the ranges")
    return tiles


def _doublings(text: str, part: str, at: int) -> list[int]:
    first, dots, last = part.partition("..")
    if not first.strip().isdecimal() or (dots and not last.strip().isdecimal()) or int(first) < 1:
        what = f"`{part}` is no size and no range of sizes"
        raise TilewaveError(text_error(what, text, at, at + len(part), "write 64..256x128..256x64"))
    if dots and int(last) < int(first):
        what = f"`{part}` goes down; a range goes up, by doubling"
        raise TilewaveError(text_error(what, text, at, at + len(part), f"write {last.strip()}..{first.strip()}"))
    sides = [int(first)]
    while dots and 2 * sides[-1] <= int(last):
        sides.append(2 * sides[-1])
    return sides


def _one(gemms: list[Gemm]) -> Gemm:
    if len(gemms) > 1:
        raise TilewaveError("a range of tiles is searched with --best", remedy="add --best, or name one tile")
    return gemms[0]


def _ranking(ranked: tuple[Ranked, ...]) -> list[dict[str, Any]]:
    return [{"tile": list(one.tile), "reason": one.reason, **one.report.to_json()} for one in ranked]
