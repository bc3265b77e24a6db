"""Draw the charts of the benchmark pages: `python benchmarks/charts.py` reads docs/data and writes docs/pictures.

Each chart has one row per label of a CSV file and one mark per series. Charts have an opaque background and follow the
reader's colour scheme; series differ in shape or lightness, so that they can be told apart in grey.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tilewave.view.svg import MARGIN, Figure, element, rect, sheet, text, width_of

DOCS = Path(__file__).parents[1] / "docs"
WIDTH = 760.0
ROW, BAR = 24.0, 11.0
LABEL_SIZE, TICK_SIZE = 12.0, 11.0
COLOURS = ("#0072b2", "#e69f00", "#999999", "#d55e00")
STYLE = """<style>
.grid{stroke:#d0d7de}.one{stroke:#57606a}
@media (prefers-color-scheme: dark){
.paper{fill:#161b22}.ink{fill:#e6edf3}.soft{fill:#9da7b3}.grid{stroke:#373e47}.one{stroke:#c9d1d9}
.s0{fill:#56b4e9}}
</style>"""


@dataclass(frozen=True)
class Chart:
    """A chart: the CSV file, the columns that label a row, the columns that are drawn, and the axis."""

    name: str
    data: str
    title: str
    caption: str
    labels: tuple[str, ...]
    series: dict[str, str]
    axis: str
    ticks: tuple[float, ...]
    kind: str = "dots"
    log: bool = False
    line_at: float | None = 1.0
    only: tuple[str, str] | None = None

    @property
    def rows(self) -> list[dict[str, str]]:
        """The rows of the CSV file that are drawn."""
        with (DOCS / "data" / self.data).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return [row for row in rows if self.only is None or row[self.only[0]] == self.only[1]]

    def label(self, row: dict[str, str]) -> str:
        """The label of a row."""
        return ", ".join(row[column] for column in self.labels)

    def svg(self) -> str:
        """The chart as an SVG file."""
        drawing = Drawing(self, self.rows)
        figure = Figure("chart", self.title, self.caption, WIDTH, drawing.height, drawing.body())
        return sheet([[figure]]).replace("<rect", f"{STYLE}\n<rect", 1)


@dataclass(frozen=True)
class Drawing:
    """The geometry of a chart and its marks."""

    chart: Chart
    rows: list[dict[str, str]]

    @property
    def left(self) -> float:
        return MARGIN + 10 + 1.12 * max(width_of(self.chart.label(row), LABEL_SIZE) for row in self.rows)

    @property
    def row_height(self) -> float:
        return ROW if self.chart.kind == "dots" else BAR * len(self.chart.series) + 10

    @property
    def top(self) -> float:
        return 26.0 if len(self.chart.series) > 1 else 6.0

    @property
    def bottom(self) -> float:
        return self.top + self.row_height * len(self.rows)

    @property
    def height(self) -> float:
        return self.bottom + 48

    def x(self, value: float) -> float:
        """The horizontal position of a value."""
        low, high = self.chart.ticks[0], self.chart.ticks[-1]
        if self.chart.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.left + (value - low) / (high - low) * (WIDTH - self.left - 3 * MARGIN)

    def body(self) -> str:
        """The legend, the grid, the rows and the axis."""
        return "\n".join([*self.legend(), *self.grid(), *self.marks()])

    def legend(self) -> Iterable[str]:
        if len(self.chart.series) < 2:
            return
        x = self.left
        for at, name in enumerate(self.chart.series):
            yield mark(at, x + 5, 8) if self.chart.kind == "dots" else bar(at, x, 3, 10)
            yield text(x + 16, 12, name, TICK_SIZE)
            x += 36 + width_of(name, TICK_SIZE)

    def grid(self) -> Iterable[str]:
        for tick in self.chart.ticks:
            yield line(self.x(tick), self.top, self.bottom, "grid")
            yield text(self.x(tick), self.bottom + 16, f"{tick:g}", TICK_SIZE, text_anchor="middle")
        if self.chart.line_at is not None:
            yield line(self.x(self.chart.line_at), self.top, self.bottom, "one")
        middle = (self.left + WIDTH - 3 * MARGIN) / 2
        yield text(middle, self.bottom + 34, self.chart.axis, LABEL_SIZE, text_anchor="middle")

    def marks(self) -> Iterable[str]:
        for number, row in enumerate(self.rows):
            y = self.top + number * self.row_height
            middle = y + self.row_height / 2
            label = self.chart.label(row)
            yield text(self.left - 8, middle + 4, label, LABEL_SIZE, text_anchor="end")
            drawn = [(at, row[column]) for at, column in enumerate(self.chart.series.values())]
            for at, value in reversed(drawn):  # the first series is on top
                if value:
                    yield self.marked(at, float(value), value, y, middle)

    def marked(self, at: int, value: float, written: str, y: float, middle: float) -> str:
        if self.chart.kind == "dots":
            return mark(at, self.x(value), middle)
        top = y + 5 + at * BAR
        shown = bar(at, self.left, top, max(self.x(value) - self.left, 1.0))
        return shown + text(self.x(value) + 4, top + 8.5, written, 10, class_="soft", fill="#57606a")


def mark(at: int, x: float, y: float) -> str:
    """The mark of a series: a circle, a square, a triangle or a diamond."""
    points = {
        1: [(-5, -5), (5, -5), (5, 5), (-5, 5)],
        2: [(0, -6), (6, 5), (-6, 5)],
        3: [(0, -7), (7, 0), (0, 7), (-7, 0)],
    }
    style = {"class_": f"s{at}", "fill": COLOURS[at], "fill_opacity": "0.9"}
    if at == 0:
        return element("circle", cx=x, cy=y, r=5.5, **style)
    return element("polygon", points=" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in points[at]), **style)


def bar(at: int, x: float, y: float, width: float) -> str:
    """A bar of a series."""
    return rect(x, y, width, BAR - 1.5, COLOURS[at], class_=f"s{at}")


def line(x: float, top: float, bottom: float, kind: str) -> str:
    """A vertical line of the grid."""
    colour = "#d0d7de" if kind == "grid" else "#57606a"
    return element("line", x1=x, y1=top, x2=x, y2=bottom, stroke=colour, class_=kind)


H200 = "NVIDIA H200, driver 580.159, torch 2.11"
CHARTS = (
    Chart(
        "h200-gemm.svg",
        "h200_gemm.csv",
        "GEMM compared with cuBLAS",
        f"{H200}; f16, tile 128×256×64, grouped(12). tilewave bench gemm --shapes seeds --rounds 15",
        ("shape",),
        {"bursts of 2 ms": "short_vs_cublas", "sustained, 150 ms": "sustained_vs_cublas"},
        "speed, cuBLAS = 1",
        (0.98, 1.0, 1.02, 1.04, 1.06, 1.08),
    ),
    Chart(
        "h200-ablation.svg",
        "h200_ablation.csv",
        "GEMM with one pass left out",
        f"{H200}; f16, geometric mean of six shapes, bursts of 2 ms. "
        "tilewave bench gemm --shapes seeds --ablation --against cublas,triton --mode short --rounds 7",
        ("variant",),
        {"speed": "geometric_mean"},
        "speed, cuBLAS = 1",
        (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2),
        kind="bars",
    ),
    Chart(
        "h200-small-grids.svg",
        "h200_small_grids.csv",
        "GEMM with small grids compared with cuBLAS",
        f"{H200}; f16, the fastest of several tiles and splits. python benchmarks/few_tiles_h200.py --rounds 5",
        ("shape",),
        {"weights cold": "cold_vs_cublas", "weights warm": "warm_vs_cublas"},
        "speed, cuBLAS = 1",
        (0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.25),
    ),
    Chart(
        "h200-random-shapes.svg",
        "h200_random_shapes.csv",
        "GEMM of random shapes compared with cuBLAS",
        f"{H200}; f16, the default config of the cost model. "
        "python benchmarks/default_tile_h200.py --seed 2020 --seconds 75",
        ("shape", "layout"),
        {"speed": "vs_cublas"},
        "speed, cuBLAS = 1, logarithmic",
        (0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0),
        log=True,
    ),
    Chart(
        "h200-attention.svg",
        "h200_attention.csv",
        "Attention compared with cuDNN",
        f"{H200}; f16, 16k tokens of 2048 elements, dynamic shapes, short bursts. "
        "python benchmarks/attention_h200.py --mode both --rounds 7",
        ("heads", "sequence"),
        {"whole": "vs_cudnn", "causal": "causal_vs_cudnn"},
        "speed, cuDNN = 1",
        (0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3),
        only=("mode", "short"),
    ),
    Chart(
        "h200-attention-ablation.svg",
        "h200_attention_ablation.csv",
        "Attention with one pass left out",
        f"{H200}; f16, heads of 128, sequences of 4096. "
        "python benchmarks/attention_h200.py --ladder --head 128 --seq 4096 --rounds 7",
        ("variant",),
        {"whole": "vs_cudnn", "causal": "causal_vs_cudnn"},
        "speed, cuDNN = 1",
        (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4),
        kind="bars",
    ),
    Chart(
        "h200-row-kernels.svg",
        "h200_row_kernels.csv",
        "Softmax and norms compared with a copy",
        f"{H200}; f16; 256, 768, 5000 and 5120 columns: an earlier run on another card. "
        "python benchmarks/rows_h200.py --rounds 7",
        ("kernel", "shape"),
        {"static row length": "static_vs_copy", "dynamic row length": "dynamic_vs_copy"},
        "share of a copy's bandwidth",
        (0.8, 0.85, 0.9, 0.95, 1.0, 1.05),
    ),
    Chart(
        "h200-batch-invariant.svg",
        "h200_batch_invariant.csv",
        "Batch-invariant GEMM compared with torch.mm",
        "NVIDIA H200; f16, dynamic shapes, default configs. python benchmarks/batch_invariant_h200.py --steps 8",
        ("n_k", "m"),
        {"batch_invariant=True": "batch_invariant_vs_torch", "default": "default_vs_torch"},
        "speed, torch.mm = 1",
        (0.9, 1.0, 1.1, 1.2, 1.3, 1.4),
    ),
    Chart(
        "h200-traffic.svg",
        "h200_traffic.csv",
        "Bytes read from HBM, counted and predicted",
        f"{H200}; f16, tile 128×256×64, 132 CTAs; counted by Nsight Compute, predicted by tilewave sim.",
        ("shape", "order"),
        {"counted": "dram_read_mb", "predicted": "dram_read_predicted_mb"},
        "HBM reads, MB",
        (0.0, 1000.0, 2000.0, 3000.0, 4000.0, 5000.0),
        kind="bars",
        line_at=None,
    ),
    Chart(
        "cpu-gemm.svg",
        "neoverse_n1_gemm.csv",
        "GEMM on two cores of an ARM Neoverse N1",
        "Neoverse N1, neon-dot, two threads, tile 128×256×64, numpy 2.4.6 with OpenBLAS, torch 2.13.0. "
        "python benchmarks/cpu_gemm.py --threads 2",
        ("product",),
        {"tilewave": "tilewave_gflops", "numpy": "numpy_gflops", "torch": "torch_gflops"},
        "GFLOP/s (i8: GOP/s)",
        (0.0, 50.0, 100.0, 150.0, 200.0, 250.0),
        kind="bars",
        line_at=None,
    ),
    Chart(
        "cpu-row-kernels.svg",
        "xeon_row_kernels.csv",
        "Row kernels on two cores of a Xeon",
        "Xeon (avx512), f32, two threads, numpy 2.4.6 (one thread), torch 2.15.0. "
        "python benchmarks/rows_cpu.py --threads 2 --rounds 11",
        ("kernel",),
        {"compared with numpy": "vs_numpy", "compared with torch": "vs_torch"},
        "speed, library = 1, logarithmic",
        (0.75, 1.0, 1.5, 2.0, 3.0, 5.0),
        log=True,
    ),
    Chart(
        "amd-k-loop.svg",
        "amd_k_loop.csv",
        "Instructions in the K loop per MFMA",
        "Code objects for gfx942 and gfx950, f16 in, f32 out, 1024³, per wave and step of 64; less is better. "
        "python benchmarks/amd_kloop.py",
        ("kernel",),
        {"tilewave": "tilewave", "Triton": "triton", "Wave": "wave"},
        "instructions per MFMA instruction",
        (0.0, 1.0, 2.0, 3.0, 4.0),
        kind="bars",
        line_at=None,
    ),
)


def main() -> None:
    """Write every chart and print its path."""
    for chart in CHARTS:
        path = DOCS / "pictures" / chart.name
        path.write_text(chart.svg(), encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
