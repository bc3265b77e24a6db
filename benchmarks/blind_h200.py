"""A blind check of the simulator on an H200: predictions are written first, then the launches are counted.

    python benchmarks/blind_h200.py predict SEED predictions.csv         # anywhere; needs tilewave
    python benchmarks/blind_h200.py measure predictions.csv counted.csv  # on the GPU; needs ncu, torch and Triton
    python benchmarks/blind_h200.py compare predictions.csv counted.csv  # anywhere

The seed draws the shapes. Each launch is counted three times and the median is kept, because counts are noisy where
evictions are close decisions. The last two commands print each prediction with its count, and a summary; counted.csv
has the columns of h200_unseen_counters.csv.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from math import exp, log
from pathlib import Path
from random import Random
from statistics import fmean, median

LAUNCH = ("m", "n", "k", "block_m", "block_n", "block_k", "group_m", "persistent")
PREDICTED = ("hbm_read_bytes", "hbm_read_low_bytes", "hbm_read_high_bytes", "on_cliff", "l2_request_bytes", "l2_hit")
COUNTED = {
    "l2_requests_from_sms_sectors": "lts__t_sectors_srcunit_tex.sum",
    "l2_requests_from_sms_hit_sectors": "lts__t_sectors_srcunit_tex_lookup_hit.sum",
    "l2_read_sectors": "lts__t_sectors_op_read.sum",
    "l2_read_hit_sectors": "lts__t_sectors_op_read_lookup_hit.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "time_ns": "gpu__time_duration.sum",
}
SECTOR_BYTES = 32
WRITES_SEEN = 1.5
"""As in tilewave.sim.measured."""

SHAPES = 12
SIDES = (1024, 16384)
DEPTHS = (512, 16384)
LARGEST_PRODUCT = 1 << 40
"""The largest product of M, N and K: 1.4 ms on the GPU."""
WIDTHS = (256, 256, 128)
GROUPS = (1, 4, 8, 16)
TIMES = 3
Row = dict[str, str]


def launches(seed: int) -> list[Row]:
    """Random shapes, each in all groups by 132 workgroups and in one of them by a workgroup for each tile."""
    draw, found = Random(seed), []
    for _ in range(SHAPES):
        shape, width = drawn_shape(draw), draw.choice(WIDTHS)
        for group, persistent in (*((group, 1) for group in GROUPS), (draw.choice(GROUPS), 0)):
            found.append(dict(zip(LAUNCH, map(str, (*shape, 128, width, 64, group, persistent)), strict=True)))
    return found


def drawn_shape(draw: Random) -> tuple[int, int, int]:
    """Small sizes are as likely as large ones; M and N are whole tiles of 128 and K of 64, as in the files."""
    while True:
        (m, n), k = (drawn_size(draw, SIDES, 128) for _ in range(2)), drawn_size(draw, DEPTHS, 64)
        if m * n * k <= LARGEST_PRODUCT:
            return m, n, k


def drawn_size(draw: Random, between: tuple[int, int], multiple: int) -> int:
    low, high = map(log, between)
    return round(exp(draw.uniform(low, high)) / multiple) * multiple


def predict(seed: int, to: Path) -> None:
    from tilewave.sim import Gemm, simulate  # noqa: PLC0415  the card's machine need not have it

    rows = []
    for row in launches(seed):
        m, n, k, block_m, block_n, block_k, group, persistent = (int(row[name]) for name in LAUNCH)
        gemm = Gemm(m, n, k, (block_m, block_n, block_k), workgroups=132 if persistent else None)
        report = simulate(gemm, "H200", f"grouped({group})")
        rows.append(row | {name: repr(float(getattr(report, name))) for name in PREDICTED})
    write(to, (*LAUNCH, *PREDICTED), rows)


def write(to: Path, columns: tuple[str, ...], rows: list[Row]) -> None:
    with to.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def read(file: Path) -> list[Row]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def measure(predictions: Path, to: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asked, launched, table = (Path(folder, name) for name in ("asked.csv", "launches.csv", "counters.csv"))
        write(asked, LAUNCH, [{name: row[name] for name in LAUNCH} for row in read(predictions) for _ in range(TIMES)])
        profiler = (
            "ncu",
            "--clock-control",
            "none",
            "--kernel-name",
            "tiled_product",
            "--csv",
            "--print-units",
            "base",
        )
        metrics = ("--metrics", ",".join(COUNTED.values()), "--log-file", str(table))
        program = (sys.executable, str(Path(__file__).with_name("count_h200.py")), str(launched), str(asked))
        subprocess.run((*profiler, *metrics, *program), check=True)
        counts = middle(counted(table.read_text(encoding="utf-8")))
        rows = [row | count for row, count in zip(read(launched)[::TIMES], counts, strict=True)]
    write(to, (*LAUNCH, *COUNTED, "fitted"), [row | {"fitted": "0"} for row in rows])
    print(compared(read(predictions), rows))


def counted(table: str) -> list[Row]:
    """What ncu counted of each launch, by our names: its table has a line for each launch and metric."""
    names = {metric: name for name, metric in COUNTED.items()}
    found: dict[int, Row] = {}
    for line in csv.DictReader(line for line in table.splitlines() if line.startswith('"')):
        if line["Metric Name"] in names:
            value = str(round(float(line["Metric Value"].replace(",", ""))))
            found.setdefault(int(line["ID"]), {})[names[line["Metric Name"]]] = value
    return [found[at] for at in sorted(found)]


def middle(counts: list[Row]) -> list[Row]:
    """Return the median of the TIMES counts of each launch, counter by counter."""
    groups = [counts[at : at + TIMES] for at in range(0, len(counts), TIMES)]
    return [{name: sorted((row[name] for row in group), key=int)[TIMES // 2] for name in COUNTED} for group in groups]


def compared(predictions: list[Row], counts: list[Row]) -> str:
    """One line a launch, and the summary."""
    lines, bytes_off, requests_off, hits_off, off_a_cliff, outside = [], [], [], [], [0.0], 0
    for guess, row in zip(predictions, counts, strict=True):
        assert all(guess[name] == row[name] for name in LAUNCH), "the two files name other launches"
        hbm, requests = float(row["dram_read_bytes"]), SECTOR_BYTES * float(row["l2_requests_from_sms_sectors"])
        written = WRITES_SEEN * 2 * int(row["m"]) * int(row["n"]) / SECTOR_BYTES
        hit = (float(row["l2_read_hit_sectors"]) + written) / (float(row["l2_read_sectors"]) + written)
        guessed, low, high, cliff, asked, hits = (float(guess[name]) for name in PREDICTED)
        bytes_off.append(guessed / hbm - 1)
        requests_off.append(asked / requests - 1)
        hits_off.append(hits - hit)
        outside += bool(cliff) and not low <= hbm <= high
        off_a_cliff += [] if cliff else [bytes_off[-1]]
        name = "x".join(row[size] for size in "mnk") + f" {row['block_m']}x{row['block_n']} grouped({row['group_m']})"
        lines.append(
            f"{name:42}{'persistent' if row['persistent'] == '1' else 'a tile each':12}"
            f" HBM {guessed / 1e6:8.1f} {hbm / 1e6:8.1f} MB {100 * bytes_off[-1]:+6.1f} %"
            f"  requests {asked / 1e6:8.0f} {requests / 1e6:8.0f} MB {100 * requests_off[-1]:+6.1f} %"
            f"  hits {100 * hits:5.1f} {100 * hit:5.1f} %"
            + (f"  cliff {low / 1e6:.0f} to {high / 1e6:.0f}" if cliff else "")
        )
    by_kind = [
        100 * fmean(abs(off) for off, row in zip(requests_off, counts, strict=True) if row["persistent"] == kind)
        for kind in "10"
    ]
    middle, mean, worst = (100 * of(list(map(abs, bytes_off))) for of in (median, fmean, max))
    sharp, lost = 100 * max(map(abs, off_a_cliff)), 100 * lost_by_groups(predictions, counts)
    return "\n".join(
        [
            *lines,
            f"HBM bytes: median error {middle:.2f} %, mean {mean:.2f} %, worst {worst:.1f} %",
            f"HBM bytes off a cliff: worst {sharp:.2f} %; on one: {outside} outside their interval",
            f"HBM bytes lost by the group predicted best: {lost:.2f} % at the worst",
            f"requests: mean error {by_kind[0]:.2f} % persistent, {by_kind[1]:.2f} % a tile each",
            f"hit rate: mean error {100 * fmean(map(abs, hits_off)):.2f} points",
        ]
    )


def lost_by_groups(predictions: list[Row], counts: list[Row]) -> float:
    """How many more bytes than with the best group of a shape, where the group is taken that is predicted best."""
    of_shape: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for guess, row in zip(predictions, counts, strict=True):
        if row["persistent"] == "1":
            pair = float(guess["hbm_read_bytes"]), float(row["dram_read_bytes"])
            of_shape.setdefault(tuple(row[name] for name in LAUNCH[:6]), []).append(pair)
    return max(min(pairs)[1] / min(counted for _, counted in pairs) - 1 for pairs in of_shape.values())


def main() -> None:
    match sys.argv[1:]:
        case ["predict", seed, to]:
            predict(int(seed), Path(to))
        case ["measure", predictions, to]:
            measure(Path(predictions), Path(to))
        case ["compare", predictions, counts]:
            print(compared(read(Path(predictions)), read(Path(counts))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
