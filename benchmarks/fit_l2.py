"""How H200's L2 evicts, by a probe with no GEMM in it: the same closed form under other looks and capacities.

    python benchmarks/fit_l2.py   # two minutes

Reads h200_l2_probe.csv, which probe_l2_h200.cu and Nsight Compute made. An error is the distance of the share of bytes
that are read again from HBM, in points; where that share is large, less counts.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import numpy as np

from tilewave.machine import find
from tilewave.sim.accesses import Accesses
from tilewave.sim.calibration import Softness
from tilewave.sim.closed_form import closed_form
from tilewave.sim.dispatch import Residency, place

SMS, MEGABYTE = 132, 1e6
LOOKS, SHARES = (3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 1000.0), (0.94, 0.97, 1.0)


def probe(read: float, written: float, cycles: int, readers: int) -> Accesses:
    """A task is what one SM does in a cycle; it reads every 132nd chunk, from another one on than before."""
    sm, cycle = np.repeat(np.arange(SMS), cycles), np.tile(np.arange(cycles), SMS)
    return Accesses(
        arrays=("read", "written"),
        array_written_bytes=np.array([0.0, written * cycles]),
        stream_bytes=np.full(SMS, read / SMS),
        stream_array=np.zeros(SMS, np.int64),
        workgroups=SMS,
        workgroup=sm,
        turn=cycle,
        reads=np.stack([(sm + 37 * cycle + 53 * reader) % SMS for reader in range(readers)], 1),
        written_bytes=np.full(SMS * cycles, written / SMS),
        steps=32,
        flops=0.0,
        step_flops=0.0,
        dtype="f16",
    )


def launches() -> Iterator[tuple[Accesses, float, float]]:
    """(launch, bytes that are read again and again, the share of them that came from HBM again)"""
    with Path(__file__).with_name("h200_l2_probe.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            read, cycles = float(row["read_mb"]) * MEGABYTE, int(row["cycles"])
            again = read * (cycles - 1)
            accesses = probe(read, float(row["written_mb"]) * MEGABYTE, cycles, int(row["readers"]))
            yield accesses, again, (float(row["dram_read_bytes"]) - read) / again


def error(rows: list[tuple[Accesses, float, float]], softness: Softness) -> float:
    chip, found = find("H200"), []
    for accesses, again, counted in rows:
        flows = closed_form(accesses, place(accesses, chip, Residency()), chip, Residency(), softness)
        share = (float(flows.hbm.sum()) - accesses.distinct_bytes) / again
        found.append(abs(share - counted) / (1 + 10 * counted))
    return 100 * fmean(found)


def main() -> None:
    rows = list(launches())
    tried = {(looks, share): error(rows, Softness(looks, share)) for looks in LOOKS for share in SHARES}
    print("looks " + "".join(f"{share:8}" for share in SHARES))
    for looks in LOOKS:
        print(f"{looks:6.0f}" + "".join(f"{tried[looks, share]:8.2f}" for share in SHARES))
    print("best: {:.0f} looks, {} of the capacity".format(*min(tried, key=lambda one: tried[one])))


if __name__ == "__main__":
    main()
