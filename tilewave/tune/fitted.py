"""Fitted cost model parameters for small grids, small tiles and memory-bound launches; each set names its rows."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class LaunchTiming:
    """The parameters of `gpu.py`; times in seconds."""

    matrix_share: float
    """The share of the data sheet's matrix rate that a unit reaches within one step."""
    group_gap: float
    """Between the products of two steps of one group of waves; others of its workgroup multiply meanwhile."""
    step_gap: float
    """Between those of all groups."""
    least_step: float
    """The least time of a step: wait for its operands, multiply them and arrive at the mbarrier."""
    launch: float
    """The time of the launch itself."""
    start: float
    """The time to fill a task's pipeline."""
    start_per_sum: float
    """The time to write each element of a task's tile."""
    start_per_byte: float
    """The time to load each byte of a task's first step."""
    start_hidden: float
    """The share of the start times that remains in a persistent workgroup."""
    together: float
    """How much longer products of several workgroups on a unit take than those of one."""
    no_room: float
    """To begin, where the launch before is still on the units and leaves no room."""
    not_early: float
    """The extra time of a launch without programmatic dependent launch (PDL)."""
    hand_over: float
    """To wait for the parts of a tile."""
    hand_over_per_sum: float
    """The time to add one split, per element of its tile."""
    added_power: float
    """The exponent of the number of splits that this time grows with."""
    taken_alone: float
    """The time to add a split after the previous one, where they do not arrive all at once."""
    scattered: float
    """The effective number of splits of a tile whose slices are added by separate workgroups."""
    row_start: float
    """The start time of a task without mma."""
    outside_row: float
    """The time per out-of-bounds row of a step's copies, of at most a cache line, that is filled with zeros."""
    short_row: float
    """For each row of a step's copies that is shorter than a line."""
    unaligned_store: float
    """The time of one lane store to result rows that are unaligned for TMA, on one unit."""
    held_store: float
    """The time per element of unaligned rows where lanes hold too many accumulators to stage them into rows."""
    transposed_store: float
    """The time per element where the result is computed transposed."""
    unit_bytes_per_second: float
    """The rate at which TMA loads on one unit."""
    few_units: float
    """How much faster it is where few units copy: by this power of all units to those."""
    latency: float
    """The latency of a copy until its first bytes have arrived and are signalled."""
    ring_sharpness: float
    """How sharply the longer of a step and of filling its place in shared memory decides."""
    copy_launch: float
    """The time of a launch that packs unaligned operands for TMA."""
    copy_bytes_per_second: float
    """The rate of packed copies, read and written."""
    lane_gap: float
    """The time until the first operands of a step arrive that lanes load."""
    lane_latency: float
    """The additional latency if they come from memory."""
    not_ahead: float
    """To wait for a step that lanes could not load ahead."""
    lane_loads_per_second: float
    """Lane loads per second of one unit, each as wide as the row stride allows."""
    lane_line: float
    """The time per cache line that lanes of one unit load from."""
    l2_bytes_per_second: float
    """The rate of L2 to all units together; infinite if the rate per unit is the limit."""
    l2_kept_bytes: float
    """Bytes of arrays that are still in L2 when the next launch reads them."""
    l2_thrashed: float
    """The relative excess over `l2_kept_bytes` at which nothing is left in L2."""
    kept_bytes_per_second: float
    """The rate for arrays in L2, each byte counted once."""
    crowded_bytes_per_second: float
    """The rate for arrays in L2 where the next launch starts early and finds no free units."""
    hbm_share: float
    """The share of the data sheet's bandwidth that a launch gets."""
    unaligned_lines_copied: float
    """The slowdown of TMA for rows that are not aligned to cache lines."""
    many_sums: float
    """How much longer they take where a lane holds more than 128 sums."""
    sharpness: float
    """How sharply the longest of products, L2 and memory decides: their sum at 1, their maximum at infinity."""
    early_sharpness: float
    """The value of `sharpness` where the next launch overlaps this one (PDL)."""
    error: float
    """One standard deviation of predicted times, as a share."""
    fitted_on: str
    neighbours: str = ""
    """The file of `data` that says what measured launches took beyond all this."""


