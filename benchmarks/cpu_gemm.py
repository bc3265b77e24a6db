"""GEMM on the CPU: tilewave compared with numpy's BLAS and torch, interleaved in one run.

    python benchmarks/cpu_gemm.py --threads 2 [--rounds 9] [--only f32] [--json FILE]
    python benchmarks/cpu_gemm.py --threads 2 --open       dynamic shapes compared with fixed sizes

Each round measures every contestant once, in a random order, after a pause; the table gives medians, the spread (half
the distance between the quartiles), and the ratio of medians to the faster of numpy and torch (above 1: tilewave is
faster). `cpu s` is CPU time over all threads, the more reliable number on a busy machine. OpenMP's workers do not spin
after a product (OMP_WAIT_POLICY=PASSIVE), because they would slow the next contestant.

With `--open` the contestants are the kernel with these sizes, that kernel a second time (the difference is noise), and
one with dynamic shapes. Ratios are medians over the rounds with their spreads, and of the fastest; above 1 is faster.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
import warnings

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("--threads", type=int, default=2)
PARSER.add_argument("--rounds", type=int, default=9)
PARSER.add_argument("--only", default="", help="only rows whose name holds this")
PARSER.add_argument("--tile", default="128x256x64")
PARSER.add_argument("--json", default="")
PARSER.add_argument("--open", action="store_true", help="one binary for all sizes beside one with these sizes")
ARGUMENTS = PARSER.parse_args()

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TILEWAVE_NUM_THREADS"):
    os.environ[name] = str(ARGUMENTS.threads)

import numpy as np  # noqa: E402

import tilewave as tw  # noqa: E402
from tilewave.backend.cpu.instruction_sets import host_instruction_set  # noqa: E402
from tilewave.bench.measure import measure  # noqa: E402
from tilewave.kernels import accumulator, gemm  # noqa: E402

try:
    import torch

    torch.set_num_threads(ARGUMENTS.threads)
except ImportError:
    torch = None

TOO_SLOW_SECONDS = 10
SQUARE = (2048, 2048, 2048)
ROWS = [
    ("f32 2048³", SQUARE, tw.f32, {}),
    ("f32 4096x1024x2048", (4096, 1024, 2048), tw.f32, {}),
    ("f32 2047x2049x2051", (2047, 2049, 2051), tw.f32, {}),
    ("bf16 2048³", SQUARE, tw.bf16, {}),
    ("bf16 2047x2049x2051", (2047, 2049, 2051), tw.bf16, {}),
    ("f16 2048³", SQUARE, tw.f16, {}),
    ("i8 2048³", SQUARE, tw.i8, {}),
    ("i8 2047x2049x2051", (2047, 2049, 2051), tw.i8, {}),
]


def compiled_gemm(shape, dtype, open_sizes=()):
    made = gemm(shape, dtype, tile=tuple(map(int, ARGUMENTS.tile.split("x"))))
    subs = {symbol: value for symbol, value in made.subs.items() if str(symbol) not in open_sizes}
    return tw.wave_compile(tw.WaveCompileOptions(subs=subs, target="cpu"), made.kernel)


def operands(shape, dtype):
    m, n, k = shape
    rng = np.random.default_rng(0)
    if dtype.is_int:
        a, b = (rng.integers(-127, 128, s, dtype=np.int8) for s in ((m, k), (n, k)))
    else:
        a, b = (rng.standard_normal(s).astype(np.float32).astype(dtype.numpy) for s in ((m, k), (n, k)))
    return a, b, np.empty((m, n), accumulator(dtype).numpy)


def open_and_fixed(shape, dtype):
    """The kernel with these sizes twice, and one that takes any."""
    found = {}
    for name, sizes in (("fixed", ""), ("fixed again", ""), ("open", "MNK")):
        compiled, (a, b, c) = compiled_gemm(shape, dtype, sizes), operands(shape, dtype)
        found[name] = lambda compiled=compiled, a=a, b=b, c=c: compiled(a, b, c)
        found[name]()
        check(a, b, c, shape[2])
    return found


def contestants(shape, dtype):
    """What to measure, by name: each a function without arguments."""
    m, n, k = shape
    compiled, (a, b, c) = compiled_gemm(shape, dtype), operands(shape, dtype)
    found = {"tilewave": lambda: compiled(a, b, c)}
    if dtype == tw.f32:
        out = np.empty((m, n), np.float32)
        found["numpy"] = lambda: np.matmul(a, b.T, out=out)
    if torch is not None:
        seconds = estimated_torch_seconds(a, b, dtype)
        if seconds < TOO_SLOW_SECONDS:
            found.update(torch_contestant(a, b, dtype))
        else:
            print(f"torch has no quick {dtype} product here (about {seconds:.0f} s a call): left out")
    found["tilewave"]()
    check(a, b, c, k)
    return found


def estimated_torch_seconds(a, b, dtype, size=256):
    small = torch_contestant(a[:size, :size].copy(), b[:size, :size].copy(), dtype)["torch"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small()
    start = time.perf_counter()
    small()
    return (time.perf_counter() - start) * a.shape[0] * b.shape[0] * a.shape[1] / size**3


def torch_contestant(a, b, dtype):
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i8": torch.int8}
    bits = {"bf16": np.int16, "f16": np.int16}.get(dtype.name)
    x, y = (torch.from_numpy(t.view(bits) if bits else t) for t in (a, b))
    if bits:
        x, y = x.view(kinds[dtype.name]), y.view(kinds[dtype.name])
    if dtype == tw.i8:
        return {"torch": lambda: torch._int_mm(x, y.T)}
    out = torch.empty((a.shape[0], b.shape[0]), dtype=kinds[dtype.name])
    return {"torch": lambda: torch.mm(x, y.T, out=out)}


def check(a, b, c, k):
    """A sample of rows against float64, so that what is timed is known to be right."""
    rows = np.random.default_rng(1).integers(0, a.shape[0], 16)
    wide_a, wide_b = a[rows].astype(np.float64), b.astype(np.float64)
    bound = (k + 1) * np.finfo(np.float32).eps / 2 * (np.abs(wide_a) @ np.abs(wide_b).T)
    assert (np.abs(c[rows] - wide_a @ wide_b.T) <= bound).all(), "wrong result"


def measured(found):
    """The seconds of each contestant's turns by the clock, and of the processor."""
    times = measure(found, ARGUMENTS.rounds, seed=0, after_each=lambda: None)
    return {name: list(x.seconds) for name, x in times.items()}, {
        name: list(x.cpu_seconds) for name, x in times.items()
    }


