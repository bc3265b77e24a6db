"""`simulate`: a kernel or a GEMM, a machine and a mapping in; a report out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewave.forks import IMPORTING, cached_property
from tilewave.ir.core import Kernel
from tilewave.ir.types import DTYPES
from tilewave.machine import Machine, find
from tilewave.machine.description import DATA
from tilewave.mapping import as_mapping
from tilewave.records import dataclass
from tilewave.sim.accesses import Accesses, Array, gemm_accesses
from tilewave.sim.calibration import Softness, TimeParameters, softness_of, timing_of
from tilewave.sim.clocked import UNKNOWN_LOOP, ClockedLaunch, LoopFacts, clocked_parameters
from tilewave.sim.closed_form import closed_form
from tilewave.sim.dispatch import Placed, Residency, place
from tilewave.sim.flows import Flows
from tilewave.sim.kernel import HasConfig, HasKernel, described, kernel_accesses, kernel_of
from tilewave.sim.machine_code import loop_utilization
from tilewave.sim.problem import Gemm, SimError
from tilewave.sim.report import MARGIN, ArrayTraffic, LaunchWave, Level, Report, Sensitivity, TimeShare, XcdTraffic
from tilewave.sim.requests import Sync, requested_bytes
from tilewave.sim.time import Moved, TimePart, time_parts

Engine = Callable[[Accesses, Placed, Machine, Residency, Softness], Flows]
Problem = Gemm | HasKernel | Kernel
DEFAULT = Residency()
LONGEST_SERIES = 2048
"""The most waves in a report; in a longer launch, consecutive waves are added up."""


@dataclass(frozen=True, eq=False)
class SimulatedRun:
    """A report with the data it was made from, for plots: where each task ran, and the traffic of each walk."""

    report: Report
    accesses: Accesses
    placed: Placed
    flows: Flows
    clocked: ClockedLaunch | None = None
    """The launch as the law of AMD cards times it; None on other cards."""

    def called(self, order: str) -> SimulatedRun:
        """Return this run with its order named, which a kernel compiled in another order does not know."""
        return replace(self, report=replace(self.report, mapping=order))


def simulate(
    problem: Problem,
    machine: Machine | str,
    mapping: object = None,
    *,
    engine: str = "closed",
    residency: Residency = DEFAULT,
    symbols: Mapping[str, int] | None = None,
    ends: Sequence[int] | None = None,
    data: str = DATA[0],
) -> Report:
    """Where the bytes of a launch come from, and how long it takes.

    engine="closed" needs milliseconds; engine="trace" follows every slab through LRU lists. `symbols` are a kernel's
    dynamic symbols, and the sizes that it leaves open; `ends` an example of where the groups of its ragged grid end.
    `data`: what the operands hold, "random" or "zeros", on which an AMD card's clock depends.
    """
    settings: dict[str, Any] = {
        "engine": engine,
        "residency": residency,
        "symbols": symbols,
        "ends": ends,
        "data": data,
    }
    return run(problem, machine, mapping, **settings).report


def run(
    problem: Problem,
    machine: Machine | str,
    mapping: object = None,
    *,
    engine: str = "closed",
    residency: Residency = DEFAULT,
    symbols: Mapping[str, int] | None = None,
    ends: Sequence[int] | None = None,
    timing: TimeParameters | None = None,
    data: str = DATA[0],
    utilization: float | None = None,
) -> SimulatedRun:
    """`simulate`, with everything that the report was made of.

    `utilization` is that of a loop whose machine code is known elsewhere; without it, that of a compiled kernel.
    """
    chip = find(machine) if isinstance(machine, str) else machine
    if not isinstance(chip, Machine):
        raise SimError(f"a machine is one of tilewave.machine or its name, not {machine!r}")
    if data not in DATA:
        raise SimError(f"unknown data {data!r}", remedy=f"there are {' and '.join(DATA)}")
    accesses, name, order = _accesses(problem, mapping, symbols or {}, ends)
    found_in_code = utilization or loop_utilization(problem, chip, residency)
    launch = _Launch(accesses, name, order, chip, LoopFacts(data, found_in_code))
    found = _run(launch, engine, residency, timing or timing_of(chip))
    warnings = (*found.report.warnings, *_of_another_target(problem, chip))
    return replace(found, report=replace(found.report, warnings=warnings))


@dataclass(frozen=True, eq=False)
class _Launch:
    """What workgroups touch, under which names it is reported, and where it runs."""

    accesses: Accesses
    problem: str
    order: str
    machine: Machine
    loop: LoopFacts = UNKNOWN_LOOP


def _run(launch: _Launch, engine: str, residency: Residency, timing: TimeParameters) -> SimulatedRun:
    accesses, chip = launch.accesses, launch.machine
    placed = place(accesses, chip, residency)
    softness = softness_of(chip, accesses.long_steps, int(accesses.turn.max(initial=0)) + 1)
    flows = _engine(engine)(accesses, placed, chip, residency, softness)
    made = _Made(accesses, placed, flows, chip, residency, timing, launch.loop)
    return SimulatedRun(made.report(launch.problem, launch.order, engine), accesses, placed, flows, made.clocked)


def _of_another_target(problem: Problem, chip: Machine) -> tuple[str, ...]:
    """A warning where tiles were chosen for a target that is not the machine's."""
    target = problem.chosen_for if isinstance(problem, HasConfig) else ""
    if target in ("", chip.target):
        return ()
    return (f"its tiles were chosen for {target}, but {chip.name} is {chip.target}: compile it with that target",)


