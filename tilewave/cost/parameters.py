"""The parameters of the cost models: at most twelve a family, each set with the command that fits it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchParameters:
    """The parameters of `cost/gpu.py`; times in picoseconds."""

    unit_bytes_per_us: int
    """The rate at which one unit loads tiles while all units do."""
    latency: int
    """The time from the request of a tile to its arrival."""
    least_step: int
    """The least time of a step: wait for its operands, issue its products, and release the stage."""
    launch: int
    """The time of a launch without work, when launches follow each other."""
    late: int
    """The additional time of a launch that cannot begin while the one before ends."""
    workgroup: int
    """The time between a workgroup's end and the first step of the next one on its unit."""
    sum: int
    """The time to write an element of a tile."""
    join: int
    """The time to hand partial sums to another workgroup."""
    part: int
    """The additional time for each further part of a sum."""
    kept_bytes_per_us: int
    """The rate of arrays that L2 still holds from the launch before."""
    unaligned_lines_percent: int
    """The time of loads of rows that do not begin on cache lines, relative to others."""
    copy: int
    """The time of a launch that packs an unaligned operand."""
    error: float
    """One standard deviation of predicted times, as a share."""
    fitted_on: str


HOPPER = LaunchParameters(
    unit_bytes_per_us=125_400,
    latency=769_307,
    least_step=144_000,
    launch=540_000,
    late=690_461,
    workgroup=1_622_000,
    sum=43,
    join=2_330_128,
    part=396_000,
    kept_bytes_per_us=6_565_130,
    unaligned_lines_percent=202,
    copy=1_660_000,
    error=0.19,
    fitted_on="benchmarks/data/h200_kernel_set.csv (benchmarks/fit_cost.py)",
)
CDNA = LaunchParameters(
    unit_bytes_per_us=100_000,
    latency=600_000,
    least_step=200_000,
    launch=2_000_000,
    late=0,
    workgroup=1_500_000,
    sum=30,
    join=6_000_000,
    part=1_000_000,
    kept_bytes_per_us=15_000_000,
    unaligned_lines_percent=100,
    copy=0,
    error=0.4,
    fitted_on="no card: the rates are the simulator's for MI300X, the rest that of an H200",
)
PARAMETERS = {"nvidia": HOPPER, "amd": CDNA}
"""By vendor: each has one family of chips here."""


@dataclass(frozen=True)
class HostParameters:
    """The parameters of `cost/host.py`."""

    clock_hz: float = 2.7e9
    call: float = 5e-6
    """A call without work."""
    task: float = 0.25e-6
    """To take a tile and begin it."""
    pack_bytes_per_second: float = 13e9
    """The rate at which one thread packs operands into panels."""
    cache_bytes_per_second: float = 180e9
    """The rate at which one thread rereads tiles."""
    memory_bytes_per_second: float = 5e9
    """The rate at which one thread reads or writes data outside its private caches."""
    elements_per_second: float = 400e6
    """The rate at which one thread reads or writes elements with a little computation."""
    error: float = 0.5
    fitted_on: str = "20 shapes of f32 on two cores of a Xeon (avx512)"


HOST = HostParameters()
