"""Launches on AMD cards that others published, and the cycles of the kernels that ran: benchmarks/data/amd_*.csv."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilewave.sim import Gemm

DATA = Path(__file__).parent / "data"
FAMILIES = {"bf16gemm": ("bf16", 2.0), "fp8gemm": ("f8", 1.0), "I8gemm": ("i8", 1.0), "f4gemm": ("f4", 0.53)}
"""By how a kernel's name begins: the dtype, and the bytes of an element with its scales."""


@dataclass(frozen=True)
class KernelLoop:
    """The K loop of one of AMD's kernels."""

    chip: str
    kernel: str
    tile: tuple[int, int]
    k: int
    matrix_cycles: float
    cycles: tuple[tuple[int, float], ...]
    """By the latency of global loads."""

    @property
    def family(self):
        return FAMILIES[self.kernel.split("_")[0]][0]

    @property
    def element_bytes(self):
        return FAMILIES[self.kernel.split("_")[0]][1]

    def at(self, latency):
        """Return the cycles at a latency; 0 stands for the matrix cycles alone."""
        return dict(self.cycles)[latency] if latency else self.matrix_cycles


@dataclass(frozen=True)
class Launch:
    """A measured launch."""

    loop: KernelLoop
    units: int
    m: int
    n: int
    k: int
    us: float

    @property
    def flops(self):
        return 2.0 * self.m * self.n * self.k

    @property
    def tiles(self):
        return -(-self.m // self.loop.tile[0]) * -(-self.n // self.loop.tile[1])

    @property
    def moved_bytes(self):
        """Each array once."""
        return round((self.m + self.n) * self.k * self.loop.element_bytes + 2 * self.m * self.n)


@dataclass(frozen=True)
class TunedProduct:
    """A stream-K solution of hipBLASLt, with its order of tiles."""

    gemm: Gemm
    order: str
    layout: str
    types: str
    us: float


def _rows(name):
    return list(csv.DictReader((DATA / name).read_text(encoding="utf-8").splitlines()))


@cache
def loops():
    """Every kernel of amd_loop_cycles.csv, by chip and name."""
    found = {}
    for row in _rows("amd_loop_cycles.csv"):
        cycles = tuple((int(x.split("_")[1]), float(row[x])) for x in row if x.startswith("cycles_"))
        tile = int(row["rows"]), int(row["cols"])
        one = KernelLoop(row["chip"], row["kernel"], tile, int(row["k"]), float(row["matrix_cycles"]), cycles)
        found[one.chip, one.kernel] = one
    return found


@cache
def launches(chip):
    """The rows of amd_aiter_rows.csv of one chip: 80 CUs for gfx942 (MI308X), 256 for gfx950 (MI355X)."""
    return tuple(
        Launch(
            loops()[chip, row["kernel"]],
            int(row["cus"]),
            *(int(row[x]) for x in ("m", "n", "k")),
            float(row["us"]),
        )
        for row in _rows("amd_aiter_rows.csv")
        if row["chip"] == chip
    )


@cache
def tuned_products():
    """The rows of amd_tensile_rows.csv: 304 CUs, operands of f16 (H) or bf16 (B)."""
    found = []
    for row in _rows("amd_tensile_rows.csv"):
        sizes, tile = (int(row[x]) for x in "mnk"), tuple(map(int, row["tile"].split("x")))
        dtype = "bf16" if row["types"][0] == "B" else "f16"
        gemm = Gemm(*sizes, tile, dtype, workgroups=304, last_wave="stream-K")
        order = f"xcd_contiguous(8) >> grouped({max(1, int(row['wgm']))})"
        us = gemm.flops / float(row["tflops"]) / 1e6
        found.append(TunedProduct(gemm, order, row["layout"], row["types"], us))
    return tuple(found)
