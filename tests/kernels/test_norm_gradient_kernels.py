"""Gradients of norms and of their weights in one pass over blocks of rows: on every target, against float64."""

import numpy as np
import pytest
from row_kernels import close

from tilewave import *
from tilewave.backend.nvidia.ptxas import assemble_ptx, ptxas
from tilewave.ir.types import F32
from tilewave.kernels.column_sums import SUMMED_BLOCKS, block_sums_kernel, column_sums_kernel
from tilewave.kernels.norm_gradients import RowBlocks, layer_norm_gradients_kernel, rms_norm_gradients_kernel

B, M, N = sym.B, sym.M, sym.N
EPS, BLOCKS = 1e-5, 3
WAYS = ["numpy", "lanes of gfx942", "lanes of sm_90a", "gfx942", "cpu"]
SPILLED_BYTES = 64
"""A few addresses may be spilled, but none of the 24 elements of a lane."""
ROUNDINGS = 60
"""Roundings of two sums, of divisors and of the operations after them, in units of f32."""


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(kernel, way, sizes, *arrays):
    compiled = kernel.compile(target=way.removeprefix("lanes of "), subs=sizes)
    if way == "numpy":
        compiled.interpret(*arrays)
    elif way.startswith("lanes"):
        compiled.interpret(*arrays, level="lane", order="random", seed=1)
    elif way == "cpu":
        compiled(*arrays)
    else:
        compiled.emulate(*arrays)


def near(found, want, what):
    close(found, want, ROUNDINGS * 2.0**-24 * np.abs(want).max(), what)


def numbers_of_rows(x, centred):
    """Return the mean and the scale of each row in float64, or the scale alone."""
    mean = x.mean(1, dtype=np.float64)
    far = x - mean[:, None] if centred else x.astype(np.float64)
    scale = 1 / np.sqrt((far * far).mean(1) + EPS)
    return (mean, scale) if centred else (scale,)


def wanted(x, grad, weight, centred):
    *mean, scale = (a[:, None] for a in numbers_of_rows(x, centred))
    x, grad, weight = (a.astype(np.float64) for a in (x, grad, weight))
    far = x - mean[0] if centred else x
    weighted, norm = grad * weight, far * scale
    of_x = weighted - norm * (weighted * norm).mean(1, keepdims=True)
    return (of_x - weighted.mean(1, keepdims=True) if centred else of_x) * scale, grad * norm, grad


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("together, rows", [(1, 7), (4, 23), (4, 5)])
@pytest.mark.parametrize("centred", [False, True], ids=["rms", "layer"])
def test_rows_and_blocks_of_them(way, together, rows, centred):
    """Also of a last block with fewer rows, of one with none, and of rows past the end of the matrix."""
    columns = 37
    x, grad, weight = numbers(rows, columns), numbers(rows, columns, seed=1), numbers(columns, seed=2)
    of_x = np.full_like(x, np.nan)
    partial = [np.full((BLOCKS, columns), np.nan, np.float32) for _ in range(1 + centred)]
    kernel = (layer_norm_gradients_kernel if centred else rms_norm_gradients_kernel)(together, *[f32] * (6 + centred))
    kept = [a.astype(np.float32) for a in numbers_of_rows(x, centred)]
    run(kernel, way, {M: rows, N: columns, B: BLOCKS}, x, grad, weight, *kept, of_x, *partial)
    want, *terms = wanted(x, grad, weight, centred)
    near(of_x, want, "x")
    a_block = -(-rows // (BLOCKS * together)) * together
    for found, term in zip(partial, terms, strict=False):
        sums = [term[i * a_block : (i + 1) * a_block].sum(0) for i in range(BLOCKS)]
        near(found, np.array(sums), "sums of blocks")


@pytest.mark.parametrize("way", WAYS)
def test_sums_of_columns_over_blocks_of_rows(way):
    x, found = numbers(37, 20), np.full((BLOCKS, 20), np.nan, np.float32)
    run(column_sums_kernel(f32, f32), way, {M: 37, N: 20, B: BLOCKS}, x, found)
    near(found, np.array([x[i * 16 : (i + 1) * 16].astype(np.float64).sum(0) for i in range(BLOCKS)]), "sums")


@pytest.mark.parametrize("way", WAYS)
def test_sums_over_blocks(way):
    partial = [numbers(300, 20, seed=seed) for seed in range(2)]
    found = [np.full(20, np.nan, np.float32) for _ in partial]
    run(block_sums_kernel(SUMMED_BLOCKS, f32, f32, f32), way, {N: 20, B: 300}, *partial, *found)
    for total, terms in zip(found, partial, strict=True):
        near(total, terms.astype(np.float64).sum(0), "sums")


def test_blocks_fill_the_chip_once_and_depend_on_sizes_alone():
    assert RowBlocks.of("sm_90a", 16384, 4096, F32) == RowBlocks(1, 2 * 132)
    assert RowBlocks.of("sm_90a", 65536, 257, F32) == RowBlocks(4, 6 * 132)
    assert RowBlocks.of("sm_90a", 3, 4096, F32) == RowBlocks(1, 3)
    assert RowBlocks.of("sm_90a", 0, 16, F32) == RowBlocks(4, 1)
    assert RowBlocks.of("sm_90a", 4096, 8193, F32) is None
    assert RowBlocks.of("cpu", 4096, 64, F32) == RowBlocks(4, 4)


@pytest.mark.skipif(not ptxas(), reason="this machine has no ptxas, NVIDIA's assembler")
@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
def test_a_hopper_kernel_keeps_its_rows_and_sums_in_registers(dtype):
    compiled = rms_norm_gradients_kernel(1, *[dtype] * 3, f32, dtype, f32).compile(target="sm_90a", subs={N: 4096})
    assert assemble_ptx(compiled.asm, "sm_90a").spilled_bytes <= SPILLED_BYTES