def sensitivity(
    problem: Problem, machine: Machine | str, mapping: object = None, symbols: Mapping[str, int] | None = None
) -> tuple[Sensitivity, ...]:
    """Simulate a launch as assumed, with residents out of step, and with two workgroups per unit."""
    return sensitivity_of(run(problem, machine, mapping, symbols=symbols), machine)


ASSUMPTIONS = {
    "as assumed": DEFAULT,
    "resident workgroups 4 steps apart": replace(DEFAULT, skew_steps=4.0),
    "resident workgroups 16 steps apart": replace(DEFAULT, skew_steps=16.0),
    "two workgroups per CU or SM": replace(DEFAULT, occupancy=2),
}


def sensitivity_of(found: SimulatedRun, machine: Machine | str) -> tuple[Sensitivity, ...]:
    """The launch of a run under other assumptions; what its workgroups touch stays, and is not worked out again."""
    chip = find(machine) if isinstance(machine, str) else machine
    loop = found.clocked.loop if found.clocked else UNKNOWN_LOOP
    launch = _Launch(found.accesses, found.report.problem, found.report.mapping, chip, loop)
    reports = {name: _run(launch, "closed", how, timing_of(chip)).report for name, how in ASSUMPTIONS.items()}
    return tuple(Sensitivity(name, r.l2_hit, r.hbm_read_bytes, r.seconds) for name, r in reports.items())


def _accesses(
    problem: Problem, mapping: object, symbols: Mapping[str, int], ends: Sequence[int] | None
) -> tuple[Accesses, str, str]:
    if isinstance(problem, Gemm):
        if symbols or ends is not None:
            what = "symbols" if symbols else "groups"
            raise SimError(f"a gemm has no {what}", remedy="give its sizes to Gemm(…)")
        order = as_mapping("linear()" if mapping is None else mapping)
        return gemm_accesses(problem, order), str(problem), str(order)
    if mapping is not None:
        raise SimError(
            "a kernel has its order in itself",
            remedy="leave mapping out, and compile the kernel with WorkgroupMapping(…)",
        )
    return kernel_accesses(kernel_of(problem), symbols, ends), described(problem), "the kernel's own"


def _engine(name: str) -> Engine:
    match name:
        case "closed":
            return closed_form
        case "trace":
            with IMPORTING:
                from tilewave.sim.trace import trace  # noqa: PLC0415  it may compile with numba, which is heavy

            return trace
        case _:
            raise SimError(f"unknown engine {name!r}", remedy="there are closed and trace")


@dataclass(frozen=True)
class _Timed:
    """A predicted time, and what is known of it."""

    parts: tuple[TimePart, ...]
    error: float
    fitted_on: str
    clock_hz: float | None = None
    data: str = ""


