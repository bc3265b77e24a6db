"""Open sizes against known ones against cuBLAS, and what calls of a kernel with open sizes cost.

    python benchmarks/open_sizes.py [--rounds 6] [--json out.json] [speed calls many]

speed: the shapes of `tilewave bench gemm --shapes seeds`, f16: one binary for all of them against one for each, the
       same again (noise), and torch.matmul; bursts of equally many launches, the known sizes before and after each.
calls: microseconds of a call with arrays seen before, new arrays of seen sizes, new sizes; and of a launch alone.
many:  a thousand different M in a row: how often something was compiled, the time of a call, and the memory taken.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

from tilewave import WaveCompileOptions, f16, wave_compile
from tilewave import kernels as shipped
from tilewave.bench.contestant import Launch
from tilewave.bench.gpu import Arena, Bursts, Launching, error_bound, torch_on_the_gpu
from tilewave.bench.rounds import SHORT, SUSTAINED, Estimate, Rounds, geometric_mean, play
from tilewave.cli.bench import BEST_MAPPING, SHAPES
from tilewave.runtime.arrays import view

KNOWN, AGAIN, OPEN, CUBLAS = "known sizes", "known again", "open sizes", "cublas"
TILE = (128, 256, 64)
SIZES = ("M", "N", "K")


def compiled(shape: tuple[int, int, int] | None) -> Any:
    """For one shape, or for all."""
    made = shipped.gemm(shape or (512, 512, 512), f16, f16, tile=TILE, mapping=BEST_MAPPING)
    subs = {name: n for name, n in made.subs.items() if shape or str(name) not in SIZES}
    return wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), made.kernel)


# -- speed


def measured(torch: Any, shape: tuple[int, int, int], one: Any, rounds: int, seed: int, mode: Any) -> dict[str, Any]:
    arena = Arena.of(torch, shape, f16, seed)
    c, known = arena.output(f16), compiled(shape)
    launches: dict[str, Launch] = {
        KNOWN: partial(known, arena.a, arena.b, c),
        AGAIN: partial(known, arena.a, arena.b, c),
        OPEN: partial(one, arena.a, arena.b, c),
        CUBLAS: partial(torch.matmul, arena.a, arena.b.T, out=c),
    }
    for name, launch in launches.items():
        c.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        off = arena.relative_error(c)
        assert off <= error_bound(shape[2], f16, f16), f"{name} at {shape}: off by {off}"
    bursts = Bursts.of(Launching.of(torch, launches), launches, mode)
    taken = Rounds(mode, bursts.launches, play(list(launches), KNOWN, rounds, seed, bursts.take, lambda: None), KNOWN)
    operations = 2 * shape[0] * shape[1] * shape[2]
    found = {name: taken.ratio(name) for name in (AGAIN, OPEN, CUBLAS)}
    return {
        "shape": shape,
        "tflops": {name: taken.tflops(name, operations).to_json() for name in launches},
        "ratios": {name: ratio.to_json() for name, ratio in found.items() if ratio},
        "open_against_cublas": Estimate.of(_quotients(taken)).to_json(),
        "launches_in_a_burst": bursts.launches,
    }


def _quotients(taken: Rounds) -> list[float]:
    """Open sizes against cuBLAS, each against its neighbours of the same round."""
    return [a / b for a, b in zip(taken.ratios(OPEN), taken.ratios(CUBLAS), strict=True)]


def speed(torch: Any, rounds: int) -> dict[str, Any]:
    one, found = compiled(None), {}
    for mode in (SHORT, SUSTAINED):
        rows = [measured(torch, shape, one, rounds, seed, mode) for seed, shape in enumerate(SHAPES["seeds"])]
        print(f"\n{mode}; against {KNOWN} (above 1: faster), half the distance of the quartiles behind it")
        for row in rows:
            cells = [f"{name} {r['median']:.4f} ±{r['spread']:.4f}" for name, r in row["ratios"].items()]
            print("x".join(map(str, row["shape"])).rjust(16), f"{row['tflops'][KNOWN]['median']:6.0f} TFLOP/s ", *cells)
        means = {n: geometric_mean([r["ratios"][n]["median"] for r in rows]) for n in (AGAIN, OPEN, CUBLAS)}
        beside = geometric_mean([r["open_against_cublas"]["median"] for r in rows])
        print("geometric means:", *(f"{n} {m:.4f}" for n, m in means.items()), f"open against cublas {beside:.4f}")
        found[mode.name] = {"shapes": rows, "means": means, "open_against_cublas": beside}
    print("binaries of the open kernel:", ", ".join(one.binaries))
    return found


# -- calls


def _microseconds(torch: Any, call: Any, cases: list[Any]) -> Estimate:
    """Measure the Python time case by case; synchronize often enough that the GPU's queue is never full."""
    taken = []
    for at, case in enumerate(cases):
        if at % 64 == 0:
            torch.cuda.synchronize()
        start = time.perf_counter_ns()
        call(*case)
        taken.append((time.perf_counter_ns() - start) / 1e3)
    torch.cuda.synchronize()
    return Estimate.of(taken)


