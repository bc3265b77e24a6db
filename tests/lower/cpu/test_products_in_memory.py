"""A product of a product: tiles stay whole in memory, and are multiplied in blocks of registers."""

import kernels
import numpy as np
import pytest

from tilewave import *
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here
from tilewave.ir.types import DTYPES
from tilewave.lower.cpu.kernel import fits_registers

M, N, K1, K2 = sym.M, sym.N, sym.K1, sym.K2
BM, BN, BK = sym.BM, sym.BN, sym.BK
G = GLOBAL_ADDRESS_SPACE
HERE = [s.name for s in INSTRUCTION_SETS.values() if runs_here(s) and not s.matrix_unit]
TILES = [WorkgroupConstraint(M, BM, 0), WorkgroupConstraint(N, BN, 1), TilingConstraint(K2, BK)]


def chained(dtype, sums, v_dims):
    """Return a kernel for (q · kᵀ) · v, with a loop over the middle dim."""

    @wave(TILES)
    def chained(
        q: Memory[M, K1, G, dtype],
        k: Memory[K2, K1, G, dtype],
        v: Memory[(*v_dims, G, dtype)],
        c: Memory[M, N, G, sums],
    ):
        @iterate(K2, init_args=[Register[M, N, sums](0)])
        def total(acc):
            between = mma(read(q), read(k), Register[M, K2, sums](0))
            return mma(cast(between, dtype), read(v), acc)

        write(total, c)

    return chained


def small_numbers(rng, shape, dtype):
    """Return numbers so small that every product and sum of them is exact."""
    return rng.integers(-1, 2, shape).astype(dtype.numpy)


def check(dtype, sums, v_dims, shape, tile, **options):
    sizes = dict(zip((M, N, K1, K2), shape, strict=True))
    subs = {**sizes, **dict(zip((BM, BN, BK), tile, strict=True))}
    compiled = wave_compile(WaveCompileOptions(subs=subs, target="cpu", **options), chained(dtype, sums, v_dims))
    rng = np.random.default_rng(2)
    arrays = [small_numbers(rng, [sizes[d] for d in dims], dtype) for dims in ((M, K1), (K2, K1), v_dims)]
    found, want = (kernels.poisoned((sizes[M], sizes[N]), sums) for _ in range(2))
    compiled(*arrays, found)
    compiled.interpret(*arrays, want)
    np.testing.assert_array_equal(found, want)
    return compiled


SHAPES = [((64, 64, 16, 128), (64, 64, 64)), ((37, 33, 5, 70), (16, 24, 40)), ((7, 40, 3, 11), (48, 40, 24))]


@pytest.mark.share(8)
@pytest.mark.parametrize("shape, tile", SHAPES)
@pytest.mark.parametrize("v_dims", [(K2, N), (N, K2)])
@pytest.mark.parametrize("instruction_set", HERE)
def test_tiles_of_every_shape(instruction_set, v_dims, shape, tile):
    compiled = check(f32, f32, v_dims, shape, tile, instruction_set=instruction_set)
    assert not fits_registers(compiled.ir()) or shape != SHAPES[0][0]


@pytest.mark.share(6)
@pytest.mark.parametrize("name", ["f64", "f16", "bf16", "f8e4m3fn", "i8"])
@pytest.mark.parametrize("v_dims", [(K2, N), (N, K2)])
def test_every_dtype(name, v_dims):
    dtype = DTYPES[name]
    sums = dtype if name == "f64" else i32 if dtype.is_int else f32
    check(dtype, sums, v_dims, (48, 48, 8, 70), (48, 48, 32))
