"""Whole kernels as machine code of gfx942 and gfx950: emulated in two orders of waves, no finding, against float64."""

from pathlib import Path

import numpy as np
import pytest
from kernels import (
    BLOCK_B,
    BLOCK_K,
    BLOCK_M,
    BLOCK_N,
    B,
    G,
    K,
    M,
    N,
    check_product,
    gemm,
    poisoned,
    random_array,
    sizes,
    with_waves,
)
from machine_code import MachineCode, check_gemm, lanes_of

from tilewave import *
from tilewave.emulator.assembly import read_assembly
from tilewave.ir.ops import Matrix
from tilewave.ir.rewrite import walk

DTYPES = [
    ("gfx942", bf16, f32),
    ("gfx950", bf16, f32),
    ("gfx942", f8e4m3fnuz, f32),
    ("gfx950", f8e5m2, f32),
    ("gfx942", i8, i32),
    ("gfx950", i8, i32),
    ("gfx942", f32, f32),
]


@pytest.mark.share(4)
@pytest.mark.parametrize(("chip", "dtype", "acc"), DTYPES, ids=str)
def test_gemm_of_every_dtype(chip, dtype, acc):
    kernel = with_waves(gemm(dtype, acc), (2, 2))
    subs = sizes(70, 90, 130, block_k=64)
    check_gemm(lanes_of(kernel, subs, chip, SchedulingType.PREFETCH), (70, 90, 130), chip, dtype, acc)


@pytest.mark.parametrize("turned", [(True, False), (False, True), (True, True)], ids=str)
def test_operands_of_any_orientation(turned):
    dims = (K, M) if turned[0] else (M, K), (K, N) if turned[1] else (N, K)
    kernel = with_waves(gemm(a_dims=dims[0], b_dims=dims[1]), (2, 2))
    check_gemm(lanes_of(kernel, sizes(70, 90, 50), "gfx942"), (70, 90, 50), "gfx942", turned=turned)


@pytest.mark.parametrize("num_stages", [2, 3])
def test_several_buffers(num_stages):
    kernel = with_waves(gemm(), (2, 2))
    lanes = lanes_of(kernel, sizes(64, 64, 170), "gfx950", SchedulingType.PREFETCH, num_stages=num_stages)
    check_gemm(lanes, (64, 64, 170), "gfx950")


def test_an_epilogue_with_a_bias_and_a_narrow_output():
    @wave(
        [
            WorkgroupConstraint(M, BLOCK_M, 0),
            WorkgroupConstraint(N, BLOCK_N, 1),
            TilingConstraint(K, BLOCK_K),
            WaveConstraint(M, BLOCK_M // 2),
            WaveConstraint(N, BLOCK_N // 2),
        ]
    )
    def biased(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], bias: Memory[N, G, f32], c: Memory[M, N, G, f16]):
        @iterate(K, init_args=[Register[M, N, f32](0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(cast(maximum(total + read(bias), 0.0), f16), c)

    m, n, k = 100, 70, 40
    rng = np.random.default_rng(2)
    a, b, bias = random_array(rng, (m, k), f16), random_array(rng, (n, k), f16), random_array(rng, (n,), f32)
    c = poisoned((m, n), f16)
    MachineCode(lanes_of(biased, sizes(m, n, k), "gfx942")).run(a, b, bias, c)
    exact = np.maximum(a.astype(np.float64) @ b.astype(np.float64).T + bias, 0)
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T + np.abs(bias)
    assert np.all(np.abs(c - exact) <= (k + 2) * 2.0**-24 * magnitude + 2.0**-11 * exact + 2.0**-25)


def test_a_kernel_without_products():
    @wave([WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1)])
    def scale(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a) * 2.0 + 1.0, c)

    subs = {M: 37, N: 53, BLOCK_M: 10, BLOCK_N: 24}
    a = np.random.default_rng(0).standard_normal((37, 53)).astype(np.float32)
    c = poisoned(a.shape, f32)
    MachineCode(lanes_of(scale, subs, "gfx942")).run(a, c)
    np.testing.assert_allclose(c, a * 2 + 1, rtol=2.0**-23)


def test_batches():
    @wave(
        [
            WorkgroupConstraint(M, BLOCK_M, 0),
            WorkgroupConstraint(N, BLOCK_N, 1),
            WorkgroupConstraint(B, BLOCK_B, 2),
            TilingConstraint(K, BLOCK_K),
            WaveConstraint(M, BLOCK_M // 2),
        ]
    )
    def batched(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[B, M, N, G, f32]):
        @iterate(K, init_args=[Register[B, M, N, f32](0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total, c)

    rng = np.random.default_rng(4)
    a, b = random_array(rng, (3, 40, 50), f16), random_array(rng, (3, 33, 50), f16)
    c = poisoned((3, 40, 33), f32)
    subs = sizes(40, 33, 50, 32, 32, 32) | {B: 3, BLOCK_B: 1}
    MachineCode(lanes_of(batched, subs, "gfx942")).run(a, b, c)
    check_product(c, a, b)


def test_instructions_carry_the_authors_line():
    lanes = lanes_of(with_waves(gemm(), (2, 2)), sizes(64, 64, 64), "gfx942")
    product = next(op for op in walk(lanes.body) if isinstance(op, Matrix))
    instructions = read_assembly(MachineCode(lanes).asm).instructions
    products = [i.loc for i in instructions if i.mnemonic.startswith("v_mfma")]
    assert products and {loc.line for loc in products} == {product.loc.line}
    assert {Path(loc.file).name for loc in products} == {"kernels.py"}