def _arrays(torch: Any, m: int, n: int = 512, k: int = 256) -> tuple[Any, Any, Any]:
    new = partial(torch.empty, device="cuda", dtype=torch.float16)
    return new((m, k)), new((n, k)), new((m, n))


def calls(torch: Any) -> dict[str, Any]:
    one, known = compiled(None), compiled((256, 512, 256))
    same = _arrays(torch, 256)
    for call in (one, known):
        call(*same)
    template = next(iter(one.build.program.calls.launches.values()))
    alone = template.known([view(t).placed for t in same], one.sizes.of_call(same, {}).numbers)  # with its tensor maps
    fresh = [_arrays(torch, 256) for _ in range(500)]
    sizes = [_arrays(torch, 257 + i) for i in range(500)]
    found = {
        "known sizes, seen arrays": _microseconds(torch, known, [same] * 2000),
        "known sizes, new arrays": _microseconds(torch, known, fresh),
        "open sizes, seen arrays": _microseconds(torch, one, [same] * 2000),
        "open sizes, new arrays": _microseconds(torch, one, fresh),
        "open sizes, new sizes": _microseconds(torch, one, sizes),
        "the launch alone": _microseconds(torch, alone, [()] * 2000),
    }
    print("\nmicroseconds of a call")
    for name, estimate in found.items():
        print(name.rjust(26), f"{estimate.median:7.2f} ±{estimate.spread:.2f}")
    return {name: estimate.to_json() for name, estimate in found.items()}


# -- many


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def many(torch: Any, count: int = 1000) -> dict[str, Any]:
    one = compiled(None)
    k, n = 512, 1024
    b, most = torch.randn((n, k), device="cuda").half(), torch.randn((count, k), device="cuda").half()
    c = torch.empty((count, n), device="cuda", dtype=torch.float16)
    taken, memory, gpu = [], [], []
    for m in range(1, count + 1):
        start = time.perf_counter_ns()
        one(most[:m], b, c[:m])
        taken.append((time.perf_counter_ns() - start) / 1e3)
        if m % 100 == 0:
            torch.cuda.synchronize()
            memory.append(_resident_bytes())
            gpu.append(torch.cuda.mem_get_info()[0])
            off = ((c[:m].double() - most[:m].double() @ b.double().T).norm() / c[:m].double().norm()).item()
            assert off <= error_bound(k, f16, f16), f"M = {m}: off by {off}"
    grown = (memory[-1] - memory[1]) / (count - 200)
    rest = Estimate.of(taken[1:])
    print(f"\n{count} different M in a row: {len(one.binaries)} binaries ({', '.join(one.binaries)})")
    print(
        f"first call {taken[0] / 1e3:.1f} ms, then {rest.median:.1f} ±{rest.spread:.1f} µs, "
        f"at most {max(taken[1:]):.0f}"
    )
    print(f"host memory grows by {grown:.0f} bytes a size; the GPU's free memory by {gpu[-1] - gpu[1]} bytes in all")
    return {
        "binaries": one.binaries,
        "first_ms": taken[0] / 1e3,
        "microseconds": rest.to_json(),
        "mean_microseconds": statistics.fmean(taken[1:]),
        "bytes_a_size": grown,
        "gpu_bytes": gpu[-1] - gpu[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["speed", "calls", "many"], help="speed, calls, many")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch = torch_on_the_gpu()
    does = {"speed": lambda: speed(torch, asked.rounds), "calls": lambda: calls(torch), "many": lambda: many(torch)}
    found = {part: does[part]() for part in asked.parts}
    if asked.json:
        asked.json.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), **found}, indent=1))


if __name__ == "__main__":
    main()
