"""Launch tiled GEMMs on an H200 so that Nsight Compute can count their traffic: the rows of h200_unseen_counters.csv.

    ncu --clock-control none --kernel-name tiled_product --csv --log-file counters.csv --metrics METRICS \\
        python benchmarks/count_h200.py launches.csv

where METRICS are dram__bytes_read.sum, dram__bytes_write.sum, gpu__time_duration.sum, and of lts__t_sectors_srcunit_tex
and lts__t_sectors_op_read the .sum and the _lookup_hit.sum. Launch i of launches.csv is ID i of counters.csv. A second
file names other launches in the same columns, in place of SHAPES; `blind_h200.py` does all of that for a check of
predictions. Needs torch and Triton on the card's machine, and nothing of tilewave.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

SHAPES = (
    (12032, 6528, 1536),
    (5120, 7808, 1152),
    (3968, 7424, 1536),
    (6016, 3712, 2112),
    (8192, 8192, 1024),
    (4096, 4096, 1024),
    (8192, 4096, 2048),
    (5120, 5120, 5120),
    (2048, 8192, 8192),
    (12288, 4096, 4096),
    (3072, 3072, 3072),
)
GROUPS = (1, 4, 8, 16, 1000)
TILES = ((128, 256), (128, 128))
DEPTH = 64
WORKGROUPS = 132
CHECKED_ROWS = 64
LARGEST_ERROR = 1e-3
"""The largest relative error of C in f16, in the norm: its rounding is at most 2⁻¹¹, and sums in f32 add less."""


class Row(NamedTuple):
    """One launch, as the files name it."""

    m: int
    n: int
    k: int
    block_m: int
    block_n: int
    block_k: int
    group_m: int
    persistent: int


def rows(files: list[str]) -> Iterator[Row]:
    """Return the rows of a file, or SHAPES in all orders."""
    if files:
        with Path(files[0]).open(encoding="utf-8", newline="") as lines:
            yield from (Row(*(int(line[name]) for name in Row._fields)) for line in csv.DictReader(lines))
        return
    for shape in SHAPES:
        for tile in TILES:
            yield from (Row(*shape, *tile, DEPTH, group, 1) for group in GROUPS)


@triton.jit
def tiled_product(a, b, c, m, n, k, group, workgroups, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Each workgroup takes every `workgroups`-th tile, in groups of `group` rows."""
    rows, cols = tl.cdiv(m, BM), tl.cdiv(n, BN)
    for t in range(tl.program_id(0), rows * cols, workgroups):
        per_group = group * cols
        first = t // per_group * group
        height = min(rows - first, group)
        row = first + (t % per_group) % height
        col = (t % per_group) // height
        acc = tl.zeros((BM, BN), tl.float32)
        for step in range(tl.cdiv(k, BK)):
            acc = tl.dot(a.load([row * BM, step * BK]), b.load([col * BN, step * BK]).T, acc)
        c.store([row * BM, col * BN], acc.to(tl.float16))


def launch(a: Any, b: Any, c: Any, row: Row) -> None:
    """132 workgroups in rounds, or one for each tile."""
    height, width, depth = row.block_m, row.block_n, row.block_k
    blocks = ((a, [height, depth]), (b, [width, depth]), (c, [height, width]))
    ends = [TensorDescriptor.from_tensor(array, block) for array, block in blocks]
    waves = 8 if width == 256 else 4
    sizes = {"BM": height, "BN": width, "BK": depth}
    workgroups = WORKGROUPS if row.persistent else triton.cdiv(row.m, height) * triton.cdiv(row.n, width)
    tiled_product[(workgroups,)](
        *ends, row.m, row.n, row.k, row.group_m, workgroups, **sizes, num_warps=waves, num_stages=3
    )


def check(a: Any, b: Any, c: Any) -> None:
    """A kernel that computes something else would be counted for nothing."""
    want = a[:CHECKED_ROWS].double() @ b.double().T
    error = ((c[:CHECKED_ROWS].double() - want).norm() / want.norm()).item()
    if not error < LARGEST_ERROR:
        sys.exit(f"C is wrong by {error:.1e} of its norm")


def main() -> None:
    torch.manual_seed(0)
    lines = [",".join(Row._fields)]
    for (m, n, k), launches in groupby(rows(sys.argv[2:]), key=lambda row: row[:3]):
        a, b = (torch.randn(side, k, device="cuda", dtype=torch.float16) for side in (m, n))
        for row in launches:
            c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
            launch(a, b, c, row)
            check(a, b, c)
            lines.append(",".join(map(str, row)))
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
