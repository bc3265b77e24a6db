"""Thresholds that measurements set, and no data sheet: one record for each family of chips.

A list of passes hands each pass the part that it needs: `SplitK(chip.processors, chip.tuning.splits)`. A family that
was not measured takes the record of one that was, with a source that says so. `sources` name the fields of `Tuning`,
or, as `splits.hand_over_bytes`, those of its parts; sizes are MxNxK, and tiles follow in parentheses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewave.machine.description import Source
from tilewave.records import dataclass


@dataclass(frozen=True)
class RowTuning:
    """How many waves compute the rows of a reduction."""

    lane_bytes: int
    """What a lane loads of a tile."""
    waves_with_rows: int
    """The most waves that get whole rows, however short the rows are."""
    resident_lanes: int
    """Lanes that are resident on a CU or SM, so that enough loads are in flight."""
    many_lanes: int
    """Above this many lanes each lane loads twice as much."""
    many_lanes_that_meet: int
    """`many_lanes` of kernels with several reductions: other workgroups run while one waits at a barrier."""


@dataclass(frozen=True)
class SplitTuning:
    """What it costs to pass partial sums between workgroups, in split-K and stream-K."""

    hand_over_bytes: int
    """The bytes of K whose MMAs take about as long as moving a tile of partial sums to another workgroup, and adding
    it there."""
    scattered_bytes: int
    """Bytes of partial sums of a tile from which on a reduction by several workgroups, a slice each, is faster than by
    one."""
    least_sums_bytes: int
    """The fewest bytes of a tile that is reduced in slices: smaller tiles have too few columns."""
    scattered_hand_overs: int
    """The hand-overs that a reduction in slices takes as long as, for any number of parts."""
    most_waves: int
    """The most waves of splits that workgroups share: with more, tiles alone keep the machine busy."""

    def is_scattered(self, parts: int, sums_bytes: int) -> bool:
        """Return whether a tile of so many parts is reduced in slices."""
        return sums_bytes >= self.least_sums_bytes and (parts - 1) * sums_bytes > self.scattered_bytes

    def most_shared(self, at_once: int, parts: int) -> int:
        """Return the most tiles whose parts workgroups share, of which `at_once` run at once: there are slots for all.

        With more tiles each workgroup computes all parts of its tiles itself.
        """
        return self.most_waves * at_once // max(1, parts - 1)

    def come_together(self, others: int, sums_bytes: int) -> bool:
        """Return whether so many partial sums of a tile are few enough to be loaded at once."""
        return others > 1 and others * sums_bytes <= self.scattered_bytes


@dataclass(frozen=True)
class PackingTuning:
    """When packed copies of unaligned arrays are worth their launches, in bytes that lanes load in the same time."""

    least_bytes: int
    """Where lanes move single elements: the fewest bytes that all workgroups load."""
    launch_bytes: int
    """What the launches of the copies take."""
    copied_times: int
    """What a copied byte takes: it is read twice and written once."""
    depth_bytes: int
    """What an element of depth takes a workgroup whose lanes wait for every step."""

    def pays(self, loaded_bytes: Any, depth: Any, in_place_bytes: Any) -> Any:
        """Return whether packing pays, for the bytes that all workgroups load, the length of the depth, and the bytes
        to be packed that lanes could load in aligned blocks (`in_place_bytes`); known numbers, or those of a program.
        """
        by_elements = (in_place_bytes <= 0) & (loaded_bytes >= self.least_bytes)
        by_lanes, packed = (
            loaded_bytes + self.depth_bytes * depth,
            self.launch_bytes + self.copied_times * in_place_bytes,
        )
        return by_elements | ((in_place_bytes > 0) & (by_lanes >= packed))


@dataclass(frozen=True)
class PipelineTuning:
    """How far producers run ahead of consumers, and consumers of each other."""

    least_stages: int
    """The stages of a pipeline, unless more are needed to keep memory busy."""
    in_flight_bytes: int
    """Bytes of a pipeline with which memory is busy."""
    own_bytes: int
    """The part of these bytes that no other workgroup loads, and that so comes from DRAM."""
    lead: int
    """Ping-pong: the last steps of a tile before which the second warpgroup waits for the first."""
    least_overlapped: int
    """The fewest multiplications of a step for which a single warpgroup issues the next product early: small products
    wait for memory anyway, which needs all stages."""
    held_registers: int
    """The registers of a lane that sums, operands and products in flight take together: a product of the next step is
    issued early as long as they suffice."""

    def stages(self, step_bytes: int, own_bytes: int) -> int:
        """Return the stages for steps of so many bytes, `own_bytes` of which no other workgroup loads (0: all do)."""
        return max(self.least_stages, self.in_flight_bytes // step_bytes, self.own_bytes // (own_bytes or step_bytes))


@dataclass(frozen=True)
class LoadTuning:
    """How TMA loads are multicast and ordered."""

    quad_steps: int
    """The fewest steps for clusters of four, which begin and end together."""
    least_other: float
    """The least bytes of the other tiles of a step, relative to a tile that is to be loaded before them: smaller ones
    arrive before any wave waits for them."""


@dataclass(frozen=True)
class Tuning:
    """The measured thresholds of a family of chips."""

    rows: RowTuning
    splits: SplitTuning
    packing: PackingTuning
    pipeline: PipelineTuning
    loads: LoadTuning
    sources: tuple[Source, ...] = ()

    def source(self, field: str) -> str:
        """Return the source of a number."""
        return next((s.text for s in self.sources if s.field == field), "")


HOPPER_TUNING = Tuning(
    rows=RowTuning(lane_bytes=64, waves_with_rows=4, resident_lanes=1024, many_lanes=512, many_lanes_that_meet=256),
    splits=SplitTuning(
        hand_over_bytes=512,
        scattered_bytes=256 << 10,
        least_sums_bytes=16 << 10,
        scattered_hand_overs=3,
        most_waves=2,
    ),
    packing=PackingTuning(least_bytes=512 << 10, launch_bytes=16 << 20, copied_times=4, depth_bytes=32 << 10),
    pipeline=PipelineTuning(
        least_stages=4,
        in_flight_bytes=96 << 10,
        own_bytes=48 << 10,
        lead=2,
        least_overlapped=64 * 128 * 64,
        held_registers=208,
    ),
    loads=LoadTuning(quad_steps=48, least_other=1 / 4),
    sources=(
        Source("rows", "rows of 256 to 65,536 columns on an H200, whose lanes then have 64 registers each"),
        Source(
            "splits.hand_over_bytes",
            "H200, 128x256 sums: 6,000 cycles to write and about 4,000 to add, where 128 bytes of K take 1,024",
        ),
        Source(
            "splits.scattered_bytes", "an H200 workgroup reads some 32 bytes a cycle, and starts within 2,000 cycles"
        ),
        Source(
            "packing.least_bytes",
            "H200: a packing launch takes 2 µs and what its bytes need; lanes that load tiles of which one workgroup "
            "has some 100 kB take 10 µs, tiles of 128x256 of 83x1025x347, 1.3 MB in all, 31 µs; nothing was measured "
            "below",
        ),
        Source(
            "packing.launch_bytes",
            "H200, `benchmarks/packing_h200.py`: on 28 unaligned shapes, each with its best of 18 configs, the rule "
            "takes the quicker of both ways but for 0.2 %, and loses 4 % at worst; 2 µs for launches, 4.3 TB/s for "
            "copies, 65 GB/s for each unit's lanes, and 4 ns for an element of depth",
        ),
        Source("pipeline.least_stages", "H200: three stages cost one percent, two a third"),
        Source("pipeline.in_flight_bytes", "H200: more was no faster, and two such pipelines fit on an SM"),
        Source(
            "pipeline.own_bytes",
            "H200, `benchmarks/few_tiles_h200.py --only 128x8192x8192`: 128 rows of activations, which all workgroups "
            "load, fill two thirds of a step of 64 columns of weights; four steps are at 0.83× cuBLAS, six at 0.96×, "
            "eight at 0.93×",
        ),
        Source(
            "pipeline.lead",
            "H200, what bias and gelu add to 4096x4096x4096 (128x256x64 and 256x128x64): 3.4 and 2.9 % with two steps, "
            "3.7 and 3.3 % with three, 3.3 and 3.2 % without ping-pong; on another card 3.0 and 2.6, 3.7 and 3.4, 3.2 "
            "and 3.0 %",
        ),
        Source(
            "pipeline.least_overlapped", "256 clocks of a warpgroup, in which its share of an H200 loads some 7 KiB"
        ),
        Source(
            "pipeline.held_registers",
            "H200, attention backward in CUDA C++ with 128x64 tiles of 128: 216 held registers of 232 leave no spills "
            "to speak of, and statistics of rows need some of them",
        ),
        Source("loads", "TMA of an H200 takes 2.1 cycles for each cache line that its own workgroup requests"),
        Source(
            "loads.quad_steps",
            "H200: clusters of four are 10 to 16 % faster with 97 and 66 steps, equal with 47, 5 % slower with 16",
        ),
        Source(
            "loads.least_other",
            "H200: the larger operand first is 1 to 2 % faster for 256x8192x8192 (128x128), 8 % for 256x4096x14336 "
            "(64x128), 2 to 3 % for 1120x1888x6152 with multicast; the smaller one first is 1 % faster for "
            "4096x4096x4096 (128x256), whose operands L2 keeps",
        ),
    ),
)
CDNA_TUNING = replace(
    HOPPER_TUNING,
    sources=(
        Source("rows", "as on Hopper: not measured on an AMD card"),
        Source(
            "pipeline.in_flight_bytes",
            "1,500 cycles of latency at the 64 bytes a cycle that a CU loads; in the cycle model of gfx950 a third "
            "stage of 128x256x64 raises the share of matrix cycles from 0.57 to 0.95 at 1,000 cycles of latency",
        ),
    ),
)
