"""What no data sheet tells of small grids, small tiles and launches that wait for memory; each set names its rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchTiming:
    """The parameters of `gpu.py`; times in seconds."""

    matrix_share: float
    """Of the data sheet's matrix rate, what a unit reaches within one step."""
    group_gap: float
    """Between the products of two steps of one group of waves; others of its workgroup multiply meanwhile."""
    step_gap: float
    """Between those of all groups."""
    launch: float
    """Of the launch itself."""
    start: float
    """Of a task: to fill its pipeline."""
    start_per_sum: float
    """And for each element of its tile: to write it."""
    start_per_byte: float
    """And for each byte of its first step: to have it there."""
    start_hidden: float
    """Of these, what is left where a workgroup goes on from tile to tile."""
    together: float
    """How much longer products of several workgroups on a unit take than those of one."""
    hand_over: float
    """To give the sums of a part to the next workgroup, which adds them."""
    hand_over_per_sum: float
    outside_line: float
    """For each line of 128 bytes outside an array that a step's copies fill with zeros."""
    odd_write: float
    """How much longer sums take to write where rows of the result lie on no grain of the copy engine."""
    unit_bytes_per_second: float
    """That the copy engine of one unit brings."""
    copy_launch: float
    """Of a launch that copies operands into rows which the engine can take."""
    copy_bytes_per_second: float
    """Of these, read and written."""
    lane_gap: float
    """Of a step whose operands lanes load: until the first of them are there."""
    lane_loads_per_second: float
    """Of one unit, each of so many bytes as rows are multiples of."""
    lane_across: float
    """How many times as long it takes where rows do not go along the depth."""
    across_depth: float
    """How much longer steps take for each operand whose rows do not go along the depth."""
    l2_bytes_per_second: float
    """That all units together get from L2."""
    l2_kept_bytes: float
    """Of arrays that are read again and again, what stays in L2."""
    hbm_share: float
    """Of the data sheet's bandwidth, what a launch gets."""
    off_lines: float
    """How much longer steps take where rows do not begin on cache lines."""
    many_sums: float
    """How much longer they take where a lane holds more than 128 sums."""
    sharpness: float
    """How sharply the longest of products, L2 and memory decides: their sum at 1, their maximum at infinity."""
    stages: tuple[float, ...]
    """How much longer a step takes with 128 bytes of depth in shared memory, with twice as many, three times, …"""
    error: float
    """One standard deviation of predicted times, as a share."""
    fitted_on: str


HOPPER = LaunchTiming(
    matrix_share=1.0,
    group_gap=6.99e-08,
    step_gap=5.42e-08,
    launch=1.32e-07,
    start=1.3e-06,
    start_per_sum=3.25e-11,
    start_per_byte=5.36e-13,
    start_hidden=0.786,
    together=1.66,
    hand_over=9.07e-07,
    hand_over_per_sum=7.36e-11,
    outside_line=2.84e-09,
    odd_write=9.01,
    unit_bytes_per_second=1.55e11,
    copy_launch=7.8e-07,
    copy_bytes_per_second=1.76e12,
    lane_gap=3.92e-07,
    lane_loads_per_second=6.35e09,
    lane_across=1.5,
    across_depth=1.02,
    l2_bytes_per_second=1.74e13,
    l2_kept_bytes=1.71e07,
    hbm_share=0.904,
    off_lines=1.08,
    many_sums=0.998,
    sharpness=2.38,
    stages=(2.58, 1.31, 1.15, 1.0),
    error=0.15,
    fitted_on="h200_judged.csv, h200_tiles.csv and h200_spaces.csv (benchmarks/fit_tiles.py)",
)
CDNA = LaunchTiming(
    matrix_share=0.78,
    group_gap=0.20e-6,
    step_gap=0.05e-6,
    launch=2.0e-6,
    start=1.5e-6,
    start_per_sum=30.4e-12,
    start_per_byte=2e-12,
    start_hidden=1.0,
    together=1.1,
    hand_over=6e-6,
    hand_over_per_sum=0.0,
    outside_line=0.0,
    odd_write=1.0,
    unit_bytes_per_second=100e9,
    copy_launch=0.0,
    copy_bytes_per_second=1e12,
    lane_gap=0.0,
    lane_loads_per_second=1e12,
    lane_across=1.0,
    across_depth=1.0,
    l2_bytes_per_second=15e12,
    l2_kept_bytes=200e6,
    hbm_share=0.75,
    off_lines=1.1,
    many_sums=1.0,
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

    clock_hz: float = 2.7e9
    call: float = 5e-6
    """A call without work."""
    task: float = 0.25e-6
    """To take a tile and begin it."""
    pack_bytes_per_second: float = 13e9
    """Of one thread, that lays operands out in panels."""
    cache_bytes_per_second: float = 180e9
    """Of one thread, that reads tiles again and again."""
    memory_bytes_per_second: float = 5e9
    """Of one thread, that reads or writes what is in none of its own caches."""
    elements_per_second: float = 400e6
    """Of one thread, that reads or writes them and computes a little on the way."""
    error: float = 0.5
    fitted_on: str = "benchmarks/tuner_cpu.py, 20 shapes of f32 on two cores of a Xeon (avx512)"


HOST = HostTiming()
