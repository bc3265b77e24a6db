"""How long `import tilewave` and compiling each seed kernel take, compared with Wave's published behaviour.

    python benchmarks/compile_time.py [--json]

Import: the best of several fresh processes. Compile: the median of repeats, tracing and all tile-level passes, with the
check that no tile is lost counted separately. For GPUs, the best too: from `wave_compile` to code that the driver
accepts, in new processes, with an empty cache and then from it; `first` includes importing what is needed, `next` is a
second kernel. These are CPU times, LLVM's process included: what a clock shows on an idle machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from seeds import SEEDS

from tilewave.lang.kernel import trace_kernel
from tilewave.pipeline.runner import run
from tilewave.pipeline.tile_level import tile_level

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


GPUS = {"sm_90a": "f16", "gfx942": "f32"}
"""GPU targets, and the dtype that their kernel writes."""

IN_A_PROCESS = """
import json, resource
import tilewave as tw
from tilewave.kernels import gemm

def used():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)

def seconds(shape):
    made = gemm(shape, tw.f16, tw.{out}, tile=(128, 256, 64), mapping="grouped(12)")
    start = used()
    options = tw.WaveCompileOptions(subs=made.subs, target="{target}", schedule=tw.SchedulingType.PREFETCH)
    code = tw.wave_compile(options, made.kernel).code_object
    return used() - start

print(json.dumps([seconds((4096, 4096, 4096)), seconds((8192, 8192, 8192))]))
"""


def gpu_seconds(target, out, repeats=5):
    """The best, cold and cached, of the first and of the next kernel in a process."""
    script = IN_A_PROCESS.format(target=target, out=out)
    found = {"cold": [], "cached": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as directory:
            for times in found.values():
                env = {**os.environ, "TILEWAVE_CACHE_DIR": directory}
                times.append(json.loads(subprocess.check_output([sys.executable, "-c", script], env=env)))
    best = {name: [min(column) for column in zip(*times, strict=True)] for name, times in found.items()}
    return {f"{name}_{which}_seconds": best[name][i] for name in found for i, which in enumerate(("first", "next"))}


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
    record["gpus"] = {target: gpu_seconds(target, out) for target, out in GPUS.items()}
    if arguments.json:
        print(json.dumps(record, indent=2))
        return
    print(f"import tilewave: {record['import_seconds'] * 1e3:.0f} ms\n")
    print(f"{'2048x2048x2048':24} {'trace and passes':>18} {'with the tile check':>20} {'Wave 3.9':>14}")
    for name, times in record["kernels"].items():
        mine = [times["trace_and_passes_seconds"] * 1e3, times["whole_compile_seconds"] * 1e3]
        print(f"{name:24} {mine[0]:15.1f} ms {mine[1]:17.1f} ms {WAVE_SECONDS:>12} s")
    print(f"\n{'gemm, to loadable code':24} {'cold: first':>14} {'next':>10} {'cached: first':>16} {'next':>10}")
    for target, times in record["gpus"].items():
        cold, then, cached, again = (1e3 * s for s in times.values())
        print(f"{target:24} {cold:11.0f} ms {then:7.0f} ms {cached:13.1f} ms {again:7.1f} ms")


if __name__ == "__main__":
    main()
