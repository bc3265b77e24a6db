"""The kernel sets: for each class of product the tile configs among which every call chooses, each one open kernel.

A config is written `rows x cols x depth`, for 16-bit operands, then `/` and the most stages of the software pipeline,
then `:` and the parts of split-K. Tiles with up to four rows or columns are computed without a matrix unit
(`reduce_thin_mma`): which of them are in the set depends on how the longer operand is stored. Lanes that load unaligned
operands want steps of 16 elements where K is short, and a split where it is long and tiles are few.
`benchmarks/kernel_set_h200.py` measured 80 configs on 177 shapes of an H200, and `benchmarks/fit_cost.py` says what
this set holds of their best, and what the model's choice loses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from tilewave.cost.work import UNSAID

HOPPER = """
128x256x64/4 160x256x64/4 128x224x64/4 128x128x64/6 128x64x64/8 128x128x16/8 64x128x16/8
80x128x64/7 64x192x64/6 64x128x64/8 64x64x64/6 64x32x64/8 64x16x64/8 64x8x128/12 64x8x64/10 48x64x128/7
32x64x128/4 16x64x128/8 16x64x64/8 8x64x128/5 16x64x128/8:4 32x64x128/4:4 64x16x128/8:4 64x32x128/4:4
4x1x4096 1x4x4096 4x1x4096:4 1x4x4096:4
"""
FEW_ROWS = {"depth": "1x4x1024 4x8x1024", "side": "1x64x256 4x8x512"}
FEW_COLUMNS = {"depth": "4x1x1024 8x4x1024", "side": "64x1x256 8x4x512"}
"""What Hopper's set has besides, by the axis along which the longer operand is contiguous: of few rows, the second."""
CDNA = """
256x256x64 256x256x32 256x128x64 128x256x64 128x128x64 128x128x32 128x64x64 64x128x64 64x64x64 64x64x128
64x32x64 32x64x64 32x32x64 32x32x128 16x64x64 64x16x64 16x16x128
"""
SETS = {"nvidia": HOPPER, "amd": CDNA}
"""By vendor: each has one family of chips here."""
LAYOUTS = tuple((a, b) for a in FEW_COLUMNS for b in FEW_ROWS)
"""The axes along which the two operands of a product may be contiguous."""

OTHERS = {"grid": (1, 2, 4, 8, 16, 32, 64), "waves": (64, 32, 128), "wave rows": (1, 2, 4, 8), "split": (1,)}
WALK_BYTES = (2048, 4096, 8192, 16384)
VALUES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "nvidia": {"rows": (64, 128, 192), "cols": (64, 128, 256), "split": (1, 2, 4, 8, 16, 32)},
    "amd": dict.fromkeys(("rows", "cols"), (16, 32, 64, 128, 256)),
}
BYTES = {"nvidia": {"depth": (128, 256), "walk": WALK_BYTES}, "amd": {"depth": (64, 128), "walk": WALK_BYTES}}
"""The values of each role in kernels without a set: the sides and depth of their products, `grid` and `walk` (other
dimensions of the grid, or of a loop), `waves` and `wave rows` (a wave's part with and without products). Those of BYTES
are bytes of elements; more of the depth would spill on AMD's chips."""
ON_HOSTS = {"depth": (64,), "grid": (1, 4, 16, 64), "walk": (1024, 4096, 16384), "waves": (64,)}
ON_HOSTS |= dict.fromkeys(("wave rows", "split"), (1,))  # a task has no waves

Roles = Mapping[str, int]
"""The value of each role that a config decides."""


def _parsed(text: str, element_bytes: int) -> Iterator[Roles]:
    """Yield the configs of a set, with depths for operands of so many bytes."""
    for word in text.split():
        tile, _, split = word.partition(":")
        tile, _, stages = tile.partition("/")
        rows, cols, depth = map(int, tile.split("x"))
        sides = {"rows": rows, "cols": cols, "depth": max(1, 2 * depth // element_bytes)}
        yield {**sides, "num_stages": int(stages or UNSAID), "split": int(split or UNSAID)}


@cache
def kernel_set(vendor: str, element_bytes: int, layout: tuple[str, str] = LAYOUTS[0]) -> tuple[Roles, ...]:
    """Return the set of a vendor's family of chips for products whose operands have such a layout."""
    of_columns, of_rows = layout
    few = f" {FEW_COLUMNS[of_columns]} {FEW_ROWS[of_rows]}" if vendor == "nvidia" else ""
    return tuple(_parsed(SETS[vendor] + few, element_bytes))


@cache
def host_set(rows: int, cols: int, reads_in_place: bool) -> tuple[Roles, ...]:
    """Return the set of a CPU whose largest register block is rows x cols: packed, and in place where it can be."""
    found = [{"rows": rows * r, "cols": cols * c, "depth": 64} for r in (1, 4, 8, 16) for c in (1, 4, 8)]
    if reads_in_place:
        sides = [(1, 64 * cols), (4, 64 * cols), (4, 1), (256, 1)]
        sides += [(r, c) for r in (1, 4, rows, 4 * rows) for c in (cols, 4 * cols)]
        found += [{"rows": r, "cols": c, "depth": d, "in_place": 1} for r, c in sides for d in (64, 1024)]
    return tuple({**one, "in_place": one.get("in_place", UNSAID)} for one in found)
