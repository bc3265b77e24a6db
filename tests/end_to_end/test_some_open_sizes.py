"""Kernels with some sizes fixed and the others open: every subset compiles, and computes the same."""

from itertools import chain, combinations

import numpy as np
import pytest
from kernels import check_product, poisoned, random_array

from tilewave import *

M, N, K = sym.M, sym.N, sym.K
GLOBAL = GLOBAL_ADDRESS_SPACE
SIZES = {M: 775, N: 770, K: 136}
"""More tiles than an H200 has SMs, the last wave of them partly full."""
SUBSETS = [dict(c) for c in chain.from_iterable(combinations(SIZES.items(), n) for n in range(4))]


@wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 64)])
def product(a: Memory[M, K, GLOBAL, f16], b: Memory[N, K, GLOBAL, f16], c: Memory[M, N, GLOBAL, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)


@pytest.mark.parametrize("fixed", SUBSETS, ids=lambda s: ",".join(map(str, s)) or "none")
@pytest.mark.parametrize("target", ["cpu", "gfx942", "gfx950", "sm_90a"])
def test_any_sizes_may_be_fixed(target, fixed):
    assert product.compile(target=target, subs=fixed).asm


@pytest.mark.share(6)
@pytest.mark.parametrize("open_size", [M, N, K], ids=str)
def test_one_open_size_gives_the_same_numbers(open_size):
    rng = np.random.default_rng(5)
    a, b = random_array(rng, (SIZES[M], SIZES[K]), f16), random_array(rng, (SIZES[N], SIZES[K]), f16)
    c = poisoned((SIZES[M], SIZES[N]), f32)
    fixed = {s: n for s, n in SIZES.items() if s != open_size}
    product.compile(target="sm_90a", subs=fixed).interpret(a, b, c, level="lane")
    check_product(c, a, b)
