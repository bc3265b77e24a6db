"""Rows on the CPU: softmax, rms_norm, layer_norm and sums compared with numpy, torch and a copy, interleaved.

    python benchmarks/rows_cpu.py --threads 2 [--rounds 15] [--shapes 4096x4096,32768x256] [--only softmax]

Each round measures every contestant once, in a random order, after a pause; the table gives medians, the spread (half
the distance between the quartiles), CPU time over all threads, and tilewave's speedup over each, by wall-clock time and
by CPU time, which is more reliable on a busy machine. Results are checked against float64. The C library keeps freed
memory, so that contestants that allocate an array in every call do not pay for new pages.
"""

import argparse
import ctypes
import os

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("--threads", type=int, default=2)
PARSER.add_argument("--rounds", type=int, default=15)
PARSER.add_argument("--shapes", default="4096x4096,32768x256,4096x1000")
PARSER.add_argument("--rows", type=int, default=16, help="of a workgroup")
PARSER.add_argument("--only", default="", help="only kernels whose name holds this")
ARGUMENTS = PARSER.parse_args()

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TILEWAVE_NUM_THREADS"):
    os.environ[name] = str(ARGUMENTS.threads)

for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
    ctypes.CDLL(None).mallopt(option, 1 << 30)

import numpy as np  # noqa: E402

import tilewave as tw  # noqa: E402
from tilewave import GLOBAL_ADDRESS_SPACE, Memory, WorkgroupConstraint, f32, read, sym, wave, write  # noqa: E402
from tilewave.backend.cpu.instruction_sets import host_instruction_set  # noqa: E402
from tilewave.bench.measure import measure  # noqa: E402

try:
    import torch

    torch.set_num_threads(ARGUMENTS.threads)
except ImportError:
    torch = None

M, N, BLOCK_M, COUNT = sym.M, sym.N, sym.BLOCK_M, sym.COUNT
Matrix, Column = Memory[M, N, GLOBAL_ADDRESS_SPACE, f32], Memory[M, GLOBAL_ADDRESS_SPACE, f32]
ROWS = [WorkgroupConstraint(M, BLOCK_M, 0)]
EPSILON = 1e-5


@wave(ROWS)
def softmax(x: Matrix, y: Matrix):
    row = read(x)
    e = tw.exp(row - row.max(dim=N))
    write(e / e.sum(dim=N), y)


@wave(ROWS)
def rms_norm(x: Matrix, y: Matrix, scale: f32):
    row = read(x)
    write(row * tw.rsqrt((row * row).sum(dim=N) * scale + EPSILON), y)


@wave(ROWS)
def layer_norm(x: Matrix, y: Matrix, scale: f32):
    row = read(x)
    away = row - row.sum(dim=N) * scale
    write(away * tw.rsqrt((away * away).sum(dim=N) * scale + EPSILON), y)


@wave(ROWS)
def row_sum(x: Matrix, y: Column):
    write(read(x).sum(dim=N), y)


def numpy_softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def numpy_rms_norm(x):
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.asarray(EPSILON, x.dtype))


def numpy_layer_norm(x):
    away = x - x.mean(axis=1, keepdims=True)
    return away / np.sqrt((away * away).mean(axis=1, keepdims=True) + np.asarray(EPSILON, x.dtype))


def numpy_sum(x):
    return x.sum(axis=1)


KERNELS = {
    "softmax": (softmax, numpy_softmax, lambda x: torch.softmax(x, -1)),
    "rms_norm": (rms_norm, numpy_rms_norm, lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:], eps=EPSILON)),
    "layer_norm": (
        layer_norm,
        numpy_layer_norm,
        lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:], eps=EPSILON),
    ),
    "sum": (row_sum, numpy_sum, lambda x: x.sum(-1)),
}


def contestants(name, shape):
    """What to measure, by name: each a function without arguments."""
    kernel, in_numpy, in_torch = KERNELS[name]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    want = in_numpy(x.astype(np.float64))
    y, copied = np.empty(want.shape, np.float32), np.empty_like(x)
    options = tw.WaveCompileOptions(subs={M: shape[0], N: shape[1], BLOCK_M: ARGUMENTS.rows}, target="cpu")
    compiled = tw.wave_compile(options, kernel)
    more = (1 / shape[1],) if name.endswith("norm") else ()
    compiled(x, y, *more)
    # A rounding for each level of the tree of a sum, and a few for what is done with it.
    roundings = shape[1].bit_length() + 8
    size = np.abs(x).sum(axis=1, dtype=np.float64) if name == "sum" else np.maximum(np.abs(want), 1)
    assert (np.abs(y - want) <= roundings * 2.0**-24 * size).all(), f"{name} is wrong"
    found = {"tilewave": lambda: compiled(x, y, *more), "numpy": lambda: in_numpy(x)}
    if torch is not None:
        given = torch.from_numpy(x)
        found["torch"] = lambda: in_torch(given)
    found["copy"] = lambda: np.copyto(copied, x)
    return found


def report(name, shape):
    times = measure(contestants(name, shape), ARGUMENTS.rounds, 0, lambda: None)
    ours = times["tilewave"]
    for who, found in times.items():
        ratios = (
            "" if who == "tilewave" else f"{found.median / ours.median:8.2f} {found.cpu_median / ours.cpu_median:8.2f}"
        )
        clock = f"{found.median * 1e3:9.2f} ± {found.spread * 1e3:5.2f}"
        print(
            f"{name:<11} {shape[0]}x{shape[1]:<6} {who:<9} {clock} {found.cpu_median * 1e3:9.2f} {ratios}", flush=True
        )


def main():
    version = f", torch {torch.__version__}" if torch is not None else ", no torch"
    print(f"{host_instruction_set().name}, {ARGUMENTS.threads} threads, numpy {np.__version__}{version}")
    print(f"{'':<11} {'':<11} {'':<9} {'ms':>9}   {'':>5} {'cpu ms':>9} {'quicker':>8} {'in cpu':>8}")
    for text in ARGUMENTS.shapes.split(","):
        for name in KERNELS:
            if ARGUMENTS.only in name:
                report(name, tuple(map(int, text.split("x"))))


if __name__ == "__main__":
    main()
