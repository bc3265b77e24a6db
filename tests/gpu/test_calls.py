"""Kernels called with torch tensors: sizes and target from them, numbers of every dtype, no launch for no tiles."""

import numpy as np
import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, G, K, M, N, tiling

from tilewave import *

pytestmark = pytest.mark.gpu

CUT = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1)]


@wave(tiling(), subs={BLOCK_M: 128, BLOCK_N: 128, BLOCK_K: 64})
def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32], alpha: f32):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total * alpha, c)


@pytest.mark.parametrize("shape", [(256, 256, 128), (1, 1, 1), (333, 77, 129), (64, 8, 0), (0, 16, 16)])
def test_a_gemm_of_small_integers_is_exact(shape, torch):
    m, n, k = shape
    make = torch.Generator(device="cuda").manual_seed(0)
    a, b = (torch.randint(-4, 5, (r, k), generator=make, device="cuda").to(torch.float16) for r in (m, n))
    c = torch.full((m, n), torch.nan, device="cuda")
    for alpha in (0.5, -2.0, 0.0):
        gemm(a, b, c=c, alpha=alpha)
        assert torch.equal(c, alpha * (a.float() @ b.float().T) + 0.0)


@pytest.mark.filterwarnings("ignore::tilewave.errors.SpillWarning")  # one wave holds 64x64 of them
@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16, i8, i32, i64], ids=str)
def test_numbers_of_every_dtype_arrive(dtype, torch):
    @wave(CUT)
    def scaled(on: bool, x: dtype, a: Memory[M, N, G, dtype], n: index, c: Memory[M, N, G, dtype]):
        write(select(on, select(self_index(N) < n, read(a) * x, read(a)), x), c)

    held = getattr(torch, dtype.numpy.name)
    a = (torch.arange(70 * 90, device="cuda").reshape(70, 90) % 5 - 2).to(held)
    c = torch.zeros_like(a)
    for x in (3, -1, 0):
        given = float(x) if dtype.is_float else x
        scaled(True, given, a, 40, c)
        want = a.clone()
        want[:, :40] *= x
        assert torch.equal(c, want)
        scaled(False, given, a, -1, c)
        assert torch.equal(c, torch.full_like(a, x))


def test_arrays_that_change_between_calls_are_seen(torch):
    @wave(CUT)
    def copy(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a), c)

    for m in (3, 65, 3):
        a = torch.randn(m, 70, device="cuda")
        c = torch.zeros_like(a)
        copy(a, c)
        assert torch.equal(a, c)
        a.set_(torch.randn(m + 1, 70, device="cuda"))
        with pytest.raises(TilewaveError, match=f"M is {m + 1} by a, but {m} by c"):
            copy(a, c)
    turned = torch._neg_view(torch.ones_like(a))
    for wrong, said in ((a.detach().requires_grad_(True), "requires grad"), (turned, "its signs negated")):
        with pytest.raises(TilewaveError, match=said):
            copy(wrong, torch.zeros_like(a))
    here, there = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    copy(here, there)
    assert (there == 1).all()
