"""Kernels whose sizes stay open, their calls, and shapes to call them with."""

from functools import cache

import numpy as np
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, check_product, poisoned, random_array, with_waves

from tilewave import *

SIZES = (M, N, K)
COUNTS = ("TOTAL_TILES", "M_TILES", "N_TILES", "NUM_CTAS_IN_GROUP")
"""Scalar arguments of the documents' persistent kernels."""
WORKGROUPS = {sym.NUM_CTAS: 3}

EDGES = (
    (1, 1, 1),
    (64, 64, 32),
    (128, 128, 64),
    (65, 63, 33),
    (129, 257, 65),
    (97, 31, 101),
    (8, 72, 136),
    (130, 64, 96),
)
"""One element, whole tiles, one more and one less, primes, multiples of 8."""
NOTHING = ((0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0))


@cache
def opened(seed, chip, schedule, tile=(64, 64, 32), waves=(2, 2), num_stages=None):
    """A kernel of the documents for any sizes."""
    known = seed.subs(1, 1, 1, block_m=tile[0], block_n=tile[1], block_k=tile[2])
    told = [s for s in known if str(s) in COUNTS]
    subs = {s: n for s, n in known.items() if s not in SIZES and s not in told}
    subs |= {s: n for s, n in WORKGROUPS.items() if s in subs}
    options = {"target": chip, "schedule": schedule, "dynamic_symbols": told, "num_stages": num_stages}
    return wave_compile(WaveCompileOptions(subs=subs, **options), with_waves(seed.kernel, waves))


def counts(compiled, m, n, tile=(64, 64), group=4):
    """Return the scalar arguments of a persistent kernel that count its tiles."""
    rows, cols = -(-m // tile[0]), -(-n // tile[1])
    known = dict(zip(COUNTS, (rows * cols, rows, cols, group * cols), strict=True))
    return {name: known[name] for name in compiled.dynamic_symbols}


def blocks(m, n, k, **more):
    """Block sizes, and the sizes left out."""
    return {BLOCK_M: m, BLOCK_N: n, BLOCK_K: k, **more}


def random_shapes(count, seed, most=200):
    """Small ones more often than large ones, multiples of 8 as often as not."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        shape = np.minimum(rng.geometric(1 / 60, 3), most)
        grain = rng.choice([1, 1, 8, 16], 3)
        yield tuple(int(n) for n in -(-shape // grain) * grain)


def check_call(call, shape, dtype=f16, out=f32, seed=3, dims=((0, 2), (1, 2)), **symbols):
    """`call` multiplies what `dims` lays out as axes of (M, N, K)."""
    rng = np.random.default_rng(seed)
    a, b = (random_array(rng, tuple(shape[d] for d in axes), dtype) for axes in dims)
    c = poisoned(shape[:2], out)
    found = call(a, b, c, **symbols)
    rows = [x if axes[1] == 2 else x.T for x, axes in zip((a, b), dims, strict=True)]
    if c.size:
        check_product(c, *rows, out)
    return found
