"""Launches that were measured, row by row: what the model of a card is fitted on (`tilewave/tune/data`)."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"
JUDGED = (DATA / "h200_judged.csv",)
"""All points of a shape that were predicted to be any good."""
SMALL = (DATA / "h200_small.csv",)
"""All promising configs of shapes that may be as short as 1 along every dimension."""
BATCH_INVARIANT = (DATA / "h200_one_order.csv",)
"""Launches of batches with common weight shapes, in the batch-invariant mode."""
EVEN = (DATA / "h200_even.csv",)
"""Launches of both kinds: tiles cut short dimensions evenly or fill all units; split-K with lane loads."""
IN_PLACE = (DATA / "h200_in_place.csv",)
"""Launches whose unaligned operands are loaded in place by lanes, because each element has few uses."""
H200 = (*JUDGED, DATA / "h200_tiles.csv", DATA / "h200_spaces.csv", *SMALL, *EVEN, *IN_PLACE, *BATCH_INVARIANT)
"""The files that its timing is fitted on."""


@dataclass(frozen=True)
class MeasuredLaunch:
    """A measured GEMM launch: sizes, layouts of A and B, the config, and its duration."""

    shape: tuple[int, int, int]
    layout: str
    """`NT`: A is [M, K] or, T, [K, M]; B is [K, N] or, T, [N, K]."""
    tile: tuple[int, int, int]
    split: int
    num_stages: int
    seconds: float
    order: str = ""
    """The order of tiles, if one was given."""
    in_fixed_order: bool = False
    """Whether workgroups share no tile, so that results are batch-invariant."""

    @property
    def product(self) -> tuple[tuple[int, int, int], str, bool]:
        """What the launch computes: launches of one product are compared with each other."""
        return self.shape, self.layout, self.in_fixed_order


def measured_launches(paths: Iterable[Path]) -> Iterator[MeasuredLaunch]:
    for path in paths:
        for row in csv.DictReader(path.read_text().splitlines()):
            m, n, k = (int(row[name]) for name in "mnk")
            rows, cols, depth = map(int, row["tile"].split("x"))
            knobs = int(row.get("split") or 1), int(row.get("buffers") or 0)
            facts = (m, n, k), row["layout"], (rows, cols, depth), *knobs, float(row["microseconds"]) * 1e-6
            yield MeasuredLaunch(*facts, row.get("order") or "", row.get("sums") == "one_order")
