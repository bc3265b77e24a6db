"""How long `import tilewave` and compiling each seed kernel take, beside Wave's published behaviour.

    python benchmarks/compile_time.py [--json]

Import: the best of several fresh processes. Compile: the median of repeats, tracing and all tile-level passes, with the
check that no tile is lost counted apart.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from seeds import SEEDS

from tilewave.lang.kernel import trace_kernel
from tilewave.passes.runner import run
from tilewave.passes.tile_level import tile_level

WAVE_SECONDS = "1.4 to 19"
"""Wave 3.9 compiling these kernels without a GPU, measured 2026-11 on a two-core machine."""


def import_seconds():
    code = "import time; t = time.perf_counter(); import tilewave; print(time.perf_counter() - t)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))


def seconds(action, repeats=15):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def trace_and_passes(seed):
    traced = trace_kernel(seed.kernel, seed.subs(2048, 2048, 2048), ())
    run(traced.ir, tile_level(traced.order))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    record = {"import_seconds": import_seconds(), "kernels": {}}
    for seed in SEEDS:
        record["kernels"][repr(seed)] = {
            "trace_and_passes_seconds": seconds(lambda seed=seed: trace_and_passes(seed)),
            "whole_compile_seconds": seconds(lambda seed=seed: seed.compile(2048, 2048, 2048)),
        }
    if arguments.json:
        print(json.dumps(record, indent=2))
        return
    print(f"import tilewave: {record['import_seconds'] * 1e3:.0f} ms\n")
    print(f"{'2048x2048x2048':24} {'trace and passes':>18} {'with the tile check':>20} {'Wave 3.9':>14}")
    for name, times in record["kernels"].items():
        mine = [times["trace_and_passes_seconds"] * 1e3, times["whole_compile_seconds"] * 1e3]
        print(f"{name:24} {mine[0]:15.1f} ms {mine[1]:17.1f} ms {WAVE_SECONDS:>12} s")


if __name__ == "__main__":
    main()
