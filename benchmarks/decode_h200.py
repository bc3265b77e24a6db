"""Decode attention on an H200: `tilewave.kernels.attention_decode` compared with torch's backends and a copy.

    python benchmarks/decode_h200.py            # 16 batches, 32 heads of queries, 8 of keys, 4096 and 32768 keys

Needs torch with CUDA. Every contestant is recorded into a CUDA graph of launches on as many buffers as hold 600 MB, so
that the cache holds little of them; rounds go through all contestants in turn, and each is replayed twice, the first
time untimed, so that none pays for another's outstanding writes. Printed are the median of the rounds and half
the distance of their quartiles, the bytes of keys and values read per second, their share of what a copy moves in the
same run (reads and writes), and the speed relative to torch's fastest backend. Results are compared with float64,
and two runs are bit-equal.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tilewave import kernels

BUFFER_BYTES = 600 << 20
COPIED_BYTES = 256 << 20
"""Twice as many are slow as a node of a graph."""
BACKENDS = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
Launches = list[Callable[[], Any]]


def arrays(options: argparse.Namespace, keys: int) -> list[tuple[Any, ...]]:
    """q, k, v and y, some times."""
    torch.manual_seed(18)

    def made(heads: int, places: int) -> Any:
        return torch.randn(options.batch, heads, places, options.head, device="cuda").half()

    def one() -> tuple[Any, ...]:
        q, k, v = made(options.heads, options.queries), made(options.heads_kv, keys), made(options.heads_kv, keys)
        return q, k, v, torch.full_like(q, float("nan"))

    count = max(1, -(-BUFFER_BYTES // bytes_of(options, keys)))
    return [one() for _ in range(count)]


def bytes_of(options: argparse.Namespace, keys: int) -> int:
    """Return the bytes of all keys and values."""
    return 2 * options.batch * options.heads_kv * keys * options.head * 2


def check(q: Any, k: Any, v: Any, y: Any) -> None:
    """The heads that share the first keys, against float64."""
    kernels.attention_decode(q, k, v, y)
    first, sharing = y.clone(), q.shape[1] // k.shape[1]
    kernels.attention_decode(q, k, v, y)
    assert torch.equal(first, y), "two runs differ"
    scores = q[:1, :sharing].double() @ k[:1, :1].double().transpose(2, 3) / q.shape[3] ** 0.5
    want = scores.softmax(-1) @ v[:1, :1].double()
    error = ((y[:1, :sharing].double() - want).norm() / want.norm()).item()
    print(f"  off by {error:.2e} of float64")
    assert error < 2**-9, "it is wrong"  # weights and the result have 11 bits each


def contestants(options: argparse.Namespace, keys: int) -> dict[str, Launches]:
    sets = arrays(options, keys)
    check(*sets[0])
    found: dict[str, Launches] = {"tilewave": [lambda s=s: kernels.attention_decode(*s) for s in sets]}
    for kind in BACKENDS:

        def launch(q: Any, k: Any, v: Any, _: Any, kind: Any = kind) -> Any:
            with sdpa_kernel(kind):
                return scaled_dot_product_attention(q, k, v, enable_gqa=options.heads != options.heads_kv)

        try:
            launch(*sets[0])
        except RuntimeError:  # it takes no such arrays
            continue
        found[kind.name] = [lambda s=s, launch=launch: launch(*s) for s in sets]
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    found["copy"] = [lambda: target.copy_(source)]
    return found


def graph_of(launches: Launches) -> Any:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for launch in launches:
            launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for launch in launches:
            launch()
    return graph


def measured(options: argparse.Namespace, keys: int) -> dict[str, list[float]]:
    """Microseconds of one launch, for every contestant and round."""
    launches = contestants(options, keys)  # their arrays, which graphs use by address, are kept until the end
    graphs = {name: (graph_of(found), len(found)) for name, found in launches.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(options.rounds + options.warm):
        for name, (graph, count) in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            if turn >= options.warm:
                times[name].append(begin.elapsed_time(end) * 1e3 / count)
    return times


def report(options: argparse.Namespace, keys: int) -> None:
    heads = f"{options.heads}/{options.heads_kv} heads of {options.head}"
    print(f"{options.batch} batches, {heads}, {options.queries} queries, {keys} keys")
    times, size = measured(options, keys), bytes_of(options, keys)
    copied = 2 * COPIED_BYTES / median(times.pop("copy"))
    quickest = min((median(t) for name, t in times.items() if name != "tilewave"), default=float("nan"))
    for name, found in times.items():
        middle, (low, _, high) = median(found), quantiles(found, n=4)
        rate = size / middle
        print(
            f"  {name:20} {middle:8.1f} µs ±{(high - low) / 2:.1f}  {rate / 1e6:5.2f} TB/s  "
            f"{rate / copied:5.2f} of a copy  {quickest / middle:5.2f} of torch"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Attention of a few queries beside torch's backends and a copy.")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--heads-kv", type=int, default=8)
    parser.add_argument("--queries", type=int, default=1)
    parser.add_argument("--keys", type=int, nargs="+", default=[4096, 32768])
    parser.add_argument("--head", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--warm", type=int, default=3, help="rounds that do not count")
    options = parser.parse_args()
    for keys in options.keys:
        report(options, keys)


if __name__ == "__main__":
    main()
