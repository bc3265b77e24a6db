"""What a call on the CPU costs in addition to the products: launching, threads, persistence, compiling, order of tiles.

    python benchmarks/cpu_calls.py [--json FILE]

Interleaved repeats, medians; ratios of medians in one run.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import gemm as plain
import numpy as np
import persistent_gemm_xcd as persistent

import tilewave as tw
from tilewave.kernels import gemm

ROUNDS = 9


def medians(actions, rounds=ROUNDS, pause=0.05):
    times = {name: [] for name in actions}
    for _ in range(rounds):
        for name in random.sample(list(actions), len(actions)):
            time.sleep(pause)
            actions[name]()  # a warm call: the threads are awake, on their cores
            start = time.perf_counter()
            actions[name]()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def compiled(made, **options):
    return tw.wave_compile(tw.WaveCompileOptions(subs=made.subs, target="cpu", **options), made.kernel)


def with_threads(count, action):
    def run():
        os.environ["TILEWAVE_NUM_THREADS"] = str(count)
        action()

    return run


def arrays(m, n, k, dtype=np.float32):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (n, k)))
    return a, b, np.empty((m, n), np.float32)


def threads():
    kernel, data = compiled(gemm((2048, 2048, 2048), tw.f32)), arrays(2048, 2048, 2048)
    found = medians({n: with_threads(n, lambda: kernel(*data)) for n in (1, 2)}, rounds=5)
    return {"f32 2048³, 2 threads against 1": found[1] / found[2]}


def overhead():
    """A call of 64³ less the time its products take when a thousand are made at once."""
    small, data = compiled(gemm((64, 64, 64), tw.f32, tile=(64, 64, 64))), arrays(64, 64, 64)
    os.environ["TILEWAVE_NUM_THREADS"] = "1"
    times = []
    for _ in range(3000):
        start = time.perf_counter()
        small(*data)
        times.append(time.perf_counter() - start)
    whole = statistics.median(times)
    size = 1024
    large, many = compiled(gemm((size, size, 64), tw.f32, tile=(64, 64, 64))), arrays(size, size, 64)
    products = medians({"large": lambda: large(*many)}, pause=0)["large"] / (size / 64) ** 2
    del os.environ["TILEWAVE_NUM_THREADS"]
    return {
        "64³ call, µs": whole * 1e6,
        "of which products, µs": products * 1e6,
        "overhead, µs": (whole - products) * 1e6,
    }


def persistence():
    data = arrays(2048, 2048, 2048, np.float16)
    sizes = {"block_m": 128, "block_n": 256, "block_k": 64}
    options = tw.WaveCompileOptions(subs=plain.subs(2048, 2048, 2048, **sizes))
    usual = tw.wave_compile(options, plain.gemm)
    options = tw.WaveCompileOptions(subs=persistent.subs(2048, 2048, 2048))
    lasting = tw.wave_compile(options, persistent.persistent_gemm)
    found = medians({"plain": lambda: usual(*data), "persistent": lambda: lasting(*data)})
    return {"the tutorial's persistent kernel against the plain one": found["plain"] / found["persistent"]}


def compiling():
    cold, kept = [], []
    made = gemm((2048, 2048, 2048), tw.f32)
    for _ in range(5):
        with tempfile.TemporaryDirectory() as directory:
            os.environ["TILEWAVE_CACHE_DIR"] = directory
            for times in (cold, kept):
                start = time.perf_counter()
                compiled(made).build.program  # noqa: B018  loading it counts too
                times.append(time.perf_counter() - start)
    del os.environ["TILEWAVE_CACHE_DIR"]
    return {"compile, cold, s": statistics.median(cold), "compile, from the cache, s": statistics.median(kept)}


def orders():
    """One large shape; whether the order of tiles shows in time, found as it is."""
    shape = (8192, 4096, 1024)
    names = ["linear()", "linear('n')", "grouped(8)", "hilbert()", "supertiles(8, 4)"]
    data = arrays(*shape)
    kernels = {name: compiled(gemm(shape, tw.f32, mapping=name)) for name in names}
    found = medians({name: lambda k=k: k(*data) for name, k in kernels.items()}, rounds=5)
    return {f"8192x4096x1024 f32, {name}, against linear()": found["linear()"] / found[name] for name in names[1:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    found = {}
    for part in (overhead, compiling, persistence, threads, orders):
        for name, value in part().items():
            found[name] = value
            print(f"{name:60} {value:10.3f}", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
