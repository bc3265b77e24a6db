"""Products of arrays with unaligned rows on an H200, compared with cuBLAS (torch.mm) on the same arrays.

    python benchmarks/unaligned_h200.py [--quick] [--dtype f16] [--rounds 7] [--shapes 4097x4097x4097 …] [--json FILE]

nt: A [M, K], B [N, K];  nn: B [K, N], torch's `x @ w`. `open` is one kernel for all sizes: it makes packed copies of
operands that are unaligned for TMA, and copies unaligned results back. `fixed` was compiled for the shape, and stores
unaligned results from registers. `lies well` is `open` on aligned copies of the arrays: what the product itself takes.
The fastest tile of each, of those in `TILES`, counts and is printed. Every result is first compared with float64 in a
poisoned output. Bursts of CUDA graphs, ours between two of cuBLAS; printed are µs of a call, and the median of the
ratios (above 1: faster than cuBLAS) with half the distance of their quartiles. `--quick` takes two minutes.

`--eight i8 f8e4m3fn`: B as [K, N], which each call transposes (`nn`), or which was prepacked (`kept`), compared with B
as [N, K], all ours.
"""

from __future__ import annotations

import argparse
import json
from functools import cache, partial
from pathlib import Path
from typing import Any

from tilewave import WaveCompileOptions, bf16, f8e4m3fn, f16, f32, i8, i32, wave_compile
from tilewave import kernels as shipped
from tilewave.bench.contestant import Launch
from tilewave.bench.gpu import Arena, Bursts, Launching, error_bound, torch_on_the_gpu
from tilewave.bench.rounds import SHORT, Rounds, play
from tilewave.cli.bench import BEST_MAPPING
from tilewave.kernels.products import K, M, N

CUBLAS, OPEN, FIXED, WELL = "cublas", "open", "fixed", "lies well"
WANTED = {"4097x4097x4097": 4.3, "2047x2049x2051": 3.6, "4096x4096x4090": 2.4, "1001x3001x2001": 1.5}
OTHERS = {"5000x5000x5000": 1.0, "8200x8200x8200": 1.0, "1000x1000x1000": 1.0}
SMALL_TILES = ((64, 128, 64), (128, 128, 64))
TILES = ((128, 256, 64), (192, 176, 64), (192, 192, 64), (152, 256, 64))
"""192 x 176 makes whole rounds for 132 processors of 2047 x 2049 (132 tiles) and of 4097 x 4097 (528), 152 x 256 of
5000 x 5000 (660); of B as [K, N] the matrix unit wants rows of 64 elements."""
SMALL = 4_000_000
"""Elements of a result with a small grid."""
DTYPES = {"f16": f16, "bf16": bf16}
LINE_BYTES = 128
EIGHT = {"i8": (i8, i32), "f8e4m3fn": (f8e4m3fn, f32)}
EIGHT_TILE = (128, 256, 128)
EIGHT_SHAPES = ("4096x4096x4096", "8192x8192x8192", "4097x4097x4097")
NT, NN, KEPT = "nt", "nn", "kept"


@cache
def compiled_open(dtype: Any, layout: str, tile: tuple[int, int, int], out: Any = None) -> Any:
    made = shipped.gemm((1, 1, 1), dtype, out or dtype, tile=tile, mapping=BEST_MAPPING, layout=layout)
    subs = {name: value for name, value in made.subs.items() if name not in (M, N, K)}
    return wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), made.kernel)


def compiled_fixed(shape: tuple[int, int, int], dtype: Any, layout: str, tile: tuple[int, int, int]) -> Any:
    made = shipped.gemm(shape, dtype, dtype, tile=tile, mapping=BEST_MAPPING, layout=layout)
    return wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a"), made.kernel)


