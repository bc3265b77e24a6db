"""Products with few rows, and small grids with a long K, on an NVIDIA GPU compared with cuBLAS.

    python benchmarks/few_tiles_h200.py [--quick] [--rounds 15] [--only 16x8192x8192,…] [--all] [--json FILE]

c = x · wᵀ in f16 with f32 sums, x of M rows and w of N, both of K columns. `warm`: the same weights in every launch;
`cold`: weights from buffers of more than 600 MB in turn, so that L2 holds nothing of them. Every contestant is a CUDA
graph; in every round they take turns. Printed are medians over the rounds, ± half the distance of their quartiles, the
speed relative to cuBLAS (the median of the rounds' ratios), and the bandwidth of x, w and c as a share of a copy's.
Ours is the fastest of the configs tried, all of which `--all` prints: the tile, its split-K (if not given, the
compiler's choice), and num_stages; the first is the compiler's default. Results are compared with float64 in the same
run, and two launches bit by bit.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import tilewave as tw
from tilewave._version import __version__
from tilewave.bench.gpu import error_bound
from tilewave.bench.measured_on import commit

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
BLOCK_M, BLOCK_N, BLOCK_K, PARTS = tw.sym.BLOCK_M, tw.sym.BLOCK_N, tw.sym.BLOCK_K, tw.sym.PARTS
GLOBAL = tw.GLOBAL_ADDRESS_SPACE
ROWS = (1, 8, 16, 32, 64, 128, 256)
WEIGHTS = ((8192, 8192), (4096, 14336), (28672, 4096))
DEEP = ((512, 512, 65536), (256, 256, 32768))
QUICK = ((1, 8192, 8192), (16, 8192, 8192), (64, 4096, 14336), (128, 8192, 8192), (16, 28672, 4096), *DEEP)
COLD_BYTES = 600_000_000
BURST_SECONDS, IDLE_SECONDS = 0.002, 0.004
TARGET, PROCESSORS = "sm_90a", 132


def constraints(parts: int) -> list[Any]:
    cut = [
        tw.WorkgroupConstraint(M, BLOCK_M, 0),
        tw.WorkgroupConstraint(N, BLOCK_N, 1),
        tw.TilingConstraint(K, BLOCK_K),
    ]
    return [*cut, tw.SplitConstraint(K, PARTS)] if parts else cut


def gemm(x: tw.Memory[M, K, GLOBAL, tw.f16], w: tw.Memory[N, K, GLOBAL, tw.f16], c: tw.Memory[M, N, GLOBAL, tw.f16]):
    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(x), tw.read(w), acc)

    tw.write(tw.cast(total, tw.f16), c)


@dataclass(frozen=True)
class Configuration:
    """A config; without rows, the compiler's default."""

    rows: int = 0
    columns: int = 0
    parts: int = 0
    num_stages: int | None = None
    depth: int = 64

    def __str__(self) -> str:
        if not self.rows:
            return "unasked"
        parts = f" in {self.parts}" if self.parts else ""
        stages = f", {self.num_stages} stages" if self.num_stages else ""
        return f"{self.rows}x{self.columns}x{self.depth}{parts}{stages}"

    def compiled(self, shape: tuple[int, int, int]) -> Any:
        subs = dict(zip((M, N, K), shape, strict=True))
        tile = {BLOCK_M: self.rows, BLOCK_N: self.columns, BLOCK_K: self.depth} if self.rows else {}
        parts = {PARTS: self.parts} if self.parts else {}
        options = tw.WaveCompileOptions(subs={**subs, **tile, **parts}, target=TARGET, num_stages=self.num_stages)
        return tw.wave_compile(options, tw.wave(constraints(self.parts))(gemm))


