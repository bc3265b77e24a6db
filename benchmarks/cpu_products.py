"""`ops.matmul` on this CPU, compared with the faster of `numpy.matmul` and `torch.matmul`.

    python benchmarks/cpu_products.py [--seed 1] [--count 20] [--dtype f32] [--least 64] [--json FILE]

Random shapes through the public call with numpy arrays: M, N and K log-uniform from `--least` to 2048, in all four
layouts. A shape is called until its best config is compiled. Contestants take turns in a new order each round; printed
are medians of microseconds, the ratio to the faster library (above 1, ours is faster), the geometric mean, and the
seconds of each shape's first call. On a machine that others use too, measure one thread of each by processor time:

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 TILEWAVE_NUM_THREADS=1 python benchmarks/cpu_products.py --processor-time
"""

import argparse
import json
import math
import random
import statistics
import time

import numpy as np

from tilewave import ops
from tilewave.runtime.background import BACKGROUND_WORK

LONGEST, ROUNDS, LEAST_SECONDS, SETTLING_CALLS = 2048, 9, 0.002, 20
LAYOUTS = ("NT", "NN", "TT", "TN")
DTYPES = {"f32": np.float32, "f64": np.float64}


def cases(seed, count, least):
    draw = random.Random(seed)
    for at in range(count):
        yield (
            tuple(round(math.exp(draw.uniform(math.log(least), math.log(LONGEST)))) for _ in range(3)),
            LAYOUTS[at % 4],
        )


def operands(shape, layout, dtype):
    m, n, k = shape
    rng = np.random.default_rng(m * n + k)
    a = rng.standard_normal((k, m) if layout[0] == "T" else (m, k)).astype(dtype)
    b = rng.standard_normal((n, k) if layout[1] == "T" else (k, n)).astype(dtype)
    return a.T if layout[0] == "T" else a, b.T if layout[1] == "T" else b


def settle(call):
    for _ in range(SETTLING_CALLS):
        call()
        if not BACKGROUND_WORK.threads:
            break
        BACKGROUND_WORK.wait()


def medians(calls, clock):
    """Return the median seconds of a call of each contestant, over rounds of bursts in turns."""
    times, bursts = {name: [] for name in calls}, {}
    for name, call in calls.items():
        call()
        begin = clock()
        call()
        bursts[name] = max(1, math.ceil(LEAST_SECONDS / (clock() - begin)))
    for _ in range(ROUNDS):
        for name in random.sample(list(calls), len(calls)):
            calls[name]()
            begin = clock()
            for _ in range(bursts[name]):
                calls[name]()
            times[name].append((clock() - begin) / bursts[name])
    return {name: statistics.median(found) for name, found in times.items()}


def measured(shape, layout, dtype, clock):
    a, b = operands(shape, layout, dtype)
    begin = clock()
    found = ops.matmul(a, b)
    first = clock() - begin
    settle(lambda: ops.matmul(a, b))
    want, bound = a.astype(float) @ b.astype(float), 4 * np.finfo(dtype).eps * shape[2]
    assert np.abs(found - want).max() <= bound * max(1.0, np.abs(want).max()), (shape, layout)
    calls = {"ours": lambda: ops.matmul(a, b), "numpy": lambda: np.matmul(a, b)}
    try:
        import torch  # noqa: PLC0415  optional: without it numpy alone is compared
    except ImportError:
        pass
    else:
        x, y = torch.from_numpy(a), torch.from_numpy(b)
        calls["torch"] = lambda: torch.matmul(x, y)
    times = medians(calls, clock)
    best = min(seconds for name, seconds in times.items() if name != "ours")
    microseconds = {name: 1e6 * seconds for name, seconds in times.items()}
    return {"shape": shape, "layout": layout, **microseconds, "ratio": best / times["ours"], "first": first}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--least", type=int, default=64)
    parser.add_argument("--processor-time", action="store_true", help="time processors, for contestants of one thread")
    parser.add_argument("--json", default="")
    asked = parser.parse_args()
    rows, clock = [], time.process_time if asked.processor_time else time.perf_counter
    for shape, layout in cases(asked.seed, asked.count, asked.least):
        row = measured(shape, layout, DTYPES[asked.dtype], clock)
        rows.append(row)
        times = "  ".join(f"{name} {row[name]:9.1f}" for name in ("ours", "numpy", "torch") if name in row)
        name = "x".join(map(str, shape))
        print(f"{name:16} {layout}  {times} µs  {row['ratio']:.3f}  first {row['first']:.3f} s", flush=True)
    ratios = [row["ratio"] for row in rows]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(
        f"geometric mean {mean:.3f}, worst {min(ratios):.3f}, slowest first call {max(r['first'] for r in rows):.3f} s"
    )
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump({"seed": asked.seed, "dtype": asked.dtype, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