@dataclass(frozen=True, eq=False)
class _Made:
    """A finished run, to be summed up."""

    accesses: Accesses
    placed: Placed
    flows: Flows
    machine: Machine
    residency: Residency
    timing: TimeParameters
    loop: LoopFacts

    def report(self, name: str, order: str, engine: str) -> Report:
        flows, accesses, machine = self.flows, self.accesses, self.machine
        missed, asked_of_memory, hbm = (float(x.sum()) for x in (flows.missed, flows.asked_of_memory, flows.hbm))
        crossed = float(flows.crossed.sum())
        reads, written, requests = self.reads, accesses.output_bytes, self.moved.l2_requests
        timed = self._timed()
        parts = timed.parts
        seconds = sum(part.seconds for part in parts)
        levels = self._levels(reads, missed, crossed, asked_of_memory, hbm)
        ends = (flows.hbm_if_narrow, flows.hbm_if_wide, hbm)
        return Report(
            problem=name,
            mapping=order,
            machine=machine.name,
            engine=engine,
            workgroups=accesses.workgroups,
            tasks=accesses.tasks,
            launch_waves=self.placed.launch_waves,
            occupancy=self.residency.occupancy,
            skew_steps=self.residency.skew_steps,
            l2_hit=levels[0].hit,
            llc_hit=levels[1].hit if machine.last_level else None,
            hbm_read_bytes=hbm,
            hbm_read_low_bytes=min(ends) * (1 - MARGIN),
            hbm_read_high_bytes=max(ends) * (1 + MARGIN),
            hbm_write_bytes=written,
            l2_request_bytes=requests,
            l2_cross_bytes=crossed,
            asked_bytes=accesses.asked_bytes,
            distinct_bytes=accesses.distinct_bytes,
            flops=accesses.flops,
            seconds=seconds,
            seconds_error=timed.error,
            breakdown=tuple(TimeShare(p.name, p.seconds, p.seconds / seconds) for p in parts),
            levels=levels,
            arrays=self._arrays(),
            xcds=self._xcds(),
            over_time=self._over_time(),
            fitted_on=timed.fitted_on,
            clock_hz=timed.clock_hz,
            data=timed.data,
            warnings=self._warnings(),
        )

    @cached_property
    def reads(self) -> float:
        """Bytes of reads that reach L2."""
        return float(requested_bytes(self.accesses, self.placed, self.machine, self.flows, Sync()))

    @cached_property
    def moved(self) -> Moved:
        """Bytes that the launch moves."""
        last = float(self.flows.asked_of_memory.sum()) if self.machine.last_level else 0.0
        written = self.accesses.output_bytes
        return Moved(float(self.flows.hbm.sum()), written, last, self.reads + written)

    @cached_property
    def clocked(self) -> ClockedLaunch | None:
        """The launch as the law of AMD cards times it; None on other cards."""
        if (parameters := clocked_parameters(self.machine, self.loop)) is None:
            return None
        facts = self.accesses, self.placed, self.machine, self.residency, self.moved, self.loop
        return ClockedLaunch(*facts, parameters)

    def _timed(self) -> _Timed:
        if (one := self.clocked) is not None:
            return _Timed(one.parts(), one.parameters.error, one.parameters.fitted_on, one.clock_hz, self.loop.data)
        parts = time_parts(self.accesses, self.placed, self.machine, self.residency, self.moved, self.timing)
        return _Timed(parts, self.timing.error, self.timing.fitted_on)

    def _warnings(self) -> tuple[str, ...]:
        """Whether shared memory holds one step of the tiles of A and B, for all workgroups on a unit."""
        tile, room = self.accesses.tile, self.machine.shared_bytes
        if len(tile) != 3 or room is None or self.accesses.dtype not in DTYPES:
            return ()
        rows, cols, depth = tile
        needed = (rows + cols) * depth * DTYPES[self.accesses.dtype].bytes * self.residency.occupancy
        if needed <= room:
            return ()
        many = self.residency.occupancy
        what = f"{many} workgroups with tiles" if many > 1 else "a workgroup with a tile"
        return (
            f"{what} of {'×'.join(map(str, tile))} {self.accesses.dtype} would need {needed:,} bytes of shared memory "
            f"for one step, but a CU or SM of {self.machine.name} has {room:,}",
        )

    def _levels(self, reads: float, missed: float, crossed: float, asked: float, hbm: float) -> tuple[Level, ...]:
        """What a profiler counts: reads and writes; a write is never a miss, for nothing is fetched for it."""
        written = self.accesses.output_bytes
        if self.machine.l2.partitions > 1:
            # Lines that another partition keeps are looked up twice, and a write is seen by its home as well.
            l2_asked = reads + crossed + 1.5 * written
            l2 = Level("L2", l2_asked, l2_asked - hbm - crossed, hbm + crossed)
        else:
            l2 = Level("L2", reads + written, reads + written - missed, missed)
        memory = Level("HBM", hbm + written, hbm + written, 0.0, is_cache=False)
        if self.machine.last_level is None:
            return l2, memory
        return l2, Level("last level", asked + written, asked + written - hbm, hbm), memory

    def _arrays(self) -> tuple[ArrayTraffic, ...]:
        accesses, walks, count = self.accesses, self.flows.walks, len(self.accesses.arrays)
        of_walk = accesses.stream_array[walks.stream]
        used = np.zeros(accesses.streams, bool)
        used[walks.stream] = True
        columns = (
            np.bincount(accesses.stream_array[used], accesses.stream_bytes[used], minlength=count),
            np.bincount(of_walk, walks.size * walks.peers, minlength=count),
            np.bincount(of_walk, self.flows.missed, minlength=count),
            np.bincount(of_walk, self.flows.hbm, minlength=count),
            accesses.array_written_bytes,
        )
        return tuple(
            ArrayTraffic(name, *(float(column[at]) for column in columns)) for at, name in enumerate(accesses.arrays)
        )

    def _xcds(self) -> tuple[XcdTraffic, ...]:
        walks, xcds = self.flows.walks, self.machine.xcds
        of_walk = self.placed.domain_xcd[walks.domain]
        tasks = np.bincount(self.placed.xcd, minlength=xcds)
        columns = [
            np.bincount(of_walk, column, minlength=xcds)
            for column in (walks.size * walks.peers, self.flows.missed, self.flows.hbm)
        ]
        return tuple(XcdTraffic(x, int(tasks[x]), *(float(c[x]) for c in columns)) for x in range(xcds))

    def _over_time(self) -> tuple[LaunchWave, ...]:
        walks = self.flows.walks
        every = -(-self.placed.launch_waves // LONGEST_SERIES)
        count = -(-self.placed.launch_waves // every)

        def series(launch_wave: Array, values: Array | None = None) -> Array:
            return np.bincount(launch_wave // every, values, minlength=count)

        tasks = series(self.placed.launch_wave)
        columns = [series(walks.launch_wave, x) for x in (walks.size * walks.peers, self.flows.missed, self.flows.hbm)]
        return tuple(LaunchWave(int(tasks[at]), *(float(c[at]) for c in columns)) for at in range(count))
