"""A GEMM and attention whose tiles begin at loaded positions, on an NVIDIA GPU, beside the same kernels without them.

    python benchmarks/loaded_bases_h200.py [--rounds N]

Experts' weights and pages of keys are one array with a leading dim, and which of them a tile reads is a number in
memory. The plain kernels have no such dim. Results are compared with torch's first; each contestant is a CUDA graph of
calls on buffers that take turns. Printed are medians in microseconds, and the speed of loaded bases relative to plain
ones (1: the same) and to torch.
"""

from __future__ import annotations

import argparse
import math
import random
from statistics import median

from indices_h200 import graph_of

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    Register,
    TilingConstraint,
    WaveConstraint,
    WorkgroupConstraint,
    WorkgroupMapping,
    cast,
    exp2,
    f16,
    f32,
    i32,
    iterate,
    maximum,
    mma,
    read,
    sym,
    wave,
    write,
)

G = GLOBAL_ADDRESS_SPACE
B, E, P, M, N, K, D, L = sym.B, sym.E, sym.P, sym.M, sym.N, sym.K, sym.D, sym.L
"""Heads, entries of the array of numbers, what they number, rows, columns, depth or keys, elements of a query."""
GEMM = [
    WorkgroupConstraint(M, 128, 0),
    WorkgroupConstraint(N, 256, 1),
    TilingConstraint(K, 64),
    WorkgroupMapping("grouped(8)"),
]
HEAD = 128
ATTENTION = [
    WorkgroupConstraint(M, 128, 0),
    WorkgroupConstraint(N, HEAD, 1),
    WorkgroupConstraint(B, 1, 2),
    TilingConstraint(K, 128),
    WaveConstraint(M, 64),
]


@wave(GEMM)
def plain_gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f16]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(cast(total, f16), c)


@wave(GEMM)
def loaded_gemm(which: Memory[E, G, i32], a: Memory[M, K, G, f16], b: Memory[P, N, K, G, f16], c: Memory[M, N, G, f16]):
    expert = read(which, at={E: 1})

    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b, at={P: expert}), acc)

    write(cast(total, f16), c)


def attended(q, k_tile, v_tile, c):
    """The body of attention, with what reads a block of keys and of values."""
    begin = Register[B, M, f32](-1e30), Register[B, M, f32](0.0), Register[B, M, N, f32](0.0)

    @iterate(K, init_args=begin)
    def blocks(old_max, old_sum, acc):
        scores = mma(read(q), k_tile(), Register[B, M, K, f32](0.0)) * (math.log2(math.e) / math.sqrt(HEAD))
        new_max = maximum(scores.max(dim=K), old_max)
        shrink = exp2(old_max - new_max)
        weights = exp2(scores - new_max)
        return new_max, weights.sum(dim=K) + old_sum * shrink, mma(cast(weights, f16), v_tile(), acc * shrink)

    _, total, weighted = blocks
    write(cast(weighted / total, f16), c)


@wave(ATTENTION)
def plain_attention(
    q: Memory[B, M, D, G, f16], k: Memory[B, K, D, G, f16], v: Memory[B, K, N, G, f16], c: Memory[B, M, N, G, f16]
):
    attended(q, lambda: read(k), lambda: read(v), c)


@wave(ATTENTION)
def loaded_attention(
    which: Memory[E, G, i32],
    q: Memory[B, M, D, G, f16],
    k: Memory[P, B, K, D, G, f16],
    v: Memory[P, B, K, N, G, f16],
    c: Memory[B, M, N, G, f16],
):
    page = read(which, at={E: 1})
    attended(q, lambda: read(k, at={P: page}), lambda: read(v, at={P: page}), c)


def of_gemm(torch, m, n, k, experts=3):
    half = {"device": "cuda", "dtype": torch.float16}
    which = torch.tensor([0, experts - 1], device="cuda", dtype=torch.int32)
    subs = {M: m, N: n, K: k}
    plain = plain_gemm.compile(target="sm_90a", subs=subs)
    loaded = loaded_gemm.compile(target="sm_90a", subs={**subs, P: experts, E: 2})
    given = [
        (torch.randn(m, k, **half), torch.randn(experts, n, k, **half), torch.empty(m, n, **half)) for _ in range(3)
    ]
    a, b, c = given[0]
    wanted = a @ b[-1].T
    for call in (lambda: plain(a, b[-1], c), lambda: loaded(which, a, b, c)):
        c.zero_()
        call()
        assert torch.allclose(c, wanted, atol=0.25, rtol=2e-2)
    return {
        "plain": [lambda a=a, b=b, c=c: plain(a, b[-1], c) for a, b, c in given],
        "loaded": [lambda a=a, b=b, c=c: loaded(which, a, b, c) for a, b, c in given],
        "torch": [lambda a=a, b=b, c=c: torch.matmul(a, b[-1].T, out=c) for a, b, c in given],
    }


def of_attention(torch, heads, queries, keys, pages=3):
    half = {"device": "cuda", "dtype": torch.float16}
    which = torch.tensor([0, pages - 1], device="cuda", dtype=torch.int32)
    subs = {B: heads, M: queries, K: keys, D: HEAD, N: HEAD}
    plain = plain_attention.compile(target="sm_90a", subs=subs)
    loaded = loaded_attention.compile(target="sm_90a", subs={**subs, P: pages, E: 2})
    given = []
    for _ in range(2):
        q, c = torch.randn(heads, queries, HEAD, **half), torch.empty(heads, queries, HEAD, **half)
        given.append((q, *(torch.randn(pages, heads, keys, HEAD, **half) for _ in "kv"), c))
    q, k, v, c = given[0]
    of_torch = torch.nn.functional.scaled_dot_product_attention
    wanted = of_torch(q[None], k[None, -1], v[None, -1])[0]
    for call in (lambda: plain(q, k[-1], v[-1], c), lambda: loaded(which, q, k, v, c)):
        c.zero_()
        call()
        assert torch.allclose(c, wanted, atol=5e-3, rtol=2e-2)
    return {
        "plain": [lambda q=q, k=k, v=v, c=c: plain(q, k[-1], v[-1], c) for q, k, v, c in given],
        "loaded": [lambda q=q, k=k, v=v, c=c: loaded(which, q, k, v, c) for q, k, v, c in given],
        "torch": [lambda q=q, k=k, v=v: of_torch(q[None], k[None, -1], v[None, -1]) for q, k, v, _ in given],
    }


def cases(torch):
    for m, n, k in ((4096, 4096, 4096), (2048, 7168, 2048), (8192, 8192, 1024), (512, 4096, 7168)):
        yield f"gemm {m}x{n}x{k}", lambda m=m, n=n, k=k: of_gemm(torch, m, n, k)
    for heads, queries, keys in ((16, 4096, 4096), (64, 1024, 1024), (32, 512, 8192)):
        yield f"attention {heads}x{queries}x{keys}", lambda h=heads, m=queries, n=keys: of_attention(torch, h, m, n)


def main() -> None:
    import torch  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    for name, made in cases(torch):
        timed = {who: graph_of(torch, calls) for who, calls in made().items()}
        found: dict[str, list[float]] = {who: [] for who in timed}
        for _ in range(rounds):
            for who in random.sample(list(timed), len(timed)):
                found[who].append(timed[who]())
        t = {who: median(times) for who, times in found.items()}
        shown = " ".join(f"{who}={us:8.2f}" for who, us in t.items())
        ratios = f"of_plain={t['plain'] / t['loaded']:.3f} of_torch={t['torch'] / t['loaded']:.3f}"
        print(f"{name:26} {shown} {ratios}", flush=True)


if __name__ == "__main__":
    main()
