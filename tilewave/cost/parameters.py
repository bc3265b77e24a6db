"""The parameters of the cost models: at most twelve a family, each set with the command that fits it."""

from __future__ import annotations

from tilewave.machine.matrix import CDNA3, CDNA4
from tilewave.records import dataclass


@dataclass(frozen=True)
class LaunchParameters:
    """The parameters of `cost/gpu.py`; times in picoseconds."""

    unit_bytes_per_us: int
    """The rate at which one unit loads tiles while all units do."""
    latency: int
    """The time from the request of a tile to its arrival. A launch that cannot begin before another ends adds one."""
    least_step: int
    """The least time of a step: wait for its operands, issue its products, and release the stage."""
    launch: int
    """The time of a launch without work, when launches follow each other."""
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


@dataclass(frozen=True)
class ClockedParameters:
    """The parameters of `cost/cdna.py`; times in picoseconds."""

    launch: int
    """The time of a launch without work."""
    workgroup: int
    """The time of a workgroup outside its loop and its stores."""
    store_bytes_per_us: int
    """The rate at which all units together store their tiles."""
    memory_percent: int
    """The share of the data sheet's bandwidth, of HBM and of the Infinity Cache."""
    exposed_percent: int
    """The share of the shorter of memory time and busy time that the longer one does not hide."""
    join: int
    """The time to hand partial sums to another workgroup."""
    loop_percent: int
    """The share of matrix instructions in a loop whose machine code is not known, were nothing loaded."""
    load_percent: int
    """The share of the L1 cycles of a loop's loads that are not hidden, where its machine code is not known."""
    latency_cycles: int
    """The latency of global loads for which the cycles of machine code are computed."""
    error: float
    """One standard deviation of predicted times, as a share."""
    fitted_on: str


CDNA3_CLOCKED = ClockedParameters(
    launch=1_460_000,
    workgroup=2_380_000,
    store_bytes_per_us=5_910_000,
    memory_percent=50,
    exposed_percent=40,
    join=910_000,
    loop_percent=50,
    load_percent=50,
    latency_cycles=500,
    error=0.18,
    fitted_on="hipBLASLt's stream-K solutions on MI300X, half of the shapes (benchmarks/fit_amd.py)",
)
CDNA4_CLOCKED = ClockedParameters(
    launch=5_700_000,
    workgroup=1_160_000,
    store_bytes_per_us=6_800_000,
    memory_percent=72,
    exposed_percent=28,
    join=910_000,
    loop_percent=100,
    load_percent=50,
    latency_cycles=700,
    error=0.15,
    fitted_on="launches of aiter's GEMM kernels on MI355X (benchmarks/fit_amd.py); join and load_percent as on CDNA3",
)
CLOCKED = {CDNA3: CDNA3_CLOCKED, CDNA4: CDNA4_CLOCKED}
"""By the chip's family of matrix instructions, as `HOPPER` is for all others."""


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