def configurations(shape: tuple[int, int, int], quick: bool) -> Iterator[Configuration]:
    m, n, k = shape
    yield Configuration()
    if k >= 4 * max(m, n):
        yield from deep_configurations(shape, quick)
        return
    rows = next(r for r in (8, 16, 32, 64, 128, 256) if r >= min(m, 256))
    tiles = -(-n // 64)
    yield Configuration(rows, 64)
    if tiles <= 66:
        yield from (Configuration(rows, 64, parts) for parts in ((2,) if quick else (2, 4)))
    elif not quick:
        yield Configuration(rows, 64, 2)
    if m >= 128:
        parts = max(1, PROCESSORS // (-(-m // 128) * -(-n // 128)))
        yield Configuration(64, 128, depth=128)
        yield Configuration(128, 128)
        yield Configuration(128, 128, parts if parts > 1 else 0, depth=128)
        width = filling_width(m, n)
        yield Configuration(128, width)
        if width // 2 not in (64, 128):
            yield Configuration(128, width // 2, depth=128)
    if not quick:
        yield Configuration(rows, 64, num_stages=4)
        yield Configuration(rows, 64, 2 if tiles <= 66 else 0, depth=128)
        yield Configuration(rows, 128)
        yield Configuration(rows, 128, depth=128)


def filling_width(m: int, n: int) -> int:
    """Return the width of tiles of 128 rows whose waves of workgroups are fullest; of two equal ones, the wider."""

    def rounds_of_columns(width: int) -> int:
        return -(-(-(-m // 128) * -(-n // width)) // PROCESSORS) * width

    return min(range(256, 64, -32), key=rounds_of_columns)


def deep_configurations(shape: tuple[int, int, int], quick: bool) -> Iterator[Configuration]:
    m, n, _ = shape
    every = ((128, 256, 64), (128, 128, 128), (64, 128, 64), (128, 128, 64), (64, 64, 64), (64, 256, 64))
    some = every[:2] if m * n >= 512 * 512 else every[1:3]
    for rows, columns, depth in some if quick else every:
        parts = PROCESSORS // (-(-m // rows) * -(-n // columns))
        yield Configuration(rows, columns, depth=depth)
        yield Configuration(rows, columns, parts, depth=depth)


@dataclass
class Buffers:
    """Operands that launches take in turn."""

    shape: tuple[int, int, int]
    x: Any
    weights: list[Any]

    @staticmethod
    def of(shape: tuple[int, int, int], cold: bool) -> "Buffers":
        m, n, k = shape
        torch.manual_seed(m + n + k)
        count = max(2, math.ceil(COLD_BYTES / (2 * n * k))) if cold else 1
        half = {"device": "cuda", "dtype": torch.float16}
        return Buffers(shape, torch.randn(m, k, **half), [torch.randn(n, k, **half) for _ in range(count)])

    @property
    def moved_bytes(self) -> int:
        m, n, k = self.shape
        return 2 * (m * k + n * k + m * n)


@dataclass
class Contestant:
    name: str
    run: Callable[[Any, Any, Any], Any]
    c: Any
    seconds: list[float] = field(default_factory=list)
    replay: Any = None
    launches: int = 0


def contestants(b: Buffers, quick: bool) -> list[Contestant]:
    m, n, _ = b.shape

    def output() -> Any:
        return torch.full((m, n), math.nan, device="cuda", dtype=torch.float16)

    found = [Contestant("cuBLAS", lambda x, w, c: torch.mm(x, w.T, out=c), output())]
    for one in configurations(b.shape, quick):
        try:
            compiled = one.compiled(b.shape)
            contestant = Contestant(str(one), compiled, output())
            check(contestant, b)
        except (tw.TilewaveError, AssertionError) as error:
            print(f"    {one}: {str(error).splitlines()[0]}")
            continue
        found.append(contestant)
    check(found[0], b, is_ours=False)
    return found


def check(c: Contestant, b: Buffers, is_ours: bool = True) -> None:
    """Compare with float64, within the rounding error; assert that two launches are bit-equal."""
    x, w = b.x, b.weights[0]
    c.run(x, w, c.c)
    want = x.double() @ w.double().T
    error = float((c.c.double() - want).norm() / want.norm())
    first = c.c.clone()
    if not is_ours:
        return
    allowed = error_bound(b.shape[2], tw.f16, tw.f16)
    assert error <= allowed, f"off by {error:.1e}, where {allowed:.1e} is allowed"
    for _ in range(3):
        c.c.fill_(math.nan)
        c.run(x, w, c.c)
        assert torch.equal(first, c.c), "two launches have different bits"


def record(c: Contestant, b: Buffers, seconds: float) -> None:
    """A graph of a burst's launches, each on the next weights."""
    for w in b.weights[:2]:
        c.run(b.x, w, c.c)
    torch.cuda.synchronize()
    c.launches = max(len(b.weights), math.ceil(BURST_SECONDS / seconds / len(b.weights)) * len(b.weights))
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        c.run(b.x, b.weights[0], c.c)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(c.launches):
            c.run(b.x, b.weights[i % len(b.weights)], c.c)
    c.replay = graph


def timed(c: Contestant) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    time.sleep(IDLE_SECONDS)
    c.replay.replay()
    start.record()
    c.replay.replay()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 1e3 / c.launches


def measured(b: Buffers, found: list[Contestant], rounds: int) -> None:
    guess = max(5e-6, b.moved_bytes / 4e12)
    for c in found:
        record(c, b, guess)
    for turn in range(rounds + 1):
        for c in found[turn % len(found) :] + found[: turn % len(found)]:
            seconds = timed(c)
            if turn:
                c.seconds.append(seconds)


def copy_bandwidth() -> float:
    """Bytes read and written in a second."""
    source = torch.empty(1 << 29, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    times = []
    for _ in range(7):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return 2 * len(source) / statistics.median(times)


def spread(values: list[float]) -> float:
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2


def row(
    shape: tuple[int, int, int], cold: bool, found: list[Contestant], b: Buffers, bandwidth: float
) -> dict[str, Any]:
    best = min(found[1:], key=lambda c: statistics.median(c.seconds))
    ratios = [theirs / ours for theirs, ours in zip(found[0].seconds, best.seconds, strict=True)]
    return {
        "shape": "x".join(map(str, shape)),
        "weights": "cold" if cold else "warm",
        "cublas_us": 1e6 * statistics.median(found[0].seconds),
        "ours_us": 1e6 * statistics.median(best.seconds),
        "ratio": statistics.median(ratios),
        "spread": spread(ratios),
        "copy_share": b.moved_bytes / statistics.median(best.seconds) / bandwidth,
        "configuration": best.name,
        "all": {c.name: [1e6 * statistics.median(c.seconds), 1e6 * spread(c.seconds)] for c in found},
    }


def shapes(options: argparse.Namespace) -> list[tuple[int, int, int]]:
    if options.only:
        return [tuple(map(int, one.split("x"))) for one in options.only.split(",")]
    return list(QUICK) if options.quick else [*((m, n, k) for n, k in WEIGHTS for m in ROWS), *DEEP]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="some shapes, fewer configurations, 5 rounds")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", default="", help="MxNxK,…")
    parser.add_argument("--all", action="store_true", help="print every configuration")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds = options.rounds or (5 if options.quick else 15)
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, tilewave {__version__} {commit()}, torch {torch.__version__}")
    print(f"f16, {rounds} rounds, a copy moves {bandwidth / 1e12:.2f} TB/s")
    print(f"{'M x N x K':>18} {'weights':>7} {'cuBLAS µs':>10} {'ours µs':>9} {'ratio':>14} {'of a copy':>9}  tile")
    rows = []
    for shape in shapes(options):
        deep = shape in DEEP
        for cold in (False,) if deep else (True,) if options.quick else (True, False):
            b = Buffers.of(shape, cold)
            found = contestants(b, options.quick)
            if len(found) < 2:
                continue
            measured(b, found, rounds)
            r = row(shape, cold, found, b, bandwidth)
            rows.append(r)
            print(
                f"{r['shape']:>18} {r['weights']:>7} {r['cublas_us']:10.1f} {r['ours_us']:9.1f} "
                f"{r['ratio']:7.3f} ± {r['spread']:.3f} {r['copy_share']:9.2f}  {r['configuration']}",
                flush=True,
            )
            if options.all:
                for name, (us, width) in r["all"].items():
                    print(f"{'':>26} {name:>24} {us:8.1f} ± {width:.1f}")
            del b, found
            torch.cuda.empty_cache()
    if rows:
        mean = math.exp(statistics.fmean(math.log(r["ratio"]) for r in rows))
        print(f"geometric mean {mean:.3f}, least {min(r['ratio'] for r in rows):.3f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
