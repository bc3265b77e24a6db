"""Every wait, arrival and barrier of a kernel for Hopper is needed, or known to be redundant, and why.

The interpreter judges by what is known to have happened before, not by the order in which waves happened to run: a
kernel in which it finds nothing has nothing to find for these sizes.
"""

import numpy as np
import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, G, K, M, N

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.ops import Arrive, Barrier, WaitMbarrier, WaitTmaStores
from tilewave.ir.rewrite import rewrite, walk

TILING = [WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1), TilingConstraint(K, BLOCK_K)]
RUNS = (("in turn", 1), ("backwards", 1), ("random", 1), ("random", 2))

FIRST_FILL = {"wait_tma_stores", "barrier {waves = 4}"}
"""Before a workgroup first fills its buffers, nothing reads them; in a loop over tiles, the tile before does."""
ONE_REFILL_LESS = {"arrive(empty)", "wait_mbarrier(empty)"}
"""A pipeline with as many stages as there are steps is never refilled."""


def product(out, *more):
    @wave([*TILING, *more])
    def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, out]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sums):
            return mma(read(a), read(b), sums)

        write(cast(total, out), c)

    return gemm


def name_of(op):
    match op:
        case WaitMbarrier(mbarriers, _, _) | Arrive(mbarriers, _):
            return f"{op.name}({mbarriers.name})"
        case Barrier(waves):
            return f"barrier {{waves = {waves}}}" if waves else "barrier"
    return op.name


def is_missed(kernel, gone, arrays):
    """Whether the kernel without an op fails in some order of waves."""
    broken = rewrite(kernel, lambda op: [] if op is gone else None)
    for order, seed in RUNS:
        try:
            interpret_lanes(broken, [x.copy() for x in arrays], {}, order, seed)
        except InterpreterError:
            return True
    return False


@pytest.mark.parametrize(
    ("shape", "stages", "more", "redundant"),
    [
        ((64, 64, 320), 2, (), FIRST_FILL),
        ((64, 64, 128), 3, (), FIRST_FILL | ONE_REFILL_LESS),
        ((128, 64, 192), 2, (GridConstraint(1),), set()),
    ],
    ids=["ring", "short ring", "persistent"],
)
def test_every_wait_of_a_ring_is_needed_or_known_to_be_redundant(shape, stages, more, redundant):
    m, n, k = shape
    sizes = {M: m, N: n, K: k, BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 64}
    options = WaveCompileOptions(subs=sizes, target="sm_90a", schedule=SchedulingType.PREFETCH, num_stages=stages)
    kernel = wave_compile(options, product(f16, *more)).ir()
    random = np.random.default_rng(3)
    a, b = (random.standard_normal(s).astype(np.float16) for s in ((m, k), (n, k)))
    arrays = [a, b, np.full((m, n), np.nan, np.float16)]
    waits = [op for op in walk(kernel.body) if isinstance(op, (WaitMbarrier, Arrive, WaitTmaStores, Barrier))]
    assert len(waits) >= 9
    assert {name_of(op) for op in waits if not is_missed(kernel, op, arrays)} == redundant


@pytest.mark.parametrize("more", [(), (GridConstraint(1),)], ids=["one tile a workgroup", "persistent"])
def test_single_wave_barriers_of_an_unaligned_product_are_needed(more):
    """Chunks go through shared memory one after the other, so that each barrier but the last separates two of them.

    The last one is for a tile that follows without a step of K, whose barriers would do as well.
    """
    m, n, k = 65, 67, 33
    sizes = {M: m, N: n, K: k, BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 32}
    kernel = wave_compile(WaveCompileOptions(subs=sizes, target="sm_90a"), product(f16, *more)).ir()
    random = np.random.default_rng(3)
    a, b = (random.standard_normal(s).astype(np.float16) for s in ((m, k), (n, k)))
    arrays = [a, b, np.full((m, n), np.nan, np.float16)]
    barriers = [op for op in walk(kernel.body) if isinstance(op, Barrier) and op.waves == 1]
    assert len(barriers) >= 2
    missed = [is_missed(kernel, op, arrays) for op in barriers]
    assert missed == [True] * (len(barriers) - 1) + [False]
