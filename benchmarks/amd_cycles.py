"""Compute the cycles of AMD's GEMM kernels from a checkout of the aiter repository, whose code objects are not here.

    python benchmarks/amd_cycles.py PATH/TO/aiter [--out benchmarks/data/amd_loop_cycles.csv]

The kernels are those of the rows of benchmarks/data/amd_aiter_rows.csv, and the others of f4, among which `fit_amd.py`
lets the model choose. Each row is one K loop in the model of a compute unit (`tilewave.cycles`): the K of an iteration,
its matrix cycles, and its cycles at some latencies of global loads. The figures here are those of commit e4048607a5.
"""

import argparse
import csv
import re
from pathlib import Path

from tilewave.cycles import cycles_by_latency
from tilewave.cycles.loop import waves_of
from tilewave.emulator.code_object import read_code_object
from tilewave.emulator.matrix import shape_of
from tilewave.emulator.statistics import classify, find_loop

LATENCIES = (400, 500, 700, 1000, 1200)
OUT = Path(__file__).parent / "data" / "amd_loop_cycles.csv"
FOLDERS = (
    "gfx942/fp8gemm_blockscale",
    "gfx942/i8gemm",
    "gfx950/bf16gemm",
    "gfx950/f4gemm",
    "gfx950/fp8gemm_blockscale",
)
NAME = re.compile(r"((?:bf16gemm_bf16_tn|f4gemm\w+_BpreShuffle|fp8gemm\w+|I8gemm\w+)_(\d+)x(\d+))\.co")


def depth_of(code, tile):
    """The elements of K that an iteration of the loop multiplies."""
    kernel = code.kernel(None)
    body = [code.instructions[at] for at in find_loop(code, kernel).body]
    shapes = [shape_of(i.mnemonic, i.integer("cbsz"), i.integer("blgp")) for i in body if classify(i) == "matrix"]
    multiplied = sum(s.m * s.n * s.k * s.blocks for s in shapes)
    return multiplied * waves_of(kernel) // (tile[0] * tile[1])


def rows_of(hsa):
    for folder in FOLDERS:
        for path in sorted((hsa / folder).glob("*.co")):
            named = NAME.fullmatch(path.name)
            if named and "noB" not in path.name:
                code, tile = read_code_object(path.read_bytes()), (int(named[2]), int(named[3]))
                found = cycles_by_latency(code, None, LATENCIES)
                facts = folder.split("/")[0], named[1], *tile, depth_of(code, tile)
                yield *facts, round(found[0].matrix_cycles), *(round(one.cycles, 1) for one in found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("aiter", type=Path, help="a checkout of https://github.com/ROCm/aiter")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    with asked.out.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("chip", "kernel", "rows", "cols", "k", "matrix_cycles", *(f"cycles_{n}" for n in LATENCIES)))
        for row in rows_of(asked.aiter / "hsa"):
            out.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
