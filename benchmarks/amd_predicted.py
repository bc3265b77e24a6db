"""Predict tilewave's kernels on AMD cards by their machine code, beside figures that others published.

    python benchmarks/amd_predicted.py [--write] [--no-attention]

Each loop is compiled once and run on the model of a compute unit, at the latency of the chip's family and at 1000 and
1500 cycles; `tilewave.sim` then simulates each launch with that utilization, at the card's sustained clock on random
data. `--write` puts the tables into docs/benchmarks/mi300x-without-hardware.md. Published: amd_published.csv.
"""

import argparse
import csv
import sys
import warnings
from functools import cache
from pathlib import Path

from amd_kloop import K, M, N, compiled
from fit_amd import PAGE, table

from tilewave import SchedulingType, WaveCompileOptions, f16, wave_compile
from tilewave.cost.parameters import CLOCKED
from tilewave.machine import find
from tilewave.machine.chips import CHIPS
from tilewave.sim import Gemm, Residency
from tilewave.sim.simulate import run

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import attention as example

PUBLISHED = Path(__file__).parent / "data" / "amd_published.csv"
BEGIN, END = "<!-- made by benchmarks/amd_predicted.py --write -->\n", "<!-- end of amd_predicted.py -->\n"
ORDER = "xcd_contiguous(8) >> grouped(8)"
SIZE = 4096
LOOPS = (((256, 256, 64), (4, 2)), ((256, 256, 64), (2, 2)), ((128, 256, 64), (2, 4)), ((128, 128, 64), (2, 2)))
TILES = (LOOPS[0], LOOPS[2], LOOPS[3])
"""Those whose launches are predicted."""
LATENCIES = (1000, 1500)
SHAPES = {
    ("MI300X", "f16"): [
        (4096, 4864, 32896),
        (2048,) * 3,
        (4096,) * 3,
        (8192,) * 3,
        (8192, 8192, 512),
        (8192, 8192, 1024),
        (4864, 4096, 4160),
        (4864, 8192, 4160),
        (16384, 4096, 8192),
        (4096, 14336, 4096),
    ],
    ("MI300X", "bf16"): [(4096, 4864, 32896), (8192,) * 3],
    ("MI325X", "bf16"): [(4096, 4864, 32896), (4096,) * 3, (8192,) * 3, (16384,) * 3],
    ("MI355X", "bf16"): [(4096,) * 3, (8192,) * 3, (16384,) * 3, (8192, 8192, 1024)],
}
HEAD, HEADS, KEYS = 128, 64, 8192
ATTENTION = {"MI300X": "not published for this shape", "MI355X": "HipKittens 1283, AITER 1259 (8192 keys)"}


@cache
def loop_of(chip, tile, waves):
    """Return the utilization of a loop by latency, and the workgroups on a compute unit, two at most."""
    made = compiled(chip, tile, waves, f16, f16, dict.fromkeys((M, N, K), SIZE))
    used = made.resources
    held = CHIPS[chip].workgroups_together(waves[0] * waves[1], used.registers, used.shared_bytes)
    together = max(1, min(2, held))
    latencies = (CLOCKED[CHIPS[chip].matrix].latency_cycles, *LATENCIES)
    return {one.latency_cycles: one.utilization for one in made.loop_cycles(latencies, together)}, together


def predicted(card, shape, dtype, tile, waves):
    machine = find(card)
    by_latency, together = loop_of(machine.target, tile, waves)
    busy = by_latency[CLOCKED[CHIPS[machine.target].matrix].latency_cycles]
    gemm = Gemm(*shape, tile, dtype)
    return run(gemm, machine, ORDER, residency=Residency(together), utilization=busy).report


def published(card, shape, dtype):
    rows = csv.DictReader(PUBLISHED.read_text(encoding="utf-8").splitlines())
    wanted = card, *map(str, shape), dtype
    found = [r for r in rows if (r["card"], r["m"], r["n"], r["k"], r["dtype"]) == wanted]
    return ", ".join(f"{r['who']} {float(r['tflops']):.0f}" for r in found)


def times(sides):
    return "×".join(map(str, sides))


def loop_table():
    rows = []
    for chip in ("gfx942", "gfx950"):
        for tile, waves in LOOPS:
            by_latency, together = loop_of(chip, tile, waves)
            cells = (f"{share:.2f}" for share in by_latency.values())
            rows.append((chip, times(tile), str(waves[0] * waves[1]), str(together), *cells))
    return table(("chip", "tile", "waves", "workgroups", "500 (gfx942), 700 (gfx950)", "1000", "1500"), rows)


def launch_table():
    rows = []
    for (card, dtype), shapes in SHAPES.items():
        for shape in shapes:
            found = [predicted(card, shape, dtype, *loop) for loop in TILES]
            best = max(found, key=lambda report: report.tflops)
            cells = (f"**{r.tflops:.0f}**" if r is best else f"{r.tflops:.0f}" for r in found)
            clock = f"{best.clock_hz / 1e9:.2f} GHz"
            rows.append((card, times(shape), dtype, *cells, clock, published(card, shape, dtype)))
    heads = (times(tile[:2]) for tile, _ in TILES)
    return table(("card", "shape", "dtype", *heads, "clock of the best", "published, TFLOP/s"), rows)


def attention_table():
    rows = []
    for card, others in ATTENTION.items():
        machine = find(card)
        sizes = {example.B: HEADS, example.M: KEYS, example.K2: KEYS, example.K1: HEAD, example.N: HEAD}
        blocks = {example.BLOCK_M: 128, example.BLOCK_K2: 64}
        options = WaveCompileOptions(subs=sizes | blocks, target=machine.target, schedule=SchedulingType.PREFETCH)
        made = wave_compile(options, example.attention(HEAD))
        latency = CLOCKED[CHIPS[machine.target].matrix].latency_cycles
        (busy,) = (one.utilization for one in made.loop_cycles([latency]))
        report = run(made, machine, utilization=busy).report
        clock = f"{report.clock_hz / 1e9:.2f} GHz"
        rows.append((card, f"{HEADS} × {KEYS}", f"{busy:.2f}", f"{report.tflops:.0f}", clock, others))
    return table(("card", "heads × keys", "utilization", "TFLOP/s", "clock", "published, TFLOP/s, bf16"), rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    parser.add_argument("--no-attention", action="store_true", help="leave out attention, which compiles for a minute")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    parts = [loop_table(), launch_table()] + ([] if asked.no_attention else [attention_table()])
    text = "\n".join(parts)
    if asked.write:
        head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
