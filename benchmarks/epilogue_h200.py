"""What an epilogue costs on an H200: fused bias and gelu, compared with the plain product with the same tile.

    python benchmarks/epilogue_h200.py [--shapes 4096x4096x4096 …] [--tiles 128x256x64 …] [--dtype f16 bf16]
                                       [--rounds 9]

Every result is first compared with float64 in a poisoned output. Bursts of CUDA graphs, the fused kernel between two of
the plain one; printed is how much longer it takes, the median of the ratios, and half the distance of their quartiles.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from tilewave import WaveCompileOptions, bf16, f16, wave_compile
from tilewave import kernels as shipped
from tilewave.bench.contestant import Launch
from tilewave.bench.epilogue import BIAS_GELU, EPILOGUES
from tilewave.bench.gpu import Arena, Bursts, Launching, error_bound, torch_on_the_gpu
from tilewave.bench.rounds import SHORT, Rounds, play
from tilewave.cli.bench import BEST_MAPPING

BARE, FUSED = "product", BIAS_GELU
SHAPES = ("4096x4096x4096", "8192x8192x8192")
TILES = ("128x256x64", "256x128x64")
DTYPES = {"f16": f16, "bf16": bf16}


def compiled(make: Any, shape: Any, dtype: Any, tile: Any) -> Any:
    made = make(shape, dtype, dtype, tile=tile, mapping=BEST_MAPPING)
    return wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a"), made.kernel)


def measured(torch: Any, shape: tuple[int, ...], dtype: Any, tile: tuple[int, ...], rounds: int) -> Any:
    arena = Arena.of(torch, shape, dtype, seed=17)  # type: ignore[arg-type]
    c, bias = arena.output(dtype), torch.randn(shape[1], device="cuda").to(arena.a.dtype)
    bare, fused = (compiled(make, shape, dtype, tile) for make in (shipped.gemm, shipped.gemm_bias_gelu))
    launches: dict[str, Launch] = {
        BARE: partial(bare, arena.a, arena.b, c),
        FUSED: partial(fused, arena.a, arena.b, bias, c),
    }
    exact = arena.a.double() @ arena.b.double().T
    wants = {BARE: exact, FUSED: EPILOGUES[BIAS_GELU].finish(torch, exact, bias.double())}
    for name, launch in launches.items():
        c.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        off = float((c.double() - wants[name]).norm() / wants[name].norm())
        assert off <= error_bound(shape[2], dtype, dtype, EPILOGUES[BIAS_GELU].steepest), (
            f"{name} at {shape}: off by {off}"
        )
    del exact, wants
    bursts = Bursts.of(Launching.of(torch, launches), launches, SHORT)
    return Rounds(SHORT, bursts.launches, play(list(launches), BARE, rounds, 17, bursts.take, lambda: None), BARE)


def main() -> None:
    parser = argparse.ArgumentParser(description="What bias and gelu cost behind a product.")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--tiles", nargs="+", default=list(TILES))
    parser.add_argument("--dtype", nargs="+", choices=sorted(DTYPES), default=["f16"])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch = torch_on_the_gpu()
    for dtype in options.dtype:
        for text in options.shapes:
            for tile in options.tiles:
                shape, cut = (tuple(map(int, one.split("x"))) for one in (text, tile))
                taken = measured(torch, shape, DTYPES[dtype], cut, options.rounds)
                ratio, flops = taken.ratio(FUSED), 2 * shape[0] * shape[1] * shape[2]
                rates = [taken.tflops(name, flops).median for name in (BARE, FUSED)]
                longer = 100 * (1 / ratio.median - 1)
                said = f"{rates[0]:6.0f} and {rates[1]:6.0f} TFLOP/s  {longer:+.1f} % ±{100 * ratio.spread:.1f}"
                print(f"{dtype:5} {text:>16} {tile:>11}  {said}", flush=True)


if __name__ == "__main__":
    main()
