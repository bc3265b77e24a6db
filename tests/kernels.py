"""Kernels that tests share, and what their results are held against."""

import numpy as np
import pytest

from tilewave import *
from tilewave.lang.kernel import WaveKernel
from tilewave.passes.memory.prepack_operands import PanelFormat

M, N, K, B = sym.M, sym.N, sym.K, sym.B
BLOCK_M, BLOCK_N, BLOCK_K, BLOCK_B = sym.BLOCK_M, sym.BLOCK_N, sym.BLOCK_K, sym.BLOCK_B
G = GLOBAL_ADDRESS_SPACE


FORMATS = {"f16": PanelFormat("f32", 1), "f32": PanelFormat("f32", 1), "i8": PanelFormat("i16", 2)}
"""How tests lay out panels."""


def tiling(*more):
    return [
        WorkgroupConstraint(M, BLOCK_M, 0),
        WorkgroupConstraint(N, BLOCK_N, 1),
        TilingConstraint(K, BLOCK_K),
        *more,
    ]


def sizes(m, n, k, block_m=64, block_n=64, block_k=32, **more):
    named = {sym.__getattr__(name): value for name, value in more.items()}
    return {M: m, N: n, K: k, BLOCK_M: block_m, BLOCK_N: block_n, BLOCK_K: block_k, **named}


def gemm(dtype=f16, acc=f32, a_dims=(M, K), b_dims=(N, K), epilogue=None, out=None, constraints=()):
    """A GEMM of any dtype and orientation; `epilogue` maps the accumulator to what is written."""

    @wave(tiling(*constraints))
    def gemm(a: Memory[(*a_dims, G, dtype)], b: Memory[(*b_dims, G, dtype)], c: Memory[M, N, G, out or acc]):
        zero = Register[M, N, acc](0)

        @iterate(K, init_args=[zero])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(epilogue(total) if epilogue else total, c)

    return gemm


def with_waves(kernel, waves):
    """Return the kernel with its tile divided among these waves."""
    tiles = [c for c in kernel.constraints if isinstance(c, WorkgroupConstraint)][:2]
    others = [c for c in kernel.constraints if not isinstance(c, WaveConstraint)]
    cut = [WaveConstraint(c.dim, c.tile // n) for c, n in zip(tiles, waves, strict=True)]
    return WaveKernel(kernel.function, (*others, *cut), kernel.loc)


TF32 = HardwareConstraint(mma_type=MMAType.F32_64xNx8_TF32)
"""Asks for products of f32 that ignore their operands' last bits."""

TARGET = "numpy"
"""What `compiled` compiles for; the fixture `target` changes it."""


def on(*targets):
    """Marks tests that run on each of these targets."""
    return [pytest.mark.usefixtures("target"), pytest.mark.parametrize("target", targets, indirect=True)]


def compiled(kernel, **options):
    return wave_compile(WaveCompileOptions(**{"target": TARGET, **options}), kernel)


def random_array(rng, shape, dtype):
    if dtype.is_int:
        return rng.integers(-127, 128, shape).astype(dtype.numpy)
    return rng.standard_normal(shape).astype(np.float32).astype(dtype.numpy)


def poisoned(shape, dtype):
    """Return an output that shows every unwritten element."""
    return np.full(shape, np.nan if dtype.is_float else 77, dtype.numpy)


def product(a, b):
    """a · bᵀ in float64, and the bound that any order of f32 sums keeps to."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return a @ np.swapaxes(b, -1, -2), np.abs(a) @ np.abs(np.swapaxes(b, -1, -2))


UNIT = float(np.finfo(np.float32).eps) / 2


def error_bound(magnitude, k, dtype, unit=UNIT):
    """gamma_k · |a|·|b| for sums in f32, plus half a unit in the last place for the rounding to a narrower output."""
    total = (k + 1) * unit / (1 - (k + 1) * unit) * magnitude
    if dtype.is_float and dtype.bits < 32:
        total = total + (magnitude + total) * float(2.0 ** -MANTISSA[dtype.name] / 2) + 2.0**-24
    return total


MANTISSA = {"f16": 10, "bf16": 7, "f8e4m3fn": 3, "f8e5m2": 2, "f8e4m3fnuz": 3, "f8e5m2fnuz": 2}


def check_product(c, a, b, dtype=f32):
    """Every element of c is a · bᵀ within the bound computed from K."""
    want, magnitude = product(a, b)
    if dtype.is_int:
        np.testing.assert_array_equal(c, want.astype(np.int64).astype(dtype.numpy))
        return
    found = np.asarray(c, np.float64)
    assert np.isfinite(found).all(), f"{(~np.isfinite(found)).sum()} elements were never written"
    excess = np.abs(found - want) - error_bound(magnitude, a.shape[-1], dtype)
    assert excess.max() <= 0, f"off by {np.abs(found - want).max()} at {np.unravel_index(excess.argmax(), c.shape)}"
