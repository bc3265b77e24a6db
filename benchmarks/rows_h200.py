"""softmax, rms_norm and layer_norm on an NVIDIA GPU compared with a copy and torch: share of the copy's bandwidth.

    python benchmarks/rows_h200.py [--shapes 32768x1024,…] [--ops softmax,…] [--rounds 15] [--rows 1,4]
                                   [--beside torch,torch.compile] [--json FILE]

All is f16, weights included. `fixed` is our kernel compiled for the row's length, `open` the one that calls use, which
serves every length up to a power of two or, if it is long, to the next quarter between two powers; `--rows` adds fixed
ones with other numbers of rows per workgroup. torch.compile takes minutes for all shapes, and is measured on request.
Every contestant is a CUDA graph over the same buffers in turn, more than 600 MB of them together, so that L2 holds
nothing. Contestants take turns in every round; printed are medians over the rounds, ± half the distance of their
quartiles. A copy of 512 MiB or more is slow as a node of a graph, so there it is an eager clone between two events.
Results are compared with float64 in the same run.
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
from torch.nn import functional

from tilewave import f16, kernels, sym
from tilewave._version import __version__
from tilewave.bench.measured_on import commit
from tilewave.kernels import Rows

SHAPES = "65536x256,32768x768,32768x1024,32768x4096,16384x5000,16384x5120,8192x16384,4096x65536"
BUFFER_BYTES = 600_000_000
BURST_SECONDS, IDLE_SECONDS = 0.002, 0.004
LARGE_COPY_BYTES, CLONES = 2**29, 4
CHECKED_ROWS = 512
EPS = 1e-5
EPS_F16, UNIT_F32 = 2.0**-10, 2.0**-24
TARGET = "sm_90a"


@dataclass
class Buffers:
    """Pairs of arrays of one shape, used in turn."""

    m: int
    n: int
    pairs: list[tuple[Any, Any]]
    weight: Any
    bias: Any

    @staticmethod
    def of(m: int, n: int) -> "Buffers":
        count = max(1, math.ceil(BUFFER_BYTES / (4 * m * n)))
        half = {"device": "cuda", "dtype": torch.float16}
        torch.manual_seed(m + n)
        pairs = [(torch.randn(m, n, **half), torch.empty(m, n, **half)) for _ in range(count)]
        return Buffers(m, n, pairs, torch.randn(n, **half), torch.randn(n, **half))

    @property
    def moved_bytes(self) -> int:
        return 4 * self.m * self.n


@dataclass
class Contestant:
    """A function that computes y from x; the arrays that it allocates live as long as its graph."""

    name: str
    run: Callable[[Any, Any], Any]
    writes_y: bool = True
    seconds: list[float] = field(default_factory=list)
    error: float | None = None
    kept: list[Any] = field(default_factory=list)


# -- who takes part ---------------------------------------------------------------------------------------------------


def contestants(op: str, b: Buffers, more_rows: list[int], beside: list[str]) -> Iterator[Contestant]:
    make, ours, theirs = OPS[op](b)
    chosen = kernels.rows_for(TARGET, b.n, f16)
    for name, rows in [("fixed", chosen), *((f"fixed, {r} rows", Rows(r, chosen.step)) for r in more_rows)]:
        yield Contestant(name, ours(make(rows).compile(target=TARGET, subs={sym.N: b.n})))
    yield Contestant("open", ours(getattr(kernels, op)))
    if "torch" in beside:
        yield Contestant("torch", lambda x, y: theirs(x), writes_y=False)
    if "torch.compile" in beside:
        compiled = torch.compile(theirs, fullgraph=True, dynamic=False)
        yield Contestant("torch.compile", lambda x, y: compiled(x), writes_y=False)


def softmax(b: Buffers) -> Any:
    def ours(kernel: Any) -> Any:
        return lambda x, y: kernel(x=x, y=y)

    return lambda rows: kernels.softmax_kernel(rows, f16, f16), ours, lambda x: torch.softmax(x, -1)


def rms_norm(b: Buffers) -> Any:
    def ours(kernel: Any) -> Any:
        return lambda x, y: kernel(x=x, y=y, weight=b.weight, eps=EPS)

    def theirs(x: Any) -> Any:
        return functional.rms_norm(x, (b.n,), b.weight, EPS)

    return lambda rows: kernels.rms_norm_kernel(rows, f16, f16, f16), ours, theirs


def layer_norm(b: Buffers) -> Any:
    def ours(kernel: Any) -> Any:
        return lambda x, y: kernel(x=x, y=y, weight=b.weight, bias=b.bias, eps=EPS)

    def theirs(x: Any) -> Any:
        return functional.layer_norm(x, (b.n,), b.weight, b.bias, EPS)

    return lambda rows: kernels.layer_norm_kernel(rows, f16, f16, f16, f16), ours, theirs


OPS: dict[str, Callable[[Buffers], Any]] = {"softmax": softmax, "rms_norm": rms_norm, "layer_norm": layer_norm}


# -- right ------------------------------------------------------------------------------------------------------------


def check(op: str, c: Contestant, b: Buffers) -> float:
    """How far it is off at most, as a share of what is allowed: half a unit of f16, and some roundings of f32."""
    x, y = b.pairs[0]
    y.fill_(math.nan)
    made = c.run(x, y)
    found = (y if c.writes_y else made)[:CHECKED_ROWS].double()
    v = x[:CHECKED_ROWS].double()
    w, shift = b.weight.double(), b.bias.double()
    if op == "softmax":
        want = torch.softmax(v, -1)
        size = want * (1 + v.abs().amax(-1, keepdim=True))
    else:
        d = v - v.mean(-1, keepdim=True) if op == "layer_norm" else v
        scale = (d.square().mean(-1, keepdim=True) + EPS).rsqrt()
        want = d * scale * w + (shift if op == "layer_norm" else 0)
        size = want.abs() + (v.abs().mean(-1, keepdim=True) + d.abs()) * scale * w.abs() + shift.abs()
    rounded = size * UNIT_F32 * (math.log2(b.n) + 16)
    allowed = rounded + (want.abs() + rounded) * EPS_F16 / 2 + 2.0**-25
    share = float(((found - want).abs() / allowed).max())
    if c.writes_y and (share > 1 or not bool(torch.isfinite(y).all())):
        raise SystemExit(f"{op} {b.m}x{b.n}, {c.name}: off by {share} times what is allowed")
    return share


# -- fast -------------------------------------------------------------------------------------------------------------


def graph_of(c: Contestant, b: Buffers) -> tuple[Any, int]:
    """A graph of some milliseconds, and how many launches it has."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for x, y in (b.pairs * 3)[:3]:
            c.run(x, y)
    torch.cuda.synchronize()
    once = between_events(lambda: c.run(*b.pairs[0]))
    turns = max(1, math.ceil(BURST_SECONDS / once / len(b.pairs)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(turns):
            made = [c.run(x, y) for x, y in b.pairs]  # their outputs, kept while each pair has its turn
    c.kept = made
    return graph, turns * len(b.pairs)


def between_events(run: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def timed(taking_part: list[Contestant], b: Buffers, rounds: int) -> None:
    """Every contestant once a round, the first round being for nothing."""
    graphs = {c.name: graph_of(c, b) for c in taking_part if not is_eager_clone(c, b)}
    for number in range(rounds + 1):
        for c in taking_part:
            torch.cuda.synchronize()
            time.sleep(IDLE_SECONDS)
            if c.name in graphs:
                graph, launches = graphs[c.name]
                seconds = between_events(graph.replay) / launches
            else:
                seconds = between_events(lambda: [b.pairs[0][0].clone() for _ in range(CLONES)]) / CLONES
            if number:
                c.seconds.append(seconds)


def is_eager_clone(c: Contestant, b: Buffers) -> bool:
    return c.name == "copy" and b.moved_bytes // 2 >= LARGE_COPY_BYTES


# -- printed ----------------------------------------------------------------------------------------------------------


def record(op: str, c: Contestant, b: Buffers, copied: Contestant) -> dict[str, Any]:
    ratios = sorted(there / here for there, here in zip(copied.seconds, c.seconds, strict=True))
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "op": op,
        "rows": b.m,
        "columns": b.n,
        "contestant": c.name,
        "microseconds": statistics.median(c.seconds) * 1e6,
        "gigabytes_per_second": b.moved_bytes / statistics.median(c.seconds) / 1e9,
        "share_of_copy": statistics.median(ratios),
        "spread": (quarters[2] - quarters[0]) / 2,
        "share_of_allowed_error": c.error,
    }


def measure(op: str, m: int, n: int, rounds: int, more_rows: list[int], beside: list[str]) -> list[dict[str, Any]]:
    torch.compiler.reset()  # it compiles a function for few shapes only
    torch.cuda.empty_cache()
    b = Buffers.of(m, n)
    copied = Contestant("copy", lambda x, y: y.copy_(x))
    taking_part = [copied]
    for c in contestants(op, b, more_rows, beside):
        try:
            c.error = check(op, c, b)
        except Exception as error:
            if c.writes_y:
                raise
            print(f"{op} {m}x{n}, {c.name} is left out: {type(error).__name__}: {str(error)[:200]}")
            continue
        taking_part.append(c)
    timed(taking_part, b, rounds)
    return [record(op, c, b, copied) for c in taking_part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", default="", help="other numbers of rows to a workgroup, such as 1,4")
    parser.add_argument("--beside", default="torch", help="torch, torch.compile")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    more_rows = [int(r) for r in given.rows.split(",") if r]
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, tilewave {__version__} {commit()}"
    print(machine)
    print(f"{'op':11} {'shape':12} {'contestant':14} {'µs':>9} {'GB/s':>6} {'of copy':>8}    ±    {'error':>6}")
    found: list[dict[str, Any]] = []
    for shape in given.shapes.split(","):
        m, n = map(int, shape.split("x"))
        for op in given.ops.split(","):
            for r in measure(op, m, n, given.rounds, more_rows, given.beside.split(",")):
                found.append(r)
                error = "" if r["share_of_allowed_error"] is None else f"{r['share_of_allowed_error']:6.3f}"
                print(
                    f"{op:11} {shape:12} {r['contestant']:14} {r['microseconds']:9.2f} {r['gigabytes_per_second']:6.0f}"
                    f" {r['share_of_copy']:8.3f} {r['spread']:6.3f} {error:>6}",
                    flush=True,
                )
    if given.json:
        given.json.write_text(json.dumps({"machine": machine, "rounds": given.rounds, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
