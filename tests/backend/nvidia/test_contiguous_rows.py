"""Rows of dynamic length that begin anywhere: lanes load aligned blocks of them, and nothing else of memory."""

import random
from dataclasses import replace

import kernels
import numpy as np
import pytest
from host_lanes import host_text, rounds_addresses, run_on_host
from ptx_code import half_gemm, needs_ptxas

from tilewave import *
from tilewave.backend.nvidia.code import BY_LANES, Specialization
from tilewave.backend.nvidia.ptxas import assemble_ptx
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.kernels.products import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N
from tilewave.lang.constraints import SplitConstraint
from tilewave.runtime.arrays import view

BLOCK_BYTES = 16
COPY = """
kernel @copy {{workgroups = 1, level = lane, waves = [1, 1], lanes = 32}} (%a: memory<{{M}}x{{N}}x{dtype}, global>,
    %c: memory<8x{columns}x{dtype}, global>, %M: index, %N: index) {{
  %lane = lane() : index
  %eight = const() {{value = 8}} : index
  %width = const() {{value = {width}}} : index
  %row = floor_div(%lane, %eight) : index
  %chunk = mod(%lane, %eight) : index
  %column = mul(%chunk, %width) : index
  %x = load(%a, [%row, %column], []) {{steps = [[4, 0], [0, 1]], guard = [0, 1]}} : vector<2x{width}x{dtype}>
  store(%x, %c, [%row, %column], []) {{steps = [[4, 0], [0, 1]]}}
}}
"""
DTYPES = {"i8": np.int8, "f16": np.float16, "i32": np.int32}
POISON = 0x5A
"""The byte of all memory around the array."""


def copy_of(name):
    """A kernel that copies an array into the upper left of a tile, whose other elements are 0."""
    width = BLOCK_BYTES // DTYPES[name]().itemsize
    return verify(parse(COPY.format(dtype=name, width=width, columns=8 * width))), 8 * width


def placed(draw, dtype, rows, columns):
    """A random array whose rows begin anywhere, in poisoned memory."""
    size = np.dtype(dtype).itemsize
    pitch = columns + draw.randrange(2 * BLOCK_BYTES)
    memory = np.full((rows * pitch) * size + 8 * BLOCK_BYTES, POISON, np.uint8)
    begin = -memory.ctypes.data % BLOCK_BYTES + 2 * BLOCK_BYTES + size * draw.randrange(BLOCK_BYTES // size)
    a = np.ndarray((rows, columns), dtype, memory, begin, (pitch * size, size))
    a[...] = np.random.default_rng(draw.randrange(1 << 30)).integers(-100, 100, a.shape)
    return a


def blocks_of(a):
    """The aligned blocks that have a byte of the array."""
    first = a.ctypes.data + a.strides[0] * np.arange(a.shape[0])
    ends = first + a.shape[1] * a.itemsize - 1
    return {n for x, y in zip(first, ends, strict=True) for n in range(x // BLOCK_BYTES, y // BLOCK_BYTES + 1)}


@pytest.mark.parametrize("name", DTYPES)
def test_every_element_arrives_and_only_blocks_of_the_array_are_loaded(name):
    draw, (kernel, columns) = random.Random(45), copy_of(name)
    key = Specialization(BY_LANES, (("a", DTYPES[name]().itemsize), ("c", DTYPES[name]().itemsize)))
    for _ in range(60):
        a = placed(draw, DTYPES[name], draw.randrange(1, 11), draw.randrange(1, columns + columns // 4))
        c = np.full((8, columns), 77, a.dtype)
        loaded = run_on_host(kernel, [a, c], a.shape, key)
        want = np.zeros_like(c)
        want[: a.shape[0], : a.shape[1]] = a[:8, :columns]
        np.testing.assert_array_equal(c, want)
        assert not (loaded % BLOCK_BYTES).any() and {*(loaded // BLOCK_BYTES).tolist()} <= blocks_of(a)


def test_arrays_of_any_strides_are_loaded_by_elements():
    kernel, _ = copy_of("f16")
    assert not rounds_addresses(host_text(kernel, Specialization(BY_LANES, (("a", 0), ("c", 0)))))


def compiled(tile=(64, 32, 64), kernel=half_gemm):
    subs = kernels.sizes(1, 1, 1, **dict(zip(("block_m", "block_n", "block_k"), tile, strict=True)))
    subs = {name: value for name, value in subs.items() if name not in (kernels.M, kernels.N, kernels.K)}
    return wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), kernel())


@pytest.fixture(scope="module")
def gemm():
    return compiled()


@pytest.mark.parametrize("seed", range(4))
def test_products_of_ragged_sizes_are_right(gemm, seed):
    """Some are packed, and of some lanes load blocks."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    m, n, k = draw.choice((1, 3, 5, 63)), draw.randrange(1, 90), draw.randrange(1, 300)
    a, b = (numbers.integers(-4, 5, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    c = np.full((m, n), np.nan, np.float16)
    gemm.interpret(a, b, c, level="lane", order="random", seed=seed)
    np.testing.assert_array_equal(c, (a.astype(float) @ b.astype(float).T).astype(np.float16))


@pytest.mark.parametrize("shape", [(4, 97, 301), (9, 33, 130), (3, 131, 435)], ids=str)
def test_parts_of_ragged_sums_are_right(shape):
    """As in the configs of split-K among which calls choose."""
    kernel = product_kernel(ProductForm(f16, f16, (M, K), (N, K)))
    split = replace(kernel, constraints=(*kernel.constraints, SplitConstraint(K, 4)), kept={})
    subs = {BLOCK_M: 8, BLOCK_N: 64, BLOCK_K: 128}
    made, numbers = wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), split), np.random.default_rng(7)
    m, n, k = shape
    a, b = (numbers.integers(-3, 4, sides).astype(np.float16) for sides in ((m, k), (n, k)))
    c = np.full((m, n), np.nan, np.float16)
    assert made.build.program.plans.plan_for([view(x) for x in (a, b, c)]).key == ANYWHERE
    made.interpret(a, b, c, level="lane", order="random", seed=1)
    np.testing.assert_array_equal(c, (a.astype(float) @ b.astype(float).T).astype(np.float16))


ANYWHERE = Specialization(BY_LANES, (("a", 2), ("b", 2), ("c", 2)))


@needs_ptxas
@pytest.mark.share(2)
@pytest.mark.parametrize("tile", [(64, 32, 64), (16, 64, 128), (64, 128, 64), (128, 128, 64)], ids=str)
def test_lanes_load_blocks_in_loops_and_spill_nothing(tile):
    ptx = compiled(tile).build.program.code_for(ANYWHERE).ptx
    loads = [line for line in ptx.splitlines() if "ld.global" in line]
    assert loads and all(".v4" in line for line in loads)
    assert assemble_ptx(ptx, "sm_90a").spilled_bytes == 0
