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
"""The same of shapes that may be as short as 1 along every dim."""
BATCH_INVARIANT = (DATA / "h200_one_order.csv",)
"""Of batches of usual weights, all of whose sums are added in one order."""
EVEN = (DATA / "h200_even.csv",)
"""Of both kinds, with tiles that cut short dims evenly, or fill all units, and parts of what lanes load."""
IN_PLACE = (DATA / "h200_in_place.csv",)
"""Of products whose odd operands lanes load where they lie, because few products want each element."""
H200 = (*JUDGED, DATA / "h200_tiles.csv", DATA / "h200_spaces.csv", *SMALL, *EVEN, *IN_PLACE, *BATCH_INVARIANT)
"""The files that its timing is fitted on."""


@dataclass(frozen=True)
class MeasuredLaunch:
    """A product's launch: sizes, how A and B lie, the tile, what was asked for beside it, and how long it took."""

    shape: tuple[int, int, int]
    layout: str
    """`NT`: A is [M, K] or, T, [K, M]; B is [K, N] or, T, [N, K]."""
    tile: tuple[int, int, int]
    split: int
    num_stages: int
    seconds: float
    order: str = ""
    """Of tiles, where one was given."""
    in_fixed_order: bool = False
    """Whether workgroups share no tile, so that all sums are added alike."""

    @property
    def product(self) -> tuple[tuple[int, int, int], str, bool]:
        """What it computes: launches of one product are held beside each other."""
        return self.shape, self.layout, self.in_fixed_order


def measured_launches(paths: Iterable[Path]) -> Iterator[MeasuredLaunch]:
    for path in paths:
        for row in csv.DictReader(path.read_text().splitlines()):
            m, n, k = (int(row[name]) for name in "mnk")
            rows, cols, depth = map(int, row["tile"].split("x"))
            knobs = int(row.get("split") or 1), int(row.get("buffers") or 0)
            facts = (m, n, k), row["layout"], (rows, cols, depth), *knobs, float(row["microseconds"]) * 1e-6
            yield MeasuredLaunch(*facts, row.get("order") or "", row.get("sums") == "one_order")