HOPPER = LaunchTiming(
    matrix_share=1,
    group_gap=1.383e-08,
    step_gap=6.503e-08,
    least_step=1.945e-07,
    launch=4.232e-08,
    start=9.539e-07,
    start_per_sum=5.23e-11,
    start_per_byte=4.294e-15,
    start_hidden=0.3133,
    together=1.886,
    no_room=4.113e-07,
    not_early=1.034e-06,
    hand_over=1.292e-06,
    hand_over_per_sum=1.296e-10,
    added_power=0.7441,
    taken_alone=9.981e-08,
    scattered=3.908,
    row_start=1.3e-06,
    outside_row=2.979e-09,
    short_row=4.254e-10,
    unaligned_store=7.361e-11,
    held_store=2.476e-10,
    transposed_store=9.638e-11,
    unit_bytes_per_second=9.837e10,
    few_units=0.4206,
    latency=6.68e-07,
    ring_sharpness=4.833,
    copy_launch=1.66e-06,
    copy_bytes_per_second=2.015e12,
    lane_gap=1.984e-08,
    lane_latency=3.96e-07,
    not_ahead=3.704e-07,
    lane_loads_per_second=3.424e10,
    lane_line=1.308e-09,
    l2_bytes_per_second=inf,
    l2_kept_bytes=4.6e07,
    l2_thrashed=0.1328,
    kept_bytes_per_second=8.563e12,
    crowded_bytes_per_second=5.124e12,
    hbm_share=0.9146,
    unaligned_lines_copied=1.75,
    many_sums=1.037,
    sharpness=2.86,
    early_sharpness=3.925,
    error=0.1,
    fitted_on="h200_judged.csv and others of tilewave/tune/data (benchmarks/fit_tiles.py)",
    neighbours="h200_neighbours.csv",
)
CDNA = LaunchTiming(
    matrix_share=0.78,
    group_gap=0.20e-6,
    step_gap=0.05e-6,
    least_step=0.0,
    launch=2.0e-6,
    start=1.5e-6,
    start_per_sum=30.4e-12,
    start_per_byte=2e-12,
    start_hidden=1.0,
    together=1.1,
    no_room=0.0,
    not_early=0.0,
    hand_over=6e-6,
    hand_over_per_sum=0.0,
    added_power=1.0,
    taken_alone=0.0,
    scattered=3.0,
    row_start=1.5e-6,
    outside_row=0.0,
    short_row=0.0,
    unaligned_store=0.0,
    held_store=0.0,
    transposed_store=0.0,
    unit_bytes_per_second=100e9,
    few_units=0.0,
    latency=0.0,
    ring_sharpness=1.0,
    copy_launch=0.0,
    copy_bytes_per_second=1e12,
    lane_gap=0.0,
    lane_latency=0.0,
    not_ahead=0.0,
    lane_loads_per_second=1e12,
    lane_line=0.0,
    l2_bytes_per_second=15e12,
    l2_kept_bytes=200e6,
    l2_thrashed=1e-9,
    kept_bytes_per_second=inf,
    crowded_bytes_per_second=inf,
    hbm_share=0.75,
    unaligned_lines_copied=1.0,
    many_sums=1.0,
    sharpness=3.4,
    early_sharpness=3.4,
    error=0.4,
    fitted_on="no card: matrix_share is the simulator's for MI300X, the rest is that of H200",
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
    """The rate at which one thread packs operands into panels."""
    cache_bytes_per_second: float = 180e9
    """The rate at which one thread rereads tiles."""
    memory_bytes_per_second: float = 5e9
    """The rate at which one thread reads or writes data outside its private caches."""
    elements_per_second: float = 400e6
    """The rate at which one thread reads or writes elements with a little computation."""
    error: float = 0.5
    fitted_on: str = "benchmarks/tuner_cpu.py, 20 shapes of f32 on two cores of a Xeon (avx512)"


HOST = HostTiming()
