"""Tiles that grow to whole blocks, single rows and columns, and chained products, on a real GPU, against float64.

All values are whole and small, so that every order of sums gives the same.
"""

import numpy as np
import pytest
from kernels import *

from tilewave.ir.types import F16, F32
from tilewave.kernels import products

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::tilewave.errors.SlowCodeWarning"),  # without a schedule, products wait
]
L = sym.L
TILES = ((8, 8, 8), (8, 128, 32), (40, 48, 24), (1, 64, 64), (64, 80, 16), (5, 7, 3))


def whole(*shape):
    return np.random.default_rng(5).integers(-2, 3, shape).astype(np.float16)


def on_gpu(torch, made, arrays, shape):
    c = torch.full(shape, float("nan"), device="cuda")
    made(*(torch.from_numpy(x).cuda() for x in arrays), c)
    return c.cpu().numpy()


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("shape", [(37, 61, 53), (64, 128, 64), (1, 1, 1)], ids=str)
def test_a_product_of_odd_tiles(torch, shape, tile):
    m, n, k = shape
    a, b = whole(m, k), whole(n, k)
    made = compiled(gemm(), target="sm_90a", subs=sizes(*shape, *tile))
    assert np.array_equal(on_gpu(torch, made, (a, b), (m, n)), a.astype(float) @ b.astype(float).T)


COLUMNS = [("nn", (300, 1, 1000)), ("nn", (300, 1, 999)), ("tt", (1, 300, 1000)), ("tn", (1, 304, 999))]
ROWS = [("nn", (1, 304, 999)), ("tn", (301, 304, 1))]


@pytest.mark.parametrize(("layout", "shape"), [*COLUMNS, *ROWS])
def test_one_row_or_column(torch, layout, shape):
    m, n, k = shape
    made = products.gemm(shape, F16, F32, tile=(64, 64, 128), layout=layout)
    a, b = whole(m, k), whole(n, k)
    given = a if layout[0] == "n" else a.T, b if layout[1] == "t" else b.T
    one = compiled(made.kernel, target="sm_90a", subs=made.subs)
    found = on_gpu(torch, one, [np.ascontiguousarray(x) for x in given], (m, n))
    assert np.array_equal(found, a.astype(float) @ b.astype(float).T)


@pytest.mark.parametrize("tile", [(64, 64, 64), (64, 64, 128), (128, 64, 192), (16, 40, 24)], ids=str)
@pytest.mark.parametrize("v_dims", [(N, L), (L, N)], ids=["NL", "LN"])
@pytest.mark.parametrize("schedule", [SchedulingType.NONE, SchedulingType.PREFETCH])
def test_sums_are_an_operand_in_the_same_step(torch, schedule, v_dims, tile):
    block_m, block_n, block_l = tile
    cut = WorkgroupConstraint(M, block_m, 0), WorkgroupConstraint(N, block_n, 1), TilingConstraint(L, block_l)

    @wave([*cut, WorkgroupConstraint(K, 32, 2)])
    def chain(q: Memory[M, K, G, f16], k: Memory[L, K, G, f16], v: Memory[(*v_dims, G, f16)], c: Memory[M, N, G, f32]):
        @iterate(L, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            s = mma(read(q), read(k), Register[M, L, f32](0.0))
            return mma(cast(maximum(s * 0.125, 0.0), f16), read(v), acc)

        write(total, c)

    q, k, v = whole(300, 32), whole(500, 32), whole(70, 500)
    p = np.maximum(q.astype(float) @ k.astype(float).T * 0.125, 0)
    made = compiled(chain, target="sm_90a", subs={M: 300, N: 70, K: 32, L: 500}, schedule=schedule)
    given = q, k, np.ascontiguousarray(v.T) if v_dims == (L, N) else v
    assert np.array_equal(on_gpu(torch, made, given, (300, 70)), p @ v.astype(float).T)