def on_lines(torch: Any, x: Any, rows: int, cols: int) -> Any:
    """Return a copy whose rows are aligned to cache lines, padded with zeros to another shape."""
    pitch = -(-cols * x.element_size() // LINE_BYTES) * LINE_BYTES // x.element_size()
    found = torch.zeros((rows, pitch), dtype=x.dtype, device=x.device)[:, :cols]
    found[: x.shape[0], : x.shape[1]].copy_(x)
    return found


def lying_well(torch: Any, a: Any, b: Any, layout: str) -> tuple[Any, Any, Any]:
    """Return aligned copies of both operands, with N rounded up to what TMA can store, and an output for them."""
    (m, k), n = a.shape, b.shape[layout[1] == "n"]
    wide = -(-n // 8) * 8
    shape = (wide, k) if layout[1] == "t" else (k, wide)
    to = torch.empty((m, wide), dtype=a.dtype, device=a.device)
    return on_lines(torch, a, m, k), on_lines(torch, b, *shape), to


def contestants(torch: Any, arena: Arena, shape: tuple[int, int, int], layout: str, which: list[str]) -> dict[str, Any]:
    """Each with the array that it writes."""
    dtype, c = arena.dtype, arena.output(arena.dtype)
    b = arena.b if layout[1] == "t" else arena.b.T.contiguous()
    right = b.T if layout[1] == "t" else b
    *well, to = lying_well(torch, arena.a, b, layout)
    found: dict[str, Any] = {CUBLAS: (partial(torch.mm, arena.a, right, out=c), c)}
    for tile in SMALL_TILES if shape[0] * shape[1] < SMALL else TILES:
        ours, name = compiled_open(dtype, layout, tile), "x".join(map(str, tile))
        if OPEN in which:
            found[f"{OPEN} {name}"] = partial(ours, arena.a, b, c), c
        if FIXED in which:
            found[f"{FIXED} {name}"] = partial(compiled_fixed(shape, dtype, layout, tile), arena.a, b, c), c
        if WELL in which:
            found[f"{WELL} {name}"] = partial(ours, *well, to), to[:, : shape[1]]
    return found


def quickest(ratios: dict[str, Any]) -> dict[str, Any]:
    """Return the best tile's ratios for each kind of contestant, which its name begins with."""
    kinds = [kind for kind in (OPEN, FIXED, WELL, NN, KEPT) if any(name.startswith(kind) for name in ratios)]
    best = (max((n for n in ratios if n.startswith(kind)), key=lambda n: float(ratios[n]["median"])) for kind in kinds)
    return {name: ratios[name] for name in best}


def eight_bits(torch: Any, arena: Arena, out: Any) -> dict[str, Any]:
    """Return the contestants of a product of 8-bit operands: B as [N, K], as [K, N], and prepacked."""
    nt, nn = (compiled_open(arena.dtype, layout, EIGHT_TILE, out) for layout in (NT, NN))
    c, b = arena.output(out), arena.b.T.contiguous()
    return {
        NT: (partial(nt, arena.a, arena.b, c), c),
        NN: (partial(nn, arena.a, b, c), c),
        KEPT: (partial(nn, arena.a, nn.prepack(b, "b"), c), c),
    }


def measured(
    torch: Any, shape: tuple[int, int, int], dtype: Any, layout: str, which: list[str], rounds: int
) -> dict[str, Any]:
    arena = Arena.of(torch, shape, dtype, seed=17)
    return raced(torch, arena, contestants(torch, arena, shape, layout, which), CUBLAS, layout, dtype, rounds)


def raced(
    torch: Any, arena: Arena, taking_part: dict[str, Any], first: str, layout: str, out: Any, rounds: int
) -> dict[str, Any]:
    """Check each contestant, then time it in turns with the first."""
    shape, dtype = arena.shape, arena.dtype
    for name, (launch, c) in taking_part.items():
        c.fill_(float("nan") if c.is_floating_point() else -(1 << 31))
        launch()
        torch.cuda.synchronize()
        off = arena.relative_error(c)
        assert off <= error_bound(shape[2], dtype, out), f"{name} at {shape}, {layout}: off by {off}"
    launches: dict[str, Launch] = {name: launch for name, (launch, _) in taking_part.items()}
    bursts = Bursts.of(Launching.of(torch, launches), launches, SHORT)
    taken = Rounds(SHORT, bursts.launches, play(list(launches), first, rounds, 17, bursts.take, lambda: None), first)
    operations = 2 * shape[0] * shape[1] * shape[2]
    tflops = {name: taken.tflops(name, operations).to_json() for name in launches}
    ratios = {name: ratio.to_json() for name in launches if name != first and (ratio := taken.ratio(name))}
    return {"shape": shape, "dtype": str(dtype), "layout": layout, "beside": first, "tflops": tflops, "ratios": ratios}


def told(row: dict[str, Any], wanted: str) -> str:
    operations, first = 2 * row["shape"][0] * row["shape"][1] * row["shape"][2], row["beside"]
    cells = [f"{first} {operations / row['tflops'][first]['median'] / 1e6:7.1f} µs"]
    for name, ratio in quickest(row["ratios"]).items():
        micros = operations / row["tflops"][name]["median"] / 1e6
        cells.append(f"{name} {micros:7.1f} µs {ratio['median']:.3f} ±{ratio['spread']:.3f}")
    return f"{row['dtype']:5} {'x'.join(map(str, row['shape'])):>16} {row['layout']} {wanted:8}" + "  ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dtype", nargs="+", choices=sorted(DTYPES), default=["f16"])
    parser.add_argument("--layouts", nargs="+", choices=("nt", "nn"), default=["nt", "nn"])
    parser.add_argument("--shapes", nargs="+", default=[*WANTED, *OTHERS])
    parser.add_argument("--eight", nargs="+", choices=sorted(EIGHT), default=[])
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch, rows, wanted = torch_on_the_gpu(), [], WANTED | OTHERS
    rounds = options.rounds or (3 if options.quick else 7)
    for name in options.eight:
        dtype, out = EIGHT[name]
        for text in EIGHT_SHAPES:
            m, n, k = map(int, text.split("x"))
            arena = Arena.of(torch, (m, n, k), dtype, seed=17)
            rows.append(raced(torch, arena, eight_bits(torch, arena, out), NT, NN, out, rounds))
            print(told(rows[-1], ""), flush=True)
    for dtype in [] if options.eight else options.dtype:
        for text in options.shapes:
            m, n, k = map(int, text.split("x"))
            for layout in options.layouts:
                fewer = options.quick and (layout == "nn" or text not in WANTED)
                which = [OPEN, WELL] if fewer else [OPEN, FIXED, WELL]
                rows.append(measured(torch, (m, n, k), DTYPES[dtype], layout, which, rounds))
                print(told(rows[-1], f"(≥ {wanted.get(text, 1.0)})"), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
