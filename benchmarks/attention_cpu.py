"""Attention on the CPU (online softmax over blocks of keys) compared with torch, interleaved in one run.

    python benchmarks/attention_cpu.py --threads 2 [--rounds 15] [--shape 8x1024x64] [--tile 128x64]

Heads x length x head size; the tile is queries x keys of a step. Prints medians, the spread (half the distance between
the quartiles), CPU time over all threads, and tilewave's speedup, by wall-clock time and by CPU time.
"""

import argparse
import os

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("--threads", type=int, default=2)
PARSER.add_argument("--rounds", type=int, default=15)
PARSER.add_argument("--shape", default="8x1024x64")
PARSER.add_argument("--tile", default="128x64")
ARGUMENTS = PARSER.parse_args()

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TILEWAVE_NUM_THREADS"):
    os.environ[name] = str(ARGUMENTS.threads)

import numpy as np  # noqa: E402

import tilewave as tw  # noqa: E402
from tilewave import (  # noqa: E402
    GLOBAL_ADDRESS_SPACE,
    Memory,
    Register,
    TilingConstraint,
    WorkgroupConstraint,
    exp,
    f32,
    iterate,
    mma,
    read,
    sym,
    wave,
    write,
)
from tilewave.bench.measure import measure  # noqa: E402

try:
    import torch

    torch.set_num_threads(ARGUMENTS.threads)
except ImportError:
    torch = None

B, M, N, K1, K2 = sym.B, sym.M, sym.N, sym.K1, sym.K2
BLOCK_M, BLOCK_K2, SCALE = sym.BLOCK_M, sym.BLOCK_K2, 0.125
G = GLOBAL_ADDRESS_SPACE
TILES = [WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(B, 1, 1), TilingConstraint(K2, BLOCK_K2)]


@wave(TILES)
def attention(
    q: Memory[B, M, K1, G, f32], k: Memory[B, K2, K1, G, f32], v: Memory[B, K2, N, G, f32], c: Memory[B, M, N, G, f32]
):
    @iterate(K2, init_args=[Register[B, M, f32](-1e30), Register[B, M, f32](0.0), Register[B, M, N, f32](0.0)])
    def step(largest, total, acc):
        s = mma(read(q), read(k), Register[B, M, K2, f32](0.0)) * SCALE
        new = s.max(acc=largest, dim=K2)
        e, scale = exp(s - new), exp(largest - new)
        return new, total * scale + e.sum(dim=K2), mma(e, read(v), acc * scale)

    _, total, acc = step
    write(acc / total, c)


def main():
    heads, length, size = map(int, ARGUMENTS.shape.split("x"))
    block_m, block_k2 = map(int, ARGUMENTS.tile.split("x"))
    subs = {B: heads, M: length, N: size, K1: size, K2: length, BLOCK_M: block_m, BLOCK_K2: block_k2}
    compiled = tw.wave_compile(tw.WaveCompileOptions(subs=subs, target="cpu"), attention)
    q, k, v = np.random.default_rng(0).standard_normal((3, heads, length, size)).astype(np.float32)
    c = np.empty_like(q)
    compiled(q, k, v, c)
    s = np.einsum("bmd,bnd->bmn", q.astype(float), k.astype(float)) * SCALE
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    want = np.einsum("bmn,bnd->bmd", p / p.sum(axis=-1, keepdims=True), v.astype(float))
    print(f"off from float64 by at most {np.abs(c - want).max():.1e}")
    contestants = {"tilewave": lambda: compiled(q, k, v, c)}
    if torch is not None:
        given = [torch.from_numpy(x)[None] for x in (q, k, v)]
        contestants["torch"] = lambda: torch.nn.functional.scaled_dot_product_attention(*given, scale=SCALE)
    times = measure(contestants, ARGUMENTS.rounds, 0, lambda: None)
    ours = times["tilewave"]
    for who, found in times.items():
        clock = f"{found.median * 1e3:8.2f} ± {found.spread * 1e3:.2f} ms, {found.cpu_median * 1e3:.2f} ms of processor"
        print(f"{who:<9} {clock}; {found.median / ours.median:.2f}, {found.cpu_median / ours.cpu_median:.2f}")


if __name__ == "__main__":
    main()
