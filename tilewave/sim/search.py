"""`best`: try many orders and tiles, and rank them by predicted time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from tilewave.machine import Machine, find
from tilewave.mapping import (
    Grid,
    Mapping,
    Order,
    as_mapping,
    grouped,
    hilbert,
    linear,
    morton,
    snake,
    supertiles,
    xcd_chunked,
    xcd_contiguous,
)
from tilewave.records import dataclass
from tilewave.sim.explain import compare
from tilewave.sim.problem import Gemm, SimError
from tilewave.sim.report import Report
from tilewave.sim.simulate import simulate

GROUPS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48)
SNAKES = (2, 4, 8, 16)
SUPERTILES = ((2, 4), (4, 2), (4, 8), (8, 8))
CHUNKS = (8, 16, 32, 64)
Advance = Callable[[], object]


@dataclass(frozen=True)
class Ranked:
    """A candidate: its tile, its report, and the reason for its rank."""

    tile: tuple[int, ...]
    """Empty where a kernel has its own."""
    report: Report
    reason: str


def mappings_for(machine: Machine) -> list[Mapping]:
    """The orders that are worth a try on a machine, the simplest first."""
    orders: list[Order] = [linear(), linear(along="n")]
    for along in ("m", "n"):
        orders += [grouped(size, along=along) for size in GROUPS]
        orders += [snake(size, along=along) for size in SNAKES]
    orders += [*(supertiles(*sides) for sides in SUPERTILES), hilbert(), morton()]
    plain = [as_mapping(order) for order in orders]
    if machine.xcds == 1:
        return plain
    chunks = dict.fromkeys((*CHUNKS, machine.units_per_xcd))
    renumberings = [xcd_contiguous(machine.xcds), *(xcd_chunked(machine.xcds, chunk) for chunk in chunks)]
    return plain + [renumbering >> order for renumbering in renumberings for order in orders]


def best(
    gemm: Gemm,
    machine: Machine | str,
    mappings: Iterable[object] | None = None,
    tiles: Iterable[tuple[int, int, int]] | None = None,
    advance: Advance = lambda: None,
) -> tuple[Ranked, ...]:
    """All candidates from the fastest to the slowest; orders that send every workgroup to the same tile count once.

    `advance` is called after each candidate.
    """
    chip = find(machine) if isinstance(machine, str) else machine
    problems = _fitting(gemm, chip, list(tiles) if tiles is not None else [gemm.tile])
    orders = [as_mapping(m) for m in mappings] if mappings is not None else mappings_for(chip)
    if not orders:
        raise SimError("there is nothing to choose from", remedy="give at least one mapping")
    found: list[Ranked] = []
    for problem in problems:
        launch_order = simulate(problem, chip, "linear()")
        for order in _different(orders, problem.grid, problem.workgroups, advance):
            report = simulate(problem, chip, order)
            found.append(Ranked(problem.tile, report, compare(report, launch_order)))
            advance()
    return tuple(sorted(found, key=lambda one: (one.report.seconds, one.report.hbm_read_bytes)))


def best_orders(
    machine: Machine, simulate_in: Callable[[str], Report], advance: Advance = lambda: None
) -> tuple[Ranked, ...]:
    """Return all orders for a given tile from the fastest to the slowest; `simulate_in` simulates one order."""
    plain = simulate_in(str(linear()))
    found = []
    for order in mappings_for(machine):
        report = simulate_in(str(order))
        found.append(Ranked((), report, compare(report, plain)))
        advance()
    return tuple(sorted(found, key=lambda one: (one.report.seconds, one.report.hbm_read_bytes)))


def count_candidates(machine: Machine, mappings: Iterable[object] | None, tiles: Iterable[tuple[int, ...]]) -> int:
    """How often `best` will call `advance` at the most."""
    orders = list(mappings) if mappings is not None else mappings_for(machine)
    return len(orders) * len(list(tiles))


def _fitting(gemm: Gemm, machine: Machine, tiles: list[tuple[int, int, int]]) -> list[Gemm]:
    """The problem with each tile whose operands fit into shared memory."""
    fits = []
    for tile in dict.fromkeys(tiles):
        problem = replace(gemm, tile=tile)
        m, n, k = tile
        if machine.shared_bytes is None or (m + n) * k * problem.element.bytes <= machine.shared_bytes:
            fits.append(problem)
    if not fits:
        raise SimError(
            f"no tile fits into the {machine.shared_bytes:,} bytes of shared memory of {machine.name}",
            remedy="take a smaller one",
        )
    return fits


def _different(orders: list[Mapping], grid: Grid, workgroups: int | None, advance: Advance) -> Iterator[Mapping]:
    """The orders without those that do the same as one before."""
    seen: set[bytes] = set()
    for order in orders:
        tiles = order.tiles(grid, workgroups).tobytes()
        if tiles in seen:
            advance()
            continue
        seen.add(tiles)
        yield order
