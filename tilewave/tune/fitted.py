"""What no data sheet tells of small grids, small tiles and launches that wait for memory; each set names its rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchTiming:
    """The parameters of `gpu.py`; times in seconds."""

    matrix_share: float
    """Of the data sheet's matrix rate, what a unit reaches within one step."""
    step_gaps: tuple[float, float]
    """Between the products of two steps of a task, where one group of waves computes them, and where several do."""
    launch: float
    """Of the launch itself."""
    start: float
    """Of a task: to fill its pipeline."""
    start_per_sum: float
    """And for each element of its tile: to write it."""
    start_hidden: float
    """Of these, what is left where a workgroup goes on from tile to tile."""
    together: float
    """How much longer products of several workgroups on a unit take than those of one."""
    hand_over: float
    """To give the sums of a part to the next workgroup, which adds them."""
    outside_line: float
    """For each line of 128 bytes outside an array that a step's copies fill with zeros."""
    l2_bytes_per_second: float
    """That all units together get from L2."""
    l2_kept_bytes: float
    """Of arrays that are read again and again, what stays in L2."""
    hbm_share: float
    """Of the data sheet's bandwidth, what a launch gets."""
    off_lines: float
    """How much longer steps take where rows do not begin on cache lines."""
    sharpness: float
    """How sharply the longest of products, L2 and memory decides: their sum at 1, their maximum at infinity."""
    stages: tuple[float, ...]
    """How much longer a step takes with one stage of shared memory, two, three, …"""
    error: float
    """One standard deviation of predicted times, as a share."""
    fitted_on: str


HOPPER = LaunchTiming(
    matrix_share=0.973,
    step_gaps=(0.123e-6, 0.079e-6),
    launch=0.19e-6,
    start=0.86e-6,
    start_per_sum=30.4e-12,
    start_hidden=0.48,
    together=1.25,
    hand_over=2.9e-6,
    outside_line=7.2e-9,
    l2_bytes_per_second=13.8e12,
    l2_kept_bytes=73.5e6,
    hbm_share=0.737,
    off_lines=1.12,
    sharpness=3.4,
    stages=(2.0, 1.33, 1.01, 1.0),
    error=0.08,
    fitted_on="h200_tiles.csv, rows of A[M, K] and B[N, K] (benchmarks/fit_tiles.py); stages: docs/nvidia.md",
)
CDNA = LaunchTiming(
    matrix_share=0.78,
    step_gaps=(0.20e-6, 0.10e-6),
    launch=2.0e-6,
    start=1.5e-6,
    start_per_sum=30.4e-12,
    start_hidden=1.0,
    together=1.1,
    hand_over=6e-6,
    outside_line=0.0,
    l2_bytes_per_second=15e12,
    l2_kept_bytes=200e6,
    hbm_share=0.75,
    off_lines=1.1,
    sharpness=3.4,
    stages=(1.0,),
    error=0.4,
    fitted_on="no card: matrix_share is the simulator's for MI300X, the rest stands by analogy with H200",
)
TIMINGS = {"nvidia": HOPPER, "amd": CDNA}
"""By vendor: each has one family of chips here."""


@dataclass(frozen=True)
class HostTiming:
    """The parameters of `host.py`."""

    clock_hz: float = 2.5e9
    call: float = 5e-6
    """A call without work."""
    task: float = 0.5e-6
    """To take a tile and begin it."""
    pack_bytes_per_second: float = 3e9
    """Of one thread, that lays operands out in panels."""
    cache_bytes_per_second: float = 40e9
    """Of one thread, that reads panels which lie beyond its own cache."""
    error: float = 0.4
    fitted_on: str = "benchmarks/tiles_cpu.py, on two cores of a Xeon (avx512) where much else ran: by eye"


HOST = HostTiming()
