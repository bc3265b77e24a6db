"""The predicted duration of a launch, by cause.

    seconds = waves · steps · step + tiles · start + exposed · (HBM bytes / its rate + …)

A step of a task's loop takes as long as its matrix instructions on one unit, but at least the latency of its loads over
the stages in flight. All units wait for the last wave, which is rarely full: the tail. A tile that is simulated step by
step, because others have more or fewer steps, has as many waves but one prologue and epilogue. Traffic is mostly hidden
by matrix instructions; `exposed` is the share that is not. No launch is faster than its bytes: the roofline.
"""

from __future__ import annotations

from tilewave.machine import Machine
from tilewave.records import dataclass
from tilewave.sim.accesses import Accesses
from tilewave.sim.calibration import TimeParameters
from tilewave.sim.dispatch import Placed, Residency
from tilewave.sim.problem import SimError

PARTS = ("matrix", "load latency", "start and end", "tail", "HBM", "last level", "L2 requests", "bandwidth")


@dataclass(frozen=True)
class TimePart:
    """One component of the predicted time."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Moved:
    """Bytes that a launch moves."""

    hbm_read: float
    hbm_written: float
    last_level: float
    l2_requests: float


def time_parts(
    accesses: Accesses, placed: Placed, machine: Machine, residency: Residency, moved: Moved, timing: TimeParameters
) -> tuple[TimePart, ...]:
    """Where the time goes; the launch takes their sum."""
    steps = placed.launch_waves * accesses.steps
    matrix = _matrix_step(accesses, machine, residency, timing) * steps
    waiting = max(0.0, timing.step_floor_seconds * steps - matrix)
    start = timing.start_seconds * placed.launch_waves / accesses.tasks_a_tile
    idle = 1.0 - accesses.tasks / (placed.launch_waves * placed.slots)
    busy = matrix + waiting + start
    found = {
        "matrix": matrix * (1 - idle),
        "load latency": waiting * (1 - idle),
        "start and end": start * (1 - idle),
        "tail": busy * idle,
        "HBM": timing.exposed * moved.hbm_read / machine.hbm.bytes_per_second,
        "last level": timing.exposed * moved.last_level / last_level_rate(machine, timing),
        "L2 requests": timing.request_seconds_per_byte * moved.l2_requests,
    }
    found["bandwidth"] = max(0.0, _roof(machine, moved, timing) - sum(found.values()))
    return tuple(TimePart(name, found[name]) for name in PARTS)


def _matrix_step(accesses: Accesses, machine: Machine, residency: Residency, timing: TimeParameters) -> float:
    """Seconds that the products of one step take on one unit."""
    if accesses.step_flops == 0:
        return 0.0
    of_one = rate_of(machine, accesses.dtype) * timing.matrix_share / machine.units / residency.occupancy
    return accesses.step_flops / of_one


def rate_of(machine: Machine, dtype: str) -> float:
    """Return a machine's matrix rate for a dtype; raise SimError where it has none."""
    rate = machine.flops(dtype)
    if rate is None:
        known = ", ".join(r.dtype for r in machine.rates) or "none"
        raise SimError(
            f"{machine.name} has no matrix rate for {dtype}",
            remedy=f"it has those of {known}; give it one: replace(machine, rates=(Rate('{dtype}', 1e14),))",
        )
    return rate


def last_level_rate(machine: Machine, timing: TimeParameters) -> float:
    """Return the bandwidth of the last-level cache, or that of MI300X's where it is not known."""
    last = machine.last_level
    return (last and last.bytes_per_second) or timing.last_level_bytes_per_second


def _roof(machine: Machine, moved: Moved, timing: TimeParameters) -> float:
    """No launch is done before its bytes have come."""
    hbm = (moved.hbm_read + moved.hbm_written) / machine.hbm.bytes_per_second
    return max(hbm, moved.last_level / last_level_rate(machine, timing))
