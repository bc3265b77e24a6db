"""Two reductions of one tile, both continued from step to step by one loop, on every target."""

import numpy as np
import pytest
from kernels import *

import tilewave

REDUCED = {
    "sum": (tilewave.sum, 0, np.sum),
    "max": (tilewave.max, -100, np.max),
    "min": (tilewave.min, 100, np.min),
}
PAIRS = [("sum", "max"), ("max", "sum"), ("min", "max"), ("sum", "sum")]
CUTS = [(1, 8), (4, 16), (16, 64)]
"""Rows and steps of a workgroup: parts of registers, some of them, and more than a CPU holds at once."""


def both(first, second, dims):
    """Reduce K in steps, and N, where there is one, whole."""
    (one, low, _), (other, high, _) = REDUCED[first], REDUCED[second]

    @wave([WorkgroupConstraint(M, BLOCK_M, 0), TilingConstraint(K, BLOCK_K)])
    def both(x: Memory[(*dims, G, f32)], y: Memory[M, G, f32], z: Memory[M, G, f32]):
        @iterate(K, init_args=[Register[M, f32](low), Register[M, f32](high)])
        def found(so_far, other_so_far):
            tile, axes = read(x), dims[1:]
            return one(tile, dim=axes, acc=so_far), other(tile, dim=axes, acc=other_so_far)

        write(found[0], y)
        write(found[1], z)

    return both


def run(compiled, target, *arrays):
    match target:
        case "cpu":
            compiled(*arrays)
        case "sm_90a":
            compiled.interpret(*arrays, level="lane")
        case _:
            compiled.emulate(*arrays)


@pytest.mark.share(8)
@pytest.mark.parametrize("target", ["cpu", "sm_90a", "gfx942"])
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("dims", [(M, K), (M, K, N)], ids=len)
def test_a_loop_carries_two_reductions(target, pair, cut, dims):
    sizes = {M: 18, K: 70, N: 5}
    subs = {**dict(zip((BLOCK_M, BLOCK_K), cut, strict=True)), **({N: sizes[N]} if N in dims else {})}
    x = np.random.default_rng(7).integers(-9, 10, [sizes[dim] for dim in dims]).astype(np.float32)
    found = [np.full(sizes[M], np.nan, np.float32) for _ in pair]
    run(both(*pair, dims).compile(subs=subs, target=target), target, x, *found)
    for how, each in zip(pair, found, strict=True):
        np.testing.assert_array_equal(each, REDUCED[how][2](x, axis=tuple(range(1, len(dims)))))