def spread(times):
    quarters = statistics.quantiles(times, n=4)
    return (quarters[2] - quarters[0]) / 2


def compare_open():
    print(f"{'':22} {'against':12} {'wall':>8} {'±':>7} {'best':>7} {'cpu':>8} {'±':>7} {'best':>7}  fixed / this")
    records = []
    for name, shape, dtype, _ in ROWS:
        if ARGUMENTS.only not in name:
            continue
        wall, cpu = measured(open_and_fixed(shape, dtype))
        for who in ("open", "fixed again"):
            figures = [*compared(wall["fixed"], wall[who]), *compared(cpu["fixed"], cpu[who])]
            row = " ".join(f"{x:{width}.3f}" for x, width in zip(figures, (8, 7, 7) * 2, strict=True))
            print(f"{name:22} {who:12} {row}", flush=True)
            records.append({"row": name, "who": who, "wall_s": wall, "cpu_s": cpu, "figures": figures})
    return records


def compared(reference, times):
    """The median ratio of a round, its spread, and the ratio of the fastest: what others do can only slow it down."""
    ratios = [x / y for x, y in zip(reference, times, strict=True)]
    return statistics.median(ratios), spread(ratios), min(reference) / min(times)


def main():
    print(f"{platform.machine()}, {host_instruction_set().name}, {ARGUMENTS.threads} threads", end="; ")
    print(f"numpy {np.__version__}, torch {torch.__version__ if torch else 'not here'}, tiles {ARGUMENTS.tile}")
    save(compare_open() if ARGUMENTS.open else compare_libraries())


def compare_libraries():
    print(f"{'':22} {'':10} {'median s':>10} {'± s':>8} {'GFLOP/s':>9} {'cpu s':>8} {'ratio':>7} {'by cpu s':>9}")
    records = []
    for name, shape, dtype, _ in ROWS:
        if ARGUMENTS.only not in name:
            continue
        wall, cpu = measured(contestants(shape, dtype))
        others = [x for x in wall if x != "tilewave"]
        best = min((statistics.median(wall[x]) for x in others), default=float("nan"))
        best_cpu = min((statistics.median(cpu[x]) for x in others), default=float("nan"))
        for who in wall:
            median, used = statistics.median(wall[who]), statistics.median(cpu[who])
            rate = 2e-9 * shape[0] * shape[1] * shape[2] / median
            ratios = f"{best / median:7.3f} {best_cpu / used:9.3f}" if who == "tilewave" else ""
            print(
                f"{name:22} {who:10} {median:10.4f} {spread(wall[who]):8.4f} {rate:9.1f} {used:8.3f} {ratios}",
                flush=True,
            )
            records.append({"row": name, "who": who, "median_s": median, "spread_s": spread(wall[who]), "cpu_s": used})
    return records


def save(records):
    if ARGUMENTS.json:
        with open(ARGUMENTS.json, "w") as file:
            json.dump({"machine": platform.machine(), "arguments": vars(ARGUMENTS), "records": records}, file, indent=2)


if __name__ == "__main__":
    sys.exit(main())
