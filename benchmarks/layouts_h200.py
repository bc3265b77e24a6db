"""GEMM in all four layouts on an H200, compared with cuBLAS (torch.mm) on the same arrays.

    python benchmarks/layouts_h200.py [--dtype f16 bf16] [--rounds 7] [--shapes 2048x2048x2048 …] [--json out.json]

nt: A [M, K], B [N, K];  nn: B [K, N], torch's `x @ w`;  tt: A [K, M];  tn: both. Every result is first compared with
float64 in a poisoned output. Bursts of CUDA graphs, ours between two of cuBLAS; printed are the median of the ratios
(above 1: faster than cuBLAS) and half the distance of their quartiles.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from tilewave import WaveCompileOptions, bf16, f16, wave_compile
from tilewave import kernels as shipped
from tilewave.bench.contestant import Launch
from tilewave.bench.gpu import Arena, Bursts, Launching, error_bound, torch_on_the_gpu
from tilewave.bench.rounds import SHORT, Rounds, geometric_mean, play
from tilewave.cli.bench import BEST_MAPPING
from tilewave.kernels.products import LAYOUTS

OURS, CUBLAS = "tilewave", "cublas"
SHAPES = ("2048x2048x2048", "4096x4096x4096", "8192x8192x8192", "4864x8192x4160")
DTYPES = {"f16": f16, "bf16": bf16}
TILE = (128, 256, 64)


def compiled(shape: tuple[int, int, int], dtype: Any, layout: str, tile: tuple[int, int, int]) -> Any:
    made = shipped.gemm(shape, dtype, dtype, tile=tile, mapping=BEST_MAPPING, layout=layout)
    return wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a"), made.kernel)


def measured(
    torch: Any, shape: tuple[int, int, int], dtype: Any, layout: str, tile: tuple[int, int, int], rounds: int
) -> dict[str, Any]:
    arena = Arena.of(torch, shape, dtype, seed=17)
    a = arena.a if layout[0] == "n" else arena.a.T.contiguous()
    b = arena.b if layout[1] == "t" else arena.b.T.contiguous()
    c, ours = arena.output(dtype), compiled(shape, dtype, layout, tile)
    left, right = (a if layout[0] == "n" else a.T), (b if layout[1] == "n" else b.T)
    launches: dict[str, Launch] = {
        CUBLAS: partial(torch.mm, left, right, out=c),
        OURS: partial(ours, a, b, c),
    }
    for name, launch in launches.items():
        c.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        off = arena.relative_error(c)
        assert off <= error_bound(shape[2], dtype, dtype), f"{name} at {shape}, {layout}: off by {off}"
    bursts = Bursts.of(Launching.of(torch, launches), launches, SHORT)
    taken = Rounds(SHORT, bursts.launches, play(list(launches), CUBLAS, rounds, 17, bursts.take, lambda: None), CUBLAS)
    operations = 2 * shape[0] * shape[1] * shape[2]
    ratio = taken.ratio(OURS)
    assert ratio is not None
    return {
        "shape": shape,
        "dtype": str(dtype),
        "layout": layout,
        "tile": tile,
        "tflops": {name: taken.tflops(name, operations).to_json() for name in launches},
        "ratio": ratio.to_json(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="GEMM in all four layouts beside cuBLAS.")
    parser.add_argument("--dtype", nargs="+", choices=sorted(DTYPES), default=["f16"])
    parser.add_argument("--layouts", nargs="+", choices=sorted(LAYOUTS), default=list(LAYOUTS))
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--tile", default="x".join(map(str, TILE)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch, rows = torch_on_the_gpu(), []
    tile = tuple(map(int, options.tile.split("x")))
    for dtype in options.dtype:
        for text in options.shapes:
            shape = tuple(map(int, text.split("x")))
            for layout in options.layouts:
                row = measured(torch, shape, DTYPES[dtype], layout, tile, options.rounds)  # type: ignore[arg-type]
                rows.append(row)
                ours, ratio = row["tflops"][OURS]["median"], row["ratio"]
                print(
                    f"{dtype:5} {text:>16} {layout}  {ours:6.0f} TFLOP/s  {ratio['median']:.3f} ±{ratio['spread']:.3f}"
                )
    means = {d: geometric_mean([r["ratio"]["median"] for r in rows if r["dtype"] == d]) for d in options.dtype}
    print("geometric means:", *(f"{d} {m:.3f}" for d, m in means.items()))
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "means": means}, indent=1))


if __name__ == "__main__":
    main()
