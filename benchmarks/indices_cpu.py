"""Embedding and cross entropy on the CPU: `tilewave.ops` compared with numpy and torch, interleaved.

    python benchmarks/indices_cpu.py [--threads 2] [--rounds 15]

f32, into results that are there already where the other takes them. Each round measures every contestant once, in a
random order; the table gives medians, the spread (half the distance between the quartiles), and how much quicker
tilewave is by wall-clock time and by CPU time over all threads. Results are checked against float64.
"""

import argparse
import os

PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("--threads", type=int, default=2)
PARSER.add_argument("--rounds", type=int, default=15)
ARGUMENTS = PARSER.parse_args()

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TILEWAVE_NUM_THREADS"):
    os.environ[name] = str(ARGUMENTS.threads)

import numpy as np  # noqa: E402
import torch  # noqa: E402

from tilewave import ops  # noqa: E402
from tilewave.backend.cpu.instruction_sets import host_instruction_set  # noqa: E402
from tilewave.bench.measure import measure  # noqa: E402

torch.set_num_threads(ARGUMENTS.threads)
RNG = np.random.default_rng(0)
UNIT = 2.0**-24


def embedding(count, rows, wide):
    """Rows of a table."""
    table, ids = RNG.standard_normal((rows, wide), np.float32), RNG.integers(0, rows, count)
    out, given = np.empty((count, wide), np.float32), (torch.from_numpy(table), torch.from_numpy(ids))
    to = torch.empty(count, wide)
    ops.embedding(table, ids, out=out)
    assert np.array_equal(out, table[ids])
    return f"embedding {count} of {rows}x{wide}", {
        "tilewave": lambda: ops.embedding(table, ids, out=out),
        "numpy": lambda: np.take(table, ids, axis=0, out=out, mode="clip"),
        "torch": lambda: torch.index_select(given[0], 0, given[1], out=to),
    }


def cross_entropy(rows, columns):
    """Losses of rows, not their mean."""
    x, labels = RNG.standard_normal((rows, columns), np.float32), RNG.integers(0, columns, rows)
    out, given = np.empty(rows, np.float32), (torch.from_numpy(x), torch.from_numpy(labels))

    def in_numpy(x):
        largest = x.max(axis=1)
        return np.log(np.exp(x - largest[:, None]).sum(axis=1)) + largest - x[np.arange(rows), labels]

    ops.cross_entropy(x, labels, reduction="none", out=out)
    want = in_numpy(x.astype(np.float64))
    assert (np.abs(out - want) <= (columns.bit_length() + 8) * UNIT * np.maximum(np.abs(want), 1)).all()
    return f"cross entropy {rows}x{columns}", {
        "tilewave": lambda: ops.cross_entropy(x, labels, reduction="none", out=out),
        "numpy": lambda: in_numpy(x),
        "torch": lambda: torch.nn.functional.cross_entropy(*given, reduction="none"),
    }


def report(name, contestants):
    times = measure(contestants, ARGUMENTS.rounds, 0, lambda: None)
    ours = times["tilewave"]
    for who, found in times.items():
        ratios = f"{found.median / ours.median:8.2f} {found.cpu_median / ours.cpu_median:8.2f}"
        clock = f"{found.median * 1e3:9.3f} ± {found.spread * 1e3:6.3f}"
        print(f"{name:32} {who:<9} {clock} {found.cpu_median * 1e3:9.3f} {ratios}", flush=True)


def main():
    print(
        f"{host_instruction_set().name}, {ARGUMENTS.threads} threads, numpy {np.__version__}, torch {torch.__version__}"
    )
    print(f"{'':32} {'':<9} {'ms':>9}   {'':>6} {'cpu ms':>9} {'quicker':>8} {'in cpu':>8}")
    for count, rows, wide in ((4096, 32000, 1024), (65536, 32000, 64), (512, 128000, 4096)):
        report(*embedding(count, rows, wide))
    for rows, columns in ((4096, 1000), (512, 32000), (64, 262144)):
        report(*cross_entropy(rows, columns))


if __name__ == "__main__":
    main()
